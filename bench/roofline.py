"""What bounds a step: the bytes it must move over the bandwidth, the operations over the rate of a matrix product.

Every pass reads every weight it uses once (a cache holds none of them until the next pass) and the KV rows it attends
to; activations are small beside them. Both rates are measured here, on the machine as it is, best of several; that of
the products with weights that caches may hold, so it is kinder than a step can be.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from eagle_runtime.config import DraftSpec, TargetSpec
from eagle_runtime.layers import Linear
from eagle_runtime.tree import Grower


@dataclass(frozen=True)
class Products:
    """Products that run one after another with the same number of rows, so that one rate is theirs.

    Attributes:
        rows: of each product.
        shapes: of the weights, [out, in], each read once.
        kv: elements of keys and values read beside them.
    """

    rows: int
    shapes: tuple[tuple[int, int], ...]
    kv: int = 0

    @property
    def elements(self) -> int:
        return sum(out * inside for out, inside in self.shapes)

    @property
    def flops(self) -> int:
        """A product and a sum are two."""
        return 2 * self.rows * self.elements


def layer_shapes(hidden: int, inner: int, q: int, kv: int, first: int | None = None) -> tuple[tuple[int, int], ...]:
    """A decoder layer's products; ``first`` is the attention's input width where it is another."""
    return (q + 2 * kv, first or hidden), (hidden, q), (2 * inner, hidden), (hidden, inner)


def step_products(target: TargetSpec, draft: DraftSpec, plan: Grower, context: int) -> list[Products]:
    """One step at a context of ``context`` committed positions, in order: the refresh, the draft passes, the target's.

    Each needs the tokens of the one before, so their times add up.
    """
    t_q, t_kv = target.num_attention_heads * target.head_dim, target.num_key_value_heads * target.head_dim
    d_q, d_kv = draft.num_attention_heads * draft.head_dim, draft.num_key_value_heads * draft.head_dim
    hidden, inner = draft.hidden_size, draft.intermediate_size
    e3 = draft.algorithm == "eagle3"
    fc = (hidden, draft.num_aux * draft.target_hidden_size if e3 else hidden + draft.target_hidden_size)
    layers = layer_shapes(hidden, inner, d_q, d_kv, 2 * hidden if e3 else None) + layer_shapes(
        hidden, inner, d_q, d_kv) * (draft.num_layers - 1)
    head = (draft.draft_vocab_size, hidden)
    kv = 2 * context * draft.num_layers * d_kv
    refresh = [Products(plan.deepest + 1, (fc, *layers), kv), Products(1, (head,))]
    passes = [Products(rows, (*layers, head) if e3 else (fc, *layers, head), kv) for rows in plan.passes]
    body = layer_shapes(target.hidden_size, target.intermediate_size, t_q, t_kv) * target.num_layers
    verify = Products(plan.nodes, (*body, (target.vocab_size, target.hidden_size)),
                      2 * context * target.num_layers * t_kv)
    return [*refresh, *passes, verify]


def nbytes(step: list[Products], itemsize: int) -> int:
    """What a step must read."""
    return itemsize * sum(part.elements + part.kv for part in step)


def bandwidth(device: torch.device, size: int = 1 << 28, repeats: int = 15) -> float:
    """Bytes a second, reading: the sum of ``size`` floats."""
    x = torch.ones(size, device=device)
    return x.numel() * x.element_size() / best(lambda: x.sum(), device, repeats)


def product_rate(device: torch.device, dtype: torch.dtype, part: Products, repeats: int = 7) -> float:
    """Operations a second of products of so many rows with weights of these shapes, each shape once, in turn."""
    shapes = sorted(set(part.shapes))
    weights = [Linear(torch.randn(shape, dtype=dtype, device=device), pack=True) for shape in shapes]
    inputs = [torch.randn(1, part.rows, shape[1], dtype=dtype, device=device) for shape in shapes]

    def run() -> None:
        for weight, x in zip(weights, inputs, strict=True):
            weight(x)

    return Products(part.rows, tuple(shapes)).flops / best(run, device, repeats)


def best(run: Callable[[], object], device: torch.device, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return min(times)
