"""``--report FILE.html``: the ``parity/1`` document as one page that needs nothing from anywhere. Standard library."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from .report import ParityReport, table_rows
from .words import number, shape_words

_COLOURS = {"pass": "#1a7f37", "fail": "#cf222e", "inconclusive": "#9a6700"}
_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1f2328}
table{border-collapse:collapse;margin:.5rem 0 1.5rem}
td,th{border-bottom:1px solid #d1d9e0;padding:.25rem .9rem .25rem 0;text-align:left;vertical-align:top}
td{font-variant-numeric:tabular-nums}code{font-size:.9em;overflow-wrap:anywhere}
.verdict{color:#fff;padding:.6rem 1rem;border-radius:.4rem}"""


def write_html(path: Path, report: ParityReport) -> None:
    """Write the page; an old file stays until the new one is complete."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_text(page(report), "utf-8")
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def page(report: ParityReport) -> str:
    """The page as text; every value in it is escaped."""
    document = report.document()
    verdict = report.verdict
    parts = [
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>parity: {verdict.answer}</title>",
        f"<style>{_STYLE}</style><h1>Parity</h1>",
        f"<p class='verdict' style='background:{_COLOURS[verdict.answer]}'><b>{verdict.answer.upper()}</b> "
        f"{escape(verdict.reason)}</p>",
        *(f"<p><b>Warning:</b> {escape(text)}</p>" for text in document["warnings"]),
        "<h2>What was run</h2>", _settings(document["settings"], document["settings_digest"], report.first_prompt),
        "<h2>Acceptance</h2>", _table(*table_rows(report)), _bars(report),
        "<h2>Losslessness</h2>", _lossless(document["lossless"])]
    if document["first_divergence"]:
        parts += ["<h2>First divergence</h2>", _pairs(list(document["first_divergence"].items()))]
    if document["faults"]:
        rows = [(f["id"] + (" (nearest group)" if f["in_group"] else ""), number(f["acceptance_length"]),
                 " ".join(number(p) for p in f["per_position"]), number(f["distance"], 4)) for f in document["faults"]]
        parts += ["<h2>Known faults</h2>", _table(("fault", "acceptance length", "per position", "distance"), rows)]
    return "\n".join([*parts, "</html>"]) + "\n"


def _settings(settings: dict[str, Any], digest: str, first: str) -> str:
    prompts, template = settings["prompts"], settings["template"]
    rows = [("method", settings["method"]), ("drafted", shape_words(settings)),
            ("prompts", f"{prompts['count']} ({prompts['source']})"), ("first prompt", first),
            ("template", f"{template['sha256'][:16]} ({template['file']})" if template else
             "none (--raw)" if settings["raw"] else "none"),
            *((key, settings[key]) for key in ("temperature", "top_p", "top_k", "seed", "max_new_tokens", "dtype")),
            *((key, settings[key]["id"] + (f"@{settings[key]['revision']}" if settings[key]["revision"] else ""))
              for key in ("target", "candidate", "reference") if settings.get(key)),
            ("settings digest", digest)]
    return _pairs(rows)


def _lossless(check: dict[str, Any]) -> str:
    if not check["checked"]:
        return f"<p>Not checked: {escape(check['reason'])}.</p>"
    said = (f"<p>{len(check['mismatches'])} mismatches and {len(check['ties'])} ties in {check['tokens']} tokens of "
            f"{check['prompts']} prompts.</p>")
    keys = ("prompt", "position", "token", "expected", "margin", "tie_margin")
    rows = [[row[key] for key in keys] for row in (*check["mismatches"], *check["ties"])]
    return said + (_table(keys, rows) if rows else "")


def _pairs(rows: Sequence[tuple[str, Any]]) -> str:
    return "<table>" + "".join(f"<tr><th>{escape(str(key))}</th><td><code>{escape(str(value))}</code></td></tr>"
                               for key, value in rows) + "</table>"


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    def line(cells: Sequence[Any], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    return "<table>" + line(head, "th") + "".join(line(row, "td") for row in rows) + "</table>"


def _bars(report: ParityReport) -> str:
    """The per-position rates of both sides as bars: reference grey, candidate blue."""
    sides = (report.reference.sheet.per_position or (), report.candidate.sheet.per_position or ())
    count = max(map(len, sides))
    if not count:
        return ""
    bars = []
    for rates, shift, colour in zip(sides, (4, 20), ("#818b98", "#0969da"), strict=True):
        bars += [f"<rect x='{i * 44 + shift}' y='{110 - 100 * rate:.2f}' width='15' height='{100 * rate:.2f}' "
                 f"fill='{colour}'/>" for i, rate in enumerate(rates)]
    labels = [f"<text x='{i * 44 + 14}' y='126' font-size='12'>{i}</text>" for i in range(count)]
    return (f"<svg width='{count * 44}' height='130' role='img' aria-label='per position, reference and candidate'>"
            f"<line x1='0' x2='{count * 44}' y1='110' y2='110' stroke='#818b98'/>{''.join(bars + labels)}</svg>"
            "<p>Share of steps that accepted each position: reference grey, candidate blue.</p>")
