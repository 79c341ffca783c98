"""The teacher-forced oracle as an engine: over its own text, or over the candidate's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eagle_convert._version import __version__
from eagle_convert.errors import EngineError
from eagle_convert.parity.lossless import Judged
from eagle_convert.parity.settings import Settings
from eagle_convert.parity.trace import PromptTrace, StepRecord, Trace, Trajectory

from .judge import judged
from .runtime_errors import runtime_errors

if TYPE_CHECKING:
    from eagle_runtime.records import Step
    from eagle_runtime.reference import Reference, ReferenceStep, States
    from eagle_runtime.target import Target
    from eagle_runtime.views import DraftView

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Followed:
    """The oracle over given texts.

    Attributes:
        trace: its steps, one row a prompt.
        judged: every token of the given texts under the target, from the same pass.
        margins: for each prompt, root index -> the smallest distance by which a draft of that step was chosen.
        states: the target passes, for drafting again with a fault.
    """

    trace: Trace
    judged: list[list[Judged]]
    margins: list[dict[int, float]]
    states: list[States]


@dataclass(frozen=True)
class ReferenceEngine:
    """``eagle_runtime.reference`` for one pair, with ``faults`` switched on in the draft part."""

    target: Target
    view: DraftView
    faults: frozenset[str] = field(default_factory=frozenset)

    def run(self, settings: Settings, prompts: Sequence[Sequence[int]], progress: Progress,
            hints: Sequence[Sequence[int]] | None = None) -> Trace:
        """The steps on the target's own text.

        ``hints`` may hold a likely text for each prompt: one whose every token is the target's choice *is* the
        target's text, and one pass proves that where generating it takes as many passes as tokens.
        """
        greedy_only(settings)
        oracle = self._oracle()
        rows = []
        for number, prompt in enumerate(prompts):
            progress(f"reference: prompt {number + 1} of {len(prompts)}")
            with runtime_errors():
                rows.append(self._own(oracle, settings, prompt, hints[number] if hints is not None else ()))
        return self._trace(settings, rows, "own")

    def follow(self, settings: Settings, texts: Sequence[PromptTrace], progress: Progress) -> Followed:
        """The steps on given texts: what this draft would have accepted there."""
        greedy_only(settings)
        oracle, stops = self._oracle(), settings.eos_token_ids
        rows, tokens, margins, passes = [], [], [], []
        for number, text in enumerate(texts):
            progress(f"reference: prompt {number + 1} of {len(texts)}")
            with runtime_errors():
                states = oracle.states(text.prompt_ids, text.output_ids)
                steps = oracle.steps(states, settings.shape, settings.max_new_tokens, stops)
                last = self.target.head(states.full.hidden[-1:]).float()[0]
            rows.append(_row(states, steps))
            margins.append({step.root: step.margin for step in steps})
            tokens.append(judged(text.output_ids, states.says, states.top[:, 0], states.given, last,
                                 settings.max_new_tokens, stops))
            passes.append(states)
        return Followed(self._trace(settings, rows, "candidate"), tokens, margins, passes)

    def again(self, settings: Settings, passes: Sequence[States]) -> Trace:
        """The steps on texts whose target passes are known: only the draft part runs (for ``--diagnose``)."""
        oracle = self._oracle()
        with runtime_errors():
            rows = [_row(states, oracle.steps(states, settings.shape, settings.max_new_tokens, settings.eos_token_ids))
                    for states in passes]
        return self._trace(settings, rows, "candidate")

    def _oracle(self) -> Reference:
        from eagle_runtime.reference import Reference

        with runtime_errors():
            return Reference(self.target, self.view, self.faults)

    def _own(self, oracle: Reference, settings: Settings, prompt: Sequence[int], hint: Sequence[int]) -> PromptTrace:
        shape, limit, stops = settings.shape, settings.max_new_tokens, settings.eos_token_ids
        if hint:
            states = oracle.states(prompt, hint)
            says = states.says.tolist()
            ended = len(hint) >= limit or not set(stops).isdisjoint(hint) or says[-1] in stops
            if ended and says[:-1] == list(hint):
                return _row(states, oracle.steps(states, shape, limit, stops))
        made = oracle.run(prompt, shape, limit, stops)
        return PromptTrace(tuple(prompt), tuple(made.output_ids), tuple(map(_step, made.steps)))

    def _trace(self, settings: Settings, rows: Sequence[PromptTrace], trajectory: Trajectory) -> Trace:
        return Trace("reference", __version__, settings, tuple(rows), trajectory=trajectory)


def _row(states: States, steps: Sequence[ReferenceStep]) -> PromptTrace:
    """The text that the steps walked over; behind a given text's end the target's own next token counts as known."""
    ids, n = states.ids.tolist(), states.prompt
    known = [*ids[n:], int(states.says[-1])]
    walked = sum(step.accepted + 1 for step in steps)
    return PromptTrace(tuple(ids[:n]), tuple(known[:walked]), tuple(map(_step, steps)))


def _step(step: Step) -> StepRecord:
    return StepRecord(step.proposed, step.accepted, step.emitted,
                      None if step.matches is None else tuple(step.matches), step.truncated)


def greedy_only(settings: Settings) -> None:
    """Raises EngineError above temperature 0: a sampled text is not forced by the target."""
    if not settings.sampling.greedy:
        raise EngineError("the reference is greedy", where=f"temperature {settings.sampling.temperature:g}",
                          how="compare sampled runs with --reference-engine bundled, or at --temperature 0")
