"""The bundled checkpoints are what their script makes, and the hand-written formats are the real ones."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, save

from fixtures import exact, plant
from fixtures.formats import safetensors_bytes, torch_bytes
from fixtures.make import HERE, MADE, build, files


def test_the_committed_fixtures_are_what_the_script_makes(tmp_path: Path) -> None:
    """Byte for byte, and nothing else lies in the made folders."""
    build(tmp_path)
    committed = {str(p.relative_to(HERE)): p for top in MADE for p in (HERE / top).rglob("*") if p.is_file()}
    made = {str(p.relative_to(tmp_path)): p for p in tmp_path.rglob("*") if p.is_file()}
    assert sorted(committed) == sorted(made)
    assert [name for name in made if made[name].read_bytes() != committed[name].read_bytes()] == []


def test_two_runs_give_the_same_bytes() -> None:
    assert files() == files()


@pytest.mark.parametrize("name", ["e1", "e3"])
def test_safetensors_and_torch_read_what_we_write(name: str) -> None:
    torch = pytest.importorskip("torch")
    tensors = plant.checkpoints()[name][1]
    read = load(safetensors_bytes(tensors))
    unpickled = torch.load(io.BytesIO(torch_bytes(tensors)), weights_only=True)
    assert list(unpickled) == list(tensors)
    for key, value in tensors.items():
        for other in (read[key], unpickled[key].numpy()):
            assert other.dtype == value.dtype
            assert other.shape == value.shape
            assert other.tobytes() == value.tobytes()
    assert load(save(tensors)).keys() == read.keys()


def test_the_storages_of_a_torch_zip_are_aligned() -> None:
    """As PyTorch aligns them, so that a reader may map them."""
    data = torch_bytes(plant.checkpoints()["e1"][1])
    for info in zipfile.ZipFile(io.BytesIO(data)).infolist():
        name, extra = struct.unpack_from("<HH", data, info.header_offset + 26)
        assert (info.header_offset + 30 + name + extra) % 64 == 0, info.filename


def test_exact_algebra_agrees_with_numpy() -> None:
    x = plant.rng(5).standard_normal((16, 16))
    y = plant.rng(6).standard_normal((16, 7))
    np.testing.assert_allclose(exact.matmul(x, y), x @ y, atol=1e-13)
    np.testing.assert_allclose(exact.norms(x)[:, 0], np.linalg.norm(x, axis=1), atol=1e-13)
    np.testing.assert_allclose(exact.orthogonal(x), np.linalg.qr(x)[0], atol=1e-13)


def test_plant_is_what_its_docstring_says() -> None:
    """perm is three cycles; greedy text from SUBSET stays in SUBSET; the head row of perm(t) is the embedding of t."""
    assert sorted(plant.PERM) == list(range(plant.V))
    seen, token = set(), int(plant.SUBSET[0])
    while token not in seen:
        seen.add(token)
        token = int(plant.PERM[token])
    assert sorted(seen) == plant.SUBSET.tolist()
    tgt = plant.target()
    np.testing.assert_array_equal(tgt["lm_head.weight"][plant.PERM], plant.fp16(plant.U))
    assert all(ids[-1] in seen and min(ids) >= 3 and len(ids) == 9 for ids in plant.prompts())


def test_the_tiny_pair_has_the_published_sizes() -> None:
    """E1 65,600 parameters, 86,080 with a copied head, 45,120 without the embedding (cases C05)."""
    e1 = plant.checkpoints()["e1"][1]
    total = sum(t.size for t in e1.values())
    assert (total, total + plant.V * plant.H, total - plant.V * plant.H) == (65600, 86080, 45120)


def test_gguf_reads_what_we_write(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "model.gguf"
    path.write_bytes(files()["layouts/e3-gguf/model.gguf"])
    reader = gguf.GGUFReader(path)
    e3 = plant.checkpoints()["e3"][1]
    read = {t.name: t for t in reader.tensors}
    np.testing.assert_array_equal(read["fc.weight"].data, e3["fc.weight"])
    np.testing.assert_array_equal(read["d2t"].data, plant.SUBSET)
    assert reader.fields["general.architecture"].contents() == "eagle3"
    assert reader.fields["eagle3.extract_layers"].contents() == [2, 4, 5]


def test_the_training_meta_is_read_by_torch() -> None:
    torch = pytest.importorskip("torch")
    meta = torch.load(io.BytesIO(files()["layouts/e3-automodel-state/eagle_meta.pt"]), weights_only=True)
    assert meta["global_step"] == 1000
    assert meta["selected_token_ids"].tolist() == plant.SUBSET.tolist()
    assert meta["selected_token_mask"].nonzero().flatten().tolist() == plant.SUBSET.tolist()


@pytest.mark.parametrize("trace", sorted((HERE / "smollm2" / "traces").glob("*.jsonl")), ids=lambda path: path.stem)
def test_the_recorded_traces_add_up(trace: Path) -> None:
    """Counting steps and accepted drafts give the header's figures; roots and accepted drafts give the text."""
    header, *rows = (json.loads(line) for line in trace.read_text().splitlines())
    counting = [step for row in rows for step in row["steps"] if not step["truncated"]]
    assert len(rows) == header["prompts"] == 24
    assert len(counting) == header["steps"]
    assert sum(step["accepted"] for step in counting) == header["accepted"]
    assert round(1 + header["accepted"] / header["steps"], 6) == header["acceptance_length"]
    for row in rows:
        assert len(row["output_ids"]) == sum(step["emitted"] for step in row["steps"])
