"""The metrics, defined once: count first, divide last. Standard library only.

Definitions are the contract's, section 3, and are printed with every sheet; ``docs/metrics.md`` tells how other
projects' numbers relate to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from eagle_convert.errors import BrokenFileError

from .trace import Counts, PromptTrace, StepRecord, Trace

CountsKind = Literal["v0", "v1"]


def count_steps(steps: Iterable[StepRecord], k: int) -> Counts:
    """The counters of the steps that count. ``matches`` stays unknown if a single counting step does not know it."""
    counting = [step for step in steps if not step.truncated]
    known = all(step.matches is not None for step in counting)
    return Counts(
        k=k, steps=len(counting), drafted=sum(step.proposed for step in counting),
        accepted=sum(step.accepted for step in counting), emitted=sum(step.emitted for step in counting),
        per_position=tuple(sum(step.accepted > i for step in counting) for i in range(k)),
        matches=sum(sum(step.matches or ()) for step in counting) if known and counting else None)


def count_prompt(row: PromptTrace, k: int) -> Counts:
    """One prompt's counters, whichever of the two forms the trace has."""
    return count_steps(row.steps, k) if row.steps is not None else row.counts or Counts()


def prompt_counts(trace: Trace) -> list[Counts]:
    """The counters of every prompt of a trace, completed by the identities that link them."""
    k = trace.settings.shape.deepest
    chain = trace.settings.shape.is_chain
    return [complete(count_prompt(row, k), chain=chain) for row in trace.prompts]


def pool(rows: Sequence[Counts]) -> Counts:
    """The sum over prompts. A counter that one prompt does not know is unknown for all; ``k`` must agree."""
    rows = [row for row in rows if row.steps != 0] or list(rows)
    if not rows:
        return Counts()
    ks = {row.k for row in rows}
    if len(ks) > 1:
        raise BrokenFileError("counters of different draft lengths cannot be pooled",
                              where=f"k is {', '.join(str(k) for k in sorted(ks, key=str))}",
                              how="give counters of one run")

    def total(key: str) -> int | None:
        values = [getattr(row, key) for row in rows]
        return None if None in values else sum(values)

    positions = [row.per_position for row in rows]
    per_position = None
    if all(p is not None for p in positions):
        per_position = tuple(sum(column) for column in zip(*[p for p in positions if p is not None], strict=True))
    return Counts(ks.pop(), total("steps"), total("drafted"), total("accepted"), total("emitted"), per_position,
                  total("matches"))


def complete(counts: Counts, kind: CountsKind = "v1", *, chain: bool = True) -> Counts:
    """Fill in what the identities give, and refuse counters that contradict them.

    E = A + S, A = the sum over positions and, for a chain of fixed length, D = k S. Counters of vLLM 0.6 (``v0``)
    call every match "accepted", after a rejection too; here they become ``matches``, and A = E - S.
    Raises BrokenFileError where a counter is impossible.
    """
    k, steps, drafted, accepted, emitted = counts.k, counts.steps, counts.drafted, counts.accepted, counts.emitted
    matches, per_position = counts.matches, counts.per_position
    if kind == "v0":
        matches, accepted = accepted if matches is None else matches, None
    if k is None and per_position is not None:
        k = len(per_position)
    if accepted is None and per_position is not None and kind == "v1":
        accepted = sum(per_position)
    if chain and k:
        if steps is None and drafted is not None and drafted % k == 0:
            steps = drafted // k
        elif drafted is None and steps is not None:
            drafted = k * steps
    if accepted is None and emitted is not None and steps is not None:
        accepted = emitted - steps
    elif emitted is None and accepted is not None and steps is not None:
        emitted = accepted + steps
    full = Counts(k, steps, drafted, accepted, emitted, per_position, matches)
    _refuse_impossible(full)
    return full


