"""Heads that NVIDIA Model-Optimizer exports from Megatron (``mcore_llama.py``). Its one-layer EAGLE-3 is the official.

EAGLE-1: norms on embedding and state before fc, a layer-0 input norm and a final norm, all active unless the recipe's
flags say otherwise; the state after the final norm is fed back. Deep EAGLE-3: ``midlayer.N``; later layers call the
norm before their attention ``hidden_norm``.
"""

from __future__ import annotations

from ._base import Dialect, Evidence, Facts, Reading, evidence
from ._fields import nested
from ._marks import inputs, plain, wrapped
from ._names import TOPS_EAGLE3, Names
from .eagle1 import NAMES, NORM_TENSORS, norm_claims
from .eagle1 import read_head as read_eagle1
from .eagle3 import BLOCKS
from .eagle3 import read_head as read_eagle3
from .legacy_vllm import megatron

DEEP_NAMES = Names("eagle3", TOPS_EAGLE3, layer="midlayer.{}.")


def detect_eagle1(facts: Facts) -> Evidence:
    return evidence(
        "megatron-eagle1",
        (megatron(facts), "there are enorm and hnorm, and the config says LlamaForCausalLMEagle without vLLM's flags"),
        (inputs(facts) == 2, "fc.weight reads two hidden widths, embedding and state"),
        (facts.starts("layers.0."), "there is a decoder layer layers.0"),
        (not facts.contains("hidden_norm.", "eh_proj", "mask_hidden") and not facts.has("token_map"),
         "no tensor that marks another layout"),
        (not wrapped(facts), "the config is not the legacy vLLM wrapper"),
        *plain(facts))


def read_1(facts: Facts) -> Reading:
    fields, _ = nested(facts.config_file, facts.settings, *BLOCKS)
    here = {norm: True for norm, tensor in NORM_TENSORS.items() if facts.has(tensor)}
    return read_eagle1(facts, fields, EAGLE1, NAMES, claims=here | norm_claims(fields))


def detect_deep(facts: Facts) -> Evidence:
    return evidence(
        "megatron-eagle3-deep",
        (facts.starts("midlayer.0."), "there are layers midlayer.0, midlayer.1, ..."),
        (not facts.contains("mask_hidden"), "no mask_hidden"),
        *plain(facts))


def read_deep(facts: Facts) -> Reading:
    fields, _ = nested(facts.config_file, facts.settings, *BLOCKS)
    return read_eagle3(facts, fields, DEEP, DEEP_NAMES)


EAGLE1 = Dialect("megatron-eagle1", "an EAGLE-1/2 head with active norms, exported from Megatron", detect_eagle1,
                 read_1)
DEEP = Dialect("megatron-eagle3-deep", "an EAGLE-3 head of several layers, exported from Megatron", detect_deep,
               read_deep)
