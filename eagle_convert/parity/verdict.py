"""The verdict: losslessness first, identical steps next, then a paired bootstrap over prompts. Standard library."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .lossless import Lossless
from .metrics import Sheet
from .trace import Counts

Answer = Literal["pass", "fail", "inconclusive"]

MIN_PROMPTS = 16
TOLERANCE_SAME_TRAJECTORY, TOLERANCE = 0.01, 0.02
MAX_TIE_SHARE = 0.02
RESAMPLES = 4000
# a first draft accepted less often than this is a weak head: published heads reach 0.6 to 0.75 in a chain (vLLM's own
# CI references for K = 3 are 0.73, 0.65, 0.72), a tree's ten candidates reach more
WEAK_FIRST_DRAFT, WEAK_FIRST_DRAFT_TREE = 0.55, 0.75

EXIT_CODES: dict[Answer, int] = {"pass": 0, "fail": 3, "inconclusive": 4}


@dataclass(frozen=True)
class Spread:
    """The difference of two acceptance lengths, candidate minus reference, with its 95 % interval."""

    acceptance_length: float
    relative: float
    ci95: tuple[float, float]

    def document(self) -> dict[str, Any]:
        return {"acceptance_length": self.acceptance_length, "relative": self.relative, "ci95": list(self.ci95)}


@dataclass(frozen=True)
class Verdict:
    """The answer and why.

    Attributes:
        answer: ``pass``, ``fail`` or ``inconclusive``.
        reason: one sentence with the numbers that decided.
        spread: None where no two acceptance lengths exist.
        warnings: what is wrong although the answer stands, such as a weak head.
        more_prompts: how many more prompts would decide an interval that straddles the tolerance.
    """

    answer: Answer
    reason: str
    spread: Spread | None
    warnings: tuple[str, ...] = ()
    more_prompts: int | None = None

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.answer]


@dataclass(frozen=True)
class Evidence:
    """What the verdict is drawn from.

    Attributes:
        reference, candidate: counters of each prompt, in the same order.
        reference_sheet, candidate_sheet: the pooled ratios.
        lossless: the token check of the candidate's text.
        identical: every counting step the same.
        same_trajectory: both sides were measured on the same text.
        one_sided: only a fall is a failure (``--compare``, the regression gate).
        notes: what the run itself says of the comparison (an engine that chose another text).
    """

    reference: Sequence[Counts]
    candidate: Sequence[Counts]
    reference_sheet: Sheet
    candidate_sheet: Sheet
    lossless: Lossless
    identical: bool
    same_trajectory: bool
    one_sided: bool = False


def decide(evidence: Evidence, tolerance: float | None = None, seed: int = 0) -> Verdict:
    """The verdict; ``tolerance`` is relative to the reference's acceptance length (default 1 % on the same text, else
    2 %), ``seed`` that of the bootstrap."""
    pairs = _pairs(evidence.reference, evidence.candidate)
    spread = _spread(pairs, evidence, seed)
    warnings = _weakness(evidence.reference_sheet)

    def verdict(answer: Answer, reason: str, more: int | None = None) -> Verdict:
        return Verdict(answer, reason, spread, warnings, more)

    lossless = evidence.lossless
    if lossless.mismatches:
        first = lossless.mismatches[0]
        return verdict("fail", f"the text is not the target's: {len(lossless.mismatches)} of {lossless.tokens} tokens "
                               f"differ, first at prompt {first.prompt}, position {first.position}")
    if lossless.tie_share > MAX_TIE_SHARE:
        return verdict("inconclusive", f"{len(lossless.ties)} of {lossless.tokens} tokens are ties at this precision "
                                       "(more than 2 %); repeat with --dtype float32")
    if spread is None:
        return verdict("inconclusive", "not one step counts on both sides; give more --max-new-tokens, or prompts "
                                       "whose answers do not end at once")
    if evidence.identical:
        steps = sum(row.steps or 0 for row in evidence.candidate)
        return verdict("pass", f"identical accepted counts at each of {steps} steps of {len(pairs)} prompts")
    if len(pairs) < MIN_PROMPTS:
        return verdict("inconclusive", f"{len(pairs)} prompts measured, {MIN_PROMPTS} are needed unless every step is "
                                       "identical", MIN_PROMPTS - len(pairs))
    limit = tolerance if tolerance is not None else (
        TOLERANCE_SAME_TRAJECTORY if evidence.same_trajectory else TOLERANCE)
    base = evidence.reference_sheet.acceptance_length or 1.0
    return verdict(*_by_interval(spread, base, limit, len(pairs), evidence.one_sided))


def _by_interval(spread: Spread, base: float, limit: float, prompts: int,
                 one_sided: bool) -> tuple[Answer, str, int | None]:
    """Pass inside the tolerance, fail outside it, else how many more prompts would decide."""
    low, high = (edge / base for edge in spread.ci95)
    said = (f"acceptance length {spread.relative:+.2%} (95 % interval {low:+.2%} to {high:+.2%}, tolerance "
            f"{limit:.2%})")
    above = math.inf if one_sided else limit
    if -limit <= low and high <= above:
        return "pass", said, None
    if high < -limit or low > above:
        return "fail", f"{'fell' if high < -limit else 'rose'} beyond the tolerance: {said}", None
    straddles = f"the interval straddles the tolerance: {said}"
    nearest = min(abs(spread.relative + limit), abs(spread.relative - above))
    if nearest == 0:
        return "inconclusive", f"{straddles}; it lies on the tolerance, no number of prompts would decide", None
    # the interval's width falls with the square root of the number of prompts
    half = max(spread.relative - low, high - spread.relative)
    more = max(math.ceil(prompts * (half / nearest) ** 2) - prompts, 1)
    return "inconclusive", f"{straddles}; about {more} more prompts would decide", more


def _pairs(reference: Sequence[Counts], candidate: Sequence[Counts]) -> list[tuple[int, int, int, int]]:
    """(steps, accepted, steps, accepted) of the prompts that have a counting step on both sides."""
    out = []
    for one, two in zip(reference, candidate, strict=True):
        if one.steps and two.steps and one.accepted is not None and two.accepted is not None:
            out.append((one.steps, one.accepted, two.steps, two.accepted))
    return out


def _spread(pairs: Sequence[tuple[int, int, int, int]], evidence: Evidence, seed: int) -> Spread | None:
    """The pooled difference and its percentile interval: prompts are drawn with replacement, both sides together."""
    base, mine = evidence.reference_sheet.acceptance_length, evidence.candidate_sheet.acceptance_length
    if not pairs or base is None or mine is None:
        return None
    draw = random.Random(seed)
    differences = []
    for _ in range(RESAMPLES):
        steps, accepted, own_steps, own_accepted = map(sum, zip(*draw.choices(pairs, k=len(pairs)), strict=True))
        differences.append(own_accepted / own_steps - accepted / steps)
    differences.sort()
    low, high = _quantile(differences, 0.025), _quantile(differences, 0.975)
    return Spread(mine - base, (mine - base) / base, (low, high))


def _quantile(ordered: Sequence[float], q: float) -> float:
    place = q * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def _weakness(sheet: Sheet) -> tuple[str, ...]:
    """A head that is low as the reference has it: nothing broke on the way, and it will not speed much up either."""
    length, positions = sheet.acceptance_length, sheet.per_position
    if length is None or not positions:
        return ()
    if length == 1.0:
        return ("not one draft was accepted: both readings of a head that accepts nothing look alike; check the head's "
                "target, its embedding (--embeddings) and its algorithm",)
    limit = WEAK_FIRST_DRAFT_TREE if sheet.tree else WEAK_FIRST_DRAFT
    if positions[0] < limit:
        return (f"the head itself is weak: its first draft is accepted in {positions[0]:.0%} of the steps (published "
                f"heads reach {limit + 0.05:.0%} and more), acceptance length {length:.2f}",)
    return ()
