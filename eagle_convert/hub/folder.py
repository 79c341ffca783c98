"""A local folder that is to be pushed: which files it has, that they are whole, and what they say they are."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle_convert.errors import BrokenFileError, EagleConvertError, SourceError
from eagle_convert.manifest import FILE as MANIFEST
from eagle_convert.manifest import Manifest, decode
from eagle_convert.source import open_source

from .errors import TooLargeError

README = "README.md"
FILE_LIMIT = 50 * 10**9  # what can be downloaded over plain HTTP
# Root-level files that a loader takes for the model's weights. Nothing else is ever called superseded.
_WEIGHTS = re.compile(r"(pytorch_model|model)(\.[\w-]+)?(-\d{5}-of-\d{5})?\.(bin|safetensors)(\.index\.json)?"
                      r"|(pytorch_model|model)\.(pt|pth)")
_ALSO_READ = re.compile(r"[^/]+\.safetensors")


@dataclass(frozen=True)
class PushFile:
    """A file to push: its path in the repository, where it lies, its size and digest."""

    path: str
    local: Path
    size: int
    sha256: str

    def git_oid(self) -> str:
        """What git calls the content: how the hub names small files."""
        return git_oid(self.local.read_bytes())

    def header(self) -> bytes:
        """A safetensors file up to its data."""
        with self.local.open("rb") as file:
            length = file.read(8)
            return length + file.read(int.from_bytes(length, "little"))


@dataclass(frozen=True)
class PushFolder:
    """What ``read_folder`` found.

    Attributes:
        files: everything that is pushed but the card.
        weights: the weight files among them, as a loader resolves them.
        algorithm: of the head, by its tensors: ``eagle`` or ``eagle3``.
        tensor_bytes: tensor data in the weight files.
        left_out: hidden files and folders that stay here.
        caveats: engine -> why it does not load the files or computes something else.
    """

    name: str
    files: tuple[PushFile, ...]
    weights: tuple[str, ...]
    algorithm: str
    tensor_bytes: int
    manifest: Manifest | None
    readme: str | None
    left_out: tuple[str, ...]
    caveats: Mapping[str, str]


def read_folder(folder: Path) -> PushFolder:
    """Validate a folder as ``inspect --deep`` does; every byte of it is read.

    Raises:
        SourceError: no folder, no weights in it, or no draft.
        BrokenFileError: an error-level finding: NaN, or a tensor that is not what the manifest says.
        EagleConvertError: a file is not what its format promises.
        TooLargeError: a file that the hub does not serve over HTTP.
    """
    from eagle_convert.inspection import inspect

    if not folder.is_dir():
        raise SourceError(f"{folder} is no folder", where=str(folder), how="give the folder that convert wrote")
    source = open_source(str(folder))
    manifest = decode(source.read_bytes(MANIFEST)) if MANIFEST in source.files else None
    found = inspect(str(folder), deep=True)
    errors = [f for f in found["findings"] if f["severity"] == "error"]
    if found["algorithm"] is None or errors:
        raise _refusal(source.name, found, errors)
    paths, left_out = _list(folder)
    readme = (folder / README).read_text(encoding="utf-8") if README in paths else None
    files = tuple(_file(folder, path) for path in paths if path != README)
    caveats = {name: "; ".join(engine["why"]) for name, engine in found["engines"].items() if not engine["faithful"]}
    return PushFolder(source.name, files, source.weight_files, found["algorithm"], found["bytes"]["source"], manifest,
                      readme, left_out, caveats)


def _refusal(name: str, found: Mapping[str, Any], errors: Sequence[Mapping[str, str]]) -> EagleConvertError:
    if found["algorithm"] is None:
        return SourceError(f"{name} holds no EAGLE draft", where=f"{name}: {found['title']}; {found['explanation']}",
                           how="give the folder that convert wrote")
    return BrokenFileError(f"{name} is not in order: {errors[0]['message']}", where=errors[0]["where"],
                           how=f"{errors[0]['fix']}; all findings: eagle-convert inspect {name} --deep")


def git_oid(data: bytes) -> str:
    """Git's id of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def superseded(remote: Iterable[str], pushed: Iterable[str]) -> tuple[list[str], list[str]]:
    """Weight files of the repository that the pushed ones replace, and others that a loader would read beside them.

    The first may be deleted on request. The second never are: what they are is not ours to say.
    """
    new = set(pushed)
    old = [path for path in sorted(remote) if path not in new]
    replaced = [path for path in old if _WEIGHTS.fullmatch(path)]
    return replaced, [path for path in old if path not in replaced and _ALSO_READ.fullmatch(path)]


def _list(folder: Path) -> tuple[list[str], tuple[str, ...]]:
    """Paths of the visible regular files, and the names of what is hidden."""
    paths, hidden = [], []
    for at, folders, files in os.walk(folder):
        base = Path(at)
        hidden += [(base / name).relative_to(folder).as_posix() for name in (*folders, *files) if name.startswith(".")]
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths += [(base / name).relative_to(folder).as_posix() for name in files
                  if not name.startswith(".") and (base / name).is_file()]
    return sorted(paths), tuple(sorted(hidden))


def _file(folder: Path, path: str) -> PushFile:
    local = folder / path
    size = local.stat().st_size
    if size > FILE_LIMIT:
        raise TooLargeError(f"{path} is larger than the hub serves in one file",
                            where=f"{path}: {size} bytes, at most {FILE_LIMIT}",
                            how="convert with a smaller --max-shard-size, then push again")
    digest = hashlib.sha256()
    with local.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return PushFile(path, local, size, digest.hexdigest())
