"""What a run leaves behind: steps and generations, as the contract counts them (section 3). Standard library only."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One verification step.

    Attributes:
        proposed: draft nodes (K for a chain).
        accepted: drafts accepted, a.
        emitted: a + 1: the accepted drafts and the bonus.
        matches: for chains, whether each draft was the target's choice, also after a rejection; None where unknown.
        truncated: the step is recorded but enters no ratio.
    """

    proposed: int
    accepted: int
    emitted: int
    matches: list[bool] | None
    truncated: bool


@dataclass(frozen=True)
class Generation:
    """One prompt's run. ``output_ids`` are y0, y1, …: roots and accepted drafts, without the last step's bonus."""

    prompt_ids: list[int]
    output_ids: list[int]
    steps: list[Step]


def truncated(root: int, accepted: int, deepest: int, output_ids: Sequence[int], max_new_tokens: int,
              stop_ids: Collection[int]) -> bool:
    """Whether the step at ``root`` does not count: too near the limit, or a stop token in y_r … y_{r+a}."""
    out = output_ids[root:root + accepted + 1]
    return root + deepest + 1 >= max_new_tokens or any(token in stop_ids for token in out)
