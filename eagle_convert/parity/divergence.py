"""Two runs side by side: the first step where they part. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .trace import PromptTrace, StepRecord, Trace


@dataclass(frozen=True)
class Divergence:
    """Where two traces part.

    Attributes:
        prompt, step: indexes from 0; ``step`` None where the rows have no steps to compare.
        position: index of the step's root (or of the first differing token) in the output.
        what: ``output``, ``accepted``, ``proposed`` or ``steps``.
        reference, candidate: the two values.
        margin: the logit gap that decided, where the reference knows it; below the tie margin it is an excuse.
    """

    prompt: int
    step: int | None
    position: int
    what: str
    reference: Any
    candidate: Any
    margin: float | None = None

    def document(self) -> dict[str, Any]:
        return {"prompt": self.prompt, "step": self.step, "position": self.position, "what": self.what,
                "reference": self.reference, "candidate": self.candidate, "margin": self.margin}


@dataclass(frozen=True)
class Comparison:
    """Two traces of the same prompts: one divergence a prompt at most, and how far they went together."""

    divergences: tuple[Divergence, ...]
    compared_steps: int
    same_text: bool

    @property
    def identical(self) -> bool:
        """Every counting step of every prompt proposed and accepted the same, over the same text."""
        return not self.divergences and self.compared_steps > 0


def compare(reference: Trace, candidate: Trace) -> Comparison:
    """Compare two traces of the same prompts and settings, prompt by prompt, each up to its first divergence.

    Steps that do not count are left out: engines that stop differently differ there.
    """
    stops = frozenset(reference.settings.eos_token_ids)
    limit = reference.settings.max_new_tokens
    divergences, steps, same_text = [], 0, True
    for number, (one, two) in enumerate(zip(reference.prompts, candidate.prompts, strict=True)):
        parted = _text(one.output_ids, two.output_ids, stops, limit)
        same_text = same_text and parted is None
        found, together = _prompt(number, one, two, parted)
        steps += together
        if found is not None:
            divergences.append(found)
    return Comparison(tuple(divergences), steps, same_text)


def _text(one: Sequence[int], two: Sequence[int], stops: frozenset[int], limit: int) -> int | None:
    """The first index where the texts differ, None where they are the same text.

    An engine may run past ``limit`` by what its last step accepted, and may or may not take one more step whose root
    is a stop token; a text that is merely cut short is not the same.
    """
    for index in range(limit):
        if index == len(one) or index == len(two):
            longer = one if len(one) > len(two) else two
            return None if len(one) == len(two) or longer[index] in stops else index
        if one[index] != two[index]:
            return index
        if one[index] in stops:
            return None
    return None


def _prompt(number: int, one: PromptTrace, two: PromptTrace, parted: int | None) -> tuple[Divergence | None, int]:
    if one.steps is None or two.steps is None:
        what = "output" if parted is not None else "counts"
        if parted is None and one.counts == two.counts:
            return None, 0
        return Divergence(number, None, parted or 0, what, _at(one, parted), _at(two, parted)), 0
    first, second = _counting(one.steps), _counting(two.steps)
    for index, ((root, a), (other_root, b)) in enumerate(zip(first, second, strict=False)):
        if parted is not None and max(root + a.accepted, other_root + b.accepted) >= parted:
            break
        if a.proposed != b.proposed:
            return Divergence(number, index, root, "proposed", a.proposed, b.proposed), index
        if a.accepted != b.accepted:
            return Divergence(number, index, root, "accepted", a.accepted, b.accepted), index
    if parted is not None:
        step = sum(root <= parted for root, _ in second) - 1
        return Divergence(number, max(step, 0), parted, "output", _at(one, parted), _at(two, parted)), max(step, 0)
    if len(first) != len(second):
        index = min(len(first), len(second))
        return Divergence(number, index, 0, "steps", len(first), len(second)), index
    return None, len(first)


def _counting(steps: Sequence[StepRecord]) -> list[tuple[int, StepRecord]]:
    """(root index, step) of the steps that count."""
    out, root = [], 0
    for step in steps:
        if not step.truncated:
            out.append((root, step))
        root += step.accepted + 1
    return out


def _at(row: PromptTrace, index: int | None) -> int | None:
    return row.output_ids[index] if index is not None and index < len(row.output_ids) else None
