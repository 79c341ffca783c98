"""The main group: exit codes, error documents, lazy commands. A probe command stands in for the real ones."""

import errno
import json
import logging
import os
import subprocess
import sys
import types
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from eagle_convert import cli
from eagle_convert.cli import _options, _output
from eagle_convert.errors import PairingError, UsageError
from eagle_runtime.config import EagleRuntimeError

ROOT = Path(__file__).parents[2]


def run(*args, env=None):
    result = CliRunner().invoke(cli.main, list(args), env=env)
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def probe(monkeypatch):
    """A command ``probe`` whose body the test sets: ``probe.body = function(out) -> exit code``."""
    module = types.ModuleType("eagle_convert.cli.probe")

    @_options.command("probe", examples=("eagle-convert probe --size 3",))
    @click.argument("word", default="")
    @_options.option("--size", type=int, help="A number.")
    @_options.common_options
    def command(out, word, size):
        """Probe the main group."""
        return module.body(out)

    module.command, module.body = command, lambda out: None
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(cli, "COMMANDS", (*cli.COMMANDS, cli.Entry("probe", "probe", "Probe the main group.")))
    return module


def raising(error):
    def body(out):
        raise error
    return body


def test_the_return_value_is_the_exit_code(probe):
    probe.body = lambda out: 3
    assert run("probe") == (3, "", "")
    probe.body = lambda out: None
    assert run("probe")[0] == 0


@pytest.mark.parametrize(("error", "code", "kind"), [
    (PairingError("widths differ", where="fc.weight: 64, expected 96", how="--target"), 1, "PairingError"),
    (UsageError("K < 1", how="--draft-tokens 4"), 2, "UsageError"),
    (EagleRuntimeError("no CUDA", where="runner graph", how="--runner eager"), 1, "EagleRuntimeError"),
    (OSError(errno.ENOSPC, "No space left on device", "DEST"), 1, "OSError"),
    (MemoryError(), 1, "MemoryError"),
    (KeyboardInterrupt(), 130, "Interrupted"),
    (ZeroDivisionError("bug"), 1, "InternalError"),
])
def test_every_error_has_a_message_a_document_and_a_code(probe, error, code, kind):
    probe.body = raising(error)
    got, stdout, stderr = run("probe")
    assert (got, stdout) == (code, "")
    assert stderr.lstrip().startswith("error: ")
    assert "Traceback" not in stderr
    got, stdout, _ = run("probe", "--json")
    document = json.loads(stdout)
    assert got == code == document["exit_code"]
    assert document["schema"] == "eagle-convert/error/1"
    assert document["error"]["type"] == kind
    assert document["error"]["what"]
    assert set(document["error"]) == {"type", "what", "where", "how"}


def test_what_where_how_are_all_printed(probe):
    probe.body = raising(PairingError("widths differ", where="fc.weight: 64, expected 96", how="give --target"))
    assert run("probe")[2] == ("error: widths differ\n  where: fc.weight: 64, expected 96\n  how: give --target\n")


@pytest.mark.parametrize("args", [("probe", "--sise", "3"), ("probe", "--size", "three"), ("probe", "a", "b"),
                                  ("prob",), ()])
def test_usage_errors_are_exit_2_and_documents_once_json_was_read(probe, args):
    code, stdout, stderr = run(*args)
    assert (code, stdout) == (2, "")
    assert stderr.startswith("error: ")
    assert "--help'" in stderr
    code, stdout, _ = run(*args[:1], "--json", *args[1:])
    assert code == 2
    assert json.loads(stdout)["error"]["type"] == "UsageError"


def test_a_word_after_two_dashes_is_no_option(probe):
    assert run("probe", "--size", "x", "--", "--json")[1] == ""


def test_json_and_quiet_exclude_each_other(probe):
    code, stdout, _ = run("probe", "--json", "--quiet")
    assert code == 2
    assert json.loads(stdout)["error"]["what"] == "--json and --quiet exclude each other"


