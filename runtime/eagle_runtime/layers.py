"""The parts that target and draft share: linear maps, RMSNorm, rotary embedding, attention, MLP, experts.

Shapes: B lanes, T new tokens, S visible cache slots, H width, nh / nkv query / KV heads, hd head width. Nothing here
branches on a tensor's value, and every output shape follows from input shapes, so a forward can be captured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from . import cpu, huge_pages
from .config import EagleRuntimeError

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu, "swish": F.silu, "relu": F.relu, "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"), "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


class Cache(Protocol):
    """What a forward needs of a KV cache (``kv_cache.KVCache`` is one, :class:`OnePass` the trivial one)."""

    def write(self, layer: int, k: Tensor, v: Tensor, slots: Tensor) -> None:
        """Store ``k, v [B,nkv,T,hd]`` at rows ``slots [B,T]`` of ``layer``."""

    def view(self, layer: int, length: int) -> tuple[Tensor, Tensor]:
        """Rows 0 .. length-1 of ``layer``: ``k, v [B,nkv,length,hd]``."""


class OnePass:
    """The cache of a pass that has no past: what a layer wrote is all it reads."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[Tensor, Tensor]] = {}

    def write(self, layer: int, k: Tensor, v: Tensor, slots: Tensor) -> None:
        self.rows = {layer: (k, v)}

    def view(self, layer: int, length: int) -> tuple[Tensor, Tensor]:
        return self.rows[layer]


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN's reordered weights exist for this tensor: fp32 on a CPU, in a torch that has the operators."""
    built = bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
    return (built and weight.device.type == "cpu" and weight.dtype == torch.float32
            and hasattr(torch.ops.mkldnn, "_reorder_linear_weight") and hasattr(torch.ops.mkldnn, "_linear_pointwise"))


#: From so many elements on it matters which of a CPU's products is taken (``cpu.py``).
LARGE = 1 << 18

_PACKED: WeakValueDictionary[int, Linear] = WeakValueDictionary()
_numbers = count()


def _packed_linear(x: Tensor, number: int, out_features: int) -> Tensor:
    return _PACKED[number].product(x)


def _packed_linear_shape(x: Tensor, number: int, out_features: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], out_features))


# The packed Linear of that number, as one opaque operation: a compiler cannot hold oneDNN's layouts.
torch.library.define("eagle_runtime::packed_linear", "(Tensor x, int number, int out_features) -> Tensor")
torch.library.impl("eagle_runtime::packed_linear", "cpu", _packed_linear)
torch.library.register_fake("eagle_runtime::packed_linear", _packed_linear_shape)


