"""Acceptance of a compact folder on a PLANT target, by the teacher-forced reference: chain K = 4, greedy, 48 tokens.

What a PLANT target says is known by construction; that it does say it is asserted, not assumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from eagle_runtime.config import TreeShape
from eagle_runtime.loader import load_target, view_of_compact
from eagle_runtime.reference import Reference
from eagle_runtime.target import Target
from fixtures import plant
from fixtures.numbers import text

NEW_TOKENS = 48


@cache
def _target(folder: Path) -> Target:
    return load_target(folder)


def acceptance(folder: Path, target: Path, *, faults: Iterable[str] = (), count: int = 4,
               prompts: Sequence[Sequence[int]] | None = None) -> float:
    """Acceptance length by the contract's counting. 5.00 and 1.00 are exact for any number of prompts."""
    reference, steps = Reference(_target(target), view_of_compact(folder), faults), []
    for prompt in plant.prompts(count) if prompts is None else prompts:
        said = text(target.name, list(prompt))
        states = reference.states(prompt, said)
        assert states.says[:-1].tolist() == said
        steps += [s for s in reference.steps(states, TreeShape.chain(4), NEW_TOKENS) if not s.truncated]
    return 1 + sum(step.accepted for step in steps) / len(steps)
