"""The safetensors header, read and checked without trusting a byte of it.

Layout: 8 bytes little-endian header length, that many bytes of JSON, then the data. Every tensor's range must lie
inside the data, ranges must tile it without hole or overlap, and each must have the size that dtype and shape say
(the same rules as safetensors ``src/tensor.rs``), so that no byte of the file is unaccounted for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from eagle_convert.errors import BrokenFileError

from .dtypes import DTYPES
from .json_text import parse_object
from .ranges import RangeReader

MAX_HEADER = 100_000_000  # the limit of the safetensors library itself
_MAX_RANK, _MAX_DIM = 32, 1 << 48


@dataclass(frozen=True)
class Entry:
    """A tensor of the header: dtype code, shape, and its absolute byte range in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class Header:
    """``entries`` in the header's own order; ``metadata`` is ``__metadata__`` or empty."""

    entries: dict[str, Entry]
    metadata: dict[str, str]


def read_header(reader: RangeReader) -> Header:
    """Read and check the header; reads nothing else of the file.

    Raises:
        BrokenFileError: anything about the file that is not as the format demands.
    """
    name = reader.name
    head = reader.read_at(0, min(reader.size, 64))
    length = int.from_bytes(head[:8], "little")
    if head[8:9] != b"{" or not 2 <= length <= MAX_HEADER:
        _not_safetensors(reader, head)
    if 8 + length > reader.size:
        raise BrokenFileError(f"{name} is truncated inside its header",
                              where=f"{name}: the header needs {8 + length} bytes, the file has {reader.size}",
                              how="download or copy the file again")
    table = parse_object(reader.read_at(8, length), f"the header of {name}", error=BrokenFileError, strict=True)
    metadata = _metadata(name, table.pop("__metadata__", None))
    entries = {tensor: _entry(name, tensor, fields, 8 + length) for tensor, fields in table.items()}
    _check_tiling(name, entries, 8 + length, reader.size)
    return Header(entries, metadata)


def _metadata(name: str, value: Any) -> dict[str, str]:
    if value is None:  # absent, or an explicit null: older writers leave it out
        return {}
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise BrokenFileError(f"{name} has metadata that is not a table of strings",
                              where=f"{name}, header: __metadata__", how="export the file again")
    return value


def _entry(name: str, tensor: str, fields: Any, data_start: int) -> Entry:
    def broken(what: str, found: object) -> NoReturn:
        raise BrokenFileError(f"{name} describes a tensor that cannot be", where=f"{name}: '{tensor}' {what}, "
                              f"found {_short(found)}", how="download or export the file again")

    if not isinstance(fields, dict) or not {"dtype", "shape", "data_offsets"} <= fields.keys():
        broken("needs dtype, shape and data_offsets", fields)
    code, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(code, str) or code not in DTYPES:
        broken(f"needs one of the dtypes {', '.join(DTYPES)}", code)
    if not isinstance(shape, list) or len(shape) > _MAX_RANK or not all(_is_count(n) for n in shape):
        broken("needs a shape of non-negative sizes", shape)
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_count(n) for n in offsets):
        broken("needs two non-negative data_offsets", offsets)
    begin, end = offsets
    if begin > end:
        broken("needs data_offsets in order", offsets)
    elements = 1
    for n in shape:
        elements *= n
    nbytes = DTYPES[code].nbytes(elements)
    if nbytes != end - begin:
        wanted = f"{nbytes} bytes" if nbytes is not None else "a whole number of bytes"
        broken(f"({code} {shape}) needs {wanted}", end - begin)
    return Entry(code, tuple(shape), data_start + begin, data_start + end)


def _is_count(n: Any) -> bool:
    return type(n) is int and 0 <= n <= _MAX_DIM


def _check_tiling(name: str, entries: dict[str, Entry], data_start: int, size: int) -> None:
    at, before = data_start, "the header"
    for tensor, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].end)):
        if entry.start != at:
            kind = "overlap" if entry.start < at else "leave a hole"
            raise BrokenFileError(
                f"{name} has tensor ranges that {kind}",
                where=f"{name}: '{tensor}' starts at data byte {entry.start - data_start}, "
                      f"{before} ends at {at - data_start}", how="download or export the file again")
        at, before = entry.end, f"'{tensor}'"
    if at > size:
        raise BrokenFileError(f"{name} is truncated: its header claims more than the file has",
                              where=f"{name}: {at} bytes by the header, {size} in the file",
                              how="download or copy the file again")
    if at < size:
        raise BrokenFileError(f"{name} has bytes that belong to no tensor",
                              where=f"{name}: {at} bytes by the header, {size} in the file",
                              how="two files may have been joined; download or export the file again")


def _short(value: object, limit: int = 120) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an int with more digits than Python prints
        return "a number with thousands of digits"
    return text if len(text) <= limit else text[:limit] + "…"


def _not_safetensors(reader: RangeReader, head: bytes) -> NoReturn:
    what, how = explain_foreign(reader.name, head)
    if what is None:
        length = int.from_bytes(head[:8], "little")
        what = f"{reader.name} is not a safetensors file"
        where = (f"{reader.name}: {reader.size} bytes, a header length of 8 expected" if reader.size < 8 else
                 f"{reader.name}: the first 8 bytes say a header of {length} bytes, the file has {reader.size}")
    else:
        where = f"{reader.name}: {reader.size} bytes, starts with {head[:24]!r}"
    raise BrokenFileError(what, where=where, how=how)


def explain_foreign(name: str, head: bytes) -> tuple[str | None, str]:
    """What a weight file that is none really is, judged by its first bytes: (what, how to go on)."""
    if not head:
        return f"{name} is empty", "the download stopped before its first byte: download the file again"
    if head.startswith(b"version https://git-lfs"):
        return (f"{name} is a git-lfs pointer, not the weights",
                "run `git lfs pull` in that repository, or download the file from the hub")
    if head.startswith(b"PK\x03\x04"):
        return f"{name} is a zip archive, such as torch.save writes", "name it pytorch_model.bin"
    if head.startswith(b"\x80\x02"):
        return f"{name} is a pickle", "name it pytorch_model.bin if torch.save wrote it"
    if head.startswith(b"GGUF"):
        return f"{name} is a GGUF file", "name it with the ending .gguf"
    if head.lstrip()[:1] == b"<":
        return (f"{name} is a web page, not the weights",
                "the download got an error page: log in, check the address, download again")
    return None, "download or export the file again"
