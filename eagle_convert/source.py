"""A checkpoint as it is given on the command line: a folder, a file, or a hub id; its files, config and weights.

Opening a source reads names, ``config.json`` and the shard index; headers only of the extra modules of a training
dump. Hub ids are opened by ``hub/source.py``, imported only for them.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from .errors import ConfigError, SourceError, UsageError
from .files.json_text import parse_object
from .files.ranges import LocalFile, RangeReader
from .files.weight_files import Weights, read_shard_index, resolve_weights

Role = Literal["draft", "target"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")
# One checkpoint among several of a training run; its config may lie one level up.
_STATE = re.compile(r"(state|checkpoint|epoch|step|global_step|iter)[_-]?\d+")
_WEIGHT_ENDINGS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_MAX_CONFIG = 16 << 20


@dataclass(frozen=True)
class HubOptions:
    """How to reach the hub; None means what ``huggingface_hub`` takes from its environment."""

    token: str | None = field(default=None, repr=False)
    cache_dir: Path | str | None = None
    offline: bool = False
    endpoint: str | None = None


@dataclass(frozen=True)
class Source:
    """An opened checkpoint. File names are relative to its folder; nothing here is an absolute path but ``path``.

    Attributes:
        ref: as it was given.
        name: the folder's name, or the repository id.
        path: the local folder; None for a hub id.
        revision: the resolved commit of a hub id.
        files: the folder's own files, sorted (no subfolders).
        config: the parsed ``config_file``, or None where there is none; the dialect decides whether one is needed.
        weight_files: what to open for tensors: one file, or the shards.
        weight_map: tensor -> shard, where an index names them.
        ignored: files that look like weights and are not read, each with the reason.
        config_bytes: the config exactly as stored.
        opener: gives random access to a file by name.
    """

    ref: str
    name: str
    path: Path | None
    revision: str | None
    files: tuple[str, ...]
    config: dict[str, Any] | None
    config_file: str | None
    weight_files: tuple[str, ...]
    ignored: tuple[tuple[str, str], ...]
    opener: Callable[[str], RangeReader] = field(repr=False, compare=False)
    weight_map: Mapping[str, str] | None = None
    index_file: str | None = None
    config_bytes: bytes | None = None

    def open_at(self, file: str) -> RangeReader:
        """Random access to one of the source's files; close it after use."""
        return self.opener(file)

    def read_bytes(self, file: str) -> bytes:
        """A whole file."""
        reader = self.open_at(file)
        try:
            return reader.read_at(0, reader.size)
        finally:
            reader.close()

    @property
    def config_sha256(self) -> str | None:
        """Hex digest of the config as stored."""
        return None if self.config_bytes is None else hashlib.sha256(self.config_bytes).hexdigest()


def open_source(ref: str, *, revision: str | None = None, hub: HubOptions | None = None,
                role: Role = "draft") -> Source:
    """Open ``ref``: what exists locally is local; ``hf://org/name[@rev]`` and other ``org/name[@rev]`` are hub ids.

    Args:
        revision: of a hub id, where ``ref`` states none.
        role: whose checkpoint it is, for messages and defaults.

    Raises:
        SourceError: not there, unreadable, incomplete, or several checkpoints.
        ConfigError: ``config.json`` is not a JSON object.
        UsageError: two revisions, or a revision of a local folder.
        HubError: the hub said no.
    """
    path = _expanded(ref)
    is_hub = ref.startswith("hf://") or (not os.path.lexists(path) and _HUB_ID.fullmatch(ref) is not None)
    if is_hub:
        return _open_hub(ref, revision, hub or HubOptions(), role)
    if revision is not None:
        raise UsageError("--revision is for hub ids", where=f"{ref} is local, revision {revision} was given",
                         how="leave --revision out")
    if not path.exists():
        raise _not_found(ref, path)
    return _open_local(ref, path)


def _expanded(ref: str) -> Path:
    try:
        return Path(ref).expanduser()
    except RuntimeError as e:  # pathlib's word for a user that it does not know
        raise SourceError(f"{ref} does not exist", where=f"the home folder of '{Path(ref).parts[0]}' is not known",
                          how="give the folder's own path") from e


def _open_hub(ref: str, revision: str | None, hub: HubOptions, role: Role) -> Source:
    repo_id, _, stated = ref.removeprefix("hf://").partition("@")
    if not _HUB_ID.fullmatch(repo_id) or (ref.count("@") and not stated):
        raise UsageError("this is not a hub id", where=f"found '{ref}', expected hf://org/name[@revision]",
                         how="copy the id from the model's page")
    if stated and revision and stated != revision:
        raise UsageError("two revisions are given", where=f"{ref} and --revision {revision}", how="give one of them")
    from .hub.source import open_hub_source

    return open_hub_source(repo_id, stated or revision, hub, role)


