"""``eagle-convert inspect``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ._options import command as make_command
from ._options import common_options, hub_options, option
from ._output import Output, human_bytes, table

if TYPE_CHECKING:
    from eagle_convert.source import HubOptions


@make_command("inspect", examples=(
    "eagle-convert inspect EAGLE-LLaMA3-Instruct-8B",
    "eagle-convert inspect yuhuili/EAGLE-LLaMA3-Instruct-8B --target meta-llama/Meta-Llama-3-8B-Instruct",
    "eagle-convert inspect ./head --deep --json | jq .findings"))
@click.argument("source")
@option("--target", metavar="TARGET", help="The model the draft was trained for: proves which tables are its own.")
@option("--deep", is_flag=True, help="Search every tensor for Inf and NaN, also without a target.")
@hub_options
@common_options
def command(out: Output, source: str, target: str | None, deep: bool, revision: str | None, hub: HubOptions) -> int:
    """Say what SOURCE is, what a compact folder of it would hold, and what is wrong with it.

    Reads headers and tensors of up to 1 MiB; all of them with --target or --deep. Exit code 3: an error-level finding,
    or no draft at all.
    """
    from eagle_convert import inspection

    document = inspection.inspect(source, target=target, deep=deep, revision=revision, hub=hub,
                                  progress=out.bytes_read("comparing"))
    out.progress("")
    out.findings(document["findings"])
    out.result(document, lambda: human(document, out), brief(document))
    return inspection.exit_code(document)


def brief(document: dict[str, Any]) -> str:
    """The one-line answer."""
    name = document["dialect"] or "unknown"
    return f"{name} {document['algorithm']}" if document["algorithm"] else f"{name}: {document['explanation']}"


def human(document: dict[str, Any], out: Output) -> str:
    """The document as people read it."""
    parts = [out.style(document["title"], "head")]
    if document["explanation"]:
        parts.append(document["explanation"])
    if document["draft"]:
        parts.append("\n".join(_facts(document["draft"], document["algorithm"])))
    else:
        parts.append("\n".join(f"{e['dialect']}: {fact}" for e in document["evidence"] for fact in e["facts"]
                               if e["matched"]))
    if document["tensors"]:
        parts.append(tensor_table(document["tensors"]))
    parts.append(_sizes(document["bytes"]))
    if document["engines"]:
        parts.append(_engines(document["engines"]))
    return "\n\n".join(part for part in parts if part)


def _facts(draft: dict[str, Any], algorithm: str) -> list[str]:
    rope, scaling = draft["rope"], draft["rope"]["scaling"]
    norms = [f"{name} {state}" for name, state in draft["norms"].items() if state != "absent"]
    vocab = f"{draft['vocab_size']}"
    if draft["draft_vocab_size"] != draft["vocab_size"]:
        vocab += f", of which it drafts {draft['draft_vocab_size']}"
    lines = [
        ("algorithm", {"eagle": "EAGLE-1/2", "eagle3": "EAGLE-3"}[algorithm]),
        ("width", f"{draft['hidden_size']}" + (f" (target {draft['target_hidden_size']})" if draft["hidden_size"] !=
                                              draft["target_hidden_size"] else "")),
        ("layers", f"{draft['num_layers']}, {draft['num_attention_heads']} heads x {draft['head_dim']}, "
                   f"{draft['num_key_value_heads']} KV heads, MLP {draft['intermediate_size']}"),
        ("vocabulary", vocab),
        ("rope", f"theta {'10000 (not stated)' if rope['theta'] is None else format(rope['theta'], 'g')}"
                 + (f", scaling {scaling}" if scaling else "")),
        ("positions", str(draft["max_position_embeddings"] or "not stated")),
        ("biases", ", ".join(name for key, name in (("fc_bias", "fc"), ("attention_bias", "q/k/v"), ("o_bias", "o"),
                                                    ("mlp_bias", "mlp")) if draft[key]) or "none"),
        ("norms", ", ".join(norms) or "none but the layer's own"),
        ("parallel", f"tensor parallel sizes {', '.join(map(str, draft['tensor_parallel']))}"),
        ("embedding", _WHOSE[draft["embeddings"]] if draft["embeddings"] else "not decided"),
        ("head", _WHOSE[draft["head"]] if draft["head"] else "not decided"),
    ]
    if draft["aux_hidden_state_layers"]:
        ids = draft["aux_hidden_state_layers"]
        lines.append(("reads", f"boundaries {ids}: states after so many layers, or outputs of layers "
                               f"{[i - 1 for i in ids]} counted from 0"))
    width = max(len(name) for name, _ in lines)
    return [f"{name:<{width}}  {text}" for name, text in lines]


_FEW = 12  # rows shown of a file that is no draft

_WHOSE = {"own": "its own, in the file", "target": "the target's", "absent": "not in the file: the target's is used",
          "unproved": "in the file; give --target to prove whether it is the target's"}


def tensor_table(tensors: list[dict[str, Any]]) -> str:
    shown = tensors if any(t["action"] for t in tensors) else tensors[:_FEW]
    rows = [(t["name"], t["dtype"], "x".join(map(str, t["shape"])) or "scalar", f"{t['bytes']:,}", t["action"] or "",
             t["reason"] if t["action"] == "dropped" else "") for t in shown]
    text = table(("tensor", "dtype", "shape", "bytes", "compact", "why"), rows, right=(3,))
    return text if len(shown) == len(tensors) else f"{text}\n… and {len(tensors) - len(shown)} more (--json has all)"


def _sizes(sizes: dict[str, Any]) -> str:
    text = f"{sizes['source']:,} bytes ({human_bytes(sizes['source'])})"
    if sizes["compact"] is not None:
        text += f", compact {sizes['compact']:,} bytes ({human_bytes(sizes['compact'])})"
    return text


def _engines(engines: dict[str, Any]) -> str:
    rows = [(name, e["version"], "yes" if e["loads"] else "no", "yes" if e["faithful"] else "no", e["evidence"])
            for name, e in engines.items()]
    why = [f"{name}: {reason}" for name, e in engines.items() for reason in e["why"]]
    return "\n".join([table(("engine", "version", "loads", "faithful", "we know by"), rows), *why])
