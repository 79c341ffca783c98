"""Is this table the target's? Two tables compared in chunks: bits first, then values after a cast, then the relation.

Memory is a few chunks whatever the tables' size. Used for ``embed_tokens`` and ``lm_head``, both [vocabulary, hidden].
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from .casting import CASTABLE, recast
from .files.dtypes import Array, widen
from .tensors import TensorIndex

CHUNK_BYTES = 4 << 20
SAMPLED_ROWS = 512  # for the Gram matrices
SAME_GRAM = 0.02  # relative distance; rounding to 16 bit moves a rotated table's by 1e-3, a foreign one's is > 0.3
RELATIVE = 0.2  # contract §2.2: median row cosine from which a table is a relative of the target's

Progress = Callable[[int], None]  # is told the bytes read since the last call


@dataclass(frozen=True)
class Table:
    """One tensor of an index, [rows, columns]."""

    index: TensorIndex
    name: str

    @property
    def dtype(self) -> str:
        return self.index[self.name].dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.index[self.name].shape

    def rows(self, start: int, stop: int) -> Array:
        return self.index.array(self.name, start, stop)


@dataclass(frozen=True)
class Comparison:
    """What a draft's table is to the target's.

    Attributes:
        equal: ``bits``; ``cast``: after rounding the target's to the draft's dtype; ``no``.
        elements: entries compared: the rows that both have.
        differing: of those, entries whose values differ (before any cast).
        largest: the largest of these differences.
        padding: rows that only one of the two has: positive the draft, negative the target. They are known to be
            padding (all zero, or the mean row), else ``compare`` says ``unequal_rows``.
        unequal_rows: the row counts differ and the surplus is no padding; nothing else was compared.
        ranges: row ranges [start, stop) that differ after the cast; empty unless ``equal`` is ``no``.
        median_cosine: over the compared rows; 1 unless ``equal`` is ``no``.
        rotated: equal Gram matrices of sampled rows: the target's table times an orthogonal matrix.
        scale: the draft's rows are the target's times this number (None: they are not, or it is 1).
        draft_sha256, target_sha256: digests of both tables' bytes, where asked for.
    """

    equal: Literal["bits", "cast", "no"]
    elements: int
    differing: int = 0
    largest: float = 0.0
    padding: int = 0
    unequal_rows: bool = False
    ranges: tuple[tuple[int, int], ...] = ()
    median_cosine: float = 1.0
    rotated: bool = False
    scale: float | None = None
    draft_sha256: str = ""
    target_sha256: str = ""

    @property
    def rows_differing(self) -> int:
        return sum(stop - start for start, stop in self.ranges)

    @property
    def related(self) -> bool:
        """A relative of the target's table: most rows point the same way, or all are rotated alike."""
        return self.equal != "no" or self.rotated or self.median_cosine >= RELATIVE


@dataclass
class _Tally:
    """What one pass over both tables gathers."""

    bits: bool = True
    cast: bool = True
    differing: int = 0
    largest: float = 0.0
    row_differs: list[Array] = field(default_factory=list)
    cosine: list[Array] = field(default_factory=list)
    ratio: list[Array] = field(default_factory=list)
    sampled: tuple[list[Array], list[Array]] = field(default_factory=lambda: ([], []))


def comparable(draft: Table, target: Table) -> bool:
    """Both are two-dimensional tables of plain floats and equally wide (a quantised one is not)."""
    return (draft.dtype in CASTABLE and target.dtype in CASTABLE and len(draft.shape) == len(target.shape) == 2
            and draft.shape[1] == target.shape[1])


def compare(draft: Table, target: Table, *, digests: bool = True, progress: Progress | None = None) -> Comparison:
    """Compare two :func:`comparable` tables in one pass (two where one has surplus rows).

    Args:
        digests: also hash every byte of both.
        progress: told the bytes read.
    """
    ours, theirs = draft.shape[0], target.shape[0]
    rows = min(ours, theirs)
    if ours != theirs and not surplus_is_padding(draft if ours > theirs else target, rows):
        return Comparison("no", 0, padding=ours - theirs, unequal_rows=True, median_cosine=0.0)
    twins = TwinDigest()
    tally, step = _Tally(), _rows_a_chunk(draft, target)
    wanted = np.unique(np.linspace(0, rows - 1, min(rows, SAMPLED_ROWS)).astype(np.int64)) if rows else np.empty(0, int)
    draft.index.expect(draft.name)
    target.index.expect(target.name)
    with ThreadPoolExecutor(1) as hasher:  # hashing leaves the interpreter lock: it runs beside the next chunk's reads
        pending: Future[None] | None = None
        for start in range(0, max(ours, theirs), step):
            mine, other = draft.rows(start, start + step), target.rows(start, start + step)
            both = min(len(mine), len(other))
            same = draft.dtype == target.dtype and np.array_equal(_bits(mine[:both]), _bits(other[:both]))
            if pending:
                pending.result()
            if digests:
                pending = hasher.submit(twins.update, mine, other, same and len(mine) == len(other))
            if progress:
                progress(mine.nbytes + other.nbytes)
            if both:
                here = wanted[(wanted >= start) & (wanted < start + both)] - start
                _count(tally, mine[:both], draft.dtype, other[:both], target.dtype, here, same)
        if pending:
            pending.result()
    return _conclude(tally, rows, draft.shape[1], ours - theirs, twins.hexdigests() if digests else ("", ""))