def _refuse_impossible(c: Counts) -> None:
    def fail(what: str) -> None:
        raise BrokenFileError("counters that contradict each other", where=what,
                              how="take all counters from the same run and the same moment")

    if c.accepted is not None and c.accepted < 0:
        fail(f"emitted {c.emitted} is less than one token a step ({c.steps} steps)")
    if c.drafted is not None and c.accepted is not None and c.accepted > c.drafted:
        fail(f"accepted {c.accepted} of {c.drafted} drafted")
    if c.drafted is not None and c.matches is not None and c.matches > c.drafted:
        fail(f"{c.matches} matches of {c.drafted} drafted")
    if None not in (c.steps, c.k, c.accepted) and c.accepted > c.steps * c.k:  # type: ignore[operator]
        fail(f"accepted {c.accepted} in {c.steps} steps of at most {c.k}")
    if c.per_position is not None:
        if c.k is not None and len(c.per_position) != c.k:
            fail(f"per_position has {len(c.per_position)} entries, k is {c.k}")
        if any(a < b for a, b in zip(c.per_position, c.per_position[1:], strict=False)):
            fail(f"per_position {list(c.per_position)} rises: position i+1 is accepted only where position i is")
        if c.steps is not None and c.per_position and c.per_position[0] > c.steps:
            fail(f"position 0 was accepted {c.per_position[0]} times in {c.steps} steps")
        if c.accepted is not None and sum(c.per_position) != c.accepted:
            fail(f"per_position sums to {sum(c.per_position)}, accepted is {c.accepted}")


@dataclass(frozen=True)
class Sheet:
    """The metric sheet; None is unknown. Ratios are unrounded.

    Attributes:
        acceptance_length: 1 + A/S, tokens a step; the bonus counts once.
        accepted_per_step: A/S, the same without the bonus.
        acceptance_rate: A/D; for trees a share of nodes, not comparable with chains (``tree`` says so).
        per_position: share of steps that accepted position i, unconditional, k entries.
        conditional: accepted at i over accepted at i - 1; None where nothing reached i - 1.
        match_rate: matches at any position over D, what vLLM 0.6 called the draft acceptance rate.
        system_efficiency: E / (S (k + 1)).
        macro_acceptance_length: mean of the prompts' own acceptance lengths.
    """

    counts: Counts
    tree: bool = False
    acceptance_length: float | None = None
    accepted_per_step: float | None = None
    acceptance_rate: float | None = None
    per_position: tuple[float, ...] | None = None
    conditional: tuple[float | None, ...] | None = None
    match_rate: float | None = None
    system_efficiency: float | None = None
    macro_acceptance_length: float | None = None

    def document(self) -> dict[str, Any]:
        """The ratios by their names in the JSON documents."""
        return {"acceptance_length": self.acceptance_length, "accepted_per_step": self.accepted_per_step,
                "acceptance_rate": self.acceptance_rate,
                "per_position": None if self.per_position is None else list(self.per_position),
                "conditional": None if self.conditional is None else list(self.conditional),
                "match_rate": self.match_rate, "system_efficiency": self.system_efficiency,
                "macro_acceptance_length": self.macro_acceptance_length}


def sheet(counts: Counts, *, tree: bool = False) -> Sheet:
    """The ratios of completed counters."""
    c, positions = counts, counts.per_position
    per_step = _ratio(c.accepted, c.steps)
    conditional: tuple[float | None, ...] | None = None
    if positions is not None and c.steps is not None:
        before = (c.steps, *positions)
        conditional = tuple(_ratio(p, b) for p, b in zip(positions, before, strict=False))
    return Sheet(
        counts=c, tree=tree,
        acceptance_length=None if per_step is None else 1 + per_step,
        accepted_per_step=per_step,
        acceptance_rate=_ratio(c.accepted, c.drafted),
        per_position=tuple(p / c.steps for p in positions) if positions is not None and c.steps else None,
        conditional=conditional,
        match_rate=None if tree else _ratio(c.matches, c.drafted),
        system_efficiency=None if c.k is None or c.steps is None else _ratio(c.emitted, c.steps * (c.k + 1)))


def prompts_sheet(rows: Sequence[Counts], *, tree: bool = False) -> Sheet:
    """The sheet of several prompts: pooled ratios, and the macro mean over the prompts that have a counting step."""
    own = [1 + r.accepted / r.steps for r in rows if r.steps and r.accepted is not None]
    return replace(sheet(pool(rows), tree=tree), macro_acceptance_length=sum(own) / len(own) if own else None)


def trace_sheet(trace: Trace) -> Sheet:
    """The sheet of a trace."""
    return prompts_sheet(prompt_counts(trace), tree=not trace.settings.shape.is_chain)


def _ratio(part: int | None, whole: int | None) -> float | None:
    return None if part is None or not whole else part / whole