class Linear:
    """``x @ weight.T + bias``, with the weight reordered for oneDNN where that is possible (fp32 on a CPU).

    A reordered weight makes five rows cost hardly more than one; plain ``F.linear`` on a CPU walks the weight anew. The
    plain copy is not kept. Results of the two differ by summation order only.

    Args:
        weight: [out, in]. Kept by reference when not packed.
        bias: [out] or None.
        pack: reorder if :func:`can_pack`.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, pack: bool = False) -> None:
        self.bias = bias
        self.packed = pack and can_pack(weight)
        self.out_features = weight.shape[0]
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight) if self.packed else weight
        self._reordered: cpu.Reordered | None = None
        self._register()
        if self.packed and hasattr(torch.ops.mkldnn, "data_ptr"):
            huge_pages.collapse(torch.ops.mkldnn.data_ptr(self._weight), weight.numel() * weight.element_size())

    def _register(self) -> None:
        self._number = next(_numbers)
        if self.packed:
            _PACKED[self._number] = self

    def for_rows(self, rows: int) -> Linear:
        """The same map, quickest for just ``rows`` rows: a second copy of the weight where ``cpu.py`` knows better than
        oneDNN, else this one. Other numbers of rows are multiplied as ever."""
        weight = self._weight
        if not self.packed or weight.numel() < LARGE or not cpu.prefers_mkl(rows, weight.numel()):
            return self
        twin = copy(self)
        twin._reordered = cpu.Reordered.of(weight.to_dense(), rows)
        twin._register()
        return twin

    @property
    def weight(self) -> Tensor:
        """[out, in]; a fresh dense copy when packed."""
        return self._weight.to_dense() if self.packed else self._weight

    def __call__(self, x: Tensor) -> Tensor:
        if self.packed:
            if torch.compiler.is_compiling():
                compiled: Tensor = torch.ops.eagle_runtime.packed_linear(x, self._number, self.out_features)
                return compiled
            return self.product(x)
        return F.linear(x, self._weight, self.bias)

    def product(self, x: Tensor) -> Tensor:
        """``x @ weight.T + bias`` of a packed weight, by oneDNN itself."""
        rows = x.numel() // x.shape[-1]
        if self._reordered is not None and rows == self._reordered.rows:
            return self._reordered.product(x, self.bias)
        if rows < cpu.full_rows() and self.out_features * x.shape[-1] >= LARGE:
            few = F.pad(x.reshape(rows, x.shape[-1]), (0, 0, 0, cpu.full_rows() - rows))
            return self._product(few)[:rows].view(*x.shape[:-1], self.out_features)
        return self._product(x)

    def _product(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self.bias, "none", [], "")
        return out


class RMSNorm:
    """``weight * x / sqrt(mean(x^2) + eps)``; statistics in float32, the product in ``x``'s dtype (as Llama's)."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight, self.eps = weight, torch.full((1,), eps, device=weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float32:  # half the operations of F.rms_norm, which has no kernel of its own on a CPU
            length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            scale = torch.addcmul(self.eps, length, length, value=1 / x.shape[-1]).rsqrt_()
            return (x * scale).mul_(self.weight)
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class Rope:
    """Rotary embedding without a table: angles come from the positions, so no prompt outgrows it.

    Scaling as transformers defines it: ``linear``, ``llama3``, and ``dynamic`` (NTK), where the token at position p is
    turned as in a sequence of p + 1 tokens: what token-by-token generation gives, and a function of the position alone.

    Args:
        head_dim: hd, even.
        theta: the base.
        scaling: the block as the config states it (``rope_type`` or ``type``), or None.
        max_positions: the trained window; ``dynamic`` needs it.
    """

    KINDS = ("default", "linear", "dynamic", "llama3")

    def __init__(self, head_dim: int, theta: float, scaling: Mapping[str, Any] | None = None,
                 max_positions: int | None = None, device: torch.device | str = "cpu") -> None:
        scaling = scaling or {}
        self.kind = str(scaling.get("rope_type", scaling.get("type", "default")))
        if self.kind not in self.KINDS:
            raise EagleRuntimeError(
                f"rope scaling {self.kind!r} is not implemented here", where=f"rope_scaling {dict(scaling)}",
                how=f"implemented: {', '.join(self.KINDS)}; a target of this kind runs through transformers")
        self.theta, self.head_dim = float(theta), head_dim
        self.factor = float(scaling.get("factor", 1.0))
        self.window = int(max_positions or 0)
        if self.kind == "dynamic" and not self.window:
            raise EagleRuntimeError("dynamic rope scaling without a window", where="max_position_embeddings absent",
                                    how="state max_position_embeddings in config.json")
        self.exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        inv = 1.0 / self.theta ** self.exponents
        if self.kind == "linear":
            inv = inv / self.factor
        elif self.kind == "llama3":
            inv = _llama3(inv, scaling, self.window)
        self.exponents, self.inv_freq = self.exponents.to(device), inv.to(device)

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """``positions [B,T]`` -> ``(cos, sin) [B,1,T,hd]``; ``sin`` carries the sign of the rotation's first half."""
        at = positions.to(torch.float32)[..., None]
        if self.kind == "dynamic":
            grown = torch.clamp(self.factor * (at + 1) / self.window - (self.factor - 1), min=1.0)
            base = self.theta * grown ** (self.head_dim / (self.head_dim - 2))
            angles = at / base ** self.exponents
        else:
            angles = at * self.inv_freq
        cos, sin = angles.cos(), angles.sin()
        return (torch.cat((cos, cos), -1)[:, None].to(dtype), torch.cat((-sin, sin), -1)[:, None].to(dtype))


