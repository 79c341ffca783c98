"""P-EAGLE: an EAGLE-3 head that drafts all positions in one pass, with a learned state ``mask_hidden`` for those whose
target state does not exist yet. Written by speculators, SpecForge and NeMo Automodel (``model.`` before the names).

The compact format keeps it whole; the bundled runtime drafts position by position and does not run it.
"""

from __future__ import annotations

from ._base import Dialect, Evidence, Facts, Reading, evidence
from ._fields import nested
from ._marks import plain, speculators
from ._names import TOPS_EAGLE3, Names
from .eagle3 import read_head
from .speculators import layer_defaults

_TRAINING = frozenset({"parallel_drafting", "num_depths", "down_sample_ratio", "down_sample_ratio_min", "cod_ratio",
                       "draft_num_hidden_layers"})


def detect(facts: Facts) -> Evidence:
    return evidence(
        "p-eagle",
        (facts.contains("mask_hidden"), "there is a mask_hidden"),
        (facts.contains("midlayer.", "layers.0.hidden_norm."), "its first layer is an EAGLE-3 one"),
        *plain(facts))


def read(facts: Facts) -> Reading:
    fields, _ = nested(facts.config_file, facts.settings, "transformer_layer_config", "eagle_config", "dflash_config")
    fields.used |= _TRAINING
    of_speculators = speculators(facts)
    said = layer_defaults(fields) if of_speculators else []
    layer = "midlayer." if facts.contains("midlayer.") and not facts.contains("layers.0.") else "layers.{}."
    reading = read_head(facts, fields, DIALECT, Names("eagle3", TOPS_EAGLE3, layer=layer), strip=("model.",), said=said,
                        require=("norm_before_residual",) if of_speculators else ())
    return reading.also(explanation="a P-EAGLE head: kept whole, its embedding included; the bundled runtime does not "
                                    "draft in parallel, vLLM does (parallel_drafting)")


DIALECT = Dialect("p-eagle", "a P-EAGLE head (parallel drafting)", detect, read)
