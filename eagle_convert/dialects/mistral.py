"""Mistral's EAGLE-1: fc is called ``eagle_linear``; the layer has an active input norm, and the output of the final
norm is fed back (vLLM's ``mistral_eagle.py``). Files in Mistral's own layer names are explained, not converted: their
q and k rows are in another order.
"""

from __future__ import annotations

from ._base import Dialect, Evidence, Facts, Reading, evidence
from ._fields import nested
from ._marks import inputs, plain
from ._names import TOPS_EAGLE1, Names
from .eagle1 import read_head

NAMES = Names("eagle", {name.replace("fc.", "eagle_linear."): name for name in TOPS_EAGLE1})


def detect(facts: Facts) -> Evidence:
    return evidence(
        "mistral-eagle1",
        (inputs(facts, "eagle_linear.weight") == 2, "eagle_linear.weight reads two hidden widths"),
        (facts.contains("layers.0.self_attn."), "its layers are named as in Hugging Face checkpoints"),
        *plain(facts))


def read(facts: Facts) -> Reading:
    fields, _ = nested(facts.config_file, facts.settings)
    return read_head(facts, fields, DIALECT, NAMES, strip=("model.",),
                     claims={"input_norm": True, "output_norm": True})


DIALECT = Dialect("mistral-eagle1", "an EAGLE-1 head with active norms, in Mistral's names", detect, read)
