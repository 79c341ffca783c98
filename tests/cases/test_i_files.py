"""Section I of the cases: files."""

from __future__ import annotations

import io
import struct
from argparse import Namespace

import numpy as np
import pytest
import torch

from fixtures.formats import json_bytes, safetensors_bytes, sharded
from tests.builders import checkpoint, write
from tests.run import convert, kept_bit_equal, refused, run, tensors


@pytest.fixture
def tgt(fixtures_dir):
    return fixtures_dir / "plant" / "tgt"


# -- C72: states of a training run

def test_c72_one_state_works_with_the_config_one_level_up(tmp_path):
    base, values = checkpoint("e1")
    write(tmp_path / "run", base, {})
    (tmp_path / "run" / "model.safetensors").unlink()
    for n in (1, 2):
        write(tmp_path / "run" / f"state_{n}", None, values)
    ran = convert(tmp_path / "run" / "state_2", tmp_path / "out")
    kept_bit_equal(ran, tmp_path / "out", values)


def test_c72_a_parent_of_several_states_asks_which(tmp_path):
    base, values = checkpoint("e1")
    write(tmp_path / "run", base, {})
    (tmp_path / "run" / "model.safetensors").unlink()
    for n in (1, 2):
        write(tmp_path / "run" / f"state_{n}", None, values)
    error = refused(tmp_path / "run", tmp_path / "out")
    assert "state_1" in str(error)
    assert "state_2" in str(error)


# -- C73: pickles

def pickled(folder, base, payload):
    write(folder, base, {})
    (folder / "model.safetensors").unlink()
    data = io.BytesIO()
    torch.save(payload, data)
    (folder / "pytorch_model.bin").write_bytes(data.getvalue())
    return folder


def state_dict():
    base, values = checkpoint("e1")
    return base, values, {name: torch.from_numpy(value) for name, value in values.items()}


def test_c73_plain_tensors_are_read(tmp_path, tgt):
    base, values, state = state_dict()
    folder = pickled(tmp_path / "head", base, state)
    ran = convert(folder, tmp_path / "out", "--target", tgt)
    kept_bit_equal(ran, tmp_path / "out", values)


def test_c73_an_argparse_namespace_is_named_and_refused(tmp_path, tgt):
    base, _, state = state_dict()
    folder = pickled(tmp_path / "head", base, state | {"args": Namespace(lr=1e-4)})
    error = refused(folder, tmp_path / "out", "--target", tgt)
    assert "argparse.Namespace" in str(error)
    assert "NOT executed" in error["what"]


def test_c73_nothing_of_a_hostile_pickle_runs(tmp_path, tgt):
    import os

    marker = tmp_path / "PWNED"

    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {marker}",)

    base, _, state = state_dict()
    folder = pickled(tmp_path / "head", base, state | {"x": Evil()})
    error = refused(folder, tmp_path / "out", "--target", tgt)
    assert "system" in str(error)
    assert run("inspect", folder, "--json").code == 1
    assert not marker.exists()
    torch.load(folder / "pytorch_model.bin", weights_only=False)
    assert marker.exists()  # the trap itself works


# -- C75: an interrupted download

@pytest.mark.parametrize("name", ["e1", "e3"])
def test_c75_a_missing_shard_is_named(tmp_path, name):
    base, values = checkpoint(name)
    folder = tmp_path / "head"
    folder.mkdir()
    for file, data in ({"config.json": json_bytes(base)} | sharded(values, 2)).items():
        (folder / file).write_bytes(data)
    kept_bit_equal(convert(folder, tmp_path / "whole"), tmp_path / "whole", values)
    (folder / "model-00002-of-00002.safetensors").unlink()
    error = refused(folder, tmp_path / "out")
    assert "model-00002-of-00002.safetensors" in error["where"]
    assert "incomplete download" in str(error)


# -- C78: metadata

@pytest.mark.parametrize("name", ["e1", "e3"])
@pytest.mark.parametrize("metadata", [{}, {"format": "np", "step": "7"}], ids=["none", "another"])
def test_c78_the_output_carries_exactly_format_pt(tmp_path, name, metadata):
    base, values = checkpoint(name)
    folder = write(tmp_path / "head", base, {})
    (folder / "model.safetensors").write_bytes(safetensors_bytes(values, metadata))
    kept_bit_equal(convert(folder, tmp_path / "out"), tmp_path / "out", values)
    raw = (tmp_path / "out" / "model.safetensors").read_bytes()
    header = raw[8:8 + struct.unpack("<Q", raw[:8])[0]]
    assert b'"__metadata__":{"format":"pt"}' in header


# -- the destination