class TwinDigest:
    """SHA-256 of two streams that are mostly equal: as long as they are, their bytes are hashed once."""

    def __init__(self) -> None:
        self._first = hashlib.sha256()
        self._second: hashlib._Hash | None = None

    def update(self, first: Array, second: Array, same: bool) -> None:
        """Add a pair of chunks (of any lengths); ``same`` says that their bytes are equal."""
        if self._second is None and not same:
            self._second = self._first.copy()
        self._first.update(first.reshape(-1).view(np.uint8).data)
        if self._second is not None:
            self._second.update(second.reshape(-1).view(np.uint8).data)

    def hexdigests(self) -> tuple[str, str]:
        first = self._first.hexdigest()
        return first, first if self._second is None else self._second.hexdigest()


def _rows_a_chunk(*tables: Table) -> int:
    return max(1, CHUNK_BYTES // max(1, *(t.index[t.name].nbytes // max(1, t.shape[0]) for t in tables)))


def _count(tally: _Tally, mine: Array, my_code: str, other: Array, other_code: str, sampled: Array,
           same_bytes: bool) -> None:
    """Add one pair of chunks; ``same_bytes`` says that they are equal to the bit, and then nothing is measured.

    Equal values cost a cast; only what differs is measured.
    """
    rows = len(mine)
    differs = np.zeros(rows, bool)
    cosine, ratio = np.ones(rows, np.float32), np.ones(rows, np.float32)
    if not same_bytes:
        tally.bits = False
        differs = (_bits(mine) != _bits(recast(other, other_code, my_code))).any(axis=1)
        a, b = widen(mine, my_code), widen(other, other_code)
        difference = np.abs(a - b)
        tally.differing += int(np.count_nonzero(difference))
        largest = float(difference.max())
        if not np.isfinite(largest):
            largest = float(difference[np.isfinite(difference)].max(initial=0.0))
        tally.largest = max(tally.largest, largest)
        if differs.any():
            tally.cast = False
            a, b = a[differs], b[differs]
            norm_a, norm_b = np.sqrt(np.einsum("ij,ij->i", a, a)), np.sqrt(np.einsum("ij,ij->i", b, b))
            with np.errstate(divide="ignore", invalid="ignore"):
                cosine[differs] = _number(np.einsum("ij,ij->i", a, b) / (norm_a * norm_b))
                ratio[differs] = _number(norm_a / norm_b)
    tally.row_differs.append(differs)
    tally.cosine.append(cosine)
    tally.ratio.append(ratio)
    tally.sampled[0].append(widen(mine[sampled], my_code))
    tally.sampled[1].append(widen(other[sampled], other_code))


def _bits(raw: Array) -> Array:
    """The bit patterns: -0.0 is not 0.0, and a NaN equals itself."""
    return raw.view(f"<u{raw.itemsize}")


def _number(values: Array) -> Array:
    """0 instead of NaN and Inf (a row of zeros points nowhere)."""
    return np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)


def _conclude(tally: _Tally, rows: int, columns: int, padding: int, digests: tuple[str, str]) -> Comparison:
    elements = rows * columns
    known = {"elements": elements, "differing": tally.differing, "largest": tally.largest, "padding": padding,
             "draft_sha256": digests[0], "target_sha256": digests[1]}
    if tally.bits:
        return Comparison("bits", **known)  # type: ignore[arg-type]
    if tally.cast:
        return Comparison("cast", **known)  # type: ignore[arg-type]
    cosine, ratio = np.concatenate(tally.cosine), np.concatenate(tally.ratio)
    return Comparison("no", **known, ranges=_ranges(np.concatenate(tally.row_differs)),  # type: ignore[arg-type]
                      median_cosine=float(np.median(cosine)), rotated=_same_gram(*tally.sampled),
                      scale=_scale(cosine, ratio))


def _ranges(mask: Array) -> tuple[tuple[int, int], ...]:
    """The runs of True as [start, stop)."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return tuple((int(a), int(b)) for a, b in edges.reshape(-1, 2))


def _same_gram(a_rows: list[Array], b_rows: list[Array]) -> bool:
    """Row inner products agree: what an orthogonal map of the columns leaves unchanged."""
    a, b = np.concatenate(a_rows).astype(np.float64), np.concatenate(b_rows).astype(np.float64)
    gram_a, gram_b = a @ a.T, b @ b.T
    size = np.linalg.norm(gram_b)
    return bool(size > 0 and np.linalg.norm(gram_a - gram_b) <= SAME_GRAM * size)


def _scale(cosine: Array, ratio: Array) -> float | None:
    """The common factor, where every row that is not zero is parallel to its counterpart and scaled alike."""
    alive = ratio > 0
    if not alive.any() or cosine[alive].min() < 0.999:
        return None
    middle = float(np.median(ratio[alive]))
    spread = float(np.abs(ratio[alive] / middle - 1).max())
    return middle if spread < 0.01 and abs(middle - 1) > 0.01 else None


def surplus_is_padding(longer: Table, rows: int) -> bool:
    """The rows from ``rows`` on are all zero, or all the mean of those before (what resizing an embedding leaves).

    "The mean" within the rounding of 16 bit and the noise (1e-9 of the covariance) that transformers adds to it.
    """
    surplus = widen(longer.rows(rows, longer.shape[0]), longer.dtype)
    if not surplus.any():
        return True
    if rows == 0 or not np.isfinite(surplus).all():
        return False
    total, square, step = np.zeros(longer.shape[1]), 0.0, _rows_a_chunk(longer)
    for start in range(0, rows, step):
        chunk = widen(longer.rows(start, min(rows, start + step)), longer.dtype)
        total += chunk.sum(axis=0, dtype=np.float64)
        square += float(np.einsum("ij,ij->", chunk, chunk, dtype=np.float64))
    mean, typical = total / rows, np.sqrt(square / (rows * longer.shape[1]))
    return bool(np.abs(surplus - mean).max() <= 1e-3 * typical + 1e-2 * np.abs(mean).max())
