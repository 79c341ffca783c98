"""``eagle-convert convert``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ._options import command as make_command
from ._options import common_options, hub_options, option
from ._output import Output, human_bytes, table

if TYPE_CHECKING:
    from eagle_convert.source import HubOptions

_CHOICE = click.Choice(["auto", "keep", "drop"])
_LAYOUTS = ("compact", "official", "vllm", "sglang", "speculators", "legacy-vllm")  # conversion.LAYOUTS, without numpy


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def size(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Bytes of ``5000000``, ``500MB``, ``2GB`` (decimal units, as on the hub)."""
    if value is None:
        return None
    text = value.strip().upper()
    digits = text.rstrip("BKMGT")
    try:
        found = int(float(digits) * _UNITS[text[len(digits):]])
    except (ValueError, KeyError, OverflowError):
        raise click.BadParameter(f"'{value}' is no size; say 500MB or 2GB", ctx, param) from None
    if found < 1:
        raise click.BadParameter(f"'{value}' is less than one byte", ctx, param)
    return found


@make_command("convert", examples=(
    "eagle-convert convert EAGLE-LLaMA3-Instruct-8B ./compact --target Meta-Llama-3-8B-Instruct",
    "eagle-convert convert org/head ./compact --target org/model --dry-run"))
@click.argument("source")
@click.argument("destination", metavar="DEST", type=click.Path(path_type=Path))
@option("--target", metavar="TARGET", help="The model the draft was trained for: what it already holds can go.")
@option("--for", "layout", type=click.Choice(_LAYOUTS), default="compact", show_default=True,
        help="The layout to write.")
@option("--stock", is_flag=True, help="With --for vllm: for vLLM without this package's plugin. (It has none yet.)")
@option("--allow-unfaithful", is_flag=True,
        help="Write also what that layout's engine loads and computes wrong, with a warning.")
@option("--embeddings", type=_CHOICE, default="auto", show_default=True, section="What is kept",
        help="The draft's embedding: auto drops it where it is proved to be the target's.")
@option("--head", type=_CHOICE, default="auto", show_default=True, section="What is kept",
        help="The draft's lm_head: auto drops it where it is proved to be the target's.")
@option("--norms", type=_CHOICE, default="auto", show_default=True, section="What is kept",
        help="Norms that the official EAGLE-1/2 head does not have.")
@option("--token-map", type=click.Path(path_type=Path), metavar="FILE", section="What is kept",
        help="Target ids of the draft vocabulary, where the weights do not hold them.")
@option("--prune-vocab", metavar="FILE|N", section="What is kept", help="Not supported; says what to do instead.")
@option("--rope-theta", type=click.FloatRange(min=0, min_open=True), metavar="X", section="What is kept",
        help="Write this rotary base instead of the source's.")
@option("--dtype", type=click.Choice(["keep", "float16", "bfloat16", "float32"]), default="keep", show_default=True,
        section="What is kept", help="Cast every float tensor; keep leaves every bit.")
@option("--max-shard-size", callback=size, metavar="SIZE", section="Writing",
        help="Split into files of at most so many bytes (500MB, 2GB). Default: one file.")
@option("--dry-run", is_flag=True, section="Writing", help="Decide, read and check everything; write nothing.")
@option("--force", is_flag=True, section="Writing", help="Replace DEST, whole, if it is not empty.")
@hub_options
@common_options
def command(out: Output, source: str, destination: Path, revision: str | None, hub: HubOptions,
            **flags: Any) -> int:
    """Write SOURCE as a compact folder DEST, or with --for in another tool's layout.

    Compact: the draft's own tensors and a config that states the truth.

    What the target already holds is dropped only when proved equal to it. DEST appears whole or not at all.
    """
    from eagle_convert import conversion

    document = conversion.convert(source, destination, revision=revision, hub=hub,
                                  progress=out.bytes_read("comparing"), **flags)
    out.progress("")
    out.findings(document["findings"])
    out.result(document, lambda: human(document, out), str(destination))
    return 0


def human(document: dict[str, Any], out: Output) -> str:
    """Before and after, a row a tensor and in total."""
    rows = [(r["source"] or r["destination"], r["dtype"], "x".join(map(str, r["shape"])) or "scalar",
             f"{r['bytes']:,}" if r["source"] else "-", f"{r['destination_bytes']:,}" if r["destination"] else "-",
             r["action"], r["reason"]) for r in document["ledger"]]
    before, after = document["bytes"]["source"], document["bytes"]["destination"]
    rows.append(("total", "", "", f"{before:,}", f"{after:,}", "", f"{human_bytes(before)} -> {human_bytes(after)}"))
    head = f"{document['algorithm']} ({document['dialect']}) -> {document['destination']}"
    if document["dry_run"]:
        head += " (dry run: nothing was written)"
    return out.style(head, "head") + "\n\n" + table(
        ("tensor", "dtype", "shape", "before", "after", "action", "why"), rows, right=(3, 4))
