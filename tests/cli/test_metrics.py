"""``eagle-convert metrics`` and ``env``: the outputs of every mode."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from eagle_convert import cli

C102 = {"k": 7, "steps": 4816, "drafted": 33712, "accepted": 12208}


def run(*args):
    result = CliRunner().invoke(cli.main, [str(a) for a in args])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def counters(tmp_path):
    def write(value):
        path = tmp_path / "counters.json"
        path.write_text(json.dumps(value))
        return path
    return write


def test_c102_for_people(counters):
    code, out, err = run("metrics", counters(C102), "--no-color")
    assert (code, err) == (0, "")
    assert out == """\
counters.json: counters; 'accepted' counts the accepted prefix
k 7, steps 4816, drafted 33712, accepted 12208, emitted 17024

metric                   value  definition
-----------------------  -----  --------------------------------------------------------------------
acceptance length        3.535  tokens a step: 1 + accepted / steps, the bonus counted once
accepted drafts a step   2.535  accepted / steps, without the bonus
acceptance rate          0.362  accepted / drafted
per position             -      steps that accepted position i / steps (unconditional)
conditional              -      accepted at i / accepted at i - 1
match rate               -      matches at any position / drafted (vLLM 0.6's draft acceptance rate)
system efficiency        0.442  emitted / (steps x (k + 1))
macro acceptance length  -      mean of the prompts' own
"""


def test_c102_as_json_and_in_one_line(counters):
    path = counters(C102)
    document = json.loads(run("metrics", path, "--json")[1])
    assert document["schema"] == "eagle-convert/metrics/1"
    assert document["acceptance_length"] == 1 + 12208 / 4816
    assert document["counts"] == {**C102, "emitted": 17024}
    assert run("metrics", path, "--quiet") == (0, "3.535\n", "")


def test_counters_of_vllm_06_read_as_v1_are_warned_about(counters):
    path = counters({"k": 4, "steps": 1, "drafted": 4, "accepted": 2, "emitted": 2})
    code, _, err = run("metrics", path)
    assert code == 0
    assert "--counts-kind v0" in err
    assert json.loads(run("metrics", path, "--counts-kind", "v0", "--json")[1])["acceptance_length"] == 2.0


@pytest.mark.parametrize(("value", "says"), [
    ({"k": 4, "acepted": 3}, "'acepted' is no counter"),
    ({"k": 4, "steps": 1.5}, "steps is 1.5"),
    ([1, 2], "a JSON list"),
    ({"schema": "eagle-convert/parity/1"}, "eagle-convert/parity/1"),
    ({"k": 4, "steps": 9, "accepted": 40}, "accepted 40 of 36 drafted"),
])
def test_bad_counters_are_exit_1_and_one_document(counters, value, says):
    code, out, _ = run("metrics", counters(value), "--json")
    document = json.loads(out)
    assert (code, document["schema"], document["exit_code"]) == (1, "eagle-convert/error/1", 1)
    assert says in document["error"]["where"]


def test_no_such_file_is_exit_1(tmp_path):
    assert run("metrics", tmp_path / "absent")[0] == 1


def test_env_names_every_engine_and_no_host():
    document = json.loads(run("env", "--json")[1])
    assert document["schema"] == "eagle-convert/env/1"
    assert set(document["engines"]) == {"bundled", "reference", "replay", "official", "vllm", "server"}
    assert document["packages"]["torch"] == document["torch"]["version"]
    assert document["devices"][0]["name"] == "cpu"
    assert run("env")[1].startswith("eagle-convert: ")
