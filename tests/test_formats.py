"""``convert --for``: the folder that another tool wants, written from end to end and read back."""

from __future__ import annotations

import numpy as np
import pytest

from tests.builders import checkpoint, write
from tests.run import config, convert, inspect, refused, same_bits, tensors

# draft, format -> (dialect that reads it back, tensors that are made)
WRITTEN = {
    ("e1", "official"): ("official-eagle1", {"embed_tokens.weight"}),
    ("e1", "vllm"): ("official-eagle1", set()),
    ("e1", "sglang"): ("official-eagle1", {"fc.bias"}),
    ("e1", "legacy-vllm"): ("legacy-vllm", {"embed_tokens.weight", "lm_head.weight"}),
    ("e1b", "sglang"): ("official-eagle1", set()),
    ("e3", "official"): ("official-eagle3", {"t2d"}),
    ("e3", "vllm"): ("vllm-eagle3", set()),
    ("e3", "sglang"): ("official-eagle3", set()),
    ("e3", "speculators"): ("speculators-eagle3", {"t2d"}),
}


@pytest.fixture
def target(fixtures_dir):
    return lambda name: fixtures_dir / "plant" / ("tgt_offset" if name == "e1b" else "tgt")


@pytest.mark.parametrize(("name", "layout"), WRITTEN)
def test_what_is_written_reads_back_to_the_same_compact_folder(name, layout, tmp_path, fixtures_dir, target):
    dialect, made = WRITTEN[name, layout]
    source = fixtures_dir / "plant" / name
    ran = convert(source, tmp_path / "out", "--target", target(name), "--for", layout)
    assert {row["destination"] for row in ran.document["ledger"] if row["action"] == "created"} == made
    assert not (tmp_path / "out" / "eagle_convert.json").exists()
    back = convert(tmp_path / "out", tmp_path / "compact", "--target", target(name))
    assert back.document["dialect"] == dialect
    convert(source, tmp_path / "direct", "--target", target(name))
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / "compact" / file).read_bytes() == (tmp_path / "direct" / file).read_bytes()


def test_c04_the_targets_head_is_copied_in_and_the_growth_is_stated(tmp_path, fixtures_dir, target):
    _, theirs = checkpoint("tgt")
    ran = convert(fixtures_dir / "plant" / "e1", tmp_path / "out", "--target", target("e1"), "--for", "legacy-vllm")
    assert same_bits(tensors(tmp_path / "out")["lm_head.weight"], theirs["lm_head.weight"])
    assert ran.document["bytes"] == {"source": 131_200, "destination": 172_160}
    (row,) = [r for r in ran.document["ledger"] if r["destination"] == "lm_head.weight"]
    assert (row["source"], row["action"], row["destination_bytes"]) == (None, "created", 40_960)


def test_c04_without_a_target_the_missing_head_is_named(tmp_path, fixtures_dir):
    error = refused(fixtures_dir / "plant" / "e1", tmp_path / "out", "--for", "legacy-vllm")
    assert "lm_head.weight" in error["where"]
    assert "--target" in error["how"]


def test_a_copied_table_is_cast_to_the_drafts_dtype(tmp_path, fixtures_dir):
    base, theirs = checkpoint("tgt")
    wide = {name: value.astype(np.float32) for name, value in theirs.items()}
    model = write(tmp_path / "model", base, wide)
    ran = convert(fixtures_dir / "plant" / "e1", tmp_path / "out", "--target", model, "--for", "legacy-vllm")
    head = tensors(tmp_path / "out")["lm_head.weight"]
    assert same_bits(head, theirs["lm_head.weight"])
    assert not ran.findings("EC602")  # nothing of the draft was cast


def test_what_stock_vllm_cannot_express_is_refused_or_written_on_demand(tmp_path, fixtures_dir, target):
    source = fixtures_dir / "plant" / "e1b"
    for stock in ((), ("--stock",)):
        error = refused(source, tmp_path / "out", "--target", target("e1b"), "--for", "vllm", *stock)
        assert "fc.bias" in error["where"]
        assert "--allow-unfaithful" in error["how"]
    ran = convert(source, tmp_path / "out", "--target", target("e1b"), "--for", "vllm", "--allow-unfaithful")
    assert ran.finding("EC801")["severity"] == "warn"
    assert ran.document["engines"]["vllm"]["faithful"] is False


def test_speculators_needs_to_know_the_target(tmp_path, fixtures_dir):
    error = refused(fixtures_dir / "plant" / "e3", tmp_path / "out", "--for", "speculators")
    assert "--target" in error["how"]


def test_c51_the_engines_architecture_is_written(tmp_path, fixtures_dir, target):
    convert(fixtures_dir / "plant" / "e3", tmp_path / "vllm", "--target", target("e3"), "--for", "vllm")
    convert(fixtures_dir / "plant" / "e3", tmp_path / "sglang", "--target", target("e3"), "--for", "sglang")
    convert(fixtures_dir / "plant" / "e1", tmp_path / "one", "--target", target("e1"), "--for", "sglang")
    assert config(tmp_path / "vllm")["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config(tmp_path / "sglang")["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config(tmp_path / "one")["architectures"] == ["LlamaForCausalLMEagle"]


@pytest.mark.parametrize("name", ["e1", "e1b", "e3"])
def test_the_compact_folder_is_one_that_the_official_loader_reads(name, tmp_path, fixtures_dir, target):
    ran = convert(fixtures_dir / "plant" / name, tmp_path / "out", "--target", target(name))
    official, vllm = (ran.document["engines"][engine] for engine in ("official", "vllm"))
    assert official["loads"]
    assert official["faithful"]
    assert vllm["loads"]
    assert vllm["faithful"] is (name != "e1b")
    again = inspect(tmp_path / "out", "--target", target(name)).document["engines"]
    assert {n: (e["loads"], e["faithful"]) for n, e in again.items()} == {
        n: (e["loads"], e["faithful"]) for n, e in ran.document["engines"].items()}
