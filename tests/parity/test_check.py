"""The whole check on PLANT, whose acceptance is known by construction: 5.00 when right, 1.01 with the wrong norm."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from eagle_convert import parity_check
from eagle_convert.errors import EagleConvertError, EngineError, UsageError
from eagle_convert.parity.trace_file import read_trace, write_trace

PLANT = Path(__file__).parents[2] / "fixtures" / "plant"
FEW = {"prompts": PLANT / "prompts.jsonl", "num_prompts": 3, "max_new_tokens": 24}


def check(candidate="e1", target="tgt", reference="e1", **options):
    options = {"prompts": PLANT / "prompts.jsonl", "max_new_tokens": 24, "num_prompts": 16, **options}
    if reference is not None:
        options["reference"] = str(PLANT / reference)
    return parity_check(PLANT / candidate, target=str(PLANT / target), **options)


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    """The plain run, 16 prompts, its traces kept; and the folder they are in."""
    folder = tmp_path_factory.mktemp("right")
    return check(trace_out=folder), folder


def test_everything_right_is_five(right):
    report, _ = right
    assert report.verdict.answer == "pass"
    for column in (report.reference, report.candidate):
        assert column.sheet.acceptance_length == 5.0
        assert column.sheet.counts.steps == 16 * 4
    assert (report.reference.engine, report.reference.trajectory) == ("reference", "candidate")
    assert report.candidate.runner is not None
    assert report.candidate.timing.tokens_per_second is not None
    assert (report.lossless.checked, report.lossless.mismatches, report.lossless.ties) == (True, (), ())
    assert report.first_divergence is None


def test_the_wrong_norm_is_one():
    """The published numbers: 32 prompts, 48 tokens."""
    report = check(fault="input-norm", num_prompts=32, max_new_tokens=48)
    assert report.verdict.answer == "fail"
    assert f"{report.candidate.sheet.acceptance_length:.2f}" == "1.01"
    assert (report.reference.sheet.acceptance_length, report.reference.sheet.counts.steps) == (5.0, 288)
    assert report.lossless.mismatches == ()  # the text is right whatever is drafted
    divergence = report.first_divergence
    assert divergence is not None
    assert (divergence.prompt, divergence.step, divergence.reference, divergence.candidate) == (0, 0, 4, 0)


def test_the_fault_that_is_on_is_named():
    report = check(fault="input-norm", diagnose=True, **FEW)
    group = {fault.id for fault in report.faults if fault.in_group}
    assert "input-norm" in group
    assert not group & {"none", "rope-base", "stale-kv"}
    assert [f.distance for f in report.faults] == sorted(f.distance for f in report.faults)


def test_the_two_engines_agree_step_by_step(right):
    _, folder = right
    report = check(reference=None, engine="reference", reference_engine=f"replay:{folder / 'candidate.jsonl'}",
                   max_new_tokens=None, prompts=None, num_prompts=None)
    assert report.verdict.answer == "pass"
    assert "identical accepted counts at each of 64 steps" in report.verdict.reason
    assert report.candidate.trajectory == "own"


def test_replay_against_replay_needs_no_weights(right):
    _, folder = right
    trace = folder / "candidate.jsonl"
    report = parity_check("nothing-here", engine=f"replay:{trace}", reference_engine=f"replay:{trace}")
    assert report.verdict.answer == "pass"
    assert (report.lossless.checked, report.lossless.reason) == (False, "no target's weights are given (--target)")


def test_a_replayed_text_is_checked_where_a_target_is_given(right, tmp_path):
    """One wrong token in a recorded text: FAIL, whatever its acceptance."""
    _, folder = right
    trace = read_trace(folder / "candidate.jsonl")
    row = trace.prompts[1]
    wrong = replace(row, output_ids=(*row.output_ids[:7], 5, *row.output_ids[8:]))
    write_trace(tmp_path / "wrong.jsonl", replace(trace, prompts=(trace.prompts[0], wrong)))
    report = check(reference=None, engine=f"replay:{tmp_path / 'wrong.jsonl'}", num_prompts=2, max_new_tokens=None,
                   prompts=None, reference_engine=f"replay:{folder / 'candidate.jsonl'}")
    assert report.verdict.answer == "fail"
    first = report.lossless.mismatches[0]
    assert (first.prompt, first.position, first.token, first.expected) == (1, 7, 5, row.output_ids[7])
    assert report.first_divergence is not None
    assert (report.first_divergence.what, report.first_divergence.position) == ("output", 7)


def test_a_text_that_ends_early_is_not_the_targets(right, tmp_path):
    _, folder = right
    trace = read_trace(folder / "candidate.jsonl")
    row = trace.prompts[0]
    short = replace(row, output_ids=row.output_ids[:10], steps=row.steps[:2])
    write_trace(tmp_path / "short.jsonl", replace(trace, prompts=(short,)))
    report = check(reference=None, engine=f"replay:{tmp_path / 'short.jsonl'}", num_prompts=1, max_new_tokens=None,
                   prompts=None, reference_engine=f"replay:{folder / 'candidate.jsonl'}")
    assert report.verdict.answer == "fail"
    assert [(d.position, d.token) for d in report.lossless.mismatches] == [(10, -1)]


def test_lanes_change_nothing(right):
    report, _ = right
    assert check(lanes=5, reference_engine="bundled").candidate.step_digests == report.candidate.step_digests


def test_another_k_and_a_tree_drafts_what_is_asked_for():
    assert check(draft_tokens=2, **FEW).candidate.sheet.acceptance_length == 3.0
    report = check(tree="5,3,1", **FEW)
    assert (report.settings["draft_tokens"], report.settings["tree"]) == (4, None)


def test_what_the_report_pins(right):
    report, _ = right
    document = report.document()
    assert document["schema"] == "eagle-convert/parity/1"
    settings = document["settings"]
    assert (settings["dtype"], settings["prompts"]["count"], settings["temperature"]) == ("float32", 16, 0.0)
    assert str(PLANT.parent) not in json.dumps(document)
    assert document["settings_digest"] == check(lanes=2).document()["settings_digest"]
    assert document["settings_digest"] != check(draft_tokens=3, **FEW).document()["settings_digest"]


@pytest.fixture(scope="module")
def yesterday(right, tmp_path_factory):
    path = tmp_path_factory.mktemp("reports") / "yesterday.json"
    path.write_text(json.dumps(right[0].document()))
    return path


def test_the_gate_passes_the_same_and_stops_a_fall(yesterday):
    same = check(reference=None, compare=yesterday)
    assert same.verdict.answer == "pass"
    assert "identical" in same.verdict.reason
    fallen = check(reference=None, compare=yesterday, fault="input-norm")
    assert fallen.verdict.answer == "fail"
    assert fallen.reference.sheet.acceptance_length == 5.0


def test_the_gate_between_two_report_files(yesterday, tmp_path):
    document = json.loads(yesterday.read_text())
    assert parity_check(yesterday, compare=yesterday).verdict.answer == "pass"
    for row in document["candidate"]["rows"]:
        row |= {"accepted": 12, "emitted": 16, "steps_digest": "0" * 16, "per_position": [4, 4, 4, 0], "matches": 12}
    (tmp_path / "today.json").write_text(json.dumps(document))
    assert parity_check(tmp_path / "today.json", compare=yesterday).verdict.answer == "fail"
    assert parity_check(yesterday, compare=tmp_path / "today.json").verdict.answer == "pass"  # a gain is no failure


def test_c97_reports_of_unlike_runs_are_not_compared(yesterday, tmp_path):
    document = json.loads(yesterday.read_text())
    document["settings"] |= {"system_prompt": True, "max_new_tokens": 64}
    (tmp_path / "other.json").write_text(json.dumps(document))
    document["settings"]["system_prompt"] = False
    (tmp_path / "mine.json").write_text(json.dumps(document))
    with pytest.raises(UsageError) as caught:
        parity_check(tmp_path / "mine.json", compare=tmp_path / "other.json")
    assert caught.value.where == "system_prompt: true against false"
    with pytest.raises(UsageError) as caught:
        parity_check(tmp_path / "mine.json", compare=yesterday)
    assert caught.value.where == "max_new_tokens: 24 against 64"


@pytest.mark.parametrize("broken", ["{", "{}", '{"schema": "eagle-convert/parity/1"}', "[]",
                                    '{"schema": "eagle-convert/parity/1", "settings": {"prompts": {"digests": []}}}'])
def test_a_report_that_is_none(tmp_path, broken):
    (tmp_path / "r.json").write_text(broken)
    with pytest.raises(EagleConvertError) as caught:
        parity_check(PLANT / "e1", compare=tmp_path / "r.json", target=str(PLANT / "tgt"))
    assert caught.value.exit_code == 1


@pytest.mark.parametrize(("options", "says"), [
    ({"draft_tokens": 3}, "draft_tokens: 3 against 4"),
    ({"tree": "6,1,4"}, "tree:"),
    ({"max_new_tokens": 64}, "max_new_tokens: 64 against 24"),
    ({"temperature": 1.0}, "temperature: 1.0 against 0"),
])
def test_a_given_setting_that_differs_from_the_file_is_exit_2_with_both_values(right, options, says):
    _, folder = right
    trace = f"replay:{folder / 'candidate.jsonl'}"
    with pytest.raises(UsageError) as caught:
        parity_check("x", engine=trace, reference_engine=trace, **options)
    assert says in caught.value.where


def test_other_prompts_than_the_files_are_exit_2(right, tmp_path):
    _, folder = right
    trace = f"replay:{folder / 'candidate.jsonl'}"
    (tmp_path / "p.jsonl").write_text('{"prompt_ids": [45, 43]}\n')
    with pytest.raises(UsageError, match="same settings") as caught:
        parity_check("x", engine=trace, reference_engine=trace, num_prompts=1, prompts=tmp_path / "p.jsonl")
    assert "prompt 0" in caught.value.where
    same = parity_check("x", engine=trace, reference_engine=trace, prompts=PLANT / "prompts.jsonl", num_prompts=16)
    assert same.verdict.answer == "pass"


def test_dtype_and_seed_that_differ_are_warnings(right):
    _, folder = right
    trace = f"replay:{folder / 'candidate.jsonl'}"
    report = parity_check("x", engine=trace, reference_engine=trace, dtype="bfloat16", seed=7)
    assert [w.split(" is ")[0] for w in report.warnings] == ["dtype", "the seed"]
    assert report.verdict.answer == "pass"


@pytest.mark.parametrize(("options", "kind", "says"), [
    ({"target": None}, UsageError, "--target is needed"),
    ({"reference": None}, UsageError, "no --reference given"),
    ({"fault": "input-nrom"}, UsageError, "no known fault"),
    ({"engine": "vllm"}, EngineError, "not available"),
    ({"engine": "server:http://127.0.0.1:1"}, EngineError, "not available"),
    ({"engine": "hf"}, UsageError, "names no engine"),
    ({"engine": "replay"}, UsageError, "names no engine"),
    ({"engine": "bundled:x"}, UsageError, "names no engine"),
    ({"engine_python": "/usr/bin/python3"}, UsageError, "interpreter of their own"),
    ({"baseline_server": "http://127.0.0.1:1"}, UsageError, "--baseline-server"),
    ({"draft_tokens": 4, "tree": "60,7,10"}, UsageError, "exclude each other"),
    ({"draft_tokens": 0}, UsageError, "0 drafts"),
    ({"draft_tokens": 23}, UsageError, "no step can count"),
    ({"tree": "60,7"}, UsageError, "three whole numbers"),
    ({"tree": "999,1,4"}, UsageError, "cannot be grown"),
    ({"tree_choices": "absent"}, UsageError, "no tree and no file"),
    ({"lanes": 0}, UsageError, "--lanes cannot be 0"),
    ({"top_p": 0.0}, UsageError, "--top-p cannot be"),
    ({"dtype": "int8"}, UsageError, "--dtype cannot be"),
    ({"device": "cuda:77"}, UsageError, "not there"),
    ({"device": "tpu"}, UsageError, "--device cannot be"),
    ({"temperature": 1.0}, EngineError, "the reference is greedy"),
    ({"lane": 3}, UsageError, "no option 'lane'"),
    ({"fault": "qkv-bias-dropped"}, EngineError, "cannot be shown"),
    ({"candidate": "tgt"}, EagleConvertError, ""),
    ({"reference": "e3"}, UsageError, "heads of two kinds"),
    ({"reference": "e1", "reference_engine": "replay:x.jsonl"}, UsageError, "--reference is not used"),
    ({"engine": "replay:absent.jsonl"}, EagleConvertError, "no such file"),
    ({"target": str(PLANT / "e1")}, EagleConvertError, "swapped"),
    ({"engine": "reference", "max_new_tokens": 9999}, EngineError, "9 + 9999 tokens, the target ends at 512"),
    ({"trace_out": PLANT / "prompts.jsonl"}, UsageError, "--trace-out is a folder"),
    ({"report": PLANT / "no" / "r.html"}, UsageError, "its folder does not exist"),
    ({"report": PLANT}, UsageError, "is a folder"),
])
def test_what_cannot_be_is_said_before_anything_is_run(options, kind, says):
    asked = {"target": str(PLANT / "tgt"), "reference": str(PLANT / "e1"), **FEW, **options}
    if options.get("reference"):
        asked["reference"] = str(PLANT / options["reference"])
    with pytest.raises(kind) as caught:
        parity_check(PLANT / asked.pop("candidate", "e1"), **asked)
    assert says in str(caught.value)
    assert caught.value.exit_code == (2 if isinstance(caught.value, UsageError) else 1)


@pytest.mark.parametrize("engine", ["bundled", "reference"])
def test_an_id_that_the_target_does_not_have_is_named(tmp_path, engine):
    (tmp_path / "p.jsonl").write_text('{"prompt_ids": [45, 43]}\n{"prompt_ids": [45, 320]}\n')
    with pytest.raises(EngineError) as caught:
        check(engine=engine, prompts=tmp_path / "p.jsonl", num_prompts=2)
    assert caught.value.where == "prompt 1, token 1: id 320, vocabulary 320"


def test_a_recorded_text_for_another_vocabulary_is_refused(right, tmp_path):
    _, folder = right
    trace = read_trace(folder / "candidate.jsonl")
    row = replace(trace.prompts[0], output_ids=(999, *trace.prompts[0].output_ids[1:]))
    write_trace(tmp_path / "t.jsonl", replace(trace, prompts=(row,)))
    with pytest.raises(EngineError, match="vocabulary"):
        check(reference=None, engine=f"replay:{tmp_path / 't.jsonl'}", num_prompts=1, max_new_tokens=None,
              prompts=None, reference_engine=f"replay:{tmp_path / 't.jsonl'}")


def test_a_chain_spelled_too_deep_is_refused_by_name():
    from eagle_convert.parity.settings import parse_shape

    with pytest.raises(UsageError) as caught:
        parse_shape(None, "60,7,1", None)
    assert "--tree" in caught.value.where
