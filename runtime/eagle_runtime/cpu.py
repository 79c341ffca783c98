"""What is known of float32 products on a CPU, by its maker.

Libraries differ by where they run: oneDNN's packed products with one to three rows are a quarter quicker when rows of
zeros make them four on an AMD EPYC, and a sixth slower on an Intel Xeon; there MKL's own layout is quicker than
oneDNN's for small weights and many rows. A choice measured at run time could fall otherwise the next time, and with it
the order of sums, so the choices are fixed. ``bench/products.py`` measures them (``bench/results/products-*.json``).
"""

from __future__ import annotations

import functools
import platform
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor


@functools.cache
def maker() -> str:
    """``intel``, ``amd``, or ``""`` where it is not known."""
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        info = platform.processor()
    found = re.search("GenuineIntel|AuthenticAMD", info)
    return {"GenuineIntel": "intel", "AuthenticAMD": "amd"}[found[0]] if found else ""


def full_rows() -> int:
    """Fewer rows than these are filled up with zeros before oneDNN multiplies a packed weight."""
    return 1 if maker() == "intel" else 4


def prefers_mkl(rows: int, elements: int) -> bool:
    """Whether MKL's layout is the quicker one for ``rows`` rows and a weight of ``elements``."""
    if maker() != "intel" or not hasattr(torch.ops.mkl, "_mkl_linear"):
        return False
    built = bool(torch.backends.mkl.is_available())  # type: ignore[no-untyped-call]
    return built and elements <= (1 << 20 if 1 < rows < 20 else 1 << 21)


@dataclass(frozen=True)
class Reordered:
    """A weight [out, in] in MKL's layout, for products of ``rows`` rows only."""

    weight: Tensor
    rows: int
    shape: Tensor  # [out, in] without memory: the operator asks for its sizes

    @classmethod
    def of(cls, weight: Tensor, rows: int) -> Reordered:
        return cls(torch.ops.mkl._mkl_reorder_linear_weight(weight, rows), rows,
                   weight.new_zeros(1).expand(weight.shape))

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """``x [..., in]`` of just ``rows`` rows times the weight, plus ``bias``."""
        out: Tensor = torch.ops.mkl._mkl_linear(x, self.weight, self.shape, bias, self.rows)
        return out
