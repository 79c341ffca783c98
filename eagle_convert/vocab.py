"""Draft vocabularies: ``d2t`` offsets, absolute ids, ``t2d`` masks and their checks.

numpy tells what is wrong with a table; that nothing is wrong with one is found without it (:func:`plain_d2t`).

Canonical is ``d2t`` as SafeAILab/EAGLE writes it: int64 [draft vocabulary], an *offset*, target id = i + d2t[i].
``t2d`` is a bool mask [target vocabulary], true where a target id is in the draft vocabulary. A wrong table costs all
acceptance and raises nothing anywhere, so every table is checked against everything else that is known.
"""

from __future__ import annotations

import operator
import sys
from array import array
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Literal, TypeAlias

from .errors import BrokenFileError, DialectError
from .files.lazy_numpy import NDArray, np

Ids: TypeAlias = "NDArray[np.int64]"


def ids_of(offsets: Ids) -> Ids:
    """Absolute target ids of a ``d2t``: [Vd] int64."""
    return np.asarray(offsets, np.int64) + np.arange(len(offsets), dtype=np.int64)


def offsets_of(ids: Ids) -> Ids:
    """``d2t`` of absolute target ids: [Vd] int64. ``ids_of`` inverts it exactly."""
    return np.asarray(ids, np.int64) - np.arange(len(ids), dtype=np.int64)


def mask_of(ids: Ids, vocab_size: int) -> NDArray[np.bool_]:
    """``t2d`` of absolute target ids: [V] bool."""
    mask = np.zeros(vocab_size, np.bool_)
    mask[ids] = True
    return mask


@dataclass(frozen=True)
class Vocabulary:
    """A checked draft vocabulary.

    Attributes:
        table: absolute target ids [Vd], unique, in range.
        vocab_size: the target's.
        ascending: strictly increasing, so that ``t2d`` alone determines the table.
        identity: the whole target vocabulary in its own order: the table says nothing.
        evenly: None, or the step of ids that form 0, s, 2s, ...: what an unfilled table looks like
            (zeros as offsets: step 1; a range as offsets: step 2).
    """

    table: array[int]
    vocab_size: int
    ascending: bool
    identity: bool
    evenly: int | None

    @property
    def ids(self) -> Ids:
        """Absolute target ids, int64 [Vd]."""
        return np.frombuffer(self.table, np.int64)

    @property
    def offsets(self) -> Ids:
        return offsets_of(self.ids)

    def describe(self) -> str:
        """One line for ``inspect``."""
        order = "strictly increasing" if self.ascending else "not increasing"
        return f"{len(self.table)} of {self.vocab_size} ids, {min(self.table)} to {max(self.table)}, {order}"


def integers(values: NDArray[Any], where: str, what: str = "table") -> Ids:
    """A vector of integers of any width as int64; BrokenFileError for anything else."""
    if values.ndim != 1 or values.size == 0 or values.dtype.kind not in "iu":
        raise BrokenFileError(f"the {what} is no list of integers",
                              where=f"{where}: {values.dtype} {list(values.shape)}, expected int64 [draft vocabulary]",
                              how="fetch the file again, or give the ids with --token-map")
    if values.dtype.kind == "u" and int(values.max(initial=0)) > np.iinfo(np.int64).max:  # numpy 1 compares as floats
        raise BrokenFileError(f"the {what} holds an integer beyond int64", where=f"{where}: {values.max()}",
                              how="fetch the file again, or give the ids with --token-map")
    return values.astype(np.int64)


def check_ids(ids: Ids, vocab_size: int, where: str) -> Vocabulary:
    """Range and uniqueness of absolute ids. Raises DialectError that names the first offender."""
    bad = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if bad.size:
        i = int(bad[0])
        raise DialectError("the draft vocabulary leaves the target's",
                           where=f"{where}: draft id {i} means target id {int(ids[i])}, expected 0 to "
                                 f"{vocab_size - 1}; {bad.size} of {len(ids)} are out of range",
                           how="the table belongs to another target, or its ids are stored as something else; "
                               "give the right ids with --token-map")
    order = np.argsort(ids, kind="stable")
    same = np.flatnonzero(np.diff(ids[order]) == 0)
    if same.size:
        first, second = sorted((int(order[same[0]]), int(order[same[0] + 1])))
        raise DialectError("two draft ids mean the same target id",
                           where=f"{where}: draft ids {first} and {second} both mean {int(ids[first])}; "
                                 f"{same.size} doubles",
                           how="the table is broken; give the right ids with --token-map")
    steps = np.diff(ids)
    ascending = bool((steps > 0).all())
    identity = len(ids) == vocab_size and ascending
    evenly = None
    if not identity and len(ids) > 2 and ids[0] == 0 and steps[0] > 0 and bool((steps == steps[0]).all()):
        evenly = int(steps[0])
    return Vocabulary(array("q", ids.astype(np.int64).tobytes()), vocab_size, ascending, identity, evenly)


