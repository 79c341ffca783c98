"""EAGLE-1/2 heads as vLLM's V0 engine wanted them: the head's config in a wrapper, the target's head copied in.

Optional are ``token_map`` (absolute target ids of a truncated vocabulary) and norms: layer-0 input, final, and, since
vLLM's pull request 14990, ``enorm`` on the embedding and ``hnorm`` on the state. Which norms the engine applied changed
over time; without a flag nothing in the file says it.
"""

from __future__ import annotations

from ._base import Dialect, Evidence, Facts, Reading, evidence
from ._fields import nested
from ._names import TOPS_EAGLE1, Names
from .eagle1 import inputs, ours, read_head, wrapped

NAMES = Names("eagle", {name: name for name in TOPS_EAGLE1 if name not in ("d2t", "t2d")} | {"token_map": "d2t"})
PREFIXES = ("model.model.", "model.")


def detect(facts: Facts) -> Evidence:
    bare = "fc.weight" if facts.has("fc.weight") else next((p + "fc.weight" for p in PREFIXES
                                                            if facts.has(p + "fc.weight")), "fc.weight")
    return evidence(
        "legacy-vllm",
        (wrapped(facts) or facts.has("token_map") or (facts.contains("enorm.") and facts.contains("hnorm.")),
         "the config is a wrapper (model_type eagle, or the head's config under 'model'), or the file has token_map or "
         "enorm and hnorm"),
        (inputs(facts, bare) == 2, "fc.weight reads two hidden widths, embedding and state"),
        (facts.contains("layers.0."), "there is a decoder layer layers.0"),
        (not facts.contains("hidden_norm.", "midlayer.", "eh_proj", "mask_hidden", "kv_a_proj_with_mqa"),
         "no tensor that marks an EAGLE-3 head, an MTP module or latent attention"),
        (not ours(facts), "no eagle_convert.json beside it"))


def read(facts: Facts) -> Reading:
    fields, _ = nested(facts.config_file, facts.settings, "model")
    fields.used.add("truncated_vocab_size")  # the table's own length says it
    return read_head(facts, fields, DIALECT, NAMES, strip=PREFIXES, stored="ids")


DIALECT = Dialect("legacy-vllm", "an EAGLE-1/2 head in the wrapper that vLLM's V0 engine wanted", detect, read)
