"""``eagle-convert metrics FILE``: the metric sheet of a trace, of counters, or of a server's metrics text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from eagle_convert.errors import BrokenFileError

from .metrics import CountsKind, Sheet, complete, sheet, trace_sheet
from .server_text import read_server_text
from .trace import Counts
from .trace_file import counts_from, is_trace, parse_trace, read_text
from .words import shape_words

SCHEMA = "eagle-convert/metrics/1"


@dataclass(frozen=True)
class MetricsResult:
    """The sheet of a file.

    Attributes:
        file: its name.
        source: ``trace``, ``counters``, ``vllm-v1``, ``vllm-v0`` or ``sglang``.
        counts_kind: what "accepted" means in the file (``v0``: every match; ``v1``: the accepted prefix).
        shape: what was drafted, in words; empty where the file does not say.
        sheet: the ratios; None entries are unknown.
        gauges: ratios as the server published them, under its names.
        warnings: what a reader must know.
    """

    file: str
    source: str
    counts_kind: CountsKind
    sheet: Sheet
    shape: str = ""
    gauges: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """The ``eagle-convert/metrics/1`` document."""
        return {"schema": SCHEMA, "file": self.file, "source": self.source, "counts_kind": self.counts_kind,
                "shape": self.shape or None, "counts": self.sheet.counts.document(), **self.sheet.document(),
                "gauges": dict(self.gauges), "warnings": list(self.warnings)}


def metrics_of_file(path: Path, *, counts_kind: CountsKind | None = None,
                    draft_tokens: int | None = None) -> MetricsResult:
    """The metric sheet of ``path``.

    ``counts_kind`` says what "accepted" means in counters (default: v1, or v0 where a text's metric names are those of
    vLLM 0.6); ``draft_tokens`` is k where the file does not state it.
    Raises BrokenFileError for a file of another kind, or counters that contradict each other.
    """
    text = read_text(path)
    if is_trace(text):
        return _of_trace(text, path.name)
    if text.lstrip().startswith(("{", "[")):
        return _of_counters(text, path.name, counts_kind or "v1", draft_tokens)
    return _of_server(text, path.name, counts_kind, draft_tokens)


def _of_trace(text: str, name: str) -> MetricsResult:
    trace = parse_trace(text, name)
    found = trace_sheet(trace)
    return MetricsResult(name, "trace", "v1", found, shape_words(trace.settings.document()), warnings=_warnings(found))


def _of_counters(text: str, name: str, kind: CountsKind, draft_tokens: int | None) -> MetricsResult:
    how = ("expected {k, steps, drafted, accepted, emitted, per_position, matches}, all counts, what is not known left "
           "out; or a trace, or a server's metrics text")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BrokenFileError("not JSON", where=f"{name}: {error}", how=how) from error
    if not isinstance(value, dict) or str(value.get("schema", "")).startswith("eagle-convert/"):
        found = value.get("schema") if isinstance(value, dict) else "a JSON list"
        raise BrokenFileError("no counters in this file", where=f"{name}: {found}", how=how)
    counts = counts_from(value, name)
    if draft_tokens is not None:
        counts = _with_k(counts, draft_tokens, name)
    return _counted(name, "counters", kind, counts)


def _of_server(text: str, name: str, kind: CountsKind | None, draft_tokens: int | None) -> MetricsResult:
    found = read_server_text(text, name, draft_tokens)
    if found.source == "sglang":
        length = found.gauges.get("sglang:spec_accept_length")
        one = Sheet(Counts(), acceptance_length=length, accepted_per_step=None if length is None else length - 1,
                    acceptance_rate=found.gauges.get("sglang:spec_accept_rate"))
        return MetricsResult(name, found.source, found.kind, one, gauges=found.gauges, warnings=(
            "SGLang's gauges cover its latest decode-log interval only, and with top-k above 1 its rate is a share of "
            "tree nodes, not comparable with chains",))
    result = _counted(name, found.source, kind or found.kind, found.counts)
    return replace(result, gauges=found.gauges)


def _counted(name: str, source: str, kind: CountsKind, counts: Counts) -> MetricsResult:
    full = complete(counts, kind)
    warnings: list[str] = []
    if kind == "v1" and full.accepted is not None and full.steps is not None:
        emitted = full.accepted + full.steps
        if full.emitted != emitted:
            warnings.append(f"emitted is {full.emitted}, accepted + steps is {emitted}: if these are counters of vLLM "
                            "0.6, where a match after a rejection counts as accepted, give --counts-kind v0")
            full = replace(full, emitted=emitted)
    if kind == "v0" and (full.accepted is None or full.steps is None):
        warnings.append("no acceptance length: in vLLM 0.6 it is emitted / steps, and steps = drafted / k; "
                        "give --draft-tokens K and the emitted tokens")
    one = sheet(full)
    return MetricsResult(name, source, kind, one, warnings=(*warnings, *_warnings(one)))


def _warnings(one: Sheet) -> tuple[str, ...]:
    if one.counts.steps == 0:
        return ("not one step counts: every ratio is undefined",)
    if one.counts.k and one.counts.steps and one.counts.drafted not in (None, one.counts.k * one.counts.steps) \
            and not one.tree:
        return (f"drafted is {one.counts.drafted}, k x steps is {one.counts.k * one.counts.steps}: some steps drafted "
                "fewer than k",)
    return ()


def _with_k(counts: Counts, k: int, name: str) -> Counts:
    if counts.k not in (None, k):
        raise BrokenFileError("the file states another k", where=f"{name}: k {counts.k}, --draft-tokens {k}",
                              how="leave --draft-tokens out")
    return replace(counts, k=k)
