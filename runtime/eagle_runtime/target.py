"""The target: a decoder for Llama-type models that writes its own KV cache and hands out the states a draft reads.

Runs itself: Llama 2/3/3.1+, Vicuna, Mistral, Mixtral, Qwen2/2.5, Qwen3 (dense). Anything else runs through
``hf_target.py``. "Boundary i" is the residual stream after i layers (0 = embedding output, L = before the final norm).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .config import EagleRuntimeError, TargetSpec
from .layers import (
    MLP,
    Attention,
    Block,
    Cache,
    Experts,
    Linear,
    OnePass,
    Pass,
    RMSNorm,
    Rope,
    additive_mask,
)

Get = Callable[[str], Tensor]


def stacked(get: Get, names: Iterable[str], *, bias: bool, pack: bool) -> Linear:
    """One :class:`Linear` from the rows of several: one product instead of three, the same sums."""
    names = list(names)
    weight = torch.cat([get(n + ".weight") for n in names]) if len(names) > 1 else get(names[0] + ".weight")
    offset = torch.cat([get(n + ".bias") for n in names]) if bias else None
    return Linear(weight, offset, pack=pack)


@dataclass(frozen=True)
class FullPass:
    """One pass without a cache.

    Attributes:
        hidden: [T,H], after the final norm.
        boundaries: boundary -> [T,H], pre-norm residual streams.
    """

    hidden: Tensor
    boundaries: Mapping[int, Tensor]


class Target:
    """What a step and the reference need of a target; see the module docstring for what is tapped.

    Attributes:
        spec, dtype, device: sizes; dtype of weights and states; where they lie.
        embedding: [V,H].
        notes: sentences a user should see (such as: it runs through transformers).
    """

    spec: TargetSpec
    dtype: torch.dtype
    device: torch.device
    embedding: Tensor
    notes: tuple[str, ...] = ()

    @property
    def head_weight(self) -> Tensor:
        """[V,H]; may be a fresh copy, so ask once."""
        raise NotImplementedError

    def embed(self, ids: Tensor) -> Tensor:
        """ids [...] -> [...,H]."""
        return F.embedding(ids, self.embedding)

    def head(self, hidden: Tensor) -> Tensor:
        """States after the final norm [...,H] -> logits [...,V]."""
        raise NotImplementedError

    def for_rows(self, rows: int) -> Target:
        """The same target, quickest for passes over ``rows`` tokens of all lanes together; shares what it can."""
        return self

    def forward(self, ids: Tensor, positions: Tensor, cache: Cache, slots: Tensor, mask: Tensor,
                taps: tuple[int, ...] = (), taps_out: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """One pass over new tokens: K/V go into ``cache`` at ``slots``, attention reads rows 0 .. S-1 under ``mask``.

        Args:
            ids, positions, slots: [B,T] int64.
            mask: [B,T,S], bool (True is visible) or additive. With a sliding window, slot s of a lane must hold a
                token at position <= s (committed tokens sit at their position, drafts behind them).
            taps: boundaries to hand out, concatenated in this order.
            taps_out: [B,T,len(taps)*H], written in place; allocated when None.

        Returns:
            states after the final norm [B,T,H], and the taps (None when no taps are asked for).
        """
        raise NotImplementedError

    def forward_full(self, ids: Tensor, keep: Iterable[int] = ()) -> FullPass:
        """Plain causal pass over ``ids [T]`` without a cache, keeping the boundaries ``keep``."""
        raise NotImplementedError


class LlamaTarget(Target):
    """Our decoder. ``get(name)`` returns a tensor of :func:`target_tensors` on the device in the dtype to run in."""

    def __init__(self, spec: TargetSpec, get: Get, *, dtype: torch.dtype, device: torch.device | str = "cpu",
                 pack: bool = True) -> None:
        self.spec, self.dtype, self.device = spec, dtype, torch.device(device)
        self.embedding = get("embed_tokens.weight")
        self.rope = Rope(spec.head_dim, spec.rope_theta, spec.rope_scaling, spec.max_position_embeddings, device)
        self.groups = spec.num_attention_heads // spec.num_key_value_heads
        self.blocks = [self._block(n, get, pack) for n in range(spec.num_layers)]
        self.norm = RMSNorm(get("norm.weight"), spec.rms_norm_eps)
        self.lm_head = Linear(self.embedding if spec.tie_word_embeddings else get("lm_head.weight"), pack=pack)

    def _block(self, n: int, get: Get, pack: bool) -> Block:
        spec, at = self.spec, f"layers.{n}."

        def norm(name: str) -> RMSNorm:
            return RMSNorm(get(f"{at}{name}.weight"), spec.rms_norm_eps)

        def mlp(gate: str, up: str, down: str) -> MLP:
            return MLP(stacked(get, (at + gate, at + up), bias=spec.mlp_bias, pack=pack),
                       stacked(get, (at + down,), bias=spec.mlp_bias, pack=pack), spec.hidden_act)

        feed: MLP | Experts
        if spec.num_experts:
            part = "block_sparse_moe.experts"
            feed = Experts(Linear(get(f"{at}block_sparse_moe.gate.weight")),
                           [mlp(f"{part}.{e}.w1", f"{part}.{e}.w3", f"{part}.{e}.w2")
                            for e in range(spec.num_experts)], spec.experts_per_token)
        else:
            feed = mlp("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
        attention = Attention(
            n, stacked(get, [f"{at}self_attn.{p}_proj" for p in "qkv"], bias=spec.qkv_bias, pack=pack),
            stacked(get, [f"{at}self_attn.o_proj"], bias=spec.o_bias, pack=pack),
            spec.num_attention_heads, spec.num_key_value_heads, spec.head_dim,
            norm("self_attn.q_norm") if spec.qk_norm else None, norm("self_attn.k_norm") if spec.qk_norm else None)
        return Block(attention, feed, norm("post_attention_layernorm"), norm("input_layernorm"))

    @property
    def head_weight(self) -> Tensor:
        return self.embedding if self.spec.tie_word_embeddings else self.lm_head.weight

    def for_rows(self, rows: int) -> LlamaTarget:
        twin = copy(self)
        twin.blocks = [block.for_rows(rows) for block in self.blocks]
        return twin

    def head(self, hidden: Tensor) -> Tensor:
        return self.lm_head(hidden)

    def forward(self, ids: Tensor, positions: Tensor, cache: Cache, slots: Tensor, mask: Tensor,
                taps: tuple[int, ...] = (), taps_out: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = self.embed(ids)
        at = self._pass(positions, cache, slots, mask)
        h = self.spec.hidden_size
        if taps and taps_out is None:
            taps_out = x.new_empty((*x.shape[:-1], len(taps) * h))
        for boundary in range(self.spec.num_layers + 1):
            if taps_out is not None:
                for place, tap in enumerate(taps):
                    if tap == boundary:
                        taps_out[..., place * h:(place + 1) * h].copy_(x)
            if boundary < self.spec.num_layers:
                x = self.blocks[boundary](x, at)
        return self.norm(x), taps_out if taps else None

    def forward_full(self, ids: Tensor, keep: Iterable[int] = ()) -> FullPass:
        wanted, n = frozenset(keep), len(ids)
        positions = torch.arange(n, device=ids.device)[None]
        mask = torch.ones((1, n, n), dtype=torch.bool, device=ids.device).tril_()
        at = self._pass(positions, OnePass(), positions, mask)
        x, kept = self.embed(ids)[None], {}
        for boundary in range(self.spec.num_layers + 1):
            if boundary in wanted:
                kept[boundary] = x[0]
            if boundary < self.spec.num_layers:
                x = self.blocks[boundary](x, at)
        return FullPass(self.norm(x)[0], kept)

    def _pass(self, positions: Tensor, cache: Cache, slots: Tensor, mask: Tensor) -> Pass:
        cos, sin = self.rope(positions, self.dtype)
        length = mask.shape[-1]
        return Pass(cos, sin, additive_mask(windowed(mask, positions, self.spec.sliding_window), self.groups,
                                            self.dtype), cache, slots, length)


def windowed(mask: Tensor, positions: Tensor, window: int | None) -> Tensor:
    """``mask [B,T,S]`` without the slots that a sliding window hides from a token at ``positions [B,T]``.

    A slot's number stands for its position: equal for committed tokens, larger for drafts, which no window that is
    wider than a tree is deep can hide.
    """
    if window is None:
        return mask
    near = torch.arange(mask.shape[-1], device=mask.device) > positions[..., None] - window
    return mask & near if mask.dtype == torch.bool else mask.masked_fill(~near, torch.finfo(mask.dtype).min)


def check_finite(target: Target, ids: Tensor) -> None:
    """Find where a pass over ``ids [T]`` stops being finite; raises naming the layer, returns None when nothing does.

    For use after a result was seen to be non-finite (it costs a full pass and looks at every boundary).
    """
    full = target.forward_full(ids, keep=range(target.spec.num_layers + 1))
    for boundary in sorted(full.boundaries):
        bad = ~torch.isfinite(full.boundaries[boundary])
        if bool(bad.any()):
            name = "the embedding" if boundary == 0 else f"layer {boundary - 1}"
            kind = "nan" if bool(full.boundaries[boundary].isnan().any()) else "inf"
            raise non_finite(f"target {name} output {kind}", f"{int(bad.sum())} of {bad.numel()} elements",
                             target.dtype)
    if not bool(torch.isfinite(full.hidden).all()):
        raise non_finite("target final norm output non-finite", "", target.dtype)
    for start in range(0, len(ids), 64):
        logits = target.head(full.hidden[start:start + 64])
        bad = logits.isnan() | (logits == float("inf"))
        if bool(bad.any()):
            row, column = (int(i) for i in bad.nonzero()[0])
            raise non_finite("target logits non-finite", f"position {start + row}, id {column}; its states are finite",
                             target.dtype)


def non_finite(what: str, where: str, dtype: torch.dtype) -> EagleRuntimeError:
    """The error for states that are not finite; ``what`` is completed by the dtype."""
    how = ("rerun with --dtype bfloat16 (or float32): float16 ends at 65504" if dtype == torch.float16
           else "the weights themselves may hold NaN: run `eagle-convert inspect --deep`")
    return EagleRuntimeError(f"{what} in {short(dtype)}", where=where, how=how)


def short(dtype: torch.dtype) -> str:
    """fp16, bf16 or fp32."""
    return {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}.get(dtype, str(dtype))
