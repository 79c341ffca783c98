"""EAGLE-3 heads with vLLM's names: ``layers.0.*`` with a ``hidden_norm``; deeper heads go on with ``layers.1.*``."""

from __future__ import annotations

from ._base import Dialect, Evidence, Facts, Reading, evidence
from ._fields import nested
from ._names import TOPS_EAGLE3, Names
from .eagle1 import ours
from .eagle3 import BLOCKS, read_head

NAMES = Names("eagle3", TOPS_EAGLE3)


def detect(facts: Facts) -> Evidence:
    return evidence(
        "vllm-eagle3",
        (facts.has("layers.0.hidden_norm.weight"), "layers.0 has a hidden_norm"),
        (not facts.contains("mask_hidden", "medusa_layers", "parallel_draft_heads"),
         "no mask_hidden, no parallel heads"),
        (not ours(facts), "no eagle_convert.json beside it"))


def read(facts: Facts) -> Reading:
    fields, _ = nested(facts.config_file, facts.settings, *BLOCKS)
    return read_head(facts, fields, DIALECT, NAMES)


DIALECT = Dialect("vllm-eagle3", "an EAGLE-3 head with vLLM's tensor names", detect, read)
