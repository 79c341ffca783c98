"""EAGLE-3 heads with vLLM's names: ``layers.0.*`` with a ``hidden_norm``; deeper heads go on with ``layers.1.*``.

NVIDIA's Model-Optimizer exports the same names, without ``t2d``, its settings inside ``eagle_config``.
"""

from __future__ import annotations

from ._base import Dialect, Evidence, Facts, Reading, evidence
from ._fields import nested
from ._marks import plain, speculators
from ._names import TOPS_EAGLE3, Names
from .eagle3 import BLOCKS, read_head

NAMES = Names("eagle3", TOPS_EAGLE3)


def detect(facts: Facts) -> Evidence:
    return evidence(
        "vllm-eagle3",
        (facts.has("layers.0.hidden_norm.weight"), "layers.0 has a hidden_norm"),
        (not facts.contains("mask_hidden"), "no mask_hidden"),
        (not speculators(facts), "the config is not speculators'"),
        *plain(facts))


def read(facts: Facts) -> Reading:
    fields, _ = nested(facts.config_file, facts.settings, *BLOCKS)
    return read_head(facts, fields, DIALECT, NAMES)


DIALECT = Dialect("vllm-eagle3", "an EAGLE-3 head in vLLM's tensor names (vLLM, NVIDIA Model-Optimizer)", detect, read)
