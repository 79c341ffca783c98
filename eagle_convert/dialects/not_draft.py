"""Files that are no draft at all, recognised so that the message can say what they are."""

from __future__ import annotations

import re

from eagle_convert.findings import finding

from ._base import Dialect, Evidence, Facts, Reading, evidence
from ._marks import fuses

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+)\.")
_EMBEDDING = re.compile(r"(?:^|\.)(?:embed_tokens|wte|embed_in|word_embeddings|tok_embeddings)\.weight$")


def layer_numbers(facts: Facts) -> set[int]:
    """Numbers of the decoder layers in the file, without those that are MTP modules."""
    modules = {int(hit[1]) for name in facts.shapes if "eh_proj" in name and (hit := _LAYER.search(name))}
    return {int(hit[1]) for name in facts.shapes if not name.startswith("mtp") and (hit := _LAYER.search(name))
            and len(hit[1]) < 6} - modules


def _outside_layers(facts: Facts) -> bool:
    return any(_EMBEDDING.search(name) and not _LAYER.search(name) for name in facts.shapes)


def detect_model(facts: Facts) -> Evidence:
    return evidence(
        "whole-model",
        (_outside_layers(facts), "there is a token embedding outside the layers"),
        (len(layer_numbers(facts)) > 1 or facts.contains("input_layernorm.", "ln_1.", "attention_norm."),
         "there are decoder layers with an input norm"),
        (not fuses(facts), "no fc or other tensor that fuses a target's state"))


def read_model(facts: Facts) -> Reading:
    layers = len(layer_numbers(facts))
    inside = "an MTP module inside, " if facts.contains("eh_proj") or facts.starts("mtp.") else ""
    text = f"complete causal LM, {layers} layer{'s' * (layers != 1)}, {inside}no fc: not an EAGLE draft"
    return _refusal(MODEL, facts, text)


def _heads(facts: Facts) -> bool:
    return 0 < len(facts.shapes) <= 2 and all(
        len(shape) == 2 and name.rpartition(".")[2] == "weight" and name.count(".") <= 2 and "fc" not in name
        for name, shape in facts.shapes.items())


def detect_table(facts: Facts) -> Evidence:
    return evidence("lone-table", (_heads(facts), "all there is are one or two V x H tables"))


def read_table(facts: Facts) -> Reading:
    tables = ", ".join(f"{name} {list(shape)}" for name, shape in facts.shapes.items())
    return _refusal(TABLE, facts, f"{tables} alone: a target's lm_head or embedding, such as a trainer stores beside "
                                  "the draft; not needed")


def detect_adapter(facts: Facts) -> Evidence:
    return evidence("lora-adapter", (facts.contains("lora_A.", "lora_B."), "there are lora_A, lora_B tensors"))


def read_adapter(facts: Facts) -> Reading:
    return _refusal(ADAPTER, facts, "a LoRA adapter of some model: not an EAGLE draft")


def _refusal(dialect: Dialect, facts: Facts, text: str) -> Reading:
    return Reading(dialect.name, dialect.title, "not a draft", config=facts.config or {}, explanation=text,
                   unused={facts.source_name(name): "not a draft" for name in facts.shapes},
                   findings=(finding("EC101", "the weight files", what=text,
                                    how="give the folder of an EAGLE draft; a target goes behind --target"),))


MODEL = Dialect("whole-model", "a complete causal language model", detect_model, read_model)
TABLE = Dialect("lone-table", "a table without a draft", detect_table, read_table)
ADAPTER = Dialect("lora-adapter", "a LoRA adapter", detect_adapter, read_adapter)
