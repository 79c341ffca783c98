"""The model card: metadata through ``huggingface_hub``'s card classes, and one marked section that is ours.

A card that somebody wrote by hand keeps its text; only what stands between our two markers is replaced.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from .card_text import CardFacts, prompts_words, section, shape_words
from .errors import CardError

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, ModelCard

BEGIN = "<!-- eagle-convert:begin (this section is replaced by every push) -->"
END = "<!-- eagle-convert:end -->"
_SECTION = re.compile(r"<!-- eagle-convert:begin.*?eagle-convert:end -->", re.S)
LIBRARY = "eagle-convert"
LICENSE_KEYS = ("license", "license_name", "license_link")
TASK, DATASET = "text-generation", "eagle-convert-prompts"


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
              "dataset_name": prompts_words(settings), "dataset_config": str(facts.parity["settings_digest"])[:16]}
    metrics = [("acceptance_length", f"Acceptance length ({shape_words(settings)})", side.get("acceptance_length")),
               ("acceptance_rate", f"Acceptance rate ({shape_words(settings)})", side.get("acceptance_rate")),
               ("speedup", "Speed-up over the target alone", facts.parity.get("speedup"))]
    return [EvalResult(metric_type=kind, metric_name=name, metric_value=round(value, 4), **shared)
            for kind, name, value in metrics if isinstance(value, (int, float))]
