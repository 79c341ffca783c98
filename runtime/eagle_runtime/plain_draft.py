"""The draft as a formula: no cache, no slots, no buffers. ``reference.py`` drafts with it; nothing fast does.

Rows are given their past as plain tensors and a mask of what each row sees. It shares no code with ``draft.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .compact import layer_prefix
from .faults import STRUCTURAL, apply_faults
from .layers import ACTIVATIONS, Rope
from .pairing import check_names, check_pairing, check_runnable, window_of
from .target import FullPass, Target, non_finite
from .views import DraftView

Past = list[tuple[Tensor, Tensor]]  # a layer: keys and values [rows, nkv, hd], keys turned


class PlainDraft:
    """A draft on a target, in the target's dtype.

    Args:
        target: gives embedding and head where the draft owns none.
        view: the draft.
        faults: ids of ``faults.py``.
    """

    def __init__(self, target: Target, view: DraftView, faults: frozenset[str] = frozenset()) -> None:
        view = apply_faults(faults, view, target)
        check_names(view)
        check_runnable(view.spec)
        check_pairing(view.spec, target.spec)
        self.spec, self.target, self.faults = view.spec, target, faults & STRUCTURAL
        self.e3 = view.spec.algorithm == "eagle3"
        self.w = {name: self._load(read()) for name, read in view.tensors.items()}
        self.rope = Rope(self.spec.head_dim, 10000.0 if self.spec.rope_theta is None else self.spec.rope_theta,
                         self.spec.rope_scaling, self.spec.max_position_embeddings, target.device)
        self.ids = torch.arange(self.spec.draft_vocab_size, device=target.device)  # target id of each draft id
        if self.spec.reduced_vocabulary:
            self.ids = self.ids + self.w["d2t"]
        self.draft_ids = torch.full((self.spec.vocab_size,), -1, device=target.device)  # and back; -1: has none
        self.draft_ids[self.ids] = torch.arange(len(self.ids), device=target.device)
        own = "lm_head.weight" if self.spec.own_head else "embed_tokens.weight"
        tied = self.spec.tie_word_embeddings and self.spec.own_embedding
        self.own_head = self.w[own] if self.spec.own_head or tied else (
            target.head_weight[self.ids] if self.spec.reduced_vocabulary else None)

    def _load(self, tensor: Tensor) -> Tensor:
        tensor = tensor.to(self.target.device)
        return tensor.to(self.target.dtype) if tensor.is_floating_point() else tensor

    def states(self, full: FullPass) -> Tensor:
        """What the target hands to the draft, [T,H]: boundaries fused; EAGLE-1: the state after the norm, [T,Ht]."""
        if not self.spec.num_aux:
            prenorm = "hidden-prenorm" in self.faults
            taken = full.boundaries[self.target.spec.num_layers] if prenorm else full.hidden
        else:
            taps = self.spec.boundaries(self.target.spec.num_layers)
            parts = [full.boundaries[t] for t in taps]
            if self.spec.fc_norm:
                parts = [self._norm(part, f"fc_norm.{i}") for i, part in enumerate(parts)]
            taken = torch.cat(parts, -1)
        if not self.e3:
            return taken
        if self.spec.norm_before_fc:
            taken = self._norm(taken, "input_norm")
        return self._half(self._linear(taken, "fc") if self.spec.has_fc else taken)

    def rows(self, ids: Tensor, hidden: Tensor, positions: Tensor, past: Past, mask: Tensor) -> tuple[Tensor, Past]:
        """The draft's result for some rows.

        Args:
            ids, positions: [G]; the id at position t is token t + 1.
            hidden: [G,H] of :meth:`states` or :meth:`recycle`.
            past: K/V of P rows that went before.
            mask: [G,P+G] bool, True where row g sees the p-th row of the past, or another of these rows.

        Returns:
            x [G,H] before any final norm, and the K/V of these rows alone.

        Raises :class:`EagleRuntimeError` naming layer and dtype where x is not finite.
        """
        table = self.w["embed_tokens.weight"] if self.spec.own_embedding else self.target.embedding
        e, new = table[ids], []
        for n in range(self.spec.num_layers):
            at = layer_prefix(self.spec.algorithm, self.spec.num_layers, n)
            if self.e3 and n == 0:
                normed = self._norm(hidden, at + "hidden_norm")
                given = torch.cat((self._norm(e, at + "input_layernorm"), normed), -1)
                x = normed if self.spec.norm_before_residual else hidden
            else:
                x = self._merged(e, hidden) if n == 0 else x
                given = self._norm(x, at + "input_layernorm") if n > 0 or self.spec.input_norm else x
            out, kv = self._attention(given, positions, past[n] if past else None, mask, at + "self_attn.")
            new.append(kv)
            x = x + out
            out = self._mlp(self._norm(x, at + "post_attention_layernorm"), at + "mlp.")
            x = out if n == 0 and "residual-lost" in self.faults else x + out
            if "overflow" not in self.faults and not bool(torch.isfinite(x).all()):
                raise non_finite(f"draft layer {n} output {'nan' if bool(x.isnan().any()) else 'inf'}", "", x.dtype)
        return self._half(x), new

    def near(self, rows: Tensor, columns: Tensor, mask: Tensor) -> Tensor:
        """``mask`` [rows,columns] (positions of both) without what a sliding window hides."""
        window = window_of(self.spec)
        return mask if window is None else mask & (columns > rows[:, None] - window)

    def recycle(self, x: Tensor) -> Tensor:
        """The state that goes with the next guess."""
        return self._norm(x, "norm") if self.spec.norm_output and "norm.weight" in self.w else x

    def logits(self, x: Tensor) -> Tensor:
        """x [...,H] -> float32 logits over draft ids [...,Vd]."""
        x = self._norm(x, "norm") if "norm.weight" in self.w else x
        out = self.target.head(x) if self.own_head is None else x @ self.own_head.T
        return out.float() * (1.0 if self.spec.logit_scale is None else self.spec.logit_scale)

    def _merged(self, e: Tensor, h: Tensor) -> Tensor:
        e = self._norm(e, "enorm") if self.spec.embed_norm else e
        h = self._norm(h, "hnorm") if self.spec.hidden_norm else h
        return self._half(self._linear(torch.cat((e, h), -1), "fc"))

    def _attention(self, x: Tensor, positions: Tensor, past: tuple[Tensor, Tensor] | None, mask: Tensor,
                   at: str) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        hd, groups = self.spec.head_dim, self.spec.num_attention_heads // self.spec.num_key_value_heads
        q, k, v = (self._linear(x, f"{at}{name}_proj").view(len(x), -1, hd) for name in "qkv")
        if self.spec.qk_norm:
            q, k = self._norm(q, at + "q_norm"), self._norm(k, at + "k_norm")
        q, k = self._turn(q, positions), self._turn(k, positions)
        keys, values = (k, v) if past is None else (torch.cat((past[0], k)), torch.cat((past[1], v)))
        scores = torch.einsum("ghd,phd->hgp", q, keys.repeat_interleave(groups, 1)).float() / hd ** 0.5
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1).to(x.dtype)
        out = torch.einsum("hgp,phd->ghd", weights, values.repeat_interleave(groups, 1)).flatten(1)
        return self._linear(out, at + "o_proj"), (k, v)

    def _turn(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotary embedding of ``x [G,heads,hd]``: (first half, second half) turned as a plane."""
        cos, sin = (t[0, 0, :, None, :] for t in self.rope(positions[None], x.dtype))
        half = x.shape[-1] // 2
        cos, sin = cos[..., half:], sin[..., half:]
        a, b = x[..., :half], x[..., half:]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def _mlp(self, x: Tensor, at: str) -> Tensor:
        act = ACTIVATIONS[self.spec.hidden_act]
        return self._linear(act(self._linear(x, at + "gate_proj")) * self._linear(x, at + "up_proj"), at + "down_proj")

    def _linear(self, x: Tensor, name: str) -> Tensor:
        out = x @ self.w[name + ".weight"].T
        return out + self.w[name + ".bias"] if name + ".bias" in self.w else out

    def _norm(self, x: Tensor, name: str) -> Tensor:
        wide = x.float()
        wide = wide / (wide.pow(2).mean(-1, keepdim=True) + self.spec.rms_norm_eps).sqrt()
        return self.w[name + ".weight"] * wide.to(x.dtype)

    def _half(self, x: Tensor) -> Tensor:
        return x.to(torch.float16).to(x.dtype) if "overflow" in self.faults else x
