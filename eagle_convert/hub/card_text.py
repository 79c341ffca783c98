"""Our section of a model card, as Markdown: what the draft is, what was done to it, how well it does, how to use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from shlex import quote
from typing import Any

from eagle_convert.manifest import Manifest


@dataclass(frozen=True)
class CardFacts:
    """What a card says.

    Attributes:
        base_model: hub id of the target; ``base_revision`` its commit where it is known.
        license: ``license`` and, for custom ones, ``license_name`` and ``license_link``; empty: left out.
        algorithm: ``eagle`` or ``eagle3``, as vLLM names the method.
        draft_bytes: tensor data in the pushed folder.
        parity: an ``eagle-convert/parity/1`` document.
        caveats: engine (``vllm``, ``sglang``) -> why it does not run this head faithfully.
    """

    repo_id: str
    base_model: str
    base_revision: str | None
    license: Mapping[str, str]
    algorithm: str
    draft_bytes: int
    manifest: Manifest | None = None
    parity: Mapping[str, Any] | None = None
    caveats: Mapping[str, str] = field(default_factory=dict)


def section(facts: CardFacts) -> str:
    """Our part of the card, Markdown."""
    parts = [_what(facts), _changes(facts), _sizes(facts), _parity(facts), _serve(facts), _reproduce(facts)]
    return "\n\n".join(part for part in parts if part)


def _what(facts: CardFacts) -> str:
    family = {"eagle3": "EAGLE-3"}.get(facts.algorithm, "EAGLE")
    at = f" at revision `{facts.base_revision}`" if facts.base_revision else ""
    text = (f"## Draft for speculative decoding\n\nThis is an {family} draft (speculative-decoding head) for "
            f"[{facts.base_model}](https://huggingface.co/{facts.base_model}){at}. It is no language model by itself: "
            "an engine that supports speculative decoding runs it beside that target.")
    manifest = facts.manifest
    if manifest is None:
        return text
    revision = manifest.source.revision
    source = f"`{manifest.source.id}`" + (f" (revision `{revision}`)" if revision else "")
    return (f"{text} Converted from {source} with eagle-convert {manifest.version}; "
            f"layout of the source: {manifest.dialect}.")


def _changes(facts: CardFacts) -> str:
    if facts.manifest is None or not facts.manifest.ledger:
        return ""
    lines = []
    for action, words in (("kept", "kept, bit for bit"), ("renamed", "renamed, values unchanged"),
                          ("cast", "cast"), ("created", "added"), ("dropped", "left out")):
        rows = [row for row in facts.manifest.ledger if row.get("action") == action]
        if action == "kept" and rows:
            lines.append(f"- {len(rows)} tensor{'s' * (len(rows) != 1)} {words}")
        elif action != "kept":
            lines += [f"- {_row(row)} {words}{_dtypes(row)}{_because(row)}" for row in rows]
    lines += [f"- `{name}` comes from the target's `{b.tensor}` ({b.dtype} {list(b.shape)}, sha256 `{b.sha256[:16]}…`)"
              for name, b in sorted(facts.manifest.target.digests.items())] if facts.manifest.target else []
    return "\n".join(["### What the conversion did", "", *lines])


def _row(row: Mapping[str, Any]) -> str:
    old, new = row.get("source"), row.get("destination")
    return f"`{old}` → `{new}`" if old and new and old != new else f"`{old or new}`"


def _dtypes(row: Mapping[str, Any]) -> str:
    new = row.get("destination_dtype")
    return f" from {row.get('dtype')} to {new}" if new else ""


def _because(row: Mapping[str, Any]) -> str:
    return f": {row['reason']}" if row.get("reason") else ""


def _sizes(facts: CardFacts) -> str:
    ledger = facts.manifest.ledger if facts.manifest else ()
    before = sum(int(row.get("source_bytes") or row.get("bytes") or 0) for row in ledger if row.get("source"))
    lines = ["### Size", "", f"{megabytes(facts.draft_bytes)} of tensor data"]
    if before:
        lines[-1] += f", {megabytes(before)} before the conversion"
    return "\n".join(lines) + "."


def megabytes(count: int) -> str:
    """Bytes as people say them: 503.3 MB, 12.4 kB."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count} bytes"


