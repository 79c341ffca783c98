"""Trace records: what an engine did, step by step. Standard library only, so that any engine's worker can use them.

Counting (contract, section 3): y0 is the prefill's token and belongs to no step. A step has a root y_r, proposes
drafts behind it, accepts a of them and emits a + 1; the next root is y_{r+a+1}. ``output_ids`` are the roots and the
accepted drafts of every step, without the bonus of the very last one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from .settings import Settings

SCHEMA = "eagle-convert/trace/1"
Trajectory = Literal["own", "candidate"]


@dataclass(frozen=True)
class StepRecord:
    """One step.

    Attributes:
        proposed: drafts proposed (a tree's nodes without the root).
        accepted: drafts accepted, a prefix of a chain or a path of a tree.
        emitted: tokens out, ``accepted`` + 1 wherever the step counts.
        matches: for a chain, whether the target would have said each draft, given the drafts before it; the first
            ``accepted`` are true. None where unknown, and for trees.
        truncated: the step does not count.
    """

    proposed: int
    accepted: int
    emitted: int
    matches: tuple[bool, ...] | None = None
    truncated: bool = False

    def document(self) -> dict[str, Any]:
        return {"proposed": self.proposed, "accepted": self.accepted, "emitted": self.emitted,
                "matches": None if self.matches is None else list(self.matches), "truncated": self.truncated}


@dataclass(frozen=True)
class Counts:
    """Counters over counting steps; None is unknown. ``per_position[i]`` counts steps that accepted position i.

    ``matches`` counts drafts that match the target at any position, after the first rejection too.
    """

    k: int | None = None
    steps: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    emitted: int | None = None
    per_position: tuple[int, ...] | None = None
    matches: int | None = None

    def document(self) -> dict[str, Any]:
        """The counters that are known."""
        values = {key: getattr(self, key) for key in COUNTERS}
        values["per_position"] = None if self.per_position is None else list(self.per_position)
        return {key: value for key, value in values.items() if value is not None}


COUNTERS = ("k", "steps", "drafted", "accepted", "emitted", "per_position", "matches")


@dataclass(frozen=True)
class PromptTrace:
    """One prompt's run: ``steps``, or ``counts`` from an engine that only has counters; exactly one of the two."""

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    steps: tuple[StepRecord, ...] | None = None
    counts: Counts | None = None

    def document(self) -> dict[str, Any]:
        row: dict[str, Any] = {"prompt_ids": list(self.prompt_ids), "output_ids": list(self.output_ids)}
        if self.steps is not None:
            row["steps"] = [step.document() for step in self.steps]
        if self.counts is not None:
            row["counts"] = self.counts.document()
        return row


@dataclass(frozen=True)
class Timing:
    """Speed of a run; None is not measured. Tokens are those of the output, prefill time is left out."""

    tokens_per_second: float | None = None
    draft_ms_per_token: float | None = None
    verify_ms_per_step: float | None = None
    baseline_tokens_per_second: float | None = None  # the same engine in the same run, target only


@dataclass(frozen=True)
class Trace:
    """A run of one engine over all prompts.

    Attributes:
        engine, version: who ran.
        settings: with what.
        prompts: a row per prompt, in order.
        trajectory: ``own`` text, or the teacher-forced reference over the ``candidate``'s.
        timing: speeds.
        native: the engine's own raw counters, under its own names.
        runner: what the bundled engine says of its runner, else None.
        notes: what a reader should know of the run.
    """

    engine: str
    version: str
    settings: Settings
    prompts: tuple[PromptTrace, ...]
    trajectory: Trajectory = "own"
    timing: Timing = field(default_factory=Timing)
    native: Mapping[str, Any] = field(default_factory=dict)
    runner: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()

    def header(self) -> dict[str, Any]:
        """The first line of the trace file."""
        return {"schema": SCHEMA, "engine": self.engine, "version": self.version, **self.settings.document(),
                "trajectory": self.trajectory, "native": dict(self.native), "prompts": len(self.prompts)}


def truncated_flags(output_ids: Sequence[int], accepted: Sequence[int], k: int, max_new_tokens: int,
                    stop_ids: Sequence[int]) -> list[bool]:
    """Which steps do not count, from the text and the accepted counts alone.

    A step with root index r counts if r + k + 1 < ``max_new_tokens`` and none of y_r .. y_{r+a} is a stop token:
    whatever the end of the text cuts off, engines that stop differently still count the same steps.
    """
    stops, root, flags = set(stop_ids), 0, []
    for a in accepted:
        inside = root + k + 1 < max_new_tokens
        flags.append(not inside or not stops.isdisjoint(output_ids[root: root + a + 1]))
        root += a + 1
    return flags


def accounting_faults(trace: Trace) -> Iterator[tuple[int, str]]:
    """(prompt, what is wrong) wherever a trace contradicts the counting rules; nothing for a sound trace.

    Covers what one line of a file cannot show: that the text has a token for every root and accepted draft, and that
    ``truncated`` stands exactly where the rule puts it.
    """
    settings, k = trace.settings, trace.settings.shape.deepest
    for number, row in enumerate(trace.prompts):
        if row.steps is None:
            continue
        accepted = [step.accepted for step in row.steps]
        tokens = sum(accepted) + len(accepted)
        if accepted and tokens != len(row.output_ids):
            yield number, (f"{len(row.output_ids)} output ids, expected {tokens}: one for the root and each accepted "
                           f"draft of {len(accepted)} steps")
            continue
        flags = truncated_flags(row.output_ids, accepted, k, settings.max_new_tokens, settings.eos_token_ids)
        for index, (step, flag) in enumerate(zip(row.steps, flags, strict=True)):
            if step.truncated != flag:
                yield number, (f"step {index} says truncated {str(step.truncated).lower()}, the counting rule says "
                               f"{str(flag).lower()}")
                break
