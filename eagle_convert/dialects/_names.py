"""Tensor names as data: tables from a layout's names to the canonical ones, inverted by code.

Canonical are the names of the compact format: ``fc``, ``layers.N.*`` for EAGLE-1/2 heads and deeper EAGLE-3 ones,
``midlayer.*`` for one-layer EAGLE-3 heads, ``norm``, ``lm_head``, ``embed_tokens``, ``d2t``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from eagle_convert.errors import DialectError
from eagle_runtime.compact import layer_prefix
from eagle_runtime.config import Algorithm

_LINEARS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
            "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
# What a Llama-type decoder layer may hold; every layout spells these alike unless its table says otherwise.
PARTS: Mapping[str, str] = {name: name for name in (
    *(f"{linear}.{kind}" for linear in _LINEARS for kind in ("weight", "bias")),
    "input_layernorm.weight", "hidden_norm.weight", "post_attention_layernorm.weight",
    "self_attn.q_norm.weight", "self_attn.k_norm.weight", "self_attn.sinks")}

TOPS_EAGLE1: Mapping[str, str] = {name: name for name in (
    "fc.weight", "fc.bias", "enorm.weight", "hnorm.weight", "norm.weight", "embed_tokens.weight", "lm_head.weight",
    "d2t", "t2d")}

TOPS_EAGLE3: Mapping[str, str] = {name: name for name in (
    "fc.weight", "fc.bias", "input_norm.weight", *(f"fc_norm.{i}.weight" for i in range(16)), "mask_hidden",
    "norm.weight", "embed_tokens.weight", "lm_head.weight", "d2t", "t2d")}

_SHOWN = 20  # tensors an error names before it counts the rest

# Other spellings of single tensors, wherever they turn up: SGLang's names of the three norms before fc.
ALIASES: Mapping[str, str] = {f"aux_norm_{name}.weight": f"fc_norm.{i}.weight"
                              for i, name in enumerate(("low", "mid", "high"))}

# Recognised everywhere, never part of the function.
INV_FREQ = re.compile(r"(^|\.)rotary_emb\.inv_freq$")


@dataclass(frozen=True)
class Names:
    """The names of one layout.

    Attributes:
        algorithm: decides the canonical layer prefix.
        tops: whole names outside the layers, source -> canonical.
        layer: prefix of a decoder layer in the source, ``{}`` for its number (``layers.{}.``, ``midlayer.``).
        parts: names inside a layer, source -> canonical.
    """

    algorithm: Algorithm
    tops: Mapping[str, str]
    layer: str = "layers.{}."
    parts: Mapping[str, str] = field(default_factory=lambda: PARTS)

    def __post_init__(self) -> None:
        table = self.table(2 if "{}" in self.layer else 1)
        if len(set(table.values())) != len(table):
            raise ValueError("a names table must be bijective")

    def table(self, layers: int) -> dict[str, str]:
        """source -> canonical for a head of ``layers`` decoder layers. Bijective."""
        out = dict(self.tops)
        for i in range(layers):
            prefix = layer_prefix(self.algorithm, layers, i)
            out |= {self.layer.format(i) + source: prefix + name for source, name in self.parts.items()}
        return out

    def inverse(self, layers: int) -> dict[str, str]:
        """canonical -> source."""
        return {canonical: source for source, canonical in self.table(layers).items()}

    def count(self, names: Iterable[str]) -> int:
        """Number of decoder layers that the names speak of (highest number + 1; gaps show as missing tensors)."""
        if "{}" not in self.layer:
            return int(any(name.startswith(self.layer) for name in names))
        pattern = re.compile("^" + re.escape(self.layer).replace(r"\{\}", r"(\d{1,4})"))
        return 1 + max((int(hit[1]) for name in names if (hit := pattern.match(name))), default=-1)


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name most like ``name``, '' where none is."""
    hits = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return hits[0] if hits else ""


def complain(dialect: str, unknown: Sequence[str], missing: Sequence[str], known: Iterable[str]) -> DialectError:
    """The error for tensors that have no place, or places that have no tensor."""
    known = list(known)
    lines = []
    for name in sorted(unknown)[:_SHOWN]:
        near = nearest(name, known)
        lines.append(f"unknown tensor {name}" + (f" (nearest known name: {near})" if near else ""))
    lines += [f"missing tensor {name}" for name in sorted(missing)[:_SHOWN]]
    more = len(unknown) + len(missing) - len(lines)
    lines += [f"and {more} more"] if more else []
    counts = ((len(unknown), "unknown"), (len(missing), "missing"))
    what = " and ".join(f"{count} {kind}" for count, kind in counts if count)
    return DialectError(f"the file reads as {dialect}, with {what} tensor{'s' if len(lines) > 1 else ''}",
                        where="; ".join(lines),
                        how="nothing is filled in and nothing is left out: rename the tensor if a tool misspelt it, "
                            "or fetch the complete file again")