def test_a_traceback_is_shown_only_with_vv(probe):
    probe.body = raising(ZeroDivisionError("bug"))
    assert "Traceback" in run("probe", "-vv")[2]
    assert "Traceback" not in run("probe", "-v")[2]


def test_the_three_forms_of_a_result(probe):
    probe.body = lambda out: out.result({"schema": "x", "n": 1}, lambda: "a table", "one line")
    assert run("probe")[1] == "a table\n"
    assert run("probe", "--quiet")[1] == "one line\n"
    assert json.loads(run("probe", "--json")[1]) == {"schema": "x", "n": 1}


def test_warnings_go_to_stderr_and_stay_out_of_quiet_runs(probe):
    def body(out):
        out.warn("mind the gap")
        out.hint("try --deep")
        out.notice("detail")
    probe.body = body
    assert run("probe") == (0, "", "warning: mind the gap\nhint: try --deep\n")
    assert run("probe", "-v")[2].endswith("detail\n")
    assert run("probe", "--quiet")[2] == ""
    assert run("probe", "--json") == (0, "", "warning: mind the gap\n")


def test_colour_is_off_by_flag_and_by_environment(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in _output.Output().style("x", "error")
    assert _output.Output(no_color=True).style("x", "error") == "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert _output.Output().style("x", "error") == "x"


def test_json_never_holds_a_nan():
    with pytest.raises(ValueError):
        _output.dump({"x": float("nan")})


def test_a_table_is_aligned_and_never_cut():
    text = _output.table(("name", "bytes"), [("fc.weight", "16,384"), ("d2t", "1")], right=(1,))
    assert text == "name        bytes\n---------  ------\nfc.weight  16,384\nd2t             1"


@pytest.mark.parametrize(("n", "text"), [(0, "0 B"), (999, "999 B"), (40960, "41.0 kB"), (503_324_672, "503.3 MB"),
                                         (1_554_000_000, "1.6 GB"), (2 * 10**12, "2.0 TB")])
def test_sizes_are_decimal(n, text):
    assert _output.human_bytes(n) == text


def test_help_groups_options_and_shows_the_example(probe):
    code, stdout, _ = run("probe", "--help")
    assert code == 0
    assert stdout.index("Options:") < stdout.index("Common options:") < stdout.index("Examples:")
    assert "eagle-convert probe --size 3" in stdout


def test_version_and_help():
    assert run("--version")[0] == 0
    code, stdout, _ = run("--help")
    assert code == 0
    assert all(entry.name in stdout for entry in cli.COMMANDS)


def python(code, **env):
    path = os.pathsep.join([str(ROOT), str(ROOT / "runtime")])
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": path, **env})


def test_help_imports_neither_numpy_nor_torch():
    """A subprocess, because this one has long imported both."""
    code = ("import sys\nfrom eagle_convert.cli import main\n"
            "try: main(['--help'])\nexcept SystemExit as e: assert e.code == 0\n"
            "print(sorted({'torch', 'numpy', 'safetensors', 'huggingface_hub'} & set(sys.modules)))")
    result = python(code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("[]\n")


def test_a_reader_that_leaves_is_no_traceback():
    code = "from eagle_convert.cli import main; main(['--help'])"
    path = os.pathsep.join([str(ROOT), str(ROOT / "runtime")])
    read, write = os.pipe()
    os.close(read)
    result = subprocess.run([sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, text=True, check=False,
                            env={**os.environ, "PYTHONPATH": path})
    os.close(write)
    assert (result.returncode, result.stderr) == (1, "")


def test_what_the_package_logs_is_a_warning_or_a_notice(probe):
    def body(out):
        log = logging.getLogger("eagle_convert.hub.source")
        log.warning("this downloads %d GB", 14)
        log.info("found in the cache")
    probe.body = body
    assert run("probe")[2] == "warning: this downloads 14 GB\n"
    assert run("probe", "-v")[2] == "warning: this downloads 14 GB\nfound in the cache\n"
    assert run("probe", "--quiet")[2] == ""
    assert logging.getLogger("eagle_convert").handlers == []
