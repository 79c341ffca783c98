"""Input and surroundings that are odd rather than broken: each a value that once ended in a traceback or a bad file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.builders import checkpoint, write
from tests.run import config, convert, inspect, refused, run

ROOT = Path(__file__).resolve().parents[1]


def shell(line: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """A shell line in which ``$EC`` is the command, as a user's terminal runs it."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "runtime")])
    return subprocess.run(["bash", "-c", line], cwd=cwd, capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": path, "EC": f"{sys.executable} -m eagle_convert", **env})


@pytest.fixture
def e1(fixtures_dir):
    return fixtures_dir / "plant" / "e1"


@pytest.mark.parametrize("dtype", [np.int8, np.bool_, np.int64])
def test_weights_that_are_no_floats(tmp_path, dtype):
    """Integers under a weight's name are packed or quantised values: no loader computes with them."""
    settings, tensors = checkpoint("e1")
    source = write(tmp_path / "in", settings, tensors | {"fc.weight": tensors["fc.weight"].astype(dtype)})
    assert "fc.weight" in refused(source, tmp_path / "out")["where"]
    inspect(source, code=3).finding("EC105")


@pytest.mark.parametrize("name", ["a\x1b[31mred", "two\nlines", "nul\0"])
def test_a_tensor_name_with_control_characters(tmp_path, name):
    """It would reach the terminal through every message about it."""
    settings, tensors = checkpoint("e1")
    for file in ("model.safetensors", "pytorch_model.bin"):
        source = write(tmp_path / file, settings, tensors | {name: np.zeros(2, np.float16)}, file)
        assert name not in str(refused(source, tmp_path / "out"))


def test_half_a_surrogate_pair_is_no_text(tmp_path):
    settings, tensors = checkpoint("e1")
    source = write(tmp_path / "in", settings, tensors)
    (source / "config.json").write_text(json.dumps(settings | {"hidden_act": "\ud800"}))
    assert "surrogate" in refused(source, tmp_path / "out")["where"]


def test_a_file_name_that_is_no_unicode(tmp_path, e1):
    """The operating system takes any bytes; the JSON document escapes what UTF-8 cannot hold."""
    odd = os.fsdecode(b"caf\xe9")
    ran = run("convert", e1, tmp_path / odd, "--json")
    assert ran.code == 0
    assert ran.document["destination"] == str(tmp_path / odd)
    assert run("inspect", tmp_path / (odd + "x"), "--json").error["how"]
    assert run("inspect", tmp_path / (odd + "x")).stderr.startswith("error:")


def test_a_home_folder_of_nobody(tmp_path):
    assert "nosuchuser" in refused("~nosuchuser/head", tmp_path / "out")["where"]


@pytest.mark.parametrize("stated", ["nan", "inf", "1e400"])
def test_a_rotary_base_that_is_no_number(tmp_path, e1, stated):
    ran = run("convert", e1, tmp_path / "out", "--rope-theta", stated, "--json")
    assert ran.code == 2
    assert all(ran.error.values())
    assert not (tmp_path / "out").exists()


def test_layer_types_copied_from_the_target_are_cut(tmp_path):
    """transformers 5 refuses a config whose layer_types has another length than num_hidden_layers."""
    settings, tensors = checkpoint("e3")
    copied = {"num_hidden_layers": 40, "layer_types": ["full_attention"] * 40}
    source = write(tmp_path / "in", settings | copied, tensors)
    ran = convert(source, tmp_path / "out")
    assert (config(tmp_path / "out")["num_hidden_layers"], config(tmp_path / "out")["layer_types"]) == (
        1, ["full_attention"])
    assert any("layer_types" in f["where"] for f in ran.findings("EC201"))


@pytest.mark.parametrize("stated", [["full_attention", "sliding_attention"] * 4, ["linear_attention"], []])
def test_layer_types_that_do_not_say_which(tmp_path, stated):
    settings, tensors = checkpoint("e3")
    source = write(tmp_path / "in", settings | {"layer_types": stated}, tensors)
    assert "layer_types" in refused(source, tmp_path / "out")["where"]


@pytest.mark.parametrize("line", ["$EC convert {e1} out >&-", "$EC convert {e1} out >&- 2>&-",
                                  "$EC convert {e1} out 2>&-", "$EC convert {e1} out --json 2>&-"])
def test_closed_streams(tmp_path, e1, line):
    ran = shell(line.format(e1=e1), tmp_path)
    assert ran.returncode == 0
    assert "rror" not in ran.stderr
    assert (tmp_path / "out" / "config.json").exists()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
@pytest.mark.parametrize("command", ["inspect {e1} --json", "inspect nothing --json"])
def test_a_full_disk_under_stdout(tmp_path, e1, command):
    ran = shell(f"$EC {command.format(e1=e1)} > /dev/full", tmp_path)
    assert ran.returncode == 1
    assert "Traceback" not in ran.stderr
    assert "where: standard output" in ran.stderr


def test_a_terminal_that_is_no_utf8(tmp_path, e1):
    """Result and document in ASCII: escaped, still one JSON document."""
    odd = tmp_path / "ключ"
    assert shell(f"$EC convert {e1} {odd}", tmp_path, PYTHONIOENCODING="ascii").returncode == 0
    ran = shell(f"$EC inspect {odd} --json", tmp_path, PYTHONIOENCODING="ascii")
    assert json.loads(ran.stdout)["source"] == str(odd)


def test_ctrl_c_while_writing(tmp_path, e1, monkeypatch):
    def interrupted(descriptor: int, data: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "write", interrupted)
    ran = run("convert", e1, tmp_path / "out", "--json")
    monkeypatch.undo()
    assert ran.code == 130
    assert ran.document["error"]["type"] == "Interrupted"
    assert list(tmp_path.iterdir()) == []


def test_no_command(tmp_path):
    ran = run()
    assert (ran.code, ran.stderr.splitlines()[0]) == (2, "error: Missing command.")


@pytest.mark.parametrize("stated", [5000, -1, [1, 5000]])
def test_a_padding_id_beyond_the_vocabulary_is_left_out(tmp_path, stated):
    """The official loader's embedding refuses it; without it the folder loads."""
    settings, tensors = checkpoint("e1")
    source = write(tmp_path / "in", settings | {"pad_token_id": stated}, tensors)
    assert convert(source, tmp_path / "out").document["engines"]["official"]["loads"]
    assert "pad_token_id" not in config(tmp_path / "out")
    assert inspect(source).document["engines"]["official"]["loads"] == (stated != 5000)


@pytest.mark.parametrize("stated", [{"rope_type": "linear", "factor": 2}, {"type": "linear", "factor": 2.0},
                                    {"rope_type": "linear", "type": "linear", "factor": 2.0}])
def test_linear_scaling_is_written_as_the_official_loader_parses_it(tmp_path, stated):
    settings, tensors = checkpoint("e1")
    source = write(tmp_path / "in", settings | {"rope_scaling": stated}, tensors)
    official = convert(source, tmp_path / "out").document["engines"]["official"]
    assert (official["loads"], official["faithful"]) == (True, True)
    assert config(tmp_path / "out")["rope_scaling"] == {"type": "linear", "factor": 2.0}
    assert isinstance(config(tmp_path / "out")["rope_scaling"]["factor"], float)


def test_an_output_bias_alone_claims_no_query_biases(tmp_path):
    """qkv_bias true would make engines build q/k/v biases that the file does not have."""
    settings, tensors = checkpoint("e1")
    source = write(tmp_path / "in", settings, tensors | {"layers.0.self_attn.o_proj.bias": np.ones(64, np.float16)})
    engines = convert(source, tmp_path / "out").document["engines"]
    assert "qkv_bias" not in config(tmp_path / "out")
    assert not engines["official"]["faithful"]
    assert not engines["vllm"]["faithful"]


@pytest.fixture
def compact(tmp_path, e1, fixtures_dir):
    convert(e1, tmp_path / "compact", "--target", fixtures_dir / "plant" / "tgt")
    return tmp_path / "compact"


def test_a_compact_folder_beside_another_target(tmp_path, compact):
    """The manifest records whose tables are borrowed; a second conversion must not put another target there."""
    settings, tensors = checkpoint("tgt")
    rolled = tensors | {"model.embed_tokens.weight": np.roll(tensors["model.embed_tokens.weight"], 1, 0)}
    error = refused(compact, tmp_path / "out", "--target", write(tmp_path / "other", settings, rolled))
    assert "embed_tokens.weight" in error["where"]
    assert "tgt" in error["how"]


def test_a_compact_folder_that_was_changed(tmp_path, compact):
    data = bytearray((compact / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (compact / "model.safetensors").write_bytes(data)
    assert "manifest" in refused(compact, tmp_path / "out")["what"]


@pytest.mark.parametrize("change", [{"target": []}, {"target": {}}, {"trained_window": "64"}, {"trained_window": -1},
                                    {"trained_window": True}, {"tool_version": "\ud800"}], ids=repr)
def test_a_manifest_with_values_of_another_type(tmp_path, compact, change):
    manifest = json.loads((compact / "eagle_convert.json").read_text()) | change
    (compact / "eagle_convert.json").write_text(json.dumps(manifest))
    assert "eagle_convert.json" in refused(compact, tmp_path / "out")["where"]
    assert run("inspect", compact, "--json").error["how"]


def test_a_licence_that_is_a_link_out_of_the_folder(tmp_path, e1):
    """It would be copied, and published with the head: a cloned repository could name any file of its user's."""
    shutil.copytree(e1, tmp_path / "in")
    (tmp_path / "secret").write_text("mine")
    (tmp_path / "in" / "LICENSE").symlink_to(tmp_path / "secret")
    assert "LICENSE" in refused(tmp_path / "in", tmp_path / "out")["where"]


def test_a_licence_that_is_a_link_to_nothing(tmp_path, e1):
    shutil.copytree(e1, tmp_path / "in")
    (tmp_path / "in" / "NOTICE").symlink_to("nowhere")
    ran = shell(f"$EC convert {tmp_path / 'in'} out", tmp_path)
    assert ran.returncode == 1
    assert "Traceback" not in ran.stderr
    assert not (tmp_path / "out").exists()


def test_shards_are_not_for_the_official_loader(tmp_path, e1):
    for size, loads in (("20KB", False), ("1GB", True)):
        engines = convert(e1, tmp_path / size, "--max-shard-size", size).document["engines"]
        assert (engines["official"]["loads"], engines["vllm"]["loads"]) == (loads, True)
