"""PLANT of Llama-3-8B's shape, made on a device: the target says perm(last token), and the EAGLE-1 head knows it.

Every draft of a chain is accepted, so each step moves as many rows as it can. ``fixtures/plant.py`` makes small ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from eagle_runtime.config import DraftSpec, TargetSpec


def specs(tiny: bool) -> tuple[TargetSpec, DraftSpec]:
    h, i, layers, nh, nkv, hd, v = (64, 128, 2, 2, 1, 32, 320) if tiny else (4096, 14336, 32, 32, 8, 128, 128256)
    target = TargetSpec("llama", h, i, layers, nh, nkv, hd, v, 1e-5, 8192, rope_theta=500000.0)
    draft = DraftSpec("eagle", h, h, i, 1, nh, nkv, hd, v, v, 1e-5, 2048, rope_theta=500000.0)
    return target, draft


class Plant:
    """PLANT's weights by canonical name, on ``device``."""

    def __init__(self, spec: TargetSpec, device: torch.device, dtype: torch.dtype) -> None:
        self.spec, self.device, self.dtype = spec, device, dtype
        self.random = torch.Generator(device).manual_seed(1)
        self.rows = torch.nn.functional.normalize(self.normal(spec.vocab_size, spec.hidden_size).float(), dim=-1)
        # one cycle over all ids from 3 on: a walk never meets the first three
        order = torch.randperm(spec.vocab_size - 3, generator=self.random, device=device) + 3
        self.after = torch.arange(spec.vocab_size, device=device)
        self.after[order] = order.roll(-1)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.random, device=self.device, dtype=self.dtype)

    def target(self, name: str) -> Tensor:
        s = self.spec
        if name == "embed_tokens.weight":
            return (0.01 * self.rows).to(self.dtype)
        if name == "lm_head.weight":
            head = torch.empty_like(self.rows)
            head[self.after] = self.rows
            return head.to(self.dtype)
        return self.layer(name, s.hidden_size)

    def draft(self, name: str) -> Tensor:
        h = self.spec.hidden_size
        if name == "fc.weight":
            return torch.cat((torch.eye(h), torch.zeros(h, h)), 1).to(self.device, self.dtype)
        return self.layer(name, h)

    def layer(self, name: str, h: int) -> Tensor:
        """Norms of ones; o_proj and down_proj zero, so that the residual stream is the embedding."""
        s = self.spec
        if name.endswith("norm.weight"):
            return torch.ones(h, device=self.device, dtype=self.dtype)
        q, kv = s.num_attention_heads * s.head_dim, s.num_key_value_heads * s.head_dim
        rows, cols = {"q": (q, h), "k": (kv, h), "v": (kv, h), "o": (h, q), "gate": (s.intermediate_size, h),
                      "up": (s.intermediate_size, h), "down": (h, s.intermediate_size)}[name.split(".")[-2][:-5]]
        zero = name.endswith(("o_proj.weight", "down_proj.weight"))
        return torch.zeros(rows, cols, device=self.device, dtype=self.dtype) if zero else 0.02 * self.normal(rows, cols)
