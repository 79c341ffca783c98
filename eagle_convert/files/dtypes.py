"""Element types by their safetensors code: width, numpy view, torch name, and exact widening to float32.

Codes and widths: safetensors format, ``safetensors/src/tensor.rs`` (``Dtype``). Eight-bit float encodings:
OCP OFP8 v1.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]
else:  # numpy is imported where values are touched: describing a file from its header costs neither it nor torch
    Array = Any


@dataclass(frozen=True)
class Dtype:
    """One element type. ``view`` is the numpy dtype of its raw bytes, little-endian; None for sub-byte types."""

    code: str
    bits: int
    view: str | None
    torch: str
    is_float: bool

    def nbytes(self, elements: int) -> int | None:
        """Bytes of that many elements; None when sub-byte elements do not fill a whole byte."""
        bits = elements * self.bits
        return bits // 8 if bits % 8 == 0 else None


# In the order of the safetensors enum: its writer sorts by it, widest alignment first.
_ALL = (
    Dtype("BOOL", 8, "|u1", "bool", False),
    Dtype("F4", 4, None, "float4_e2m1fn_x2", True),
    Dtype("F6_E2M3", 6, None, "", True),
    Dtype("F6_E3M2", 6, None, "", True),
    Dtype("U8", 8, "|u1", "uint8", False),
    Dtype("I8", 8, "|i1", "int8", False),
    Dtype("F8_E5M2", 8, "|u1", "float8_e5m2", True),
    Dtype("F8_E4M3", 8, "|u1", "float8_e4m3fn", True),
    Dtype("F8_E8M0", 8, "|u1", "float8_e8m0fnu", True),
    Dtype("F8_E4M3FNUZ", 8, "|u1", "float8_e4m3fnuz", True),
    Dtype("F8_E5M2FNUZ", 8, "|u1", "float8_e5m2fnuz", True),
    Dtype("I16", 16, "<i2", "int16", False),
    Dtype("U16", 16, "<u2", "uint16", False),
    Dtype("F16", 16, "<f2", "float16", True),
    Dtype("BF16", 16, "<u2", "bfloat16", True),
    Dtype("I32", 32, "<i4", "int32", False),
    Dtype("U32", 32, "<u4", "uint32", False),
    Dtype("F32", 32, "<f4", "float32", True),
    Dtype("C64", 64, "<c8", "complex64", False),
    Dtype("F64", 64, "<f8", "float64", True),
    Dtype("I64", 64, "<i8", "int64", False),
    Dtype("U64", 64, "<u8", "uint64", False),
)
DTYPES: dict[str, Dtype] = {d.code: d for d in _ALL}
RANK: dict[str, int] = {d.code: i for i, d in enumerate(_ALL)}
BY_TORCH_NAME: dict[str, Dtype] = {d.torch: d for d in _ALL if d.torch}


@cache
def _float8_table(code: str) -> Array:
    """The 256 values of an eight-bit float as float32, from the encoding's definition."""
    import numpy as np

    byte = np.arange(256, dtype=np.int64)
    if code == "F8_E8M0":  # a bare exponent; 0xFF is NaN
        table = np.ldexp(np.float64(1), byte - 127)
        table[255] = np.nan
        return np.asarray(table, np.float32)
    mantissa_bits, bias = {"F8_E4M3": (3, 7), "F8_E4M3FNUZ": (3, 8), "F8_E5M2": (2, 15), "F8_E5M2FNUZ": (2, 16)}[code]
    sign = np.where(byte & 0x80, -1.0, 1.0)
    exponent = (byte & 0x7F) >> mantissa_bits
    mantissa = byte & ((1 << mantissa_bits) - 1)
    fraction = mantissa / (1 << mantissa_bits) + (exponent > 0)  # the implicit one, except for subnormals
    table = sign * np.ldexp(fraction, np.maximum(exponent, 1) - bias)
    if code.endswith("FNUZ"):  # no negative zero, no infinity; its pattern is the one NaN
        table[0x80] = np.nan
    elif code == "F8_E4M3":  # no infinity; all ones is NaN
        table[[0x7F, 0xFF]] = np.nan
    else:
        table[[0x7C, 0xFC]] = np.inf, -np.inf
        table[[0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF]] = np.nan
    return np.asarray(table, np.float32)


def widen(raw: Array, code: str) -> Array:
    """float32 values of a raw view (see :attr:`Dtype.view`). Exact for every float up to 32 bits; F64 is rounded.

    Raises:
        ValueError: for codes that are no floats, or that have sub-byte elements.
    """
    import numpy as np

    dtype = DTYPES[code]
    if not dtype.is_float or dtype.view is None:
        raise ValueError(f"{code} has no float32 reading")
    if code == "F32":
        return raw
    if code in ("F16", "F64"):
        with np.errstate(over="ignore"):  # a double beyond float32 becomes infinite, as documented rounding
            return raw.astype(np.float32)
    if code == "BF16":  # the upper half of a float32
        wide = raw.astype(np.uint32)
        wide <<= 16
        return np.asarray(wide.view(np.float32))
    table: Array = _float8_table(code)[raw]
    return table
