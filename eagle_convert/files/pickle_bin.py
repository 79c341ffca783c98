"""Files of ``torch.save``: where each tensor's bytes lie, found without torch and without running the pickle.

Two formats (``torch/serialization.py``): since 1.6 a zip archive of uncompressed entries, ``NAME/data.pkl`` with the
names and ``NAME/data/KEY`` with one storage each; before that five pickles in a row, then per storage an int64 count
and the elements. Both are read by offsets, so that memory stays flat.
"""

from __future__ import annotations

import io
import struct
import zipfile
from dataclasses import dataclass
from typing import Any

from eagle_convert.errors import BrokenFileError

from .dtypes import DTYPES
from .pickle_machine import PickledTensor, Storage, read_pickle
from .ranges import RangeReader
from .safetensors_header import explain_foreign

_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C  # torch/serialization.py MAGIC_NUMBER
_LEGACY_PROTOCOL = 1001
_MAX_PICKLE = 64 << 20  # names of a state dict take some hundred bytes a tensor
_WRAPPERS = ("state_dict", "model_state_dict", "model", "module")  # where trainers put the weights
BARE_TENSOR = "tensor"  # the name of the one tensor of a file that holds no dict


@dataclass(frozen=True)
class BinTensor:
    """A tensor of the file: ``start`` is the absolute byte of its first element, ``stride`` counts elements."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    start: int

    @property
    def contiguous(self) -> bool:
        expected = 1
        for size, step in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and step != expected:
                return 0 in self.shape
            expected *= size
        return True


@dataclass(frozen=True)
class BinFile:
    """Tensors by name, and the names of other values that lie beside them."""

    tensors: dict[str, BinTensor]
    skipped: tuple[str, ...]


def read_bin(reader: RangeReader) -> BinFile:
    """Locate every tensor of a ``torch.save`` file; reads no tensor data.

    Raises:
        UnsafePickleError: the pickle wants to import something; nothing was executed.
        BrokenFileError: neither format, damaged, compressed, or out of its own bounds.
    """
    head = reader.read_at(0, min(reader.size, 64))
    if head.startswith(b"PK\x03\x04"):
        content, storages = _read_zip(reader)
    elif head.startswith(b"\x80"):
        content, storages = _read_legacy(reader)
    else:
        what, how = explain_foreign(reader.name, head)
        if head[8:9] == b"{":
            what, how = f"{reader.name} is a safetensors file", "name it model.safetensors"
        raise BrokenFileError(what or f"{reader.name} is not a file of torch.save",
                              where=f"{reader.name}: {reader.size} bytes, starts with {head[:24]!r}", how=how)
    found, skipped = _state_dict(reader, content)
    return BinFile({name: _place(reader, name, t, storages) for name, t in found.items()}, skipped)


def _broken(reader: RangeReader, detail: str) -> BrokenFileError:
    return BrokenFileError(f"{reader.name} is not a state dict that can be read", where=f"{reader.name}: {detail}",
                           how="download it again, or save it again with torch.save(model.state_dict(), path)")


class _Raw(io.RawIOBase):
    """A reader as a seekable stream, for the standard library's parsers; ends after ``limit`` bytes."""

    def __init__(self, reader: RangeReader, limit: int) -> None:
        self._reader, self._limit, self._at = reader, limit, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, self._limit)[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        count = max(0, min(len(view), self._limit - self._at))
        self._reader.read_into(self._at, view[:count])
        self._at += count
        return count


def _stream(reader: RangeReader, limit: int = _MAX_PICKLE) -> io.BufferedReader:
    return io.BufferedReader(_Raw(reader, min(reader.size, limit)), 1 << 16)


# --- zip archives -------------------------------------------------------------------------------------------------

def _read_zip(reader: RangeReader) -> tuple[Any, dict[str, tuple[int, int]]]:
    """The unpickled content, and for each storage key its absolute byte range."""
    try:
        infos = zipfile.ZipFile(_stream(reader, reader.size)).infolist()
    except (zipfile.BadZipFile, NotImplementedError, struct.error, ValueError, OverflowError, MemoryError) as e:
        raise _broken(reader, f"the zip archive is damaged or truncated ({e})") from None
    names = [i.filename for i in infos]
    if len(set(names)) != len(names):
        raise _broken(reader, "the zip archive names an entry twice")
    roots = [n[:-len("data.pkl")] for n in names if n == "data.pkl" or n.endswith("/data.pkl")]
    if len(roots) != 1:
        raise _broken(reader, f"the zip archive has {len(roots)} entries data.pkl, 1 expected")
    root = roots[0]
    if f"{root}constants.pkl" in names:
        raise _broken(reader, "a TorchScript program, not a state dict")
    ranges = {i.filename: _entry_range(reader, i) for i in infos if i.filename.startswith(root)}
    end, before = 0, ""
    for name, (start, stop) in sorted(ranges.items(), key=lambda item: item[1]):
        if start < end and stop > start:
            raise _broken(reader, f"the entries {before} and {name} overlap")
        end, before = max(end, stop), name
    order = ranges.get(f"{root}byteorder")
    if order and reader.read_at(order[0], min(order[1] - order[0], 16)) != b"little":
        raise _broken(reader, "written on a big-endian machine")
    start, stop = ranges[f"{root}data.pkl"]
    if stop - start > _MAX_PICKLE:
        raise _broken(reader, f"data.pkl has {stop - start} bytes, at most {_MAX_PICKLE} expected")
    content = read_pickle(io.BytesIO(reader.read_at(start, stop - start)), reader.name)
    data = f"{root}data/"
    return content, {n[len(data):]: r for n, r in ranges.items() if n.startswith(data)}


def _entry_range(reader: RangeReader, info: zipfile.ZipInfo) -> tuple[int, int]:
    if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
        raise _broken(reader, f"the entry {info.filename} is compressed; torch.save never compresses")
    if info.flag_bits & 1:
        raise _broken(reader, f"the entry {info.filename} is encrypted")
    reader.check_range(info.header_offset, 30)
    local = reader.read_at(info.header_offset, 30)
    if local[:4] != b"PK\x03\x04":
        raise _broken(reader, f"the entry {info.filename} is not where the archive's directory says")
    name_length, extra_length = struct.unpack("<HH", local[26:30])
    start = info.header_offset + 30 + name_length + extra_length
    reader.check_range(start, info.file_size)
    return start, start + info.file_size


# --- before torch 1.6 ---------------------------------------------------------------------------------------------

def _read_legacy(reader: RangeReader) -> tuple[Any, dict[str, tuple[int, int]]]:
    stream = _stream(reader)
    if read_pickle(stream, reader.name) != _LEGACY_MAGIC:
        raise _broken(reader, "a pickle, but not one that torch.save wrote")
    protocol, system, content, keys = (read_pickle(stream, reader.name) for _ in range(4))
    if protocol != _LEGACY_PROTOCOL or not isinstance(system, dict):
        raise _broken(reader, "the file's head is damaged")
    if system.get("little_endian") is not True:
        raise _broken(reader, "written on a big-endian machine")
    known: dict[str, Storage] = {}
    _collect_storages(content, known, set())
    at, ranges = stream.tell(), {}
    if not isinstance(keys, list):
        raise _broken(reader, "the list of storages is damaged")
    for key in map(str, keys):
        if key not in known or key in ranges:
            raise _broken(reader, f"the storage {key} belongs to no tensor, or stands there twice")
        count = int.from_bytes(reader.read_at(at, 8), "little", signed=True)
        if count != known[key].elements:
            raise _broken(reader, f"the storage {key} has {count} elements, {known[key].elements} expected")
        start = at + 8
        at = start + count * DTYPES[known[key].dtype].bits // 8
        reader.check_range(start, at - start)
        ranges[key] = (start, at)
    return content, ranges


def _collect_storages(value: Any, found: dict[str, Storage], seen: set[int]) -> None:
    """Every storage a tensor refers to, at any depth; containers may refer to themselves."""
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, PickledTensor):
            found.setdefault(value.storage.key, value.storage)
        elif isinstance(value, Storage):
            found.setdefault(value.key, value)
        elif isinstance(value, dict | list | tuple) and id(value) not in seen:
            seen.add(id(value))
            pending.extend(value.values() if isinstance(value, dict) else value)


