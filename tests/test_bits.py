"""Answers from raw bytes against numpy's."""

import numpy as np
import pytest

from eagle_convert import bits
from eagle_convert.casting import has_nonfinite, narrow

CODES = ["F16", "BF16", "F32", "F64"]


def raw(values, code):
    values = np.asarray(values, np.float32)
    return values.astype(np.float64) if code == "F64" else narrow(values, code)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize(("values", "ones", "zeros"), [
    ([1, 1, 1], True, False), ([0, -0.0, 0], False, True), ([1, 1, 1.0078125], False, False),
    ([0, 0, 2.0**-14], False, False), ([-0.0, 2.0], False, False), ([], True, True), ([-1, -1], False, False),
    ([0, 128.0], False, False)])
def test_ones_and_zeros(code, values, ones, zeros):
    data = raw(values, code).tobytes()
    assert (bits.is_ones(data, code), bits.is_zeros(data, code)) == (ones, zeros)


def test_a_zero_whose_low_byte_is_not_zero_is_none():
    assert not bits.is_zeros(np.array([1], "<u2").tobytes(), "F16")  # the smallest subnormal
    assert not bits.is_zeros(np.array([0x80], "<u2").tobytes(), "F16")  # 0x80 in the low byte is no sign
    assert not bits.is_zeros(np.array([0x8000, 0x80], "<u2").tobytes(), "F16")


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_bad_value_is_never_missed(code, bad):
    values = np.linspace(-60000, 60000, 33).astype(np.float32)
    assert not bits.may_hold_nonfinite(raw(values, code).tobytes(), code)
    values[7] = bad
    assert bits.may_hold_nonfinite(raw(values, code).tobytes(), code)


@pytest.mark.parametrize("code", ["F16", "BF16"])
def test_every_pattern_of_16_bit(code):
    """Exact for float16; for bfloat16 only finite values from 2**127 on are let through to the closer look."""
    for pattern in range(0, 1 << 16, 7):
        one = np.array([pattern], "<u2").view("<f2" if code == "F16" else "<u2")
        may, does = bits.may_hold_nonfinite(one.tobytes(), code), has_nonfinite(one, code)
        assert may >= does
        assert may == does or (code == "BF16" and pattern & 0x7F00 == 0x7F00)


def test_integers_are_never_asked():
    data = np.full(4, -1, np.int64).tobytes()
    assert not bits.may_hold_nonfinite(data, "I64")
    assert not bits.is_zeros(bytes(8), "I64")
    assert not bits.is_ones(bytes(8), "I64")
