"""Rounding to a stored dtype, and the search for values that are no numbers; numpy, on raw views (see ``dtypes``)."""

from __future__ import annotations

import numpy as np

from .files.dtypes import DTYPES, Array, widen

CASTABLE = ("F16", "BF16", "F32", "F64")
# bit patterns of +inf; everything above it, taken as a signed or (with the sign bit set) unsigned number, is Inf or NaN
_INFINITY = {"F16": 0x7C00, "BF16": 0x7F80, "F32": 0x7F800000, "F64": 0x7FF0000000000000}


def narrow(values: Array, code: str) -> Array:
    """float32 ``values`` rounded to nearest, ties to even, as the raw view of ``code`` (one of :data:`CASTABLE`).

    What is too large becomes infinite, as everywhere; NaN stays NaN. BF16 comes as uint16.
    """
    if code == "BF16":
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        rounded: Array = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        rounded = (rounded >> np.uint32(16)).astype("<u2")
        nan = np.isnan(values)
        if nan.any():  # the carry of the rounding could turn a NaN into an infinity or a zero
            rounded[nan] = 0x7FC0
        return rounded
    with np.errstate(over="ignore"):
        out: Array = values.astype(DTYPES[code].view)
    return out


def recast(raw: Array, source: str, code: str) -> Array:
    """A raw view of dtype ``source`` as one of dtype ``code``; F64 goes through float32, as torch does to 16 bit."""
    if source == code:
        return raw
    return narrow(raw if source == "F64" and code == "F64" else widen(raw, source), code)


def has_nonfinite(raw: Array, code: str) -> bool:
    """Whether a raw view holds an Inf or NaN. Codes that are no plain floats hold none by definition.

    Two maxima over the bit patterns: several times faster than ``isfinite``, and no widening.
    """
    if code not in _INFINITY or raw.size == 0:
        return False
    infinity, bits = _INFINITY[code], DTYPES[code].bits
    return bool(raw.view(f"<i{bits // 8}").max() >= infinity
                or raw.view(f"<u{bits // 8}").max() >= infinity + (1 << (bits - 1)))


def nonfinite(raw: Array, code: str) -> Array:
    """Mask of the elements that are Inf or NaN."""
    if code not in _INFINITY:
        return np.zeros(raw.shape, bool)
    infinity, bits = _INFINITY[code], DTYPES[code].bits
    mask: Array = (raw.view(f"<u{bits // 8}") & np.array((1 << (bits - 1)) - 1, f"<u{bits // 8}")) >= infinity
    return mask
