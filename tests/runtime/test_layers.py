"""Each part against the plainest formula for it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from eagle_runtime import EagleRuntimeError
from eagle_runtime.layers import Linear, RMSNorm, Rope, additive_mask, attend, can_pack, rotate


class TestLinear:
    """Plain and packed behind one signature."""

    @pytest.mark.parametrize("pack", [False, True])
    @pytest.mark.parametrize("rows", [1, 5, 60])
    @pytest.mark.parametrize("bias", [False, True])
    def test_is_the_product(self, pack: bool, rows: int, bias: bool) -> None:
        g = torch.Generator().manual_seed(rows)
        weight, offset = torch.randn(96, 64, generator=g), torch.randn(96, generator=g) if bias else None
        x = torch.randn(2, rows, 64, generator=g)
        linear = Linear(weight, offset, pack=pack)
        assert linear.packed is (pack and can_pack(weight))
        wanted = x.double() @ weight.double().T + (0 if offset is None else offset.double())
        torch.testing.assert_close(linear(x).double(), wanted, atol=1e-4, rtol=0)
        assert torch.equal(linear.weight, weight)

    def test_a_part_of_the_input_can_be_strided(self) -> None:
        weight, x = torch.randn(8, 16), torch.randn(1, 4, 32)
        torch.testing.assert_close(Linear(weight, pack=True)(x[..., ::2]), F.linear(x[..., ::2], weight))

    def test_packs_nothing_but_fp32(self) -> None:
        assert not can_pack(torch.zeros(4, 4, dtype=torch.bfloat16))
        assert not Linear(torch.zeros(4, 4, dtype=torch.bfloat16), pack=True).packed


@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
def test_rms_norm_is_its_formula(dtype: torch.dtype, near: float) -> None:
    x, w = torch.randn(3, 5, 64) * 7, torch.randn(64)
    wanted = w * x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5)
    got = RMSNorm(w.to(dtype), 1e-5)(x.to(dtype))
    assert got.dtype == dtype
    torch.testing.assert_close(got.float(), wanted, atol=near * float(wanted.abs().max()), rtol=0)


def test_fp16_norm_survives_squares_beyond_fp16() -> None:
    """Statistics are fp32: 300 squared is past 65504."""
    x = torch.full((1, 8), 300.0, dtype=torch.float16)
    torch.testing.assert_close(RMSNorm(torch.ones(8, dtype=torch.float16), 1e-6)(x), torch.ones_like(x))


def test_rotation_is_a_complex_product() -> None:
    """Pair (i, i + hd/2) of a head is a complex number, turned by position * theta^(-2i/hd)."""
    x, positions = torch.randn(1, 2, 3, 8, dtype=torch.float64), torch.tensor([[0, 5, 4000]])
    cos, sin = Rope(8, 10000.0)(positions, torch.float32)
    turned = rotate(x.float(), cos, sin)
    angle = positions[0, :, None] * 10000.0 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    pair = torch.complex(x[..., :4], x[..., 4:]) * torch.polar(torch.ones_like(angle), angle)
    torch.testing.assert_close(turned.double(), torch.cat((pair.real, pair.imag), -1), atol=2e-3, rtol=0)
    torch.testing.assert_close(turned[:, :, :2].double(), torch.cat((pair.real, pair.imag), -1)[:, :, :2],
                               atol=1e-5, rtol=0)


def test_unknown_scaling_is_refused_by_name() -> None:
    with pytest.raises(EagleRuntimeError, match="yarn"):
        Rope(8, 10000.0, {"rope_type": "yarn", "factor": 4.0})
    with pytest.raises(EagleRuntimeError, match="incomplete"):
        Rope(8, 10000.0, {"rope_type": "llama3", "factor": 4.0})


def test_grouped_attention_is_attention() -> None:
    """Against softmax(q k / sqrt(hd)) v with the KV heads repeated, under a random mask."""
    q, k, v = torch.randn(2, 6, 5, 8), torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, 8)
    mask = torch.rand(2, 5, 9) > 0.4
    mask[..., 0] = True
    got = attend(q, k, v, additive_mask(mask, 3, torch.float32), 8 ** -0.5)
    scores = torch.einsum("bhtd,bhsd->bhts", q, k.repeat_interleave(3, 1)) / 8 ** 0.5
    weights = scores.masked_fill(~mask[:, None], float("-inf")).softmax(-1)
    wanted = torch.einsum("bhts,bhsd->bthd", weights, v.repeat_interleave(3, 1)).reshape(2, 5, 48)
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)


def test_a_row_that_sees_nothing_stays_finite() -> None:
    """Padding rows of a captured step may see no slot at all."""
    mask = torch.zeros(1, 2, 4, dtype=torch.bool)
    out = attend(torch.randn(1, 2, 2, 8), torch.randn(1, 1, 4, 8), torch.randn(1, 1, 4, 8),
                 additive_mask(mask, 2, torch.float32), 1.0)
    assert torch.isfinite(out).all()
