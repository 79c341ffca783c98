"""Heads of the speculators library: the old "eagle" (until June 2026), its "layernorms" source, and eagle3.

Configs nest the layer's settings under ``transformer_layer_config``, as a difference from the class's defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eagle_convert.errors import ConfigError
from eagle_convert.findings import Finding, finding

from ._base import Dialect, Evidence, Facts, Reading, evidence
from ._fields import Fields, nested
from ._marks import inputs, plain, speculators
from ._names import PARTS, TOPS_EAGLE1, TOPS_EAGLE3, Names
from .eagle1 import read_head as read_eagle1
from .eagle3 import read_head as read_eagle3

# The norm before attention is a name outside the layer here.
_PARTS = {source: name for source, name in PARTS.items() if source != "input_layernorm.weight"}
_PLAIN = {name: name for name in TOPS_EAGLE1 if name not in ("enorm.weight", "norm.weight")}
LAYERNORMS = Names("eagle", {**_PLAIN, "embed_layernorm.weight": "enorm.weight",
                             "hidden_layernorm.weight": "layers.0.input_layernorm.weight",
                             "lm_head_layernorm.weight": "norm.weight"}, parts=_PARTS)
OLD = Names("eagle", {
    "fusion_fc.weight": "fc.weight", "fusion_fc.bias": "fc.bias", "embedding_layernorm.weight": "enorm.weight",
    "pre_lm_head_layernorm.weight": "norm.weight", "embed_tokens.weight": "embed_tokens.weight",
    "lm_head.weight": "lm_head.weight"}, layer="transformer.")
EAGLE3_NAMES = Names("eagle3", TOPS_EAGLE3)
_BLOCKS = ("transformer_layer_config", "eagle_config")

# What the config classes of transformers assume where a saved difference is silent.
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": {"num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 2048},
    "qwen3": {"num_attention_heads": 32, "vocab_size": 151936, "max_position_embeddings": 32768, "head_dim": 128}}


def layer_defaults(fields: Fields) -> list[Finding]:
    """Fill in what ``transformer_layer_config`` leaves out because it is the class's default; a finding for each."""
    kind = next((block["model_type"] for path, block in fields.blocks if path == "transformer_layer_config."
                 and isinstance(block.get("model_type"), str) and block["model_type"] in _DEFAULTS), "llama")
    said = []
    absent = {}
    for key, value in _DEFAULTS[kind].items():
        if not fields.seen(key):
            absent[key] = value
            said.append(finding("EC203", f"{fields.file}: transformer_layer_config.{key}", key=key, value=value,
                                rule=f"the default of transformers' config for '{kind}', from which speculators "
                                     "saves only the differences"))
    fields.blocks += (("transformer_layer_config.", absent),)
    return said


def detect_layernorms(facts: Facts) -> Evidence:
    return evidence(
        "layernorms-eagle1",
        (facts.contains("\nembed_layernorm.", "\npost_embedding_layernorm.", "\nhidden_layernorm.",
                        "\nlm_head_layernorm."),
         "there are embed_layernorm, hidden_layernorm, lm_head_layernorm"),
        (inputs(facts) == 2, "fc.weight reads two hidden widths, embedding and state"),
        (facts.starts("layers.0."), "there is a decoder layer layers.0"),
        *plain(facts))


def read_layernorms(facts: Facts) -> Reading:
    fields, _ = nested(facts.config_file, facts.settings)
    names = LAYERNORMS
    if facts.has("post_embedding_layernorm.weight"):
        names = Names("eagle", {("post_embedding_layernorm.weight" if source == "embed_layernorm.weight" else source):
                                name for source, name in LAYERNORMS.tops.items()}, parts=_PARTS)
    return _before_head(read_eagle1(
        facts, fields, LAYERNORMS_DIALECT, names, recycles_normed=False,
        claims={"embed_norm": True, "input_norm": True, "output_norm": True}))


def detect_old(facts: Facts) -> Evidence:
    return evidence(
        "speculators-eagle1",
        (inputs(facts, "fusion_fc.weight") == 2, "fusion_fc.weight reads two hidden widths"),
        (facts.starts("transformer."), "there is a layer called transformer"),
        *plain(facts))


def read_old(facts: Facts) -> Reading:
    fields, _ = nested(facts.config_file, facts.settings, *_BLOCKS)
    said = layer_defaults(fields)
    norms = fields.flag("layernorms")
    here = facts.contains("embedding_layernorm.", "pre_lm_head_layernorm.", "transformer.input_layernorm.")
    if norms is not None and norms != here:
        raise ConfigError("the config and the file contradict each other about the extra norms",
                          where=f"{fields.file}: layernorms = {str(norms).lower()}; the file has "
                                + ("them" if here else "none"),
                          how="set layernorms to what the draft was trained with; `parity-check` of both tells which")
    fields.flag("fusion_bias")  # the tensor says it
    claims = {"embed_norm": True, "input_norm": True, "output_norm": True} if here else {}
    reading = read_eagle1(facts, fields, OLD_DIALECT, OLD, claims=claims, recycles_normed=False, said=said)
    return _before_head(reading) if here else reading


def _before_head(reading: Reading) -> Reading:
    """The third norm stands before the head by its name; nothing says whether its output is fed back."""
    return reading.also(finding("EC215", reading.names.get("norm.weight", "norm.weight")))


def detect_eagle3(facts: Facts) -> Evidence:
    return evidence(
        "speculators-eagle3",
        (speculators(facts), "the config is speculators' (speculators_model_type, speculators_config)"),
        (facts.contains("layers.0.hidden_norm.weight"), "layers.0 has a hidden_norm"),
        (not facts.contains("mask_hidden"), "no mask_hidden"),
        *plain(facts))


def read_3(facts: Facts) -> Reading:
    fields, _ = nested(facts.config_file, facts.settings, *_BLOCKS)
    said = layer_defaults(fields)
    return read_eagle3(facts, fields, EAGLE3_DIALECT, EAGLE3_NAMES, strip=("model.",), said=said,
                       require=("norm_before_residual",))


LAYERNORMS_DIALECT = Dialect("layernorms-eagle1", "an EAGLE-1 head with three norms (\"layernorms\", TTT)",
                             detect_layernorms, read_layernorms)
OLD_DIALECT = Dialect("speculators-eagle1", "an EAGLE-1 head in speculators' old layout", detect_old, read_old)
EAGLE3_DIALECT = Dialect("speculators-eagle3", "an EAGLE-3 head in speculators' layout", detect_eagle3, read_3)
