"""Rounding to stored dtypes and the search for non-finite values, against torch and numpy."""

import numpy as np
import pytest
import torch

from eagle_convert.casting import has_nonfinite, narrow, nonfinite, recast
from eagle_convert.files.dtypes import DTYPES, widen

# exact, ties to even both ways, subnormals of both 16-bit formats, overflow edges, zeros of both signs
EDGES = np.array([0.0, -0.0, 1.0, -1.0, 1.00048828125, 1.0009765625, 1.00146484375, 0.999755859375, 65504.0, 65519.0,
                  65520.0, -65520.0, 6e-8, 2.9e-8, 3.0e-8, -5.96e-8, 1e-40, 3.3895314e38, 3.4028235e38, 1.00390625,
                  1.01171875, 0.1, np.inf, -np.inf, np.nan], np.float32)


@pytest.mark.parametrize(("code", "dtype"), [("F16", torch.float16), ("BF16", torch.bfloat16), ("F32", torch.float32)])
def test_rounding_is_torchs(code, dtype):
    values = np.concatenate([EDGES, np.random.default_rng(0).standard_normal(4096).astype(np.float32) * 100])
    want = torch.from_numpy(values).to(dtype)
    got = narrow(values, code)
    finite = ~np.isnan(values)
    raw = want.view(torch.int16 if dtype.itemsize == 2 else torch.int32).numpy()
    np.testing.assert_array_equal(got.view(raw.dtype)[finite], raw[finite])
    assert np.isnan(widen(got, code)[~finite]).all()


def test_recast_between_the_16_bit_formats_goes_through_float32():
    half = EDGES[np.abs(EDGES) < 65000].astype(np.float16)
    want = torch.from_numpy(half.copy()).to(torch.bfloat16).view(torch.int16).numpy()
    np.testing.assert_array_equal(recast(half, "F16", "BF16").view(np.int16), want)
    assert recast(half, "F16", "F16") is half


@pytest.mark.parametrize("code", ["F16", "BF16", "F32", "F64"])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, -np.nan])
def test_one_bad_value_is_found(code, bad):
    clean = np.linspace(-60000, 60000, 99).astype(np.float32).reshape(9, 11)
    raw = clean.astype(np.float64) if code == "F64" else narrow(clean, code)
    assert not has_nonfinite(raw, code)
    assert not nonfinite(raw, code).any()
    clean[3, 4] = bad
    raw = clean.astype(np.float64) if code == "F64" else narrow(clean, code)
    assert has_nonfinite(raw, code)
    assert np.argwhere(nonfinite(raw, code)).tolist() == [[3, 4]]


def test_integers_hold_no_nan():
    raw = np.array([-1, 2**62], np.int64)
    assert not has_nonfinite(raw, "I64")
    assert not nonfinite(raw, "I64").any()
    assert DTYPES["I64"].view == "<i8"


def test_an_empty_tensor_holds_no_nan():
    assert not has_nonfinite(np.empty((0, 3), np.float16), "F16")
