"""Write a checkpoint folder: streamed, hashed on the way, read back and proved, then put in place in one step.

The safetensors bytes are a function of names, types, shapes and contents alone, and the same that the safetensors
library writes with the metadata ``{"format": "pt"}``: tensors by alignment (widest first) and name, the header padded
with spaces to a multiple of 8.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .errors import BrokenFileError
from .files.dtypes import DTYPES, RANK
from .files.ranges import LocalFile
from .files.safetensors_header import read_header
from .files.transaction import Staging, check_destination, destination_errors

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_READ_BACK = 4 << 20
_FLUSH_EVERY = 64 << 20  # bytes; what is flushed while the rest is copied need not be waited for at the end
_SLACK = 1 << 20  # room for the small files and the file system's own blocks


@dataclass(frozen=True)
class OutTensor:
    """A tensor to write. ``chunks`` gives its raw little-endian bytes in order; each piece is used up before the next
    is asked for, so one buffer may serve them all."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    chunks: Callable[[], Iterator[memoryview]]

    @property
    def nbytes(self) -> int:
        elements = 1
        for n in self.shape:
            elements *= n
        nbytes = DTYPES[self.dtype].nbytes(elements)
        if nbytes is None:
            raise BrokenFileError(f"'{self.name}' does not fill whole bytes",
                                  where=f"{self.dtype} {list(self.shape)}", how="such a tensor cannot be stored")
        return nbytes


@dataclass(frozen=True)
class WriteResult:
    """What was written: digests (hex SHA-256 of each tensor's raw bytes), tensor bytes, and the files' sizes."""

    digests: dict[str, str]
    nbytes: int
    files: dict[str, int]


@dataclass(frozen=True)
class _Shard:
    file: str
    tensors: tuple[OutTensor, ...]
    header: bytes


def safetensors_header(tensors: Iterable[OutTensor]) -> tuple[bytes, tuple[OutTensor, ...]]:
    """The file's first bytes (length and padded JSON), and the tensors in the order of their data."""
    ordered = tuple(sorted(tensors, key=lambda t: (-RANK[t.dtype], t.name)))
    table: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for t in ordered:
        table[t.name] = {"dtype": t.dtype, "shape": list(t.shape), "data_offsets": [at, at + t.nbytes]}
        at += t.nbytes
    text = json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, ordered


def write_folder(dest: str | Path, plan: Sequence[OutTensor],
                 files: Mapping[str, bytes] | Callable[[WriteResult], Mapping[str, bytes]], *, force: bool = False,
                 source_paths: Iterable[Path] = (), max_shard_size: int | None = None,
                 verify: Callable[[Path], None] | None = None) -> WriteResult:
    """Write tensors and other files as the folder ``dest``, whole or not at all.

    Args:
        plan: the tensors, in any order; names must differ.
        files: further files by plain name; or a function of what was written, for those that state digests.
        force: replace a folder that is not empty.
        source_paths: what is read meanwhile; ``dest`` may not be, hold, or lie in one of them.
        max_shard_size: tensor bytes a file at most (a larger tensor gets a file of its own); None: one file.
        verify: called with the finished folder before it is put in place; what it raises undoes everything.

    Raises:
        DestinationError: ``dest`` cannot be written; nothing was left there.
        BrokenFileError: a tensor gave another number of bytes than its shape says, or what was read back differs.
    """
    dest = Path(dest)
    shards = _shards(plan, max_shard_size)
    nbytes = sum(t.nbytes for t in plan)
    needed = nbytes + sum(len(s.header) for s in shards) + _SLACK
    check_destination(dest, sources=source_paths, force=force, needed=needed)
    with Staging(dest) as staging, ThreadPoolExecutor(1) as hasher, ThreadPoolExecutor(1) as flusher:
        digests: dict[str, str] = {}
        sizes: dict[str, int] = {}
        for shard in shards:
            path = staging.path / shard.file
            with _Output(dest, path, flusher) as output:
                digests.update(_write_shard(output, shard, hasher))
                output.start_flush()
                _prove(path, shard, digests)
            sizes[shard.file] = len(shard.header) + sum(t.nbytes for t in shard.tensors)
        further = _index(shards, nbytes) if len(shards) > 1 else {}
        written = WriteResult(digests, nbytes, sizes | {name: len(data) for name, data in further.items()})
        further |= files(written) if callable(files) else files
        for name, data in further.items():
            if "/" in name or name in ("", ".", "..", *sizes):
                raise ValueError(f"not a plain new file name: {name!r}")
            with _Output(dest, staging.path / name, flusher) as output:
                output.write(memoryview(data))
        if verify:
            verify(staging.path)
        staging.commit(force=force)
    return WriteResult(digests, nbytes, sizes | {name: len(data) for name, data in further.items()})


