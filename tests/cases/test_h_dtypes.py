"""Section H of the cases: dtypes. Overflow while running (C69) is the runtime's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file as load_torch

from tests.builders import bfloat16, checkpoint, write
from tests.run import config, convert, inspect, kept_bit_equal, refused, tensors


@pytest.fixture
def tgt(fixtures_dir):
    return fixtures_dir / "rand" / "tgt"


def head(folder, **changed):
    base, values = checkpoint("e1", "rand")
    return write(folder, base, values | changed), values | changed


def test_c71_the_dtype_stays_unless_asked(tmp_path, tgt):
    folder, values = head(tmp_path / "head")
    assert {t["dtype"] for t in inspect(folder).document["tensors"]} == {"F16"}
    ran = convert(folder, tmp_path / "out", "--target", tgt)
    kept_bit_equal(ran, tmp_path / "out", values)
    assert config(tmp_path / "out")["torch_dtype"] == "float16"


@pytest.mark.parametrize(("name", "dtype"), [("bfloat16", torch.bfloat16), ("float32", torch.float32),
                                             ("float16", torch.float16)])
def test_c71_a_cast_is_rounded_to_nearest_and_reports_the_largest_error(tmp_path, tgt, name, dtype):
    folder, values = head(tmp_path / "head")
    ran = convert(folder, tmp_path / "out", "--target", tgt, "--dtype", name)
    out = load_torch(tmp_path / "out" / "model.safetensors")
    errors = []
    for key, value in out.items():
        source = torch.from_numpy(values[key])
        assert value.dtype == dtype
        assert torch.equal(value, source.to(dtype))
        errors.append(float((value.float() - source.float()).abs().max()))
    assert config(tmp_path / "out")["torch_dtype"] == name
    rows = [row for row in ran.document["ledger"] if row["destination"]]
    assert {row["action"] for row in rows} == ({"kept"} if name == "float16" else {"cast"})
    if name == "float16":
        assert not ran.findings("EC602")
    else:
        assert ran.finding("EC602")["message"].endswith(f"by at most {max(errors):.3g}")


def test_c71_vocabulary_tables_are_not_cast(tmp_path, tgt):
    base, values = checkpoint("e3", "rand")
    folder = write(tmp_path / "head", base, values)
    convert(folder, tmp_path / "out", "--target", tgt, "--dtype", "float32")
    assert tensors(tmp_path / "out")["d2t"].dtype == np.int64


def test_an_overflow_to_infinity_is_an_error(tmp_path, tgt):
    big = np.full((128, 64), 1.0, np.float32)
    big[3, 5], big[7, 1] = 70000.0, -1e6
    folder, _ = head(tmp_path / "head", **{"layers.0.mlp.up_proj.weight": big})
    error = refused(folder, tmp_path / "out", "--target", tgt, "--dtype", "float16")
    assert error["where"] == "model.safetensors: layers.0.mlp.up_proj.weight"
    assert "2 values are too large for float16, the largest 1e+06" in error["what"]
    assert "bfloat16" in error["how"]
    convert(folder, tmp_path / "ok", "--target", tgt, "--dtype", "bfloat16")
    refused(folder, tmp_path / "dry", "--target", tgt, "--dtype", "float16", "--dry-run")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_weights_are_found_by_inspect_and_refused_by_convert(tmp_path, tgt, bad):
    _base, values = checkpoint("e1", "rand")
    table = values["layers.0.mlp.up_proj.weight"].copy()
    table[3, 5] = bad
    folder, _ = head(tmp_path / "head", **{"layers.0.mlp.up_proj.weight": table})
    found = inspect(folder, code=3).finding("EC601")
    assert found["message"] == "1 elements are Inf or NaN, the first at [3, 5]"
    error = refused(folder, tmp_path / "out", "--target", tgt)
    assert error["where"] == "model.safetensors: layers.0.mlp.up_proj.weight"


def test_tensors_beyond_a_mebibyte_are_scanned_only_when_asked(tmp_path):
    base, values = checkpoint("e1", "rand")
    wide = 1 << 14  # 64 x 16384 fp16 = 2 MiB
    for part, shape in (("gate", (wide, 64)), ("up", (wide, 64)), ("down", (64, wide))):
        values[f"layers.0.mlp.{part}_proj.weight"] = np.zeros(shape, np.float16)
    values["layers.0.mlp.up_proj.weight"][wide - 1, 63] = np.nan
    folder = write(tmp_path / "head", base | {"intermediate_size": wide}, values)
    assert not inspect(folder).findings("EC601")
    assert inspect(folder, "--deep", code=3).finding("EC601")["message"].endswith(f"[{wide - 1}, 63]")
    refused(folder, tmp_path / "out")
    refused(folder, tmp_path / "dry", "--dry-run")


def test_c71_an_fp16_head_for_a_bf16_target(tmp_path):
    """The target's table cast to the draft's dtype is the draft's: equal after the cast, borrowed, and counted."""
    _base, values = checkpoint("e1", "rand")
    exact = (values["embed_tokens.weight"].astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)
    exact = exact.copy()
    exact[0, 0] = 2.0**-27
    header = b'{"model.embed_tokens.weight":{"dtype":"BF16","shape":[320,64],"data_offsets":[0,40960]}}'
    model = write(tmp_path / "model", checkpoint("tgt", "rand")[0], {})
    (model / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bfloat16(exact).tobytes())
    folder, _ = head(tmp_path / "head", **{"embed_tokens.weight": exact.astype(np.float16)})
    found = convert(folder, tmp_path / "out", "--target", model).finding("EC302")
    assert "(BF16) rounded to F16: 1 of 20,480 entries differ, by at most 7.45e-09" in found["message"]