def _not_found(ref: str, path: Path) -> SourceError:
    """Name the first part of the path that is missing, and what lies beside it."""
    import difflib

    missing = path
    while not missing.parent.exists() and missing.parent != missing:
        missing = missing.parent
    try:
        beside = sorted(os.listdir(missing.parent))
    except OSError:
        beside = []
    near = difflib.get_close_matches(missing.name, beside, n=3, cutoff=0.5)
    what = "is a link to nothing" if missing.is_symlink() else "does not exist"
    return SourceError(f"{ref} {what}", where=f"'{missing.name}' is not in '{missing.parent}'",
                       how=f"did you mean {' or '.join(near)}?" if near else
                       "give a folder, a weight file, or a hub id org/name")


def _open_local(ref: str, path: Path) -> Source:
    folder = path if path.is_dir() else path.parent
    name = folder.resolve().name
    files, subfolders = _list(folder, name)
    opener = _LocalFolder(folder)
    if path.is_dir():
        weights = resolve_weights(name, files, opener, lambda f: (folder / f).is_file())
    elif path.name.endswith(".index.json"):
        weights = read_shard_index(name, path.name, opener, lambda f: (folder / f).is_file())
    elif path.name.endswith(_WEIGHT_ENDINGS):
        weights = Weights((path.name,))
    else:
        raise SourceError(f"{path.name} is not a weight file", where=f"{ref}: endings read are "
                          f"{', '.join(_WEIGHT_ENDINGS)}", how=f"give the folder: {folder}")
    if weights.index_file:
        refuse_escaping_links(folder, weights.index_file, weights.files)
    if path.is_dir() and not weights.files:
        _refuse_run_folder(name, subfolders)
    config_file = _config_file(folder, name, files)
    config_bytes = config = None
    if config_file:
        config_bytes = _read_config(opener, config_file)
        config = parse_object(config_bytes, config_file, infinite=True)
    return Source(ref, name, folder, None, files, config, config_file, weights.files, weights.ignored, opener,
                  weights.weight_map, weights.index_file, config_bytes)


def _list(folder: Path, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The folder's files and subfolders by name, sorted."""
    try:
        with os.scandir(folder) as entries:
            found = [(e.name, e.is_dir()) for e in entries]
    except OSError as e:
        raise SourceError(f"{name} cannot be listed", where=f"{folder}: {e.strerror}",
                          how="check its permissions") from e
    return tuple(sorted(n for n, d in found if not d)), tuple(sorted(n for n, d in found if d))


def _refuse_run_folder(name: str, subfolders: tuple[str, ...]) -> None:
    states = [s for s in subfolders if _STATE.fullmatch(s)]
    if states:
        states.sort(key=lambda s: int("".join(re.findall(r"\d+", s))))
        raise SourceError(f"{name} is a training run; which of its saved states is meant?",
                          where=f"{len(states)} found: {', '.join(states)}",
                          how=f"give one of them, such as {name}/{states[-1]}")
    if "model" in subfolders:  # NeMo Automodel puts the draft into a folder beside its optimizer's
        raise SourceError(f"{name} holds no weights; the folder 'model' in it may", where=f"{name}: folders "
                          f"{', '.join(subfolders)}", how=f"give {name}/model")


def _config_file(folder: Path, name: str, files: tuple[str, ...]) -> str | None:
    if "config.json" in files:
        return "config.json"
    if _STATE.fullmatch(name) and (folder.resolve().parent / "config.json").is_file():
        return "../config.json"
    return None


def _read_config(opener: Callable[[str], RangeReader], file: str) -> bytes:
    reader = opener(file)
    try:
        if reader.size > _MAX_CONFIG:
            raise ConfigError(f"{file} is not a model's config", where=f"{file}: {reader.size} bytes, at most "
                              f"{_MAX_CONFIG} expected", how="check which file stands there")
        return reader.read_at(0, reader.size)
    finally:
        reader.close()


class _LocalFolder:
    """Opens files of a folder by relative name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, file: str) -> RangeReader:
        if file == "../config.json":  # of a training run's state
            return LocalFile(self._folder.resolve().parent / "config.json", file)
        return LocalFile(self._folder / file, file)


def refuse_escaping_links(folder: Path, named_by: str, files: Iterable[str]) -> None:
    """What a checkpoint names, or carries along, must lie in its folder also after following links.

    In the hub's cache every file of a snapshot is a link into the repository's ``blobs``; that is no escape.

    Raises:
        SourceError: a file of ``files`` leads elsewhere; nothing was read from there.
    """
    root = folder.resolve()
    allowed = [root] + ([root.parent.parent / "blobs"] if root.parent.name == "snapshots" else [])
    for file in files:
        real = (folder / file).resolve()
        if not any(real.is_relative_to(a) for a in allowed):
            raise SourceError(f"{named_by} names a link that leaves its folder",
                              where=f"{named_by}: '{file}' leads to '{real}'",
                              how="nothing was read from there; put the file itself into the folder")