def _parity(facts: CardFacts) -> str:
    if facts.parity is None:
        return ""
    reference, candidate = facts.parity["reference"], facts.parity["candidate"]
    rows = [(name, reference.get(key), candidate.get(key)) for name, key in (
        ("acceptance length", "acceptance_length"), ("acceptance rate", "acceptance_rate"),
        ("accepted by position", "per_position"), ("tokens/s", "tokens_per_second"))]
    table = [f"| {name} | {_number(a)} | {_number(b)} |" for name, a, b in rows if a is not None or b is not None]
    settings = facts.parity.get("settings", {})
    about = f"{prompts_words(settings)}, {shape_words(settings)}"
    for key in ("max_new_tokens", "dtype"):
        about += f", {key.replace('_', ' ')} {settings[key]}" if settings.get(key) is not None else ""
    reason = f" ({facts.parity['reason']})" if facts.parity.get("reason") else ""
    head = f"| | reference: {reference.get('engine', '?')} | this draft: {candidate.get('engine', '?')} |"
    return "\n".join([
        "### Parity with the source", "", head, "|---|---|---|", *table, "",
        f"Verdict of `eagle-convert parity-check`: **{facts.parity['verdict']}**{reason}. {about}."])


def _number(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(_number(v) for v in value)
    return "–" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def prompts_words(settings: Mapping[str, Any]) -> str:
    prompts = settings.get("prompts")
    if not isinstance(prompts, Mapping) or "count" not in prompts:
        return "prompts of the parity report"
    return f"{prompts['count']} prompts ({prompts.get('source', 'given')})"


def shape_words(settings: Mapping[str, Any]) -> str:
    tree, temperature = settings.get("tree"), settings.get("temperature")
    drafts = f"K = {settings.get('draft_tokens', '?')}"
    if isinstance(tree, Mapping):
        drafts = (f"static tree of {len(tree['choices'])} drafts" if "choices" in tree else
                  f"tree {tree.get('total_token')}/{tree.get('depth')}/{tree.get('top_k')}")
    if temperature is None:
        return drafts
    return f"{drafts}, temperature {temperature:g}" if temperature else f"{drafts}, greedy"


def _serve(facts: CardFacts) -> str:
    settings = (facts.parity or {}).get("settings", {})
    k = settings.get("draft_tokens") or 4
    at = f" --revision {facts.base_revision}" if facts.base_revision else ""
    speculative = f'{{"method": "{facts.algorithm}", "model": "{facts.repo_id}", "num_speculative_tokens": {k}}}'
    vllm = f"vllm serve {facts.base_model}{at} \\\n  --speculative-config '{speculative}'"
    sglang = (f"python -m sglang.launch_server --model-path {facts.base_model}{at} \\\n"
              f"  --speculative-algorithm {facts.algorithm.upper()} --speculative-draft-model-path {facts.repo_id} \\\n"
              f"  --speculative-num-steps {k} --speculative-eagle-topk 1 --speculative-num-draft-tokens {k + 1}")
    lines = ["### Serve"]
    for engine, name, command in (("vllm", "vLLM", vllm), ("sglang", "SGLang", sglang)):
        note = ""
        if engine in facts.caveats:
            note = (f": **does not run these files as the head was trained**: {facts.caveats[engine]}. Where the head "
                    f"has a layout there, `eagle-convert convert --for {engine}` writes it.")
        lines += ["", f"{name}{note}", "", "```bash", command, "```"]
    return "\n".join(lines)


def _reproduce(facts: CardFacts) -> str:
    manifest = facts.manifest
    target = facts.base_model + (f"@{facts.base_revision}" if facts.base_revision else "")
    check = f"eagle-convert inspect {facts.repo_id} --target {target}"
    if manifest is None:
        return f"### Check\n\n```bash\n{check}\n```"
    source = manifest.source.id + (f"@{manifest.source.revision}" if manifest.source.revision else "")
    flags = "".join(f" {quote(option)}" for option in manifest.options)
    used = f" --target {target}" if manifest.target else ""
    folder = PurePosixPath(facts.repo_id).name
    lines = [f"pip install eagle-convert=={manifest.version}", f"eagle-convert convert {source} {folder}{used}{flags}",
             check, f"eagle-convert parity-check {facts.repo_id} --target {target} --reference {source}"]
    return "\n".join(["### Reproduce and check", "", "```bash", *lines, "```"])
