"""``--compare OTHER.json``, the regression gate: an earlier report's candidate column stands for the reference."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from eagle_convert.errors import BrokenFileError

from .lossless import Deviation, Lossless
from .metrics import prompts_sheet
from .report import SCHEMA, Column
from .settings import Difference, differences, refuse
from .trace import Timing
from .trace_file import counts_from, read_text


@dataclass(frozen=True)
class StoredReport:
    """What the gate needs of a report file."""

    name: str
    settings: Mapping[str, Any]
    candidate: Column
    lossless: Lossless


def is_report(path: Path) -> bool:
    """Whether ``path`` is a ``parity/1`` report (of whatever version)."""
    return path.is_file() and path.suffix == ".json" and '"eagle-convert/parity/' in read_text(path)[:4096]


def read_report(path: Path) -> StoredReport:
    """The candidate column, settings and losslessness of a report file.

    Raises BrokenFileError for a file that is none, naming the key.
    """
    name = path.name

    def fail(what: str) -> NoReturn:
        raise BrokenFileError("not a report that can be compared", where=f"{name}: {what}",
                              how="give what 'eagle-convert parity-check --json' printed")

    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        fail(str(error))
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        fail(f"schema is {json.dumps(value.get('schema') if isinstance(value, dict) else None)}, expected {SCHEMA!r}")
    try:
        settings = value["settings"]
        if not isinstance(settings["prompts"]["digests"], list):
            fail("settings.prompts.digests is no list")
        return StoredReport(name, settings, _column(value["candidate"], settings, name),
                            _lossless(value["lossless"]))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        fail(f"{type(error).__name__}: {error}")


def check_alike(reference: Mapping[str, Any], candidate: Mapping[str, Any], first: str, second: str) -> None:
    """Exit 2, with every compared setting that differs, where two reports' runs were not alike."""
    found = differences(reference, candidate)
    one, two = (settings["prompts"] for settings in (reference, candidate))
    if one["digests"] != two["digests"]:
        rows = [i for i, (a, b) in enumerate(zip(one["digests"], two["digests"], strict=False)) if a != b]
        what = f"prompt_ids of prompt {rows[0]}" if rows else "prompts"
        row = rows[0] if rows else None
        found.append(Difference(what, *((len(p["digests"]) if row is None else p["digests"][row]) for p in (one, two))))
    if found:
        refuse(found, first, second)


def identical(reference: Column, candidate: Column) -> bool:
    """Every prompt's steps known and the same on both sides."""
    return None not in reference.step_digests and reference.step_digests == candidate.step_digests


def _column(value: Mapping[str, Any], settings: Mapping[str, Any], name: str) -> Column:
    rows = [dict(row) for row in value["rows"]]
    digests = tuple(row.pop("steps_digest") for row in rows)
    counts = tuple(counts_from(row, f"{name}: candidate.rows[{i}]") for i, row in enumerate(rows))
    timing = Timing(*(value.get(key) for key in ("tokens_per_second", "draft_ms_per_token", "verify_ms_per_step")))
    return Column(value["engine"], value["version"], value["trajectory"], timing, value["native"], value.get("runner"),
                  counts, digests, prompts_sheet(counts, tree=settings["tree"] is not None))


def _lossless(value: Mapping[str, Any]) -> Lossless:
    def deviations(rows: Any) -> tuple[Deviation, ...]:
        return tuple(Deviation(int(r["prompt"]), int(r["position"]), -1 if r["token"] is None else int(r["token"]),
                               int(r["expected"]), float("inf") if r["margin"] is None else float(r["margin"]),
                               float(r["tie_margin"])) for r in rows)

    return Lossless(bool(value["checked"]), str(value["reason"]), int(value["prompts"]), int(value["tokens"]),
                    deviations(value["mismatches"]), deviations(value["ties"]))
