"""Widening of every float type, against torch's own conversion where it has the type."""

import numpy as np
import pytest

from eagle_convert.files.dtypes import DTYPES, widen


@pytest.mark.parametrize("code", ["F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0"])
def test_all_256_patterns_of_eight_bit_floats(code):
    torch = pytest.importorskip("torch")
    raw = np.arange(256, dtype=np.uint8)
    wanted = torch.from_numpy(raw.copy()).view(getattr(torch, DTYPES[code].torch)).to(torch.float32).numpy()
    np.testing.assert_array_equal(widen(raw, code), wanted)


def test_all_patterns_of_sixteen_bit_floats():
    torch = pytest.importorskip("torch")
    raw = np.arange(65536, dtype=np.uint16)
    bits = torch.from_numpy(raw.view(np.int16).copy())
    np.testing.assert_array_equal(widen(raw, "BF16"), bits.view(torch.bfloat16).to(torch.float32).numpy())
    np.testing.assert_array_equal(widen(raw.view(np.float16), "F16"), bits.view(torch.float16).float().numpy())


@pytest.mark.parametrize("code", ["I64", "BOOL", "F4", "C64"])
def test_what_is_no_plain_float_has_no_reading(code):
    with pytest.raises(ValueError, match=f"{code} has no float32 reading"):
        widen(np.zeros(2, np.uint8), code)


def test_sub_byte_types_count_whole_bytes_or_nothing():
    assert DTYPES["F4"].nbytes(6) == 3
    assert DTYPES["F4"].nbytes(3) is None
    assert DTYPES["F6_E2M3"].nbytes(4) == 3
    assert DTYPES["BF16"].nbytes(3) == 6
