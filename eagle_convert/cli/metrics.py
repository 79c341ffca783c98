"""``eagle-convert metrics FILE``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from . import _options
from ._options import common_options, option
from ._output import Output, table

if TYPE_CHECKING:
    from eagle_convert.parity.metrics_file import MetricsResult

_KINDS = {"v1": "the accepted prefix", "v0": "every match, after a rejection too (vLLM 0.6)"}


@_options.command("metrics", examples=("eagle-convert metrics trace.jsonl", "eagle-convert metrics counts.json --json",
                              "eagle-convert metrics vllm-metrics.txt --draft-tokens 5"))
@click.argument("file", type=click.Path(path_type=Path))
@option("--counts-kind", type=click.Choice(["v0", "v1"]),
        help="What 'accepted' counts in FILE: v1 the accepted prefix, v0 every match (vLLM 0.6). Default: v1, or v0 "
             "where the metric names are those of vLLM 0.6.")
@option("--draft-tokens", type=click.IntRange(min=1), metavar="K",
        help="Drafts a step, where FILE does not say (vLLM 0.6 counts no steps).")
@common_options
def command(out: Output, file: Path, counts_kind: Literal["v0", "v1"] | None, draft_tokens: int | None) -> None:
    """The metric sheet of FILE: a trace, counters, or a server's metrics text.

    Counters are a JSON object {k, steps, drafted, accepted, emitted, per_position[], matches}: counts, what is not
    known left out. A metrics text is what a vLLM or SGLang server answers on /metrics.
    """
    from eagle_convert.parity.metrics_file import metrics_of_file
    from eagle_convert.parity.words import number

    found = metrics_of_file(file, counts_kind=counts_kind, draft_tokens=draft_tokens)
    for warning in found.warnings:
        out.warn(warning)
    out.result(found.document(), lambda: _text(out, found), number(found.sheet.acceptance_length))


def _text(out: Output, found: MetricsResult) -> str:
    from eagle_convert.parity.words import counts_line, sheet_rows

    head = f"{found.file}: {found.source}" + (f", {found.shape}" if found.shape else "")
    if found.source not in ("trace", "sglang"):
        head += f"; 'accepted' counts {_KINDS[found.counts_kind]}"
    lines = [out.style(head, "head"), counts_line(found.sheet), "",
             table(("metric", "value", "definition"), sheet_rows(found.sheet))]
    if found.gauges:
        lines += ["", "published by the server:", *(f"  {name} {value:g}" for name, value in found.gauges.items())]
    return "\n".join(lines)
