"""The metric sheet in words: one definition a row, printed with every number. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .metrics import Sheet

# name in the JSON documents, label, definition
DEFINITIONS: tuple[tuple[str, str, str], ...] = (
    ("acceptance_length", "acceptance length", "tokens a step: 1 + accepted / steps, the bonus counted once"),
    ("accepted_per_step", "accepted drafts a step", "accepted / steps, without the bonus"),
    ("acceptance_rate", "acceptance rate", "accepted / drafted"),
    ("per_position", "per position", "steps that accepted position i / steps (unconditional)"),
    ("conditional", "conditional", "accepted at i / accepted at i - 1"),
    ("match_rate", "match rate", "matches at any position / drafted (vLLM 0.6's draft acceptance rate)"),
    ("system_efficiency", "system efficiency", "emitted / (steps x (k + 1))"),
    ("macro_acceptance_length", "macro acceptance length", "mean of the prompts' own"),
)
TREE_RATE = "accepted / drafted tree nodes; not comparable with chains"


def number(value: float | None, digits: int = 3) -> str:
    """A ratio as it is printed; a dash where it is unknown."""
    return "-" if value is None else f"{value:.{digits}f}"


def numbers(values: Sequence[float | None] | None) -> str:
    return "-" if values is None else " ".join(number(v) for v in values) or "-"


def sheet_rows(sheet: Sheet) -> list[tuple[str, str, str]]:
    """(label, value, definition) of every metric."""
    rows = []
    for key, label, definition in DEFINITIONS:
        value = getattr(sheet, key)
        text = numbers(value) if key in ("per_position", "conditional") else number(value)
        rows.append((label, text, TREE_RATE if key == "acceptance_rate" and sheet.tree else definition))
    return rows


def counts_line(sheet: Sheet) -> str:
    """The counters in one line, as the JSON documents name them."""
    parts = [f"{key} {value}" for key, value in sheet.counts.document().items() if key != "per_position"]
    if sheet.counts.per_position is not None:
        parts.append("accepted at each position " + " ".join(map(str, sheet.counts.per_position)))
    return ", ".join(parts) or "no counters"


def shape_words(settings: Mapping[str, Any]) -> str:
    """What a step drafts, from a settings document: ``chain of 4`` or ``tree 60,7,10``."""
    tree = settings["tree"]
    if tree is None:
        return f"chain of {settings['draft_tokens']}"
    if "choices" in tree:
        return f"static tree of {len(tree['choices'])} drafts"
    return f"tree {tree['total_token']},{tree['depth']},{tree['top_k']}"
