"""Section D of the cases: the draft vocabulary."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import torch

from fixtures import plant
from tests.builders import checkpoint, write
from tests.run import config, convert, inspect, kept_bit_equal, refused, same_bits, tensors

V, VD, H = plant.V, plant.VD, plant.H


@pytest.fixture
def tgt(fixtures_dir):
    return fixtures_dir / "plant" / "tgt"


def e3(folder, without=(), settings=None, **added):
    base, values = checkpoint("e3")
    values = {name: value for name, value in values.items() if name not in without} | added
    return write(folder, base if settings is None else settings(base), values), values


def test_c33_a_reduced_head_is_never_written_without_its_mapping(tmp_path, tgt):
    folder, values = e3(tmp_path / "head")
    ran = convert(folder, tmp_path / "out", "--target", tgt)
    kept_bit_equal(ran, tmp_path / "out", values)
    assert same_bits(tensors(tmp_path / "out")["d2t"], values["d2t"])
    said = inspect(folder).finding("EC502")["message"]
    assert said == "160 of 320 ids, 3 to 319, strictly increasing"
    bare, _ = e3(tmp_path / "bare", without=("d2t", "t2d"))
    error = refused(bare, tmp_path / "none")
    assert "d2t" in str(error)
    assert "--token-map" in error["how"]


def test_c34_a_side_file_is_turned_into_offsets(tmp_path, tgt):
    folder, _values = e3(tmp_path / "head", without=("d2t", "t2d"))
    meta = io.BytesIO()
    torch.save({"selected_token_ids": torch.from_numpy(plant.SUBSET.copy())}, meta)
    (folder / "eagle_meta.pt").write_bytes(meta.getvalue())
    ran = convert(folder, tmp_path / "out", "--target", tgt)
    want = checkpoint("e3")[1]["d2t"]
    assert same_bits(tensors(tmp_path / "out")["d2t"], want)
    (row,) = [r for r in ran.document["ledger"] if r["destination"] == "d2t"]
    assert row["action"] == "created"
    assert "eagle_meta.pt" in row["reason"]


def test_c34_the_map_can_be_given(tmp_path, tgt):
    folder, _ = e3(tmp_path / "head", without=("d2t", "t2d"))
    (tmp_path / "ids.json").write_text(json.dumps(plant.SUBSET.tolist()))
    convert(folder, tmp_path / "out", "--target", tgt, "--token-map", tmp_path / "ids.json")
    assert same_bits(tensors(tmp_path / "out")["d2t"], checkpoint("e3")[1]["d2t"])
    (tmp_path / "short.json").write_text(json.dumps(plant.SUBSET.tolist()[:-1]))
    refused(folder, tmp_path / "none", "--token-map", tmp_path / "short.json")


def test_c38_an_identity_mapping_is_valid_and_goes(tmp_path, tgt):
    head = np.random.default_rng(4).standard_normal((V, H)).astype(np.float16)
    folder, values = e3(tmp_path / "head", settings=lambda c: c | {"draft_vocab_size": V}, **{
        "lm_head.weight": head, "d2t": np.zeros(V, np.int64), "t2d": np.ones(V, bool)})
    said = inspect(folder)
    assert any("identity" in f["message"] for f in said.document["findings"])
    ran = convert(folder, tmp_path / "out", "--target", tgt)
    kept_bit_equal(ran, tmp_path / "out", values)
    assert {"d2t", "t2d"} & set(tensors(tmp_path / "out")) == set()
    assert ran.ids == set()
    assert config(tmp_path / "out")["draft_vocab_size"] == V


def test_c40_a_missing_draft_vocab_size_is_read_off_the_head(tmp_path, tgt):
    folder, values = e3(tmp_path / "head", settings=lambda c: {k: v for k, v in c.items() if k != "draft_vocab_size"})
    found = [f for f in inspect(folder).document["findings"] if f["where"] == "config.json: draft_vocab_size"]
    assert len(found) == 1
    assert "160" in found[0]["message"]
    ran = convert(folder, tmp_path / "out", "--target", tgt)
    kept_bit_equal(ran, tmp_path / "out", values)
    assert config(tmp_path / "out")["draft_vocab_size"] == VD


def padded(folder, rows, fill=None):
    base, values = checkpoint("e1")
    table = values["embed_tokens.weight"]
    if fill is not None:
        table = np.concatenate([table, np.repeat(fill(table)[None], rows - V, 0).astype(np.float16)])
    values["embed_tokens.weight"] = table[:rows]
    return write(folder, base | {"vocab_size": rows}, values)


@pytest.mark.parametrize("fill", [lambda t: np.zeros(H), lambda t: t.astype(np.float64).mean(0)],
                         ids=["zeros", "the mean"])
def test_c42_trailing_padding_rows_count_as_equal(tmp_path, tgt, fill):
    folder = padded(tmp_path / "head", 328, fill)
    ran = convert(folder, tmp_path / "out", "--target", tgt)
    found = ran.finding("EC303")
    assert found["severity"] == "warn"
    assert found["message"].startswith("8 trailing rows")
    assert config(tmp_path / "out")["vocab_size"] == V
    assert sum(v.size for v in tensors(tmp_path / "out").values()) == 45_120


@pytest.mark.parametrize(("rows", "fill"), [(300, None), (328, lambda t: t[5])], ids=["fewer", "real rows"])
def test_c42_another_vocabulary_is_refused_with_both_sizes(tmp_path, tgt, rows, fill):
    folder = padded(tmp_path / "head", rows, fill)
    error = refused(folder, tmp_path / "out", "--target", tgt)
    assert str(rows) in error["what"]
    assert "320" in error["what"]
    assert "embed_tokens.weight" in error["where"]
    inspect(folder, "--target", tgt, code=3).finding("EC702")


def test_c44_pruning_says_that_it_is_not_supported(tmp_path, tgt):
    base, values = checkpoint("e1")
    folder = write(tmp_path / "head", base, values)
    error = refused(folder, tmp_path / "out", "--target", tgt, "--prune-vocab", "160")
    assert "not supported" in error["what"]
