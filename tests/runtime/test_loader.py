"""What is told before a weight is read, and that what is loaded is what the folder holds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle_runtime import EagleRuntimeError
from eagle_runtime import loader as loader_module
from eagle_runtime.loader import load_draft, load_target, view_of_compact
from eagle_runtime.pairing import PairingError
from eagle_runtime.views import DraftView


@pytest.fixture
def plant(fixtures_dir: Path, tmp_path: Path) -> Path:
    """A writable copy of the PLANT pairs."""
    return Path(shutil.copytree(fixtures_dir / "plant", tmp_path / "plant"))


def shard(folder: Path) -> list[str]:
    """Rewrite a folder in two shards with an index; returns the shard names."""
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, chosen in parts.items():
        save_file({n: tensors[n] for n in chosen}, folder / file)
    index = {"weight_map": {n: f for f, chosen in parts.items() for n in chosen}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").unlink()
    return list(parts)


IDS = torch.tensor([5, 9, 3, 200])


@torch.no_grad()
def test_shards_prefixes_and_packing_change_nothing(plant: Path) -> None:
    """One file, two shards, ``language_model.`` names: the same logits; packed and plain equal up to rounding."""
    one = load_target(plant / "tgt")
    logits = one.head(one.forward_full(IDS).hidden)
    plain = load_target(plant / "tgt", pack=False)
    torch.testing.assert_close(plain.head(plain.forward_full(IDS).hidden), logits, atol=1e-5, rtol=0)
    path = plant / "tgt" / "model.safetensors"
    tensors = load_file(path) | {"vision_tower.patch.weight": torch.zeros(3)}
    save_file({("" if n.startswith("vision") else "language_model.") + n: t for n, t in tensors.items()}, path)
    shard(plant / "tgt")
    assert torch.equal(load_target(plant / "tgt").head(one.forward_full(IDS).hidden), logits)


def test_a_missing_shard_is_named(plant: Path) -> None:
    shard(plant / "tgt")
    (plant / "tgt" / "b.safetensors").unlink()
    with pytest.raises(EagleRuntimeError, match="shards are missing") as caught:
        load_target(plant / "tgt")
    assert "b.safetensors" in caught.value.where


def test_missing_and_misshapen_tensors_are_named(plant: Path) -> None:
    path = plant / "tgt" / "model.safetensors"
    tensors = load_file(path)
    save_file({n: t for n, t in tensors.items() if n != "model.layers.3.mlp.up_proj.weight"}, path)
    with pytest.raises(EagleRuntimeError, match="missing") as caught:
        load_target(plant / "tgt")
    assert "layers.3.mlp.up_proj.weight" in caught.value.where
    save_file(tensors | {"model.layers.3.mlp.up_proj.weight": torch.zeros(5, 64)}, path)
    with pytest.raises(EagleRuntimeError, match="another shape") as caught:
        load_target(plant / "tgt")
    assert "found [5, 64], expected [128, 64]" in caught.value.where


def test_an_untied_target_without_head(plant: Path) -> None:
    path = plant / "tgt" / "model.safetensors"
    tensors = load_file(path)
    del tensors["lm_head.weight"]
    save_file(tensors, path)
    with pytest.raises(EagleRuntimeError, match="no head"):
        load_target(plant / "tgt")
    config = json.loads((plant / "tgt" / "config.json").read_text())
    (plant / "tgt" / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    target = load_target(plant / "tgt")
    assert target.head_weight is target.embedding


@torch.no_grad()
def test_old_bin_files_are_read_too(plant: Path) -> None:
    """Vicuna comes as pytorch_model.bin; beside safetensors it is ignored, one that is no checkpoint is told."""
    logits = (one := load_target(plant / "tgt")).head(one.forward_full(IDS).hidden)
    path = plant / "tgt" / "model.safetensors"
    tensors = load_file(path)
    (plant / "tgt" / "pytorch_model.bin").write_bytes(b"junk")
    load_target(plant / "tgt")
    path.unlink()
    with pytest.raises(EagleRuntimeError, match="not a readable weight file"):
        load_target(plant / "tgt")
    torch.save(tensors, plant / "tgt" / "pytorch_model.bin")
    assert torch.equal(load_target(plant / "tgt").head(one.forward_full(IDS).hidden), logits)
    (plant / "tgt" / "pytorch_model.bin").unlink()
    with pytest.raises(EagleRuntimeError, match="no weights"):
        load_target(plant / "tgt")


@pytest.mark.parametrize(("content", "words"), [
    ("[]", "not an object"), ("{", "not JSON"), ("{}", "absent or empty"), ('{"weight_map": {"a": "../x"}}', "../x"),
])
def test_a_broken_index_is_told(plant: Path, content: str, words: str) -> None:
    (plant / "tgt" / "model.safetensors.index.json").write_text(content)
    with pytest.raises(EagleRuntimeError) as caught:
        load_target(plant / "tgt")
    assert words in str(caught.value)


def test_a_truncated_file_is_told(plant: Path) -> None:
    path = plant / "tgt" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(EagleRuntimeError, match="not a readable safetensors file"):
        load_target(plant / "tgt")


def test_no_room_is_told_before_anything_is_read(plant: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes needed and found, and the way to a deployment; no tensor was read."""
    monkeypatch.setattr(loader_module, "free_bytes", lambda device: 1000)
    monkeypatch.setattr(loader_module, "reader", None)
    with pytest.raises(EagleRuntimeError, match="does not fit") as caught:
        load_target(plant / "tgt", dtype=torch.float32)
    parameters = sum(t.numel() for t in load_file(plant / "tgt" / "model.safetensors").values())
    assert f"{4 * parameters:,} bytes needed, 1,000 found free" in caught.value.where
    assert "server:URL" in caught.value.how


def test_free_memory_is_a_number_here() -> None:
    free = loader_module.free_bytes("cpu")
    assert free is None or free > 0


def test_a_draft_of_another_model_is_refused(plant: Path, fixtures_dir: Path) -> None:
    target = load_target(plant / "tgt")
    with pytest.raises(PairingError, match="differ in width") as caught:
        load_draft(fixtures_dir / "smollm2" / "eagle1", target)
    assert "576" in caught.value.where
    assert "64" in caught.value.where


def test_a_view_must_hold_exactly_its_spec(plant: Path) -> None:
    target = load_target(plant / "tgt")
    view = view_of_compact(plant / "e1")
    without = DraftView(view.spec, {n: r for n, r in view.tensors.items() if n != "fc.weight"})
    with pytest.raises(EagleRuntimeError, match="not those of its description") as caught:
        load_draft(without, target)
    assert "missing fc.weight" in caught.value.where
    more = DraftView(view.spec, {**view.tensors, "norm.weight": lambda: torch.ones(64)})
    with pytest.raises(EagleRuntimeError) as caught:
        load_draft(more, target)
    assert "unknown norm.weight" in caught.value.where
    bent = DraftView(view.spec, {**view.tensors, "fc.weight": lambda: torch.ones(64, 64)})
    with pytest.raises(EagleRuntimeError, match="another shape"):
        load_draft(bent, target)