def _llama3(inv: Tensor, scaling: Mapping[str, Any], window: float) -> Tensor:
    """Llama 3.1's rule: long waves divided by ``factor``, short ones kept, those between blended."""
    absent = [k for k in ("factor", "low_freq_factor", "high_freq_factor") if k not in scaling]
    if absent:
        raise EagleRuntimeError("the llama3 rope scaling is incomplete", where=f"rope_scaling lacks {absent}",
                                how="copy the block from the model's own config.json")
    factor, low, high = (float(scaling[k]) for k in ("factor", "low_freq_factor", "high_freq_factor"))
    window = float(scaling.get("original_max_position_embeddings") or window)
    wave = 2 * math.pi / inv
    blend = ((window / wave - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - blend) * inv / factor + blend * inv


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn ``x [B,heads,T,hd]`` by :class:`Rope`'s tables (half-split layout, as Llama's)."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def additive_mask(mask: Tensor, groups: int, dtype: torch.dtype) -> Tensor:
    """``mask [B,T,S]`` (bool: True is visible; or additive) -> additive ``[B,1,groups*T,S]`` for :func:`attend`.

    Hidden entries are the dtype's lowest finite value: a row of padding that sees nothing stays finite.
    """
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)
    b, t, s = mask.shape
    return mask.to(dtype)[:, None].expand(b, groups, t, s).reshape(b, 1, groups * t, s)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Grouped attention without copies of K/V: the query heads that share a KV head are rows of one product.

    ``q [B,nh,T,hd]``, ``k, v [B,nkv,S,hd]``, ``mask`` from :func:`additive_mask` -> ``[B,T,nh*hd]``.
    """
    b, nh, t, hd = q.shape
    nkv = k.shape[1]
    out = F.scaled_dot_product_attention(q.reshape(b, nkv, nh // nkv * t, hd), k, v, attn_mask=mask, scale=scale)
    return out.reshape(b, nh, t, hd).transpose(1, 2).reshape(b, t, nh * hd)


@dataclass(frozen=True)
class Pass:
    """What every layer of one forward shares: rotary tables, mask, and where K/V go."""

    cos: Tensor
    sin: Tensor
    mask: Tensor
    cache: Cache
    slots: Tensor
    length: int


class Attention:
    """Self-attention over a cache; q, k, v are one product (rows of ``qkv``: q, then k, then v)."""

    def __init__(self, layer: int, qkv: Linear, o: Linear, heads: int, kv_heads: int, head_dim: int,
                 q_norm: RMSNorm | None = None, k_norm: RMSNorm | None = None) -> None:
        self.layer, self.qkv, self.o = layer, qkv, o
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.q_norm, self.k_norm = q_norm, k_norm
        self.scale = head_dim ** -0.5

    def for_rows(self, rows: int) -> Attention:
        """See :meth:`Linear.for_rows`."""
        twin = copy(self)
        twin.qkv, twin.o = self.qkv.for_rows(rows), self.o.for_rows(rows)
        return twin

    def __call__(self, x: Tensor, at: Pass) -> Tensor:
        b, t, _ = x.shape
        nh, nkv = self.heads, self.kv_heads
        rows = self.qkv(x).view(b, t, nh + 2 * nkv, self.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            rows = torch.cat((self.q_norm(rows[:, :, :nh]), self.k_norm(rows[:, :, nh:nh + nkv]),
                              rows[:, :, nh + nkv:]), 2)
        rows = rows.transpose(1, 2)
        turned = rotate(rows[:, :nh + nkv], at.cos, at.sin)
        at.cache.write(self.layer, turned[:, nh:], rows[:, nh + nkv:], at.slots)
        k, v = at.cache.view(self.layer, at.length)
        return self.o(attend(turned[:, :nh], k, v, at.mask, self.scale))


class MLP:
    """``down(act(gate(x)) * up(x))``; gate and up are one product (rows of ``gate_up``: gate, then up)."""

    def __init__(self, gate_up: Linear, down: Linear, act: str) -> None:
        self.gate_up, self.down, self.act = gate_up, down, ACTIVATIONS[act]

    def for_rows(self, rows: int) -> MLP:
        """See :meth:`Linear.for_rows`."""
        twin = copy(self)
        twin.gate_up, twin.down = self.gate_up.for_rows(rows), self.down.for_rows(rows)
        return twin

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(self.act(gate) * up)


class Experts:
    """Mixtral's sparse MLP, computed densely: every expert sees every row, weighted 0 where it was not chosen.

    Which experts a row needs is data; a fixed schedule is what a captured step allows, and with more than a few rows
    nearly every expert is needed anyway.
    """

    def __init__(self, router: Linear, experts: list[MLP], chosen: int) -> None:
        self.router, self.experts, self.chosen = router, experts, chosen

    def for_rows(self, rows: int) -> Experts:
        """See :meth:`Linear.for_rows`."""
        return Experts(self.router, [expert.for_rows(rows) for expert in self.experts], self.chosen)

    def __call__(self, x: Tensor) -> Tensor:
        probs = torch.softmax(self.router(x).float(), -1)
        top, ids = probs.topk(self.chosen, -1)
        top = top / top.sum(-1, keepdim=True)
        weights = torch.zeros_like(probs).scatter_(-1, ids, top).to(x.dtype)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            out = torch.addcmul(out, expert(x), weights[..., i:i + 1])
        return out


@dataclass(frozen=True)
class Block:
    """A pre-norm decoder layer; ``input_norm`` is None in the first layer of a plain EAGLE-1 draft."""

    attention: Attention
    mlp: MLP | Experts
    post_norm: RMSNorm
    input_norm: RMSNorm | None

    def for_rows(self, rows: int) -> Block:
        """See :meth:`Linear.for_rows`."""
        return replace(self, attention=self.attention.for_rows(rows), mlp=self.mlp.for_rows(rows))

    def __call__(self, x: Tensor, at: Pass) -> Tensor:
        x = x + self.attention(x if self.input_norm is None else self.input_norm(x), at)
        return x + self.mlp(self.post_norm(x))
