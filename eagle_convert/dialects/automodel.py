"""Heads that NVIDIA NeMo Automodel trains.

EAGLE-1/2: the official names plus a layer-0 input norm and a final norm that are *active*, and the state after the
final norm is fed back (``draft_llama_v12.py``): another function than the official one, told from a re-saved official
file only by its config. EAGLE-3: vLLM's names behind ``model.``; a training state keeps its vocabulary in
``eagle_meta.pt``.
"""

from __future__ import annotations

from ._base import Dialect, Evidence, Facts, Reading, evidence
from ._fields import nested
from ._marks import inputs, one_state, plain, speculators, wrapped
from ._names import TOPS_EAGLE3, Names
from .eagle1 import NAMES, automodel
from .eagle1 import read_head as read_eagle1
from .eagle3 import BLOCKS
from .eagle3 import read_head as read_eagle3

_PREFIX = ("model.",)


def detect_eagle1(facts: Facts) -> Evidence:
    return evidence(
        "automodel-eagle1",
        (automodel(facts), "the config is NeMo Automodel's (LlamaEagleDraftModel, draft_num_hidden_layers)"),
        (inputs(facts) == 2, "fc.weight reads two hidden widths, embedding and state"),
        (one_state(facts, "fc.weight", "layers.0."), "its attention reads one hidden width"),
        (facts.starts("layers.0.") and not facts.contains("hidden_norm.", "enorm.", "eh_proj", "mask_hidden"),
         "there is a layers.0 and no tensor that marks another layout"),
        (not wrapped(facts), "the config is not the legacy vLLM wrapper"),
        *plain(facts))


def read_1(facts: Facts) -> Reading:
    fields, _ = nested(facts.config_file, facts.settings)
    fields.used.add("draft_num_hidden_layers")  # the file's layers say it
    return read_eagle1(facts, fields, EAGLE1, NAMES, claims={"input_norm": True, "output_norm": True})


def detect_eagle3(facts: Facts) -> Evidence:
    return evidence(
        "automodel-eagle3",
        (facts.has("model.layers.0.hidden_norm.weight"), "model.layers.0 has a hidden_norm"),
        (not facts.contains("mask_hidden"), "no mask_hidden"),
        (not speculators(facts), "the config is not speculators'"),
        *plain(facts))


def read_3(facts: Facts) -> Reading:
    fields, _ = nested(facts.config_file, facts.settings, *BLOCKS)
    fields.used |= {"draft_num_hidden_layers", "parallel_drafting"}
    return read_eagle3(facts, fields, EAGLE3, Names("eagle3", TOPS_EAGLE3), strip=_PREFIX)


EAGLE1 = Dialect("automodel-eagle1", "an EAGLE-1/2 head with active norms, trained by NeMo Automodel", detect_eagle1,
                 read_1)
EAGLE3 = Dialect("automodel-eagle3", "an EAGLE-3 head in NeMo Automodel's tensor names", detect_eagle3, read_3)