# --- both ---------------------------------------------------------------------------------------------------------

def _state_dict(reader: RangeReader, content: Any) -> tuple[dict[str, PickledTensor], tuple[str, ...]]:
    """The tensors by name: of the dict itself, or of the one wrapper entry that trainers put around it."""
    if isinstance(content, PickledTensor):
        return {BARE_TENSOR: content}, ()
    if not isinstance(content, dict):
        raise _broken(reader, f"it holds a {type(content).__name__.lstrip('_').lower()}, a dict of tensors expected")
    tables = {key: value for key, value in content.items() if _has_tensors(value)}
    skipped: list[str] = []
    if not _has_tensors(content):
        inside = [key for key in _WRAPPERS if key in tables]
        if len(inside) != 1:
            keys = ", ".join(str(k) for k in list(content)[:12]) or "none"
            raise _broken(reader, f"no tensors at the top or under one of {', '.join(_WRAPPERS)}; its keys: {keys}")
        skipped = [str(key) for key in content if key != inside[0]]
        content = content[inside[0]]
        tables = {key: value for key, value in content.items() if _has_tensors(value)}
    if tables:
        raise _broken(reader, f"tensors at two levels: beside them stands the table '{next(iter(tables))}'")
    found: dict[str, PickledTensor] = {}
    for key, value in content.items():
        if not isinstance(value, PickledTensor):
            skipped.append(str(key))
        elif not isinstance(key, str):
            raise _broken(reader, f"a tensor without a name (its key is {key if isinstance(key, int) else 'no text'})")
        else:
            found[key] = value
    return found, tuple(skipped)


