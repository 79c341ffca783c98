"""Tensors on their way out: read, checked, cast and counted in one pass, with flat memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from .casting import CASTABLE, has_nonfinite, nonfinite, recast
from .compaction import Item
from .errors import BrokenFileError, CompactionError
from .files.dtypes import DTYPES, Array, widen
from .findings import Finding, finding
from .tensors import TensorIndex

_CHUNK = 8 << 20


class Outgoing:
    """One tensor that is written.

    Attributes:
        dtype: as written; differs from the item's where it is cast.
        source_sha256: digest of the source's bytes where it is not that of what is written; known after the pass.
        differing, largest: entries that a cast changed, and the largest change; known after the pass.
    """

    def __init__(self, index: TensorIndex, item: Item, dtype: str | None = None) -> None:
        self._index, self.item = index, item
        self.dtype = dtype if dtype is not None and item.dtype in CASTABLE else item.dtype
        self._reset()

    def _reset(self) -> None:
        self.source_sha256 = ""
        self.differing, self.largest = 0, 0.0
        self._seen, self._bad, self._first_bad = 0, 0, 0
        self._overflow, self._overflow_at = 0, 0.0

    @property
    def is_cast(self) -> bool:
        return self.dtype != self.item.dtype

    @property
    def where(self) -> str:
        source = self.item.source
        return f"{self._index[source].file}: {source}" if source else str(self.item.destination)

    def chunks(self) -> Iterator[memoryview]:
        """The bytes as written, in order; each piece is valid until the next is asked for.

        Raises:
            BrokenFileError: Inf or NaN in the source.
            CompactionError: a value does not fit the dtype it is cast to.
        """
        self._reset()
        digest = hashlib.sha256() if self.is_cast else None
        for raw in self._pieces():
            if digest:
                digest.update(raw.view(np.uint8).data)
            yield memoryview(np.ascontiguousarray(self._checked(raw)).view(np.uint8).data)
        self._verdict()
        if digest:
            self.source_sha256 = digest.hexdigest()
        elif self.item.rows is not None and self.item.source is not None:
            self.source_sha256 = self.item.sha256 or self._index.sha256(self.item.source)

    def sha256(self) -> str:
        """A pass without writing: the digest of the bytes as they would be written. Raises as :meth:`chunks`."""
        digest = hashlib.sha256()
        for piece in self.chunks():
            digest.update(piece)
        return digest.hexdigest()

    def _pieces(self) -> Iterator[Array]:
        """The tensor's elements as flat raw views."""
        item = self.item
        view = DTYPES[item.dtype].view or "|u1"
        if item.value is not None:
            yield np.ascontiguousarray(item.value).reshape(-1).view(view)
        elif item.rows is not None and item.source is not None:
            row = max(1, item.nbytes // max(1, item.shape[0]))
            step = max(1, _CHUNK // row)
            for start in range(0, len(item.rows), step):
                yield _gather(self._index, item.source, item.rows[start:start + step]).reshape(-1).view(view)
        elif item.source is not None:
            buffer = bytearray(min(_CHUNK, max(8, item.nbytes)))
            for piece in self._index.stream(item.source, buffer):
                yield np.frombuffer(piece, view)

    def _checked(self, raw: Array) -> Array:
        code = self.item.dtype
        if has_nonfinite(raw, code):
            mask = nonfinite(raw, code)
            if not self._bad:
                self._first_bad = int(np.flatnonzero(mask)[0]) + self._seen
            self._bad += int(mask.sum())
        self._seen += len(raw)
        if not self.is_cast:
            return raw
        out = recast(raw, code, self.dtype)
        wide, back = widen(raw, code), widen(out, self.dtype)
        over = np.isinf(back) & np.isfinite(wide)
        if over.any():
            self._overflow += int(over.sum())
            self._overflow_at = max(self._overflow_at, float(np.abs(wide[over]).max()))
        change = np.abs(back - wide)
        change = change[np.isfinite(change)]
        self.differing += int(np.count_nonzero(change))
        self.largest = max(self.largest, float(change.max(initial=0.0)))
        return out

    def _verdict(self) -> None:
        if self._bad:
            at = [int(i) for i in np.unravel_index(self._first_bad, self.item.out_shape)] if self.item.out_shape else []
            raise _refusal(BrokenFileError, finding("EC601", self.where, count=f"{self._bad:,}", first=at))
        if self._overflow:
            raise _refusal(CompactionError, finding(
                "EC603", self.where, count=f"{self._overflow:,}", dtype=DTYPES[self.dtype].torch,
                largest=f"{self._overflow_at:.6g}"))


def _gather(index: TensorIndex, name: str, rows: Array) -> Array:
    """Rows of a table, read one by one (they may lie far apart)."""
    return np.concatenate([index.array(name, int(row), int(row) + 1) for row in rows])


def _refusal(kind: type[BrokenFileError] | type[CompactionError], said: Finding) -> Exception:
    return kind(said.message, where=said.where, how=said.fix)