def plain_d2t(offsets: bytes, vocab_size: int, *, t2d: bytes | None = None,
              rows: int | None = None) -> Vocabulary | None:
    """The vocabulary of a table with which all is well; None where :func:`check_d2t` must look closer. Without numpy.

    Args:
        offsets: raw little-endian int64 [Vd].
        t2d: raw bool [V].
    """
    if sys.byteorder != "little" or not offsets or rows not in (None, len(offsets) // 8):
        return None
    try:
        ids = array("q", map(operator.add, array("q", offsets), range(len(offsets) // 8)))
    except OverflowError:
        return None
    ascending = all(map(operator.lt, ids, ids[1:]))
    if min(ids) < 0 or max(ids) >= vocab_size or not (ascending or len(set(ids)) == len(ids)):
        return None
    if t2d is not None and (len(t2d) != vocab_size or t2d.translate(None, b"\0\1") or t2d.count(1) != len(ids)
                            or not all(map(t2d.__getitem__, ids))):
        return None
    identity = len(ids) == vocab_size and ascending
    step = ids[1] - ids[0] if len(ids) > 2 and ids[0] == 0 else 0
    even = step > 0 and all(map(operator.eq, map(operator.sub, ids[1:], ids), repeat(step)))
    return Vocabulary(ids, vocab_size, ascending, identity, step if even and not identity else None)


def check_d2t(d2t: NDArray[Any], vocab_size: int, *, t2d: NDArray[Any] | None = None, rows: int | None = None,
              where: str = "d2t", stored: Literal["offsets", "ids"] = "offsets") -> Vocabulary:
    """A vocabulary table, checked against everything else that is known of it.

    Args:
        d2t: integers [Vd]; offsets, or absolute ids with ``stored="ids"`` (``token_map``, side files).
        vocab_size: the target's vocabulary.
        t2d: the mask [V] of the same file, if there is one.
        rows: rows of the head that the table serves.
        where: file and tensor for messages.

    Raises:
        DialectError: range, doubles, head rows or mask do not fit; the message says so where the other way of storing
            the table (ids for offsets) would fit.
        BrokenFileError: the table or the mask is no such thing.
    """
    table = integers(d2t, where)
    if rows is not None and rows != len(table):
        raise DialectError("the vocabulary table and the head differ in length",
                           where=f"{where} has {len(table)} entries, lm_head.weight {rows} rows",
                           how="both must be of the draft vocabulary; give the right ids with --token-map")
    mask = None if t2d is None else _mask(t2d, vocab_size, where)
    other: Literal["offsets", "ids"] = "ids" if stored == "offsets" else "offsets"
    try:
        return _fit(table, stored, vocab_size, mask, where)
    except DialectError as error:
        try:
            _fit(table, other, vocab_size, mask, where)
        except DialectError:
            raise error from None
        agrees = " and agrees with t2d" if mask is not None else ""
        raise DialectError(
            f"the vocabulary table holds {_KIND[other]}, not {_KIND[stored]}",
            where=f"{error.where}; read as {_KIND[other]} it fits{agrees}",
            how="if that is what the exporter did, save the ids and give them with --token-map") from None


_KIND = {"offsets": "offsets", "ids": "absolute ids"}


def _fit(table: Ids, stored: str, vocab_size: int, mask: NDArray[np.bool_] | None, where: str) -> Vocabulary:
    table = np.clip(table, -(2**62), 2**62)  # garbage stays garbage, and i + d2t[i] stays within int64
    found = check_ids(ids_of(table) if stored == "offsets" else table, vocab_size, where)
    if mask is not None:
        wrong = np.flatnonzero(mask != mask_of(found.ids, vocab_size))
        if wrong.size:
            raise DialectError("d2t and t2d speak of different draft vocabularies",
                               where=f"{where} and t2d differ for {wrong.size} target ids, first {int(wrong[0])}: "
                                     f"t2d says {bool(mask[wrong[0]])}",
                               how="one of the two is of another file; give the right ids with --token-map")
    return found


def _mask(t2d: NDArray[Any], vocab_size: int, where: str) -> NDArray[np.bool_]:
    if t2d.ndim != 1 or t2d.dtype.kind not in "biu" or t2d.size != vocab_size:
        raise BrokenFileError("t2d is no mask over the target's vocabulary",
                              where=f"{where}, t2d: {t2d.dtype} {list(t2d.shape)}, expected bool [{vocab_size}]",
                              how="fetch the file again, or give the ids with --token-map")
    if t2d.dtype.kind != "b" and not bool(np.isin(t2d, (0, 1)).all()):
        raise BrokenFileError("t2d holds other values than true and false", where=f"{where}, t2d: {t2d.dtype}",
                              how="fetch the file again, or give the ids with --token-map")
    return t2d.astype(np.bool_)