def _has_tensors(value: Any) -> bool:
    return isinstance(value, dict) and any(isinstance(v, PickledTensor) for v in value.values())


def _place(reader: RangeReader, name: str, tensor: PickledTensor, storages: dict[str, tuple[int, int]]) -> BinTensor:
    """Check that the tensor lies inside its storage, and turn element offsets into bytes."""
    key = tensor.storage.key
    if key not in storages:
        raise _broken(reader, f"'{name}': its storage {key} is not in the file")
    start, stop = storages[key]
    stated = tensor.storage.elements * DTYPES[tensor.storage.dtype].bits // 8
    if stated != stop - start:
        raise _broken(reader, f"'{name}': its storage {key} has {stop - start} bytes, {stated} expected")
    width = DTYPES[tensor.dtype].bits // 8
    if width == 0 or min((tensor.offset, *tensor.shape, *tensor.stride)) < 0:
        raise _broken(reader, f"'{name}': shape {list(tensor.shape)}, stride {list(tensor.stride)}, "
                              f"offset {tensor.offset} cannot be")
    elements = 1
    for n in tensor.shape:
        elements *= n
    last = tensor.offset + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride, strict=True))
    # A stride of 0 repeats bytes: what is larger than its storage is refused, or a kilobyte could claim a terabyte.
    if elements and ((last + 1) * width > stop - start or elements * width > stop - start):
        raise _broken(reader, f"'{name}': {tensor.dtype} {list(tensor.shape)} with stride {list(tensor.stride)} at "
                              f"{tensor.offset} leaves its storage of {stop - start} bytes")
    return BinTensor(tensor.dtype, tensor.shape, tensor.stride, start + tensor.offset * width)
