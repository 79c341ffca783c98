"""EAGLE-1/2 heads as vLLM's V0 engine wanted them: the head's config in a wrapper, the target's head copied in.

Optional are ``token_map`` (absolute target ids of a truncated vocabulary) and norms: layer-0 input, final, and, since
vLLM's pull request 14990, ``enorm`` on the embedding and ``hnorm`` on the state. Which norms the engine applied changed
over time; without a flag nothing in the file says it.
"""

from __future__ import annotations

from ._base import Dialect, Evidence, Facts, Reading, evidence
from ._fields import nested
from ._marks import architectures, inputs, plain, speculators, wrapped
from ._names import TOPS_EAGLE1, Names
from .eagle1 import LEGACY_FLAGS, read_head

NAMES = Names("eagle", {name: name for name in TOPS_EAGLE1 if name not in ("d2t", "t2d")} | {"token_map": "d2t"})
PREFIXES = ("model.model.", "model.")


def megatron(facts: Facts) -> bool:
    """Norms on both inputs of fc, from NVIDIA's exporter by the config's word."""
    return (facts.has("enorm.weight", "hnorm.weight") and "LlamaForCausalLMEagle" in architectures(facts)
            and not any(flag in (facts.config or {}) for flag in LEGACY_FLAGS))


def detect(facts: Facts) -> Evidence:
    fc = next((p + "fc.weight" for p in ("", *PREFIXES) if facts.has(p + "fc.weight")), "fc.weight")
    return evidence(
        "legacy-vllm",
        (wrapped(facts) or facts.has("token_map") or facts.contains("enorm."),
         "the config is a wrapper (model_type eagle, or the head's config under 'model'), or the file has token_map or "
         "enorm"),
        (inputs(facts, fc) == 2, "fc.weight reads two hidden widths, embedding and state"),
        (facts.contains("layers.0."), "there is a decoder layer layers.0"),
        (not facts.contains("hidden_norm.", "midlayer.", "eh_proj", "mask_hidden", "mtp."),
         "no tensor that marks an EAGLE-3 head or an MTP module"),
        (not megatron(facts) and not speculators(facts), "the config is neither Megatron's nor speculators'"),
        *plain(facts))


def read(facts: Facts) -> Reading:
    fields, _ = nested(facts.config_file, facts.settings, "model")
    fields.used.add("truncated_vocab_size")  # the table's own length says it
    if not facts.has("token_map"):  # a flat folder with these norms may store its table as d2t
        return read_head(facts, fields, DIALECT, Names("eagle", TOPS_EAGLE1), strip=PREFIXES)
    return read_head(facts, fields, DIALECT, NAMES, strip=PREFIXES, stored="ids")


DIALECT = Dialect("legacy-vllm", "an EAGLE-1/2 head in the wrapper that vLLM's V0 engine wanted", detect, read)
