"""Cases from the field whose answer is a parity check: the candidate is run, not only read."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from eagle_convert import convert, parity_check
from eagle_convert.errors import CompactionError, EngineError
from eagle_convert.parity.report import lines


@pytest.fixture
def plant(fixtures_dir):
    return fixtures_dir / "plant"


def copy(source, destination, **changes):
    """A checkpoint folder with some tensors changed: name -> new value."""
    shutil.copytree(source, destination)
    tensors = load_file(destination / "model.safetensors")
    save_file(tensors | changes, destination / "model.safetensors", metadata={"format": "pt"})
    return destination


def check(candidate, plant, target="tgt", **options):
    target = plant / target if isinstance(target, str) else target
    return parity_check(candidate, target=str(target), **{
        "prompts": plant / "prompts.jsonl", "num_prompts": 4, "max_new_tokens": 24, **options})


def test_c01_an_exporters_random_embedding_accepts_nothing_and_says_so(plant, tmp_path):
    random = (np.random.default_rng(1).standard_normal((320, 64)) * 0.00125).astype(np.float16)
    broken = copy(plant / "e1", tmp_path / "broken", **{"embed_tokens.weight": random})
    with pytest.raises(CompactionError, match="embed"):
        convert(str(broken), str(tmp_path / "undecided"), target=str(plant / "tgt"))
    lengths = {}
    for choice in ("keep", "drop"):
        convert(str(broken), str(tmp_path / choice), target=str(plant / "tgt"), embeddings=choice)
        report = check(tmp_path / choice, plant, reference=str(tmp_path / choice))
        lengths[choice] = report.candidate.sheet.acceptance_length
        warned = [w for w in report.verdict.warnings if "not one draft was accepted" in w]
        assert bool(warned) == (choice == "keep")
    assert lengths == {"keep": 1.0, "drop": 5.0}


def test_c28_the_bias_of_fc_kept_and_dropped(plant):
    options = {"target": "tgt_offset", "reference": str(plant / "e1b")}
    assert check(plant / "e1b", plant, **options).candidate.sheet.acceptance_length == 5.0
    assert check(plant / "e1b", plant, fault="fc-bias-dropped", **options).candidate.sheet.acceptance_length == 1.0


def test_c69_an_overflow_is_named_and_never_a_number(fixtures_dir, tmp_path):
    rand = fixtures_dir / "rand"
    tensors, at = load_file(rand / "tgt" / "model.safetensors"), "model.layers.3.mlp."
    hot = copy(rand / "tgt", tmp_path / "hot", **{
        at + "up_proj.weight": tensors[at + "up_proj.weight"] * np.float16(1000),
        at + "down_proj.weight": np.full_like(tensors[at + "down_proj.weight"], 6e4)})
    with pytest.raises(EngineError) as caught:
        check(rand / "e1", fixtures_dir / "plant", target=hot, reference=str(rand / "e1"), dtype="float16")
    assert "target layer 3 output" in caught.value.what
    assert "fp16" in caught.value.what
    assert "--dtype bfloat16" in caught.value.how
    assert caught.value.exit_code == 1


def test_c71_the_dtype_it_ran_in_is_reported(plant):
    report = check(plant / "e1", plant, reference=str(plant / "e1"), dtype="bfloat16")
    assert (report.verdict.answer, report.settings["dtype"]) == ("pass", "bfloat16")


def test_c104_batches_of_prompts_of_different_lengths(plant, tmp_path):
    rows = [json.loads(line)["prompt_ids"] for line in (plant / "prompts.jsonl").read_text().splitlines()[:8]]
    prompts = tmp_path / "p.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt_ids": row[: 2 + i % 7]}) for i, row in enumerate(rows)))
    reports = [check(plant / "e1", plant, reference=str(plant / "e1"), prompts=prompts, num_prompts=8, lanes=lanes)
               for lanes in (1, 4, 8)]
    assert {report.candidate.sheet.acceptance_length for report in reports} == {5.0}
    assert len({report.candidate.step_digests for report in reports}) == 1


def test_norms_that_nothing_decides_stop_the_check_with_the_flag(plant, tmp_path):
    ones = np.ones(64, np.float16)
    half = copy(plant / "e1", tmp_path / "half", **{"layers.0.input_layernorm.weight": ones})
    with pytest.raises(CompactionError) as caught:
        check(half, plant, reference=str(plant / "e1"))
    assert "--norms" in caught.value.how


def test_padding_rows_of_a_reference_do_not_stop_the_check(plant, tmp_path):
    table = load_file(plant / "e1" / "model.safetensors")["embed_tokens.weight"]
    padded = copy(plant / "e1", tmp_path / "padded", **{
        "embed_tokens.weight": np.concatenate([table, np.zeros((8, 64), np.float16)])})
    assert check(plant / "e1", plant, reference=str(padded)).verdict.answer == "pass"


@pytest.mark.parametrize("options", [{}, {"reference_engine": "bundled", "temperature": 1.0}])
def test_a_target_whose_logits_are_not_finite_is_no_pass(plant, tmp_path, options):
    head = load_file(plant / "tgt" / "model.safetensors")["lm_head.weight"]
    head[7] = np.nan
    target = copy(plant / "tgt", tmp_path / "tgt", **{"lm_head.weight": head})
    with pytest.raises(EngineError, match="logits non-finite"):
        check(plant / "e3", plant, target, reference=str(plant / "e3"), **options)


def test_a_fault_that_was_switched_on_is_said(plant):
    report = check(plant / "e1", plant, reference=str(plant / "e1"), fault="stale-kv")
    assert ("plain", "fault switched on in the candidate: stale-kv") in lines(report)