def weight_file_names(plan: Sequence[OutTensor], max_shard_size: int | None = None) -> tuple[str, ...]:
    """The weight files that :func:`write_folder` makes of a plan."""
    return tuple(shard.file for shard in _shards(plan, max_shard_size))


def _shards(plan: Sequence[OutTensor], limit: int | None) -> list[_Shard]:
    """Group the tensors by name into files of at most ``limit`` tensor bytes."""
    names = [t.name for t in plan]
    if len(set(names)) != len(names):
        raise ValueError(f"a name stands twice in the plan: {next(n for n in names if names.count(n) > 1)}")
    groups: list[list[OutTensor]] = [[]]
    room = limit
    for t in sorted(plan, key=lambda t: t.name):
        if room is not None and limit is not None:
            if t.nbytes > room and groups[-1]:
                groups.append([])
                room = limit
            room -= t.nbytes
        groups[-1].append(t)
    shards = []
    for i, group in enumerate(groups, 1):
        header, ordered = safetensors_header(group)
        file = SINGLE_FILE if len(groups) == 1 else f"model-{i:05d}-of-{len(groups):05d}.safetensors"
        shards.append(_Shard(file, ordered, header))
    return shards


def _index(shards: Sequence[_Shard], nbytes: int) -> dict[str, bytes]:
    weight_map = {t.name: s.file for s in shards for t in s.tensors}
    table = {"metadata": {"total_size": nbytes}, "weight_map": dict(sorted(weight_map.items()))}
    return {INDEX_FILE: (json.dumps(table, ensure_ascii=False, indent=2) + "\n").encode()}


class _Output:
    """A new file that is on the disk when its ``with`` block ends; flushing starts while it is still written."""

    def __init__(self, dest: Path, path: Path, flusher: ThreadPoolExecutor) -> None:
        self._dest, self._flusher = dest, flusher
        self._pending: Future[None] | None = None
        self._dirty = 0
        with destination_errors(dest):
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def __enter__(self) -> _Output:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            with destination_errors(self._dest) if kind is None else suppress(OSError):
                self._await_flush()
                if kind is None:
                    os.fsync(self._descriptor)
        finally:
            os.close(self._descriptor)

    def write(self, data: memoryview) -> None:
        """Write all of it."""
        self._dirty += len(data)
        with destination_errors(self._dest):
            while len(data):
                data = data[os.write(self._descriptor, data):]
            if self._dirty >= _FLUSH_EVERY and (self._pending is None or self._pending.done()):
                self.start_flush()

    def start_flush(self) -> None:
        """Have what was written so far put on the disk beside whatever comes next."""
        with destination_errors(self._dest):
            self._await_flush()
        self._pending, self._dirty = self._flusher.submit(os.fdatasync, self._descriptor), 0

    def _await_flush(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()  # a failed flush is reported once: by the call that met it


def _write_shard(output: _Output, shard: _Shard, hasher: ThreadPoolExecutor) -> dict[str, str]:
    """Write one safetensors file; the digest of each tensor's bytes on their only pass."""
    digests = {}
    output.write(memoryview(shard.header))
    for tensor in shard.tensors:
        digest, count = hashlib.sha256(), 0
        for piece in tensor.chunks():
            pending = hasher.submit(digest.update, piece)  # beside the write: both leave the interpreter lock
            output.write(piece)
            count += len(piece)
            pending.result()
        if count != tensor.nbytes:
            raise BrokenFileError(f"'{tensor.name}' gave another number of bytes than its shape says",
                                  where=f"{tensor.dtype} {list(tensor.shape)}: {count} bytes, "
                                        f"{tensor.nbytes} expected", how="check the source file, then run again")
        digests[tensor.name] = digest.hexdigest()
    return digests


def _prove(path: Path, shard: _Shard, digests: Mapping[str, str]) -> None:
    """Read the file back as a stranger would: parse its header, hash every tensor again."""
    reader = LocalFile(path)
    buffer = memoryview(bytearray(_READ_BACK))
    try:
        entries = read_header(reader).entries
        for tensor in shard.tensors:
            entry, digest = entries[tensor.name], hashlib.sha256()
            for at in range(entry.start, entry.end, _READ_BACK):
                piece = buffer[:min(_READ_BACK, entry.end - at)]
                reader.read_into(at, piece)
                digest.update(piece)
            if (entry.dtype, entry.shape, digest.hexdigest()) != (tensor.dtype, tensor.shape, digests[tensor.name]):
                raise BrokenFileError(f"'{tensor.name}' reads back different from what was written",
                                      where=f"{path.name}: {digest.hexdigest()}, {digests[tensor.name]} expected",
                                      how="the disk or its file system is at fault: write to another one")
    finally:
        reader.close()

