"""The model card: metadata through ``huggingface_hub``'s card classes, and one marked section that is ours.

A card that somebody wrote by hand keeps its text; only what stands between our two markers is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from shlex import quote
from typing import TYPE_CHECKING, Any

from .hub_errors import CardError
from .manifest import Manifest

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, ModelCard

BEGIN = "<!-- eagle-convert:begin (this section is replaced by every push) -->"
END = "<!-- eagle-convert:end -->"
_SECTION = re.compile(r"<!-- eagle-convert:begin.*?eagle-convert:end -->", re.S)
LIBRARY = "eagle-convert"
LICENSE_KEYS = ("license", "license_name", "license_link")
TASK, DATASET = "text-generation", "eagle-convert-prompts"


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


def compose(facts: CardFacts, existing: str | None = None) -> str:
    """The whole README.md.

    Args:
        existing: the card to keep; its text outside our section stays as it is, its metadata is completed.

    Raises:
        CardError: the existing card's metadata cannot be read.
    """
    card = _parse(existing) if existing is not None and existing.strip() else _new(facts)
    before = card.data.to_dict()
    _complete(card, facts)
    if existing and card.data.to_dict() == before:
        head = existing[:len(existing) - len(card.text)]
    else:
        head = f"---\n{_yaml(card)}\n---\n"
    ours = f"{BEGIN}\n{section(facts)}\n{END}"
    if _SECTION.search(card.text):
        return head + _SECTION.sub(lambda _: ours, card.text, count=1)
    text = card.text.rstrip("\n")
    return head + (f"{text}\n\n{ours}\n" if text.strip() else f"\n{ours}\n")


def license_of(text: str) -> dict[str, str]:
    """The license fields of a card's metadata; empty when it has none or is no card."""
    try:
        data = _parse(text).data
    except CardError:
        return {}
    found = {key: data.get(key) for key in LICENSE_KEYS}
    return {key: value for key, value in found.items() if isinstance(value, str) and value}


def section(facts: CardFacts) -> str:
    """Our part of the card, Markdown."""
    parts = [_what(facts), _changes(facts), _sizes(facts), _parity(facts), _serve(facts), _reproduce(facts)]
    return "\n\n".join(part for part in parts if part)


# metadata

def _new(facts: CardFacts) -> ModelCard:
    from huggingface_hub import ModelCard, ModelCardData

    data = ModelCardData(base_model=facts.base_model)
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n# {PurePosixPath(facts.repo_id).name}\n")


def _parse(text: str) -> ModelCard:
    import yaml
    from huggingface_hub import ModelCard

    if not text.lstrip().startswith("---"):
        text = f"---\n---\n{text}"  # no metadata yet; without the block the client would warn
    try:
        return ModelCard(text)
    except (ValueError, TypeError, yaml.YAMLError) as error:
        said = " ".join(str(error).split())
        raise CardError("the metadata of README.md cannot be read", where=f"README.md: {said}",
                        how="correct the block between the two --- lines, then push again") from None


def _complete(card: ModelCard, facts: CardFacts) -> None:
    """Set what we know, keep the rest, and leave out everything null or empty: the hub refuses such values."""
    data = card.data
    for key in list(data.__dict__):
        if key != "eval_results":
            data[key] = pruned(data[key])
            if data[key] is None:
                data.pop(key)
    if facts.base_model not in _listed(data.get("base_model")):
        data["base_model"] = facts.base_model
    data["library_name"] = data.get("library_name") or LIBRARY
    data["tags"] = list(dict.fromkeys([*_listed(data.get("tags")), *_tags(facts)]))
    if facts.license:
        for key in LICENSE_KEYS:
            data.pop(key)
        for key, value in facts.license.items():
            data[key] = value
    others = [r for r in data.get("eval_results") or [] if r.dataset_type != DATASET]
    results = [*others, *_results(facts)]
    data["model_name"] = (data.get("model_name") or PurePosixPath(facts.repo_id).name) if results else None
    data["eval_results"] = results or None


def pruned(value: Any) -> Any:
    """``value`` without nulls and empty strings, lists and tables, at every depth; None when nothing is left."""
    if isinstance(value, dict):
        value = {k: v for k, v in ((k, pruned(v)) for k, v in value.items()) if v is not None}
    elif isinstance(value, list):
        value = [v for v in map(pruned, value) if v is not None]
    return None if value in ("", [], {}) else value


def _yaml(card: ModelCard) -> str:
    text: str = card.data.to_yaml()
    return text


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _tags(facts: CardFacts) -> list[str]:
    return ["speculative-decoding", "draft-model", facts.algorithm, LIBRARY]


def _results(facts: CardFacts) -> list[EvalResult]:
    from huggingface_hub import EvalResult

    if facts.parity is None:
        return []
    side, settings = facts.parity["candidate"], facts.parity.get("settings", {})
    shared = {"task_type": TASK, "task_name": "Speculative decoding", "dataset_type": DATASET,
              "dataset_name": _prompts(settings), "dataset_config": str(facts.parity["settings_digest"])[:16]}
    metrics = [("acceptance_length", f"Acceptance length ({_shape(settings)})", side.get("acceptance_length")),
               ("acceptance_rate", f"Acceptance rate ({_shape(settings)})", side.get("acceptance_rate")),
               ("speedup", "Speed-up over the target alone", facts.parity.get("speedup"))]
    return [EvalResult(metric_type=kind, metric_name=name, metric_value=round(value, 4), **shared)
            for kind, name, value in metrics if isinstance(value, (int, float))]


# the section's parts

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
                          ("cast", "cast to another dtype"), ("created", "added"), ("dropped", "left out")):
        rows = [row for row in facts.manifest.ledger if row.get("action") == action]
        if action == "kept" and rows:
            lines.append(f"- {len(rows)} tensors {words}")
        elif action != "kept":
            lines += [f"- {_row(row)} {words}{_because(row)}" for row in rows]
    lines += [f"- `{name}` comes from the target's `{b.tensor}` ({b.dtype} {list(b.shape)}, sha256 `{b.sha256[:16]}…`)"
              for name, b in sorted(facts.manifest.target.digests.items())] if facts.manifest.target else []
    return "\n".join(["### What the conversion did", "", *lines])


def _row(row: Mapping[str, Any]) -> str:
    old, new = row.get("source"), row.get("destination")
    return f"`{old}` → `{new}`" if old and new and old != new else f"`{old or new}`"


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
    about = f"{_prompts(settings)}, {_shape(settings)}"
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


def _prompts(settings: Mapping[str, Any]) -> str:
    count = settings.get("num_prompts")
    return f"{count} prompts" if count else "prompts of the parity report"


def _shape(settings: Mapping[str, Any]) -> str:
    tree = settings.get("tree")
    drafts = f"tree {tree}" if tree else f"K = {settings.get('draft_tokens', '?')}"
    temperature = settings.get("temperature")
    return drafts if temperature is None else f"{drafts}, {f'temperature {temperature}' if temperature else 'greedy'}"


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
        note = f" — not faithful there: {facts.caveats[engine]}" if engine in facts.caveats else ""
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
