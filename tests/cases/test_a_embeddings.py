"""Section A of the cases: embeddings and heads. Acceptance numbers are asserted where the runtime can measure them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from eagle_convert import manifest
from fixtures import plant
from tests.builders import checkpoint, write
from tests.run import config, convert, inspect, kept_bit_equal, refused, run, tensors

V, H = plant.V, plant.H


@pytest.fixture
def tgt(fixtures_dir: Path) -> Path:
    return fixtures_dir / "plant" / "tgt"


def e1(folder: Path, **changed: np.ndarray) -> tuple[Path, dict]:
    """PLANT E1 with tensors replaced or added (``__`` in the keyword stands for a dot)."""
    settings, values = checkpoint("e1")
    values |= {name.replace("__", "."): value for name, value in changed.items()}
    return write(folder, settings, values), values


# -- C01: a freshly initialised embedding was exported

def test_c01_a_random_embedding_is_shown_and_refused(tmp_path, tgt):
    noise = np.random.default_rng(1).standard_normal((V, H)) * 0.00125
    head, _ = e1(tmp_path / "head", embed_tokens__weight=noise.astype(np.float16))
    found = inspect(head, "--target", tgt, code=3).finding("EC307")
    assert found["severity"] == "error"
    assert found["where"] == "model.safetensors: embed_tokens.weight"
    cosine = float(found["message"].split("median row cosine ")[1].split(",")[0])
    assert abs(cosine) < 0.1
    error = refused(head, tmp_path / "out", "--target", tgt)
    assert "embed_tokens.weight" in error["where"]
    assert "median row cosine" in error["what"]
    assert "--embeddings drop" in error["how"]
    assert "export" in error["how"]


def test_c01_the_user_decides(tmp_path, tgt):
    noise = np.random.default_rng(1).standard_normal((V, H)) * 0.00125
    head, values = e1(tmp_path / "head", embed_tokens__weight=noise.astype(np.float16))
    ran = convert(head, tmp_path / "dropped", "--target", tgt, "--embeddings", "drop")
    assert "embed_tokens.weight" not in tensors(tmp_path / "dropped")
    assert "of 20,480 entries differ" in ran.finding("EC309")["message"]
    ran = convert(head, tmp_path / "kept", "--target", tgt, "--embeddings", "keep")
    kept_bit_equal(ran, tmp_path / "kept", values)


# -- C04: the official file has no head

def test_c04_no_head_is_added(tmp_path, tgt):
    head, values = e1(tmp_path / "head")
    ran = convert(head, tmp_path / "out", "--target", tgt)
    kept_bit_equal(ran, tmp_path / "out", values)
    assert "lm_head.weight" not in tensors(tmp_path / "out")
    assert inspect(tmp_path / "out", "--target", tgt).document["draft"]["head"] == "target"
    assert inspect(tmp_path / "out").document["draft"]["head"] == "absent"


# -- C05: the old script copied the target's head into the draft

def test_c05_two_tables_go_and_45120_parameters_stay(tmp_path, tgt):
    _, target = checkpoint("tgt")
    head, values = e1(tmp_path / "head", lm_head__weight=target["lm_head.weight"])
    assert sum(v.size for v in values.values()) == 86_080
    ran = convert(head, tmp_path / "out", "--target", tgt)
    kept_bit_equal(ran, tmp_path / "out", values)
    out = tensors(tmp_path / "out")
    assert sum(v.size for v in out.values()) == 45_120
    assert ran.document["bytes"] == {"source": 86_080 * 2, "destination": 86_080 * 2 - 2 * 40_960}
    dropped = {row["source"]: row for row in ran.document["ledger"] if row["action"] == "dropped"}
    assert set(dropped) == {"embed_tokens.weight", "lm_head.weight"}
    assert all("equal to the target's" in row["reason"] and row["bytes"] == 40_960 for row in dropped.values())
    theirs = {v.tobytes() for v in target.values() if v.size > H}
    assert not [name for name, v in out.items() if v.tobytes() in theirs]


def test_c05_the_table_before_and_after_is_printed(tmp_path, tgt):
    _, target = checkpoint("tgt")
    head, _ = e1(tmp_path / "head", lm_head__weight=target["lm_head.weight"])
    ran = run("convert", head, tmp_path / "out", "--target", tgt)
    lines = {line.split()[0]: line.split() for line in ran.stdout.splitlines() if line.strip()}
    assert lines["lm_head.weight"][3:6] == ["40,960", "-", "dropped"]
    assert lines["fc.weight"][3:6] == ["16,384", "16,384", "kept"]
    assert lines["total"][1:3] == ["172,160", "90,240"]


def test_c05_the_manifest_says_what_the_target_must_hold(tmp_path, tgt):
    head, _ = e1(tmp_path / "head")
    convert(head, tmp_path / "out", "--target", tgt)
    read = manifest.decode((tmp_path / "out" / "eagle_convert.json").read_bytes())
    assert read.target is not None
    assert read.target.id == "tgt"
    assert {name: b.tensor for name, b in read.target.digests.items()} == {
        "embed_tokens.weight": "model.embed_tokens.weight", "lm_head.weight": "lm_head.weight"}
    text = (tmp_path / "out" / "eagle_convert.json").read_text()
    assert str(tmp_path) not in text


# -- C07: a trained (here: rotated) embedding must stay

def test_c07_a_rotated_embedding_is_the_drafts_own(tmp_path, tgt):
    settings, values = checkpoint("e1")
    q = np.linalg.qr(np.random.default_rng(3).standard_normal((H, H)))[0]
    values["embed_tokens.weight"] = (values["embed_tokens.weight"].astype(np.float64) @ q).astype(np.float16)
    values["fc.weight"] = np.concatenate([q, np.zeros((H, H))], 1).astype(np.float16)  # e q -> e
    head = write(tmp_path / "head", settings, values)
    ran = convert(head, tmp_path / "out", "--target", tgt)
    kept_bit_equal(ran, tmp_path / "out", values)
    assert "rotation" in ran.finding("EC306")["message"]
    (row,) = [r for r in ran.document["ledger"] if r["source"] == "embed_tokens.weight"]
    assert row["reason"].startswith("the draft's own")
    assert inspect(head, "--target", tgt).document["draft"]["embeddings"] == "own"
    assert inspect(tmp_path / "out", "--target", tgt).document["draft"]["embeddings"] == "own"


# -- C11: a training run's folder

def test_c11_the_second_registered_model_is_the_targets_head(tmp_path, tgt):
    settings, values = checkpoint("e1", "rand")
    head = write(tmp_path / "head", settings, values)
    other = write(tmp_path / "other", None, {"weight": np.ones((V, H), np.float16)}, "model_1.safetensors")
    (other / "model_1.safetensors").rename(head / "model_1.safetensors")
    (head / "optimizer.bin").write_bytes(b"\x80\x04junk")
    (head / "random_states_0.pkl").write_bytes(b"\x80\x04junk")
    notes = {f["where"]: f["message"] for f in inspect(head).findings("EC901")}
    assert "lm_head" in notes["model_1.safetensors"]
    assert set(notes) == {"model_1.safetensors", "optimizer.bin", "random_states_0.pkl"}
    kept_bit_equal(convert(head, tmp_path / "out"), tmp_path / "out", values)


# -- C13: a small target: one file, tied

@pytest.mark.parametrize("stated", [True, None])
def test_c13_a_tied_target_in_one_file(tmp_path, stated):
    settings, target = checkpoint("tgt")
    del target["lm_head.weight"]
    settings["tie_word_embeddings"] = stated
    if stated is None:
        del settings["tie_word_embeddings"]
    model = write(tmp_path / "model", settings, target)
    head, values = e1(tmp_path / "head", lm_head__weight=target["model.embed_tokens.weight"])
    ran = convert(head, tmp_path / "out", "--target", model)
    assert "the embedding is the head" in ran.finding("EC706")["message"]
    assert sum(v.size for v in tensors(tmp_path / "out").values()) == 45_120
    read = manifest.decode((tmp_path / "out" / "eagle_convert.json").read_bytes())
    assert read.target is not None
    assert read.target.digests["lm_head.weight"].tensor == "model.embed_tokens.weight"
    kept_bit_equal(ran, tmp_path / "out", values)


# -- C15: the draft's config was copied from a tied target

@pytest.mark.parametrize("name", ["e1", "e3"])
def test_c15_tied_is_corrected_and_said(tmp_path, tgt, name):
    settings, values = checkpoint(name)
    head = write(tmp_path / "head", settings | {"tie_word_embeddings": True}, values)
    assert "tie_word_embeddings" in inspect(head).finding("EC205")["where"]
    ran = convert(head, tmp_path / "out", "--target", tgt)
    assert config(tmp_path / "out")["tie_word_embeddings"] is False
    assert ran.findings("EC205")


# -- C18: a multimodal target

@pytest.mark.parametrize("prefix", ["language_model.", "model.language_model.", "language_model.model."])
def test_c18_tables_inside_a_language_model(tmp_path, prefix):
    settings, target = checkpoint("tgt")
    nested = {"model_type": "some_vl", "vision_config": {"hidden_size": 48}, "text_config": settings}

    def name(key: str) -> str:
        if prefix == "language_model.":
            return prefix + key
        return prefix + key.removeprefix("model.") if key.startswith("model.") else key

    renamed = {name(key): value for key, value in target.items()}
    renamed["vision_tower.patch.weight"] = np.ones((48, 3), np.float16)
    model = write(tmp_path / "model", nested, renamed)
    settings, values = checkpoint("e1")
    head = write(tmp_path / "head", settings | {"max_position_embeddings": 64}, values)
    ran = convert(head, tmp_path / "out", "--target", model)
    kept_bit_equal(ran, tmp_path / "out", values)
    assert sum(v.size for v in tensors(tmp_path / "out").values()) == 45_120
    assert config(tmp_path / "out")["max_position_embeddings"] == 512  # of text_config


# -- relations of the two tables that the format's rule 2 tells apart

def test_equal_after_a_cast_borrows_the_better_table_and_counts(tmp_path):
    """An fp32 target: the fp16 copy in the official file goes, with the number of entries that it had rounded."""
    settings, target = checkpoint("tgt")
    exact = target["model.embed_tokens.weight"].astype(np.float32) * np.float32(1.0001)
    target["model.embed_tokens.weight"] = exact
    model = write(tmp_path / "model", settings, target)
    head, values = e1(tmp_path / "head", embed_tokens__weight=exact.astype(np.float16))
    found = convert(head, tmp_path / "out", "--target", model).finding("EC302")
    moved = np.count_nonzero(values["embed_tokens.weight"].astype(np.float32) != exact)
    assert f"{moved:,} of 20,480 entries differ" in found["message"]
    assert found["severity"] == "warn"
    assert "embed_tokens.weight" not in tensors(tmp_path / "out")


def test_the_first_half_foreign_is_kept_with_the_rows_named(tmp_path, tgt):
    """Only the first 160 rows foreign (the PLANT table's 2.10): partly the target's, so it is kept, and said."""
    _, values = checkpoint("e1")
    table = values["embed_tokens.weight"].copy()
    table[:160] = (np.random.default_rng(2).standard_normal((160, H)) * 0.00125).astype(np.float16)
    head, values = e1(tmp_path / "head", embed_tokens__weight=table)
    ran = convert(head, tmp_path / "out", "--target", tgt)
    kept_bit_equal(ran, tmp_path / "out", values)
    found = ran.finding("EC305")
    assert "50 %" in found["message"]
    assert "rows 0–159" in found["message"]


def test_a_head_of_its_own_is_kept_and_both_readings_are_named(tmp_path, fixtures_dir):
    """A draft with the old release's head against a fine-tuned target."""
    _, old = checkpoint("tgt")
    head, values = e1(tmp_path / "head", lm_head__weight=old["lm_head.weight"])
    tuned = fixtures_dir / "plant" / "tgt_tuned"
    found = inspect(head, "--target", tuned).finding("EC322")
    assert found["severity"] == "warn"
    assert "Reading 1" in found["message"]
    assert "Reading 2" in found["message"]
    ran = convert(head, tmp_path / "out", "--target", tuned)
    kept_bit_equal(ran, tmp_path / "out", values)
    assert "lm_head.weight" in tensors(tmp_path / "out")
    convert(head, tmp_path / "dropped", "--target", tuned, "--head", "drop")
    assert "lm_head.weight" not in tensors(tmp_path / "dropped")


def test_without_a_target_nothing_is_dropped_and_the_report_says_what_it_takes(tmp_path):
    _, target = checkpoint("tgt")
    head, values = e1(tmp_path / "head", lm_head__weight=target["lm_head.weight"])
    document = inspect(head).document
    assert (document["draft"]["embeddings"], document["draft"]["head"]) == ("unproved", "unproved")
    ran = convert(head, tmp_path / "out")
    kept_bit_equal(ran, tmp_path / "out", values)
    assert sum(v.size for v in tensors(tmp_path / "out").values()) == 86_080
    assert {f["where"] for f in ran.findings("EC308")} == {
        "model.safetensors: embed_tokens.weight", "model.safetensors: lm_head.weight"}
    assert all("--target" in f["fix"] for f in ran.findings("EC308"))
    assert json.loads((tmp_path / "out" / "eagle_convert.json").read_text())["target"] is None


def test_the_users_word_drops_without_a_target(tmp_path):
    head, _ = e1(tmp_path / "head")
    ran = convert(head, tmp_path / "out", "--embeddings", "drop")
    assert "not compared" in ran.finding("EC309")["message"]
    assert sum(v.size for v in tensors(tmp_path / "out").values()) == 45_120
