"""A folder against its manifest, a target against what is borrowed from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from eagle_convert.conversion import convert
from eagle_convert.findings import Finding
from eagle_convert.manifest import FILE
from eagle_convert.source import open_source
from eagle_convert.tensors import open_file, open_index
from eagle_convert.verification import verify_manifest


def verify(folder: Path, target: Path | None = None, *, deep: bool = False) -> list[Finding]:
    source = open_source(str(folder))
    with open_index(source) as index:
        return verify_manifest(source, index, open_source(str(target)) if target else None, deep=deep)


@pytest.fixture
def rand(fixtures_dir: Path) -> Path:
    return fixtures_dir / "rand"


@pytest.fixture
def compact(tmp_path: Path, rand: Path) -> Path:
    convert(str(rand / "e1"), tmp_path / "compact", target=str(rand / "tgt"))
    return tmp_path / "compact"


def edit(folder: Path, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    """Change the tensors of a folder's weights."""
    with open_file(folder / "model.safetensors") as index:
        tensors = {name: index.array(name) for name in index}
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def test_what_convert_wrote_is_what_its_manifest_says(compact: Path, rand: Path) -> None:
    files, target = verify(compact, rand / "tgt", deep=True)
    assert (files.id, target.id) == ("EC911", "EC913")
    assert "digests read" in target.message


def test_cast_tensors_count_by_what_was_written(tmp_path: Path, rand: Path) -> None:
    convert(str(rand / "e1"), tmp_path / "wide", target=str(rand / "tgt"), dtype="float32")
    assert [f.id for f in verify(tmp_path / "wide", deep=True)] == ["EC911"]


def test_no_manifest_no_finding(compact: Path) -> None:
    (compact / FILE).unlink()
    assert verify(compact, deep=True) == []


@pytest.mark.parametrize(("change", "said"), [
    (lambda t: t.pop("fc.weight"), "fc.weight: the manifest says this tensor, the files have none of that name"),
    (lambda t: t.update({"new.weight": np.zeros(4, np.float16)}), "new.weight: the manifest says no such tensor"),
    (lambda t: t.update({"fc.weight": t["fc.weight"][:1]}), "fc.weight: the manifest says 16384 bytes"),
    (lambda t: t["fc.weight"].__setitem__((0, 0), 9), "fc.weight: the manifest says sha256"),
])
def test_every_change_of_the_weights_is_told(compact: Path, change: Callable[[dict[str, np.ndarray]], object],
                                             said: str) -> None:
    edit(compact, change)
    (found,) = verify(compact, deep=True)
    assert found.id == "EC912"
    assert said in f"{found.where}: {found.message}"
    assert found.severity == "error"


def test_another_target_is_told_and_the_right_one_named(compact: Path, rand: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_bytes((rand / "tgt" / "config.json").read_bytes())
    (other / "model.safetensors").write_bytes((rand / "tgt" / "model.safetensors").read_bytes())
    edit(other, lambda t: t["model.embed_tokens.weight"].__setitem__((0, 0), 9))
    found = verify(compact, other)[1]
    assert (found.id, found.severity) == ("EC914", "error")
    assert "--target tgt" in found.fix
    edit(other, lambda t: t.update({"model.embed_tokens.weight": t["model.embed_tokens.weight"][:100]}))
    assert "F16 [100, 64]" in verify(compact, other)[1].message
    edit(other, lambda t: t.pop("model.embed_tokens.weight"))
    assert "no tensor model.embed_tokens.weight" in verify(compact, other)[1].message


def test_a_manifest_that_cannot_be_read_is_an_error(compact: Path) -> None:
    from eagle_convert.errors import BrokenFileError

    document = json.loads((compact / FILE).read_text())
    del document["ledger"]
    (compact / FILE).write_text(json.dumps(document))
    with pytest.raises(BrokenFileError):
        verify(compact)
