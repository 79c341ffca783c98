"""The draft: EAGLE-1/2 and EAGLE-3 heads with every flag of :class:`DraftSpec` that has a defined function.

Semantics (SafeAILab/EAGLE ``cnets1.py`` and ``cnets.py``): at position t the draft is given the token t+1 and the
target's state of position t (EAGLE-1: after the final norm; EAGLE-3: the fused boundaries), and says token t+2. Behind
the last known token it is given its own guess and its own state (:meth:`Draft.recycle`).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

import torch
import torch.nn.functional as F
from torch import Tensor

from .compact import layer_prefix
from .config import DraftSpec, EagleRuntimeError
from .layers import MLP, Attention, Block, Cache, Linear, Pass, RMSNorm, Rope, additive_mask
from .pairing import check_pairing, check_runnable, tap_boundaries, tied, window_of
from .target import Target, stacked, windowed


class Draft:
    """A draft on a target. States are ``[B,T,...]``; ids are target ids except where said.

    Args:
        spec: the function.
        get: canonical name -> tensor on the device, in the dtype to run in (``d2t`` as int64).
        target: gives the tables that the draft does not own.
        pack: see :class:`Linear`.
        faults: structural faults to show (``faults.STRUCTURAL``); those of weights and flags have been applied to
            spec and tensors before (``faults.apply_faults``).

    Attributes:
        taps: target boundaries to hand to :meth:`fuse`; () means the state after the final norm.
        ids: [Vd] target id of each draft id.
        num_layers: layers of KV cache it needs.
    """

    def __init__(self, spec: DraftSpec, get: Callable[[str], Tensor], target: Target, *, pack: bool = True,
                 faults: frozenset[str] = frozenset()) -> None:
        check_runnable(spec)
        check_pairing(spec, target.spec)
        self.spec, self.target, self.faults = spec, target, faults
        self.dtype, self.device = target.dtype, target.device
        self.num_layers, self.window = spec.num_layers, window_of(spec)
        self.taps = tap_boundaries(spec, target.spec.num_layers)
        if "hidden-prenorm" in faults and not self.taps:
            self.taps = (target.spec.num_layers,)
        self.e3 = spec.algorithm == "eagle3"
        self.embedding = get("embed_tokens.weight") if spec.own_embedding else target.embedding
        self.rope = Rope(spec.head_dim, 10000.0 if spec.rope_theta is None else spec.rope_theta, spec.rope_scaling,
                         spec.max_position_embeddings, target.device)
        self.groups = spec.num_attention_heads // spec.num_key_value_heads

        def norm(name: str, there: bool = True) -> RMSNorm | None:
            return RMSNorm(get(name + ".weight"), spec.rms_norm_eps) if there else None

        self.enorm, self.hnorm = norm("enorm", spec.embed_norm), norm("hnorm", spec.hidden_norm and not self.e3)
        self.input_norm = norm("input_norm", spec.norm_before_fc)
        self.fc_norms = [RMSNorm(get(f"fc_norm.{n}.weight"), spec.rms_norm_eps) for n in range(spec.num_aux)
                         ] if spec.fc_norm else []
        self.fc = stacked(get, ("fc",), bias=spec.fc_bias, pack=pack) if spec.has_fc else None
        self.state_norm = norm(layer_prefix(spec.algorithm, spec.num_layers, 0) + "hidden_norm", self.e3)
        self.blocks = [self._block(n, get, pack) for n in range(spec.num_layers)]
        self.norm = norm("norm", self.e3 or spec.output_norm)
        self.ids = _target_ids(spec, get, target.device)
        self._head = self._own_head(get, pack)

    def _block(self, n: int, get: Callable[[str], Tensor], pack: bool) -> Block:
        spec = self.spec
        at = layer_prefix(spec.algorithm, spec.num_layers, n)

        def norm(name: str) -> RMSNorm:
            return RMSNorm(get(f"{at}{name}.weight"), spec.rms_norm_eps)

        attention = Attention(
            n, stacked(get, [f"{at}self_attn.{p}_proj" for p in "qkv"], bias=spec.qkv_bias, pack=pack),
            stacked(get, [f"{at}self_attn.o_proj"], bias=spec.o_bias, pack=pack),
            spec.num_attention_heads, spec.num_key_value_heads, spec.head_dim,
            norm("self_attn.q_norm") if spec.qk_norm else None, norm("self_attn.k_norm") if spec.qk_norm else None)
        mlp = MLP(stacked(get, (f"{at}mlp.gate_proj", f"{at}mlp.up_proj"), bias=spec.mlp_bias, pack=pack),
                  stacked(get, (f"{at}mlp.down_proj",), bias=spec.mlp_bias, pack=pack), spec.hidden_act)
        normed = self.e3 or n > 0 or spec.input_norm
        return Block(attention, mlp, norm("post_attention_layernorm"), norm("input_layernorm") if normed else None)

    def _own_head(self, get: Callable[[str], Tensor], pack: bool) -> Linear | None:
        """The draft's head, or the picked rows of the target's; None: the target's whole head."""
        if self.spec.own_head:
            return Linear(get("lm_head.weight"), pack=pack)
        if tied(self.spec):
            return Linear(self.embedding, pack=pack)
        if self.spec.reduced_vocabulary:
            return Linear(self.target.head_weight[self.ids].contiguous(), pack=pack)
        return None

    def for_rows(self, rows: int) -> Draft:
        """The same draft, quickest for passes over ``rows`` rows of all lanes together; shares what it can."""
        twin = copy(self)
        if self.fc is not None and not self.e3:  # EAGLE-3 fuses in the refresh only
            twin.fc = self.fc.for_rows(rows)
        twin.blocks = [block.for_rows(rows) for block in self.blocks]
        return twin

    def embed(self, ids: Tensor) -> Tensor:
        """Target ids [...] -> [...,H], from the draft's own table or the target's."""
        return F.embedding(ids, self.embedding)

    def fuse(self, states: Tensor) -> Tensor:
        """What the target hands out -> the state that :meth:`forward` takes.

        ``states`` is the state after the final norm [B,T,Ht] when :attr:`taps` is empty, else the boundaries
        concatenated [B,T,len(taps)*Ht]. EAGLE-1: unchanged (its fc is part of :meth:`forward`).
        """
        if not self.e3:
            return states
        if self.input_norm is not None:
            states = self.input_norm(states)
        if self.fc_norms:
            parts = states.chunk(len(self.fc_norms), -1)
            states = torch.cat([norm(part) for norm, part in zip(self.fc_norms, parts, strict=True)], -1)
        g = states if self.fc is None else self.fc(states)
        return _through_half(g) if "overflow" in self.faults else g

    def forward(self, ids: Tensor, hidden: Tensor, positions: Tensor, cache: Cache, slots: Tensor,
                mask: Tensor) -> Tensor:
        """One pass over new rows; K/V go into ``cache`` at ``slots``, attention reads rows 0 .. S-1 under ``mask``.

        Args:
            ids, positions, slots: [B,T] int64. The id at position t is token t+1.
            hidden: [B,T,H] from :meth:`fuse` or :meth:`recycle` ([B,T,Ht] for EAGLE-1).
            mask: [B,T,S], bool (True is visible) or additive.

        Returns:
            x [B,T,H], before any final norm: for :meth:`recycle` and :meth:`logits`.
        """
        cos, sin = self.rope(positions, self.dtype)
        at = Pass(cos, sin, additive_mask(windowed(mask, positions, self.window), self.groups, self.dtype),
                  cache, slots, mask.shape[-1])
        e = self.embed(ids)
        if self.e3:
            x = self._first_eagle3(e, hidden, at)
        else:
            x = self._first(self._merge(e, hidden), at)
        for block in self.blocks[1:]:
            x = block(x, at)
        return _through_half(x) if "overflow" in self.faults else x

    def _merge(self, e: Tensor, h: Tensor) -> Tensor:
        """EAGLE-1: fc over [e ; h], the embedding first."""
        e = e if self.enorm is None else self.enorm(e)
        h = h if self.hnorm is None else self.hnorm(h)
        x = h if self.fc is None else self.fc(torch.cat((e, h), -1))
        return _through_half(x) if "overflow" in self.faults else x

    def _first(self, x: Tensor, at: Pass) -> Tensor:
        block = self.blocks[0]
        if "residual-lost" not in self.faults:
            return block(x, at)
        x = x + block.attention(x if block.input_norm is None else block.input_norm(x), at)
        return block.mlp(block.post_norm(x))

    def _first_eagle3(self, e: Tensor, g: Tensor, at: Pass) -> Tensor:
        """The first EAGLE-3 layer: attention reads [RMS_in(e) ; RMS_hidden(g)], the residual is g."""
        block = self.blocks[0]
        assert block.input_norm is not None
        assert self.state_norm is not None
        normed = self.state_norm(g)
        x = normed if self.spec.norm_before_residual else g
        x = x + block.attention(torch.cat((block.input_norm(e), normed), -1), at)
        fed = block.mlp(block.post_norm(x))
        return fed if "residual-lost" in self.faults else x + fed

    def recycle(self, x: Tensor) -> Tensor:
        """The state that goes with the next guess: x, or the normed x where the head was trained so."""
        return self.norm(x) if self.spec.norm_output and self.norm is not None else x

    def logits(self, x: Tensor) -> Tensor:
        """x [...,H] -> logits over draft ids [...,Vd]."""
        x = x if self.norm is None else self.norm(x)
        out = self.target.head(x) if self._head is None else self._head(x)
        return out if self.spec.logit_scale is None else out * self.spec.logit_scale

    def to_target_ids(self, draft_ids: Tensor) -> Tensor:
        """Draft ids [...] -> target ids [...]."""
        return self.ids[draft_ids] if self.spec.reduced_vocabulary else draft_ids


def _through_half(x: Tensor) -> Tensor:
    return x.to(torch.float16).to(x.dtype)


def _target_ids(spec: DraftSpec, get: Callable[[str], Tensor], device: torch.device) -> Tensor:
    """d2t holds offsets: target id = draft id + d2t[draft id]."""
    ids = torch.arange(spec.draft_vocab_size, dtype=torch.int64, device=device)
    if not spec.reduced_vocabulary:
        return ids
    ids = ids + get("d2t").to(device=device, dtype=torch.int64)
    if bool(((ids < 0) | (ids >= spec.vocab_size)).any()):
        worst = int(((ids < 0) | (ids >= spec.vocab_size)).int().argmax())
        raise EagleRuntimeError("d2t points outside the vocabulary",
                                where=f"d2t: draft id {worst} -> target id {int(ids[worst])}, vocabulary "
                                      f"{spec.vocab_size}", how="d2t holds offsets, not ids; convert the source again")
    return ids
