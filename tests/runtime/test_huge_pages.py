"""Large weights: on large pages where the kernel gives them, and padded to four rows; the numbers stay the same."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.nn.functional as F

from eagle_runtime import huge_pages, layers
from eagle_runtime.layers import Linear


def test_collapsing_moves_pages_and_nothing_else() -> None:
    x = torch.arange(4 << 20, dtype=torch.int64)
    before = x.clone()
    assert huge_pages.collapse(x.data_ptr(), x.numel() * 8) in (True, False)  # the kernel may refuse
    assert torch.equal(x, before)


def test_elsewhere_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    x = torch.zeros(1 << 20)
    assert not huge_pages.collapse(x.data_ptr(), x.numel() * 4)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("large", [1, 1 << 22])
def test_padded_rows_are_the_same_product(monkeypatch: pytest.MonkeyPatch, rows: int, large: int) -> None:
    monkeypatch.setattr(layers, "LARGE", large)
    weight, bias, x = torch.randn(96, 64), torch.randn(96), torch.randn(1, rows, 64)
    out = Linear(weight, bias, pack=True)(x)
    assert out.shape == (1, rows, 96)
    torch.testing.assert_close(out, F.linear(x, weight, bias), atol=1e-4, rtol=0)
