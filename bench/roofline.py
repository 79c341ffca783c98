"""What bounds a step: the bytes it must move over the bandwidth, the operations over the rate of a matrix product.

Every pass reads every weight it uses once (a cache holds none of them until the next pass) and the KV rows it attends
to; activations are small beside them. Both rates are measured here, on the machine as it is, best of several.
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
class Work:
    """Of one step: bytes read, and floating point operations (a product and a sum are two)."""

    nbytes: int
    flops: int


def elements(hidden: int, inner: int, q: int, kv: int, first: int | None = None) -> int:
    """Weights of a decoder layer's products; ``first`` is the attention's input width where it is another."""
    return (first or hidden) * (q + 2 * kv) + q * hidden + 3 * hidden * inner


def step_work(target: TargetSpec, draft: DraftSpec, plan: Grower, context: int, itemsize: int) -> Work:
    """One step at a context of ``context`` committed positions: one target pass, and 1 + len(passes) draft passes."""
    t_q, t_kv = target.num_attention_heads * target.head_dim, target.num_key_value_heads * target.head_dim
    d_q, d_kv = draft.num_attention_heads * draft.head_dim, draft.num_key_value_heads * draft.head_dim
    body = target.num_layers * elements(target.hidden_size, target.intermediate_size, t_q, t_kv)
    t_head, d_head = target.vocab_size * target.hidden_size, draft.draft_vocab_size * draft.hidden_size
    wide = 2 * draft.hidden_size if draft.algorithm == "eagle3" else None
    layers = elements(draft.hidden_size, draft.intermediate_size, d_q, d_kv, wide) + (draft.num_layers - 1) * elements(
        draft.hidden_size, draft.intermediate_size, d_q, d_kv)
    e3 = draft.algorithm == "eagle3"
    fc = draft.hidden_size * (draft.num_aux * draft.target_hidden_size if e3
                              else draft.hidden_size + draft.target_hidden_size)
    passes = 1 + len(plan.passes)
    kv = 2 * context * (target.num_layers * t_kv + passes * draft.num_layers * d_kv)
    weights = body + t_head + passes * (layers + d_head) + (1 if e3 else passes) * fc
    refresh, grown = plan.deepest + 1, sum(plan.passes)
    products = plan.nodes * (body + t_head) + (refresh + grown) * layers + (1 + grown) * d_head + (
        refresh if e3 else refresh + grown) * fc
    return Work((weights + kv) * itemsize, 2 * products)


def bandwidth(device: torch.device, size: int = 1 << 28, repeats: int = 15) -> float:
    """Bytes a second, reading: the sum of ``size`` floats."""
    x = torch.ones(size, device=device)
    return x.numel() * x.element_size() / _best(lambda: x.sum(), device, repeats)


def product_rate(device: torch.device, dtype: torch.dtype, rows: int, shapes: list[tuple[int, int]],
                 repeats: int = 7) -> float:
    """Operations a second of packed products of ``rows`` rows with weights [out, in] of these shapes, in turn."""
    weights = [Linear(torch.randn(shape, dtype=dtype, device=device), pack=True) for shape in shapes]
    inputs = [torch.randn(1, rows, shape[1], dtype=dtype, device=device) for shape in shapes]

    def run() -> None:
        for weight, x in zip(weights, inputs, strict=True):
            weight(x)

    flops = 2 * rows * sum(out * inside for out, inside in shapes)
    return flops / _best(run, device, repeats)


def _best(run: Callable[[], object], device: torch.device, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return min(times)
