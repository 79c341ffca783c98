"""``eagle-convert parity-check``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import _options
from ._options import common_options, hub_options, option
from ._output import Output, table

if TYPE_CHECKING:
    from eagle_convert.parity.report import ParityReport

_FILE = click.Path(path_type=Path)


@_options.command("parity-check", examples=(
    "eagle-convert parity-check compact-head --target org/model",
    "eagle-convert parity-check compact-head --target target --reference official-head --draft-tokens 4",
    "eagle-convert parity-check compact-head --target target --reference-engine replay:official.jsonl",
    "eagle-convert parity-check today.json --compare yesterday.json"))
@click.argument("candidate")
@option("--target", metavar="TARGET", section="What is compared", help="The full model the draft was trained for.")
@option("--reference", metavar="SOURCE", section="What is compared",
        help="The checkpoint to compare with. Default: what CANDIDATE's manifest says it was made from.")
@option("--engine", default="bundled", show_default=True, metavar="ENGINE", section="What is compared",
        help="What runs CANDIDATE: bundled, reference, replay:FILE.")
@option("--reference-engine", default="reference", show_default=True, metavar="ENGINE", section="What is compared",
        help="What runs the reference: reference, bundled, replay:FILE.")
@option("--compare", type=_FILE, metavar="OTHER.json", section="What is compared",
        help="Regression gate: an earlier report stands for the reference; CANDIDATE may be a report too.")
@option("--baseline-server", metavar="URL", section="What is compared",
        help="A server without speculation, for --engine server:URL.")
@option("--draft-tokens", type=int, metavar="K", section="What is drafted", help="A chain of K drafts (default: 4).")
@option("--tree", metavar="NODES,DEPTH,TOPK", section="What is drafted",
        help="A dynamic tree; NODES counts the root, paths reach DEPTH + 1 drafts. Official default: 60,7,10.")
@option("--tree-choices", metavar="NAME_OR_FILE", section="What is drafted",
        help="A static tree: a named one, or a JSON list of paths.")
@option("--prompts", type=_FILE, metavar="FILE", section="Prompts",
        help="JSON Lines or JSON with prompt, messages, turns, conversations, text or prompt_ids; a trace; or plain "
             "text, one a line. Default: 48 bundled prompts.")
@option("--num-prompts", type=int, metavar="N", section="Prompts", help="The first N prompts only.")
@option("--raw", is_flag=True, section="Prompts", help="Do not apply the target's chat template.")
@option("--max-new-tokens", type=int, metavar="N", section="Prompts", help="Tokens a prompt (default: 64).")
@option("--temperature", type=float, metavar="T", section="Sampling",
        help="0 is greedy (default). Above 0 the reference engine must be bundled or replay: `reference` is greedy.")
@option("--top-p", type=float, metavar="P", section="Sampling", help="Nucleus sampling (default: 1, off).")
@option("--top-k", type=int, metavar="N", section="Sampling", help="Top-k sampling (default: 0, off).")
@option("--seed", type=int, metavar="S", section="Sampling", help="Seed of sampling and of the bootstrap (default: 0).")
@option("--dtype", default="auto", show_default=True, metavar="DTYPE", section="Running",
        help="auto, float32, float16 or bfloat16; auto is the target's, float32 on a CPU.")
@option("--device", default="auto", show_default=True, metavar="DEVICE", section="Running",
        help="auto, cpu or cuda[:N].")
@option("--runner", default="auto", show_default=True, metavar="RUNNER", section="Running",
        help="auto, eager, compiled or graph (CUDA graphs).")
@option("--lanes", type=int, default=1, show_default=True, metavar="N", section="Running",
        help="Prompts worked on at a time.")
@option("--engine-python", metavar="PATH", section="Running", help="The interpreter of an engine of its own.")
@option("--engine-arg", "engine_args", multiple=True, metavar="KEY=VALUE", section="Running",
        help="An argument for that engine; may be given again.")
@option("--reference-python", metavar="PATH", section="Running", help="The same for the reference's engine.")
@option("--reference-arg", "reference_args", multiple=True, metavar="KEY=VALUE", section="Running",
        help="The same for the reference's engine.")
@option("--tolerance", type=float, metavar="FRACTION", section="Verdict",
        help="Of the acceptance length (default: 0.01 when both ran on the same text, else 0.02).")
@option("--tie-margin", type=float, metavar="X", section="Verdict",
        help="Logit gap below which two tokens are tied (default: 1e-3 in float32, 4 eps |logit| in 16 bit).")
@option("--diagnose", is_flag=True, section="Verdict", help="Name the known fault that looks like the candidate.")
@option("--fault", metavar="NAME", section="Verdict", help="Switch a known fault on in the candidate's engine.")
@option("--trace-out", type=_FILE, metavar="DIR", section="Output", help="Write candidate.jsonl and reference.jsonl.")
@option("--report", type=_FILE, metavar="FILE.html", section="Output", help="Write the report as a page.")
@hub_options
@common_options
def command(out: Output, candidate: str, **options: Any) -> int:
    """Does CANDIDATE accept what the reference accepts, and say what the target says?

    Exit codes: 0 pass, 3 fail, 4 inconclusive, 1 could not, 2 usage. Losslessness comes first: at temperature 0 every
    token must be the target's own. Then the steps of both sides are compared, and the acceptance lengths where they
    differ.
    """
    # Read when torch loads. Threads that spin while they wait fight over the cores of a busy machine: a verification of
    # 10 ms was seen to take 300.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from eagle_convert.parity.check import parity_check

    report = parity_check(candidate, progress=out.progress, **options)
    out.progress("")
    document = report.document()
    for warning in document["warnings"]:
        out.warn(warning)
    out.result(document, lambda: _text(out, report), report.verdict.answer)
    return report.exit_code


def _text(out: Output, report: ParityReport) -> str:
    from eagle_convert.parity.report import lines, table_rows

    styles = {"head": "head", "good": "good", "bad": "error"}
    text = []
    for kind, line in lines(report):
        if kind == "table":
            text.append(table(*table_rows(report)))
        else:
            text.append(out.style(line, styles[kind]) if kind in styles else line)
    return "\n".join(text)
