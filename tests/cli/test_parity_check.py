"""``eagle-convert parity-check``: every output mode and exit code, on replayed traces (no weights, no torch)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from eagle_convert import cli

ROOT = Path(__file__).parents[2]
HEAD = {"schema": "eagle-convert/trace/1", "engine": "official", "version": "1", "method": "eagle", "draft_tokens": 2,
        "tree": None, "temperature": 0, "seed": 0, "dtype": "float32", "max_new_tokens": 12, "eos_token_ids": [2]}


def run(*args):
    result = CliRunner().invoke(cli.main, [str(a) for a in args])
    return result.exit_code, result.stdout, result.stderr


def trace(path, *accepted_a_prompt, **head):
    """A trace of one row for each list of accepted counts; its text counts up from 10. Roots up to 8 count."""
    rows = [{**HEAD, **head}]
    for accepted in accepted_a_prompt:
        root, steps = 0, []
        for a in accepted:
            steps.append({"proposed": 2, "accepted": a, "emitted": a + 1, "matches": None,
                          "truncated": root + 3 >= 12})
            root += a + 1
        rows.append({"prompt_ids": [1, 5], "output_ids": list(range(10, 10 + root)), "steps": steps})
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def check(reference, candidate, *args):
    return run("parity-check", "head", "--engine", f"replay:{candidate}", "--reference-engine", f"replay:{reference}",
               *args)


@pytest.fixture
def good(tmp_path):
    return trace(tmp_path / "good.jsonl", *[[2, 1, 2, 2, 1, 0]] * 2)


def test_for_people(good):
    code, out, err = check(good, good, "--no-color")
    assert (code, err) == (0, "")
    assert out == """\
eagle, chain of 2; 2 prompts (good.jsonl), 12 new tokens, temperature 0, float32
first prompt token ids 1 5

                         reference (official)  candidate (official)
-----------------------  --------------------  --------------------
acceptance length        2.750                 2.750
accepted drafts a step   1.750                 1.750
acceptance rate          0.875                 0.875
per position             1.000 0.750           1.000 0.750
conditional              1.000 0.750           1.000 0.750
match rate               -                     -
system efficiency        0.917                 0.917
macro acceptance length  2.750                 2.750
steps                    8                     8
drafted                  16                    16
accepted                 14                    14
emitted                  22                    22

lossless: not checked (no target's weights are given (--target))
PASS: identical accepted counts at each of 8 steps of 2 prompts
"""


def test_as_json_with_the_contracts_keys(good):
    document = json.loads(check(good, good, "--json")[1])
    assert set(document) >= {"schema", "verdict", "reason", "settings", "settings_digest", "reference", "candidate",
                             "baseline", "speedup", "difference", "lossless", "first_divergence", "faults"}
    column = {"engine", "version", "trajectory", "acceptance_length", "acceptance_rate", "per_position", "conditional",
              "match_rate", "system_efficiency", "macro_acceptance_length", "steps", "proposed", "accepted", "emitted",
              "tokens_per_second", "draft_ms_per_token", "verify_ms_per_step", "native"}
    assert set(document["reference"]) >= column
    assert set(document["candidate"]) >= column
    assert document["difference"] == {"acceptance_length": 0.0, "relative": 0.0, "ci95": [0.0, 0.0]}
    assert set(document["lossless"]) == {"checked", "reason", "prompts", "tokens", "mismatches", "ties"}


def test_a_weak_head_passes_with_a_warning(tmp_path):
    weak = trace(tmp_path / "weak.jsonl", [0, 1, 0, 0, 0, 1, 0, 0, 0, 0])
    code, out, err = check(weak, weak, "--quiet")
    assert (code, out, err) == (0, "pass\n", "")
    assert "the head itself is weak" in check(weak, weak)[2]


def test_fail_is_3_and_inconclusive_4(tmp_path):
    reference = trace(tmp_path / "reference.jsonl", *[[2, 1, 2, 2, 1, 0]] * 16)
    low = trace(tmp_path / "low.jsonl", *[[0, 1, 0, 0, 0, 1, 0, 0, 0, 0]] * 16)
    code, out, _ = check(reference, low)
    assert code == 3
    assert "first divergence: prompt 0, step 0: accepted 2 in the reference, 0 in the candidate" in out
    assert out.splitlines()[-1].startswith("FAIL: fell beyond the tolerance: acceptance length -")
    one, other = trace(tmp_path / "one.jsonl", [2, 1, 2, 2, 1, 0]), trace(tmp_path / "other.jsonl", [2, 1, 1, 2, 2])
    assert check(one, other, "--quiet")[:2] == (4, "inconclusive\n")


def test_unlike_runs_are_2_with_both_values_in_one_document(tmp_path, good):
    other = trace(tmp_path / "other.jsonl", [1], max_new_tokens=64, eos_token_ids=[2, 7])
    code, out, _ = check(good, other, "--json")
    error = json.loads(out)
    assert (code, error["exit_code"], error["schema"]) == (2, 2, "eagle-convert/error/1")
    assert "max_new_tokens: 64 against 12" in error["error"]["where"]
    assert "eos_token_ids: [2, 7] against [2]" in error["error"]["where"]


def test_a_seed_or_dtype_that_differs_at_temperature_0_is_no_difference(tmp_path, good):
    other = trace(tmp_path / "other.jsonl", *[[2, 1, 2, 2, 1, 0]] * 2, seed=9, dtype="bfloat16")
    assert check(good, other)[0] == 0


def test_traces_that_break_the_counting_rules_are_refused(tmp_path, good):
    text = good.read_text().splitlines()
    bad = tmp_path / "bad.jsonl"
    bad.write_text("\n".join([text[0], text[1].replace('"truncated": true', '"truncated": false')]))
    code, _, err = check(good, bad)
    assert code == 1
    assert "bad.jsonl, line 2: step 4 says truncated false" in err


def test_replays_cost_no_torch(good):
    code = (f"import sys; sys.argv[1:] = ['parity-check', 'x', '--engine', 'replay:{good}', '--reference-engine', "
            f"'replay:{good}', '--quiet']\n"
            "from eagle_convert.cli import main\n"
            "try:\n main()\nexcept SystemExit as e:\n assert not e.code, e.code\n"
            "assert 'torch' not in sys.modules and 'transformers' not in sys.modules")
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": f"{ROOT}:{ROOT / 'runtime'}"})


def test_the_page_escapes_what_files_say_and_needs_nothing_from_anywhere(tmp_path):
    weak = trace(tmp_path / "<b>weak.jsonl", [0, 1, 0, 0, 0, 1, 0, 0, 0, 0], engine="<script>alert(1)</script>")
    assert check(weak, weak, "--report", tmp_path / "r.html")[0] == 0
    page = (tmp_path / "r.html").read_text("utf-8")
    assert "<script" not in page
    assert "<b>weak" not in page
    assert "&lt;b&gt;weak.jsonl" in page
    assert "http" not in page
    assert "PASS" in page
    assert sorted(p.name for p in tmp_path.iterdir()) == ["<b>weak.jsonl", "r.html"]