def test_shards_only_on_request(tmp_path, tgt):
    base, values = checkpoint("e1")
    folder = write(tmp_path / "head", base, values)
    convert(folder, tmp_path / "one", "--target", tgt)
    convert(folder, tmp_path / "many", "--target", tgt, "--max-shard-size", "40KB")
    shards = sorted(p.name for p in (tmp_path / "many").glob("*.safetensors"))
    assert len(shards) > 1
    assert shards[0] == f"model-00001-of-{len(shards):05d}.safetensors"
    ran = convert(tmp_path / "many", tmp_path / "again", "--target", tgt)
    kept_bit_equal(ran, tmp_path / "again", tensors(tmp_path / "one"))
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (
        tmp_path / "one" / "model.safetensors").read_bytes()


def test_equal_inputs_give_equal_bytes(tmp_path, tgt):
    """The same head as .bin and as safetensors, and twice the same: equal files, but for what names the source."""
    base, values = checkpoint("e1")
    for i, file in enumerate(("model.safetensors", "pytorch_model.bin")):
        folder = write(tmp_path / str(i) / "head", base, dict(reversed(values.items())) if i else values, file)
        convert(folder, tmp_path / f"out{i}", "--target", tgt)
    for file in ("config.json", "model.safetensors"):
        assert (tmp_path / "out0" / file).read_bytes() == (tmp_path / "out1" / file).read_bytes()
    convert(tmp_path / "0" / "head", tmp_path / "twice", "--target", tgt)
    for file in ("config.json", "model.safetensors", "eagle_convert.json"):
        assert (tmp_path / "out0" / file).read_bytes() == (tmp_path / "twice" / file).read_bytes()


def test_licence_and_notice_travel(tmp_path, tgt):
    base, values = checkpoint("e1")
    folder = write(tmp_path / "head", base, values, **{"LICENSE": b"terms\n", "NOTICE.txt": b"built with\n",
                                                       "README.md": b"# card\n", "USE": b"x"})
    convert(folder, tmp_path / "out", "--target", tgt)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "LICENSE", "NOTICE.txt", "config.json", "eagle_convert.json", "model.safetensors"]
    assert (tmp_path / "out" / "LICENSE").read_bytes() == b"terms\n"


def test_a_dry_run_says_the_same_and_writes_nothing(tmp_path, tgt):
    base, values = checkpoint("e1")
    folder = write(tmp_path / "head", base, values)
    dry = convert(folder, tmp_path / "out", "--target", tgt, "--dry-run").document
    assert not (tmp_path / "out").exists()
    wet = convert(folder, tmp_path / "out", "--target", tgt).document
    assert dry.pop("dry_run") is True
    assert wet.pop("dry_run") is False
    assert dry == wet


def test_a_full_destination_is_refused_without_force(tmp_path, tgt):
    base, values = checkpoint("e1")
    folder = write(tmp_path / "head", base, values)
    dest = tmp_path / "out"
    dest.mkdir()
    (dest / "precious.txt").write_text("mine")
    for extra in ((), ("--dry-run",)):
        ran = run("convert", folder, dest, "--json", "--target", tgt, *extra)
        assert ran.code == 1
        assert "--force" in ran.error["how"]
        assert (dest / "precious.txt").read_text() == "mine"
    convert(folder, dest, "--target", tgt, "--force")
    assert sorted(p.name for p in dest.iterdir()) == ["config.json", "eagle_convert.json", "model.safetensors"]


@pytest.mark.parametrize("inside", ["head/out", "model/out", "head"])
def test_a_destination_inside_what_is_read_is_refused(tmp_path, tgt, inside):
    base, values = checkpoint("e1")
    folder = write(tmp_path / "head", base, values)
    model = write(tmp_path / "model", *checkpoint("tgt"))
    before = sorted(p.name for p in tmp_path.rglob("*"))
    ran = run("convert", folder, tmp_path / inside, "--json", "--target", model, "--force")
    assert ran.code == 1
    assert ran.error["type"] == "DestinationError"
    assert sorted(p.name for p in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("text", ["0", "-1", "12XB", "GB", "nan"])
def test_a_size_that_is_none_is_a_usage_error(tmp_path, tgt, text):
    ran = run("convert", tgt, tmp_path / "out", "--json", "--max-shard-size", text)
    assert ran.code == 2
    assert text in ran.error["what"]


def test_scalars_and_empty_tensors_do_not_crash(tmp_path):
    base, values = checkpoint("e1")
    folder = write(tmp_path / "head", base, values | {"num_batches": np.array(3, np.int64)})
    refused(folder, tmp_path / "out")
    folder = write(tmp_path / "empty", base, values | {"fc.weight": np.empty((0, 128), np.float16)})
    refused(folder, tmp_path / "out")
