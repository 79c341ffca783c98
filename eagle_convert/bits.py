"""Questions about a small tensor's raw bytes, answered without numpy, whose import doubles ``inspect``'s time."""

from __future__ import annotations

from .files.dtypes import DTYPES

_ONE = {"F16": b"\x00\x3c", "BF16": b"\x80\x3f", "F32": b"\x00\x00\x80\x3f", "F64": b"\x00" * 6 + b"\xf0\x3f"}
# the exponent bits in the most significant byte; all of them set is necessary for Inf and NaN
_EXPONENT = {"F16": 0x7C, "BF16": 0x7F, "F32": 0x7F, "F64": 0x7F}
_HARMLESS = {code: bytes(b for b in range(256) if b & mask != mask) for code, mask in _EXPONENT.items()}


def is_ones(data: bytes, code: str) -> bool:
    """Every element is exactly 1.0. False for dtypes that are no plain floats."""
    one = _ONE.get(code)
    return one is not None and data == one * (len(data) // len(one))


def is_zeros(data: bytes, code: str) -> bool:
    """Every element is 0.0 or -0.0. False for dtypes that are no plain floats."""
    if code not in _ONE:
        return False
    width = DTYPES[code].bits // 8
    top = data[width - 1::width]
    return not top.translate(None, b"\x00\x80") and data.count(0) == len(data) - top.count(0x80)


def may_hold_nonfinite(data: bytes, code: str) -> bool:
    """False where no element can be Inf or NaN. True may be a huge finite value (F16 apart): look closer then."""
    harmless = _HARMLESS.get(code)
    if harmless is None:
        return False
    width = DTYPES[code].bits // 8
    return bool(data[width - 1::width].translate(None, harmless))
