"""Targets and drafts for the runtime's tests: bundled folders as views, and tiny random pairs with any flags."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from eagle_runtime.compact import spec_from_compact, tensor_shapes
from eagle_runtime.config import DraftSpec, TargetSpec
from eagle_runtime.target import LlamaTarget
from eagle_runtime.target_spec import target_tensors
from eagle_runtime.views import DraftView
from eagle_runtime.weights import read_config

TARGET = TargetSpec("llama", 48, 80, 6, 6, 2, 8, 90, 1e-5, 64)
EAGLE1 = DraftSpec("eagle", 48, 48, 64, 1, 6, 2, 8, 90, 90, 1e-5, 64)
EAGLE3 = DraftSpec("eagle3", 48, 48, 64, 1, 6, 2, 8, 90, 40, 1e-5, 64, own_head=True, num_aux=3)


def values(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """Seeded by name: norm weights around one, biases small, matrices that keep a vector's length."""
    g = torch.Generator().manual_seed(seed + sum(map(ord, name)) * 7919 % 100003)
    x = torch.randn(shape, generator=g)
    if len(shape) == 1:
        return 1 + 0.3 * x if "norm" in name else 0.3 * x
    return x / math.sqrt(shape[-1]) * (8.0 if "embed" in name or "lm_head" in name else 1.5)


def random_target(spec: TargetSpec = TARGET, seed: int = 1, **kwargs: object) -> LlamaTarget:
    """A target of ``spec`` with weights that make its text wander."""
    shapes = target_tensors(spec)
    dtype = kwargs.setdefault("dtype", torch.float32)
    return LlamaTarget(spec, lambda n: values(n, shapes[n], seed).to(dtype), **kwargs)  # type: ignore[arg-type]


def random_view(spec: DraftSpec, seed: int = 2, **flags: object) -> DraftView:
    """A draft of ``spec`` with ``flags`` set; d2t picks every other target id and then some, in no order."""
    spec = replace(spec, **flags)  # type: ignore[arg-type]
    tensors = {name: values(name, shape, seed) for name, shape in tensor_shapes(spec).items()}
    if "d2t" in tensors:
        ids = torch.randperm(spec.vocab_size, generator=torch.Generator().manual_seed(seed))[:spec.draft_vocab_size]
        tensors["d2t"] = ids - torch.arange(spec.draft_vocab_size)
    return DraftView(spec, {name: (lambda t=t: t) for name, t in tensors.items()})


def passing(view: DraftView) -> DraftView:
    """An EAGLE-1 draft that is right now and then: mostly it passes the target's state through."""
    h = view.spec.hidden_size
    fc = torch.cat((0.05 * view.tensors["fc.weight"]()[:, :h], torch.eye(h)), 1)
    small = {n: (lambda r=r: 0.3 * r()) for n, r in view.tensors.items() if "o_proj" in n or "down_proj" in n}
    return DraftView(view.spec, {**view.tensors, **small, "fc.weight": lambda: fc})


def view_of(folder: Path, change: Callable[[dict[str, Tensor]], None] | None = None, **config: object) -> DraftView:
    """A bundled folder with canonical tensor names (plant, rand, smollm2), and changes to it.

    The target's embedding goes, as ``convert`` would have it; so does t2d.
    """
    tensors = load_file(folder / "model.safetensors")
    for name in ("t2d", "embed_tokens.weight"):
        tensors.pop(name, None)
    if change is not None:
        change(tensors)
    spec = spec_from_compact(read_config(folder) | config, {n: tuple(t.shape) for n, t in tensors.items()})
    return DraftView(spec, {name: (lambda t=t: t) for name, t in tensors.items()})


def prompts_of(file: Path) -> list[list[int]]:
    return [json.loads(line)["prompt_ids"] for line in file.read_text().splitlines()]
