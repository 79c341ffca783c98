"""The tensors of a checkpoint by name: headers first, data by ranges, digests by streaming.

One :class:`TensorIndex` covers a single safetensors file, shards, and ``.bin`` files. Opening it reads headers only.
torch is imported by :meth:`TensorIndex.torch` and by nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import BrokenFileError, SourceError
from .files.dtypes import DTYPES, Array, widen
from .files.ranges import LocalFile, RangeReader
from .files.safetensors_header import read_header

if TYPE_CHECKING:
    import torch

    from .source import Source

CHUNK = 8 << 20
_DIGEST_BUFFER = 1 << 20  # stays in the cache between the read and the hash


@dataclass(frozen=True)
class TensorInfo:
    """What the header says of a tensor: safetensors dtype code, shape, bytes, and the file that holds it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    file: str

    @property
    def elements(self) -> int:
        n = 1
        for size in self.shape:
            n *= size
        return n


@dataclass(frozen=True)
class _Stored:
    info: TensorInfo
    reader: RangeReader
    start: int  # absolute byte of the first element
    stride: tuple[int, ...] | None  # in elements; None: contiguous


class TensorIndex(Mapping[str, TensorInfo]):
    """Tensors by name, in the order of the files and, within a file, of its data. Close it, or use ``with``.

    Attributes:
        metadata: for each safetensors file its ``__metadata__`` (empty where it has none).
        skipped: for each ``.bin`` file the names of values in it that are no tensors.
    """

    def __init__(self) -> None:
        self.metadata: dict[str, dict[str, str]] = {}
        self.skipped: dict[str, tuple[str, ...]] = {}
        self._stored: dict[str, _Stored] = {}
        self._readers: list[RangeReader] = []
        self._digests: dict[str, str] = {}

    def __getitem__(self, name: str) -> TensorInfo:
        return self._stored[name].info

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)

    def __enter__(self) -> TensorIndex:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files. Names and infos stay; data can no longer be read."""
        for reader in self._readers:
            reader.close()

    @property
    def nbytes(self) -> int:
        """Bytes of tensor data."""
        return sum(s.info.nbytes for s in self._stored.values())

    def expect(self, *names: str) -> None:
        """Announce that these tensors are about to be read whole, in the order of the file.

        A remote file then asks once for each run of neighbours.
        """
        runs: list[tuple[RangeReader, int, int]] = []
        for stored in sorted((self._stored[name] for name in names), key=lambda s: (s.info.file, s.start)):
            stop = stored.start + stored.info.nbytes
            if runs and runs[-1][0] is stored.reader and runs[-1][2] == stored.start:
                runs[-1] = (stored.reader, runs[-1][1], stop)
            else:
                runs.append((stored.reader, stored.start, stop))
        for reader, start, stop in runs:
            reader.expect(start, stop)

    def chunks(self, name: str, size: int = CHUNK) -> Iterator[memoryview]:
        """The tensor's raw bytes, little-endian and contiguous, in pieces of ``size`` bytes (the last may be short)."""
        stored = self._stored[name]
        if stored.stride is not None:
            whole = self.array(name).reshape(-1).view("u1").data
            yield from (whole[at:at + size] for at in range(0, len(whole), size))
            return
        self.expect(name)
        for at in range(0, stored.info.nbytes, size):
            yield memoryview(stored.reader.read_at(stored.start + at, min(size, stored.info.nbytes - at)))

    def stream(self, name: str, buffer: bytearray) -> Iterator[memoryview]:
        """As :meth:`chunks`, but every piece is a view of ``buffer`` and valid only until the next one is asked for."""
        stored = self._stored[name]
        if stored.stride is not None:
            yield from self.chunks(name, len(buffer))
            return
        view = memoryview(buffer)
        self.expect(name)
        for at in range(0, stored.info.nbytes, len(buffer)):
            piece = view[:min(len(buffer), stored.info.nbytes - at)]
            stored.reader.read_into(stored.start + at, piece)
            yield piece

    def sha256(self, name: str) -> str:
        """Hex digest of the tensor's raw bytes (as :meth:`chunks` gives them); computed once."""
        if name not in self._digests:
            digest = hashlib.sha256()
            for piece in self.stream(name, bytearray(_DIGEST_BUFFER)):
                digest.update(piece)
            self._digests[name] = digest.hexdigest()
        return self._digests[name]

    def array(self, name: str, start: int = 0, stop: int | None = None) -> Array:
        """Rows ``[start, stop)`` of the first axis as they are stored; writable, owned by the caller.

        BF16 comes as uint16 and eight-bit floats as uint8 (their bit patterns), BOOL as bool, F16 as float16, and so
        on. Sub-byte types come as uint8 ``[rows, bytes a row]``. A 0-d tensor takes no rows.

        Raises:
            BrokenFileError: the file has become shorter; sub-byte rows that do not end on a byte.
        """
        stored = self._stored[name]
        info, dtype = stored.info, DTYPES[stored.info.dtype]
        if not info.shape:
            return self._read(stored, 0, 1).reshape(())
        start, stop, _ = slice(start, stop).indices(info.shape[0])
        stop = max(start, stop)
        if stored.stride is not None:
            return self._gather(stored, stored.stride, start, stop)
        row = info.elements // info.shape[0] if info.shape[0] else 0
        if dtype.view is None:
            if row * dtype.bits % 8:
                raise BrokenFileError(f"rows of '{name}' do not end on a byte", where=f"{info.file}: {info.dtype} "
                                      f"{list(info.shape)}", how="such packed tables can only be copied")
            return self._read(stored, start * row, (stop - start) * row).reshape(stop - start, -1)
        return self._read(stored, start * row, (stop - start) * row).reshape((stop - start, *info.shape[1:]))

    def to_float32(self, name: str, start: int = 0, stop: int | None = None) -> Array:
        """Rows ``[start, stop)`` as float32: exact for every float type up to 32 bits, F64 is rounded.

        Raises:
            BrokenFileError: the tensor holds no floats, or packed ones of less than eight bits.
        """
        try:
            return widen(self.array(name, start, stop), self[name].dtype)
        except ValueError as e:
            raise BrokenFileError(f"'{name}' holds no floats that can be compared",
                                  where=f"{self[name].file}: {e}", how="give a checkpoint that is not packed") from None

    def torch(self, name: str) -> torch.Tensor:
        """The whole tensor on the CPU, in its own dtype; imports torch.

        Raises:
            BrokenFileError: this torch has no such dtype.
        """
        import torch

        info = self[name]
        dtype = getattr(torch, DTYPES[info.dtype].torch or "-", None)
        if dtype is None:
            raise BrokenFileError(f"this torch ({torch.__version__}) has no type for '{name}'",
                                  where=f"{info.file}: {info.dtype}", how="install a newer torch")
        shape = info.shape
        if DTYPES[info.dtype].bits == 4 and shape:  # torch packs two to a byte and counts the bytes
            shape = (*shape[:-1], shape[-1] // 2)
        raw = bytearray().join(self.chunks(name))
        return torch.frombuffer(raw, dtype=dtype).reshape(shape) if raw else torch.empty(shape, dtype=dtype)

    def _read(self, stored: _Stored, first: int, count: int) -> Array:
        """``count`` contiguous elements from element ``first``, flat."""
        import numpy as np

        dtype = DTYPES[stored.info.dtype]
        raw = np.empty(count * dtype.bits // 8, np.uint8)
        if len(raw):
            stored.reader.read_into(stored.start + first * dtype.bits // 8, raw.data)
        if stored.info.dtype == "BOOL":
            return np.asarray(raw != 0)
        return raw if dtype.view is None else raw.view(dtype.view)

    def _gather(self, stored: _Stored, stride: tuple[int, ...], start: int, stop: int) -> Array:
        """Rows of a strided view (a transposed or sliced tensor in a ``.bin``), made contiguous."""
        import numpy as np

        shape = (stop - start, *stored.info.shape[1:])
        if 0 in shape:
            return self._read(stored, 0, 0).reshape(shape)
        extent = sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) + 1
        flat = self._read(stored, start * stride[0], extent)
        strided = np.lib.stride_tricks.as_strided(flat, shape, tuple(s * flat.itemsize for s in stride))
        return np.array(strided, order="C")

    def _add(self, stored: _Stored) -> None:
        name = stored.info.name
        if not name.isprintable():  # it would reach terminals, configs and logs
            raise BrokenFileError("a tensor has a name with control characters, or one that is no text",
                                  where=f"{stored.info.file}: {name!r}", how="download or export the file again")
        if name in self._stored:
            raise BrokenFileError(f"'{name}' is in two files", where=f"{self[name].file} and {stored.info.file}",
                                  how="two exports lie in one folder: keep one, or give the file itself")
        self._stored[name] = stored

    def _add_file(self, reader: RangeReader, file: str) -> None:
        self._readers.append(reader)
        if file.endswith(".safetensors"):
            header = read_header(reader)
            self.metadata[file] = header.metadata
            for name, entry in sorted(header.entries.items(), key=lambda item: item[1].start):
                info = TensorInfo(name, entry.dtype, entry.shape, entry.end - entry.start, file)
                self._add(_Stored(info, reader, entry.start, None))
            return
        from .files.pickle_bin import read_bin  # its parsers take longer to import than a header to read

        bin_file = read_bin(reader)
        self.skipped[file] = bin_file.skipped
        for name, t in bin_file.tensors.items():
            nbytes = DTYPES[t.dtype].bits // 8
            for n in t.shape:
                nbytes *= n
            info = TensorInfo(name, t.dtype, t.shape, nbytes, file)
            self._add(_Stored(info, reader, t.start, None if t.contiguous else t.stride))


def open_index(source: Source, files: Sequence[str] | None = None) -> TensorIndex:
    """Read the headers of a source's weight files (or of the given ones of them) into one index.

    Where the source has a shard index, each opened shard is checked against it both ways.

    Raises:
        SourceError: no weights, or unreadable.
        BrokenFileError: a file is not what its format promises, or index and shards disagree.
        UnsafePickleError: a ``.bin`` wants to import something; nothing was executed.
    """
    chosen = source.weight_files if files is None else tuple(files)
    if not chosen:
        raise SourceError(f"{source.name} holds no weights", where=f"its files: {', '.join(source.files) or 'none'}",
                          how="give the folder with model.safetensors or pytorch_model.bin")
    index = _open(chosen, source.open_at)
    try:
        _check_against_map(index, chosen, source)
    except BaseException:
        index.close()
        raise
    return index


def open_file(path: str | Path) -> TensorIndex:
    """The tensors of one local file: safetensors by its ending, else ``torch.save`` (``.bin``, ``.pt``, ``.pth``).

    A file that holds one bare tensor gives it the name :data:`eagle_convert.files.pickle_bin.BARE_TENSOR`.
    """
    path = Path(path)
    return _open((path.name,), lambda _: LocalFile(path))


def _open(files: Sequence[str], opener: Callable[[str], RangeReader]) -> TensorIndex:
    index = TensorIndex()
    with ExitStack() as undo:
        undo.callback(index.close)
        for file in files:
            if file.endswith(".gguf"):
                raise BrokenFileError(f"{file} is a GGUF file", where=file, how="only `inspect` reads GGUF")
            index._add_file(opener(file), file)
        undo.pop_all()
    return index


def _check_against_map(index: TensorIndex, files: Sequence[str], source: Source) -> None:
    wanted: Mapping[str, str] | None = source.weight_map
    if wanted is None:
        return
    how = "index and shards are of two exports, or a download mixed revisions: download the folder again"
    for name, file in wanted.items():
        if file not in files:
            continue
        if name not in index:
            raise BrokenFileError(f"{file} lacks a tensor that {source.index_file} puts there",
                                  where=f"{source.index_file}: '{name}' -> {file}", how=how)
        if index[name].file != file:
            raise BrokenFileError(f"'{name}' is not in the shard that {source.index_file} names",
                                  where=f"{source.index_file}: {file}, found in {index[name].file}", how=how)
    for name, info in index.items():
        if name not in wanted:
            raise BrokenFileError(f"{info.file} holds a tensor that {source.index_file} does not list",
                                  where=f"{info.file}: '{name}'", how=how)


