"""Every bundled broken or malicious folder: a message with what, where and how, exit code 1, no DEST, nothing run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.run import inspect, refused, run

HOSTILE = Path(__file__).resolve().parents[1] / "fixtures" / "hostile"
NAMES = sorted(p.name for p in HOSTILE.iterdir())

# A word that each message must hold: what a reader searches the message for.
SAYS = {
    "config-a-list": "JSON", "config-absent": "config.json", "config-absurd": "num_attention_heads",
    "config-not-json": "JSON", "config-wrong-types": "num_attention_heads", "index-absolute": "/etc/hostname",
    "index-climbs-out": "../secret.safetensors", "index-names-absent-tensor": "lacks a tensor",
    "index-not-json": "JSON", "index-shard-missing": "model-00002-of-00002.safetensors", "lfs-pointer": "git-lfs",
    "pickle-argparse": "argparse.Namespace", "pickle-eval": "eval", "pickle-not-zipped": "system",
    "pickle-record-missing": "storage 1 is not in the file", "pickle-system": "system",
    "pickle-torch-load": "torch.serialization.load",
    "pickle-zip-truncated": "truncated", "safetensors-claims-more-than-it-has": "truncated",
    "safetensors-dtype-unknown": "F17", "safetensors-empty": "empty", "safetensors-header-cut": "truncated",
    "safetensors-header-longer-than-file": "not a safetensors file", "safetensors-header-not-an-object": "safetensors",
    "safetensors-header-not-json": "JSON", "safetensors-hole": "hole", "safetensors-name-twice": "twice",
    "safetensors-offsets-overlap": "overlap", "safetensors-offsets-reversed": "order",
    "safetensors-shape-and-bytes-differ": "10 bytes", "safetensors-shape-negative": "-2",
    "safetensors-shape-overflows": "4611686018427387904", "safetensors-truncated": "truncated",
    "tensor-missing": "layers.0.mlp.up_proj.weight", "tensor-misspelt": "layers.0.mlp.up_prjo.weight",
    "tensor-unknown": "layers.0.adapter.weight", "tensor-wrong-shape": "layers.0.mlp.up_proj.weight",
    "weights-inf": "Inf or NaN", "weights-nan": "Inf or NaN",
}
NO_DRAFT = {n for n in NAMES if n.startswith("tensor-")}  # readable, and no layout fits: inspect answers no
FOUND = {"weights-inf", "weights-nan"}


def test_every_folder_is_expected():
    assert set(SAYS) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_convert_refuses(name, tmp_path, monkeypatch, fixtures_dir):
    monkeypatch.chdir(tmp_path)
    error = refused(HOSTILE / name, tmp_path / "out", "--target", fixtures_dir / "plant" / "tgt")
    assert SAYS[name] in f"{error['what']} {error['where']}"
    assert list(tmp_path.iterdir()) == []  # no DEST, no PWNED


@pytest.mark.parametrize("name", NAMES)
def test_inspect_answers(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if name in NO_DRAFT:
        assert SAYS[name] in str(inspect(HOSTILE / name, code=3).finding("EC105"))
    elif name in FOUND:
        inspect(HOSTILE / name, code=3).finding("EC601")
    else:
        ran = run("inspect", HOSTILE / name, "--json")
        assert ran.code == 1
        assert all(ran.error.values())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [n for n in NAMES if not n.startswith(("config-", "tensor-", "weights-"))])
def test_a_broken_target_is_refused_too(name, tmp_path, monkeypatch, fixtures_dir):
    monkeypatch.chdir(tmp_path)
    refused(fixtures_dir / "plant" / "e1", tmp_path / "out", "--target", HOSTILE / name)
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_is_not_there(tmp_path):
    error = refused(tmp_path / "hed", tmp_path / "out")
    assert "hed" in error["what"]


def test_no_space_left(tmp_path, fixtures_dir, monkeypatch):
    """The disk fills up while the folder is written."""
    import errno
    import os

    real = os.write
    written = []

    def full(descriptor, data):
        written.append(len(data))
        if sum(written) > 20_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", full)
    error = refused(fixtures_dir / "plant" / "e1", tmp_path / "out")
    monkeypatch.undo()
    assert "space" in error["what"]
