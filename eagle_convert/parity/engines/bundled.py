"""The bundled runtime as an engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from eagle_convert._version import __version__
from eagle_convert.parity.settings import Settings
from eagle_convert.parity.trace import PromptTrace, StepRecord, Timing, Trace

from .runtime_errors import runtime_errors

if TYPE_CHECKING:
    from eagle_runtime.engine import SpeculativeEngine
    from eagle_runtime.records import Generation, Step
    from eagle_runtime.target import Target
    from eagle_runtime.views import DraftView

Progress = Callable[[str], None]


@dataclass(frozen=True)
class BundledEngine:
    """``eagle_runtime``'s :class:`SpeculativeEngine`; ``faults`` are switched on in its draft or its steps."""

    target: Target
    view: DraftView
    faults: frozenset[str] = field(default_factory=frozenset)

    def run(self, settings: Settings, prompts: Sequence[Sequence[int]], progress: Progress) -> Trace:
        """Generate for every prompt. Raises EngineError for non-finite states, prompts that do not fit, and so on."""
        from eagle_runtime.engine import SpeculativeEngine
        from eagle_runtime.loader import load_draft

        tokens = 0

        def on_step(prompt: int, step: Step) -> None:
            nonlocal tokens
            tokens += step.emitted
            progress(f"bundled: prompt {prompt + 1} of {len(prompts)}, {tokens} tokens")

        with runtime_errors():
            draft = load_draft(self.view, self.target, faults=self.faults)
            engine = SpeculativeEngine(self.target, draft, settings.shape, sampling=settings.sampling,
                                       runner=settings.runner, lanes=settings.lanes)
            generations = engine.generate(prompts, settings.max_new_tokens, settings.eos_token_ids, on_step)
            timing = _timing(engine, generations)
            if engine.stats.name == "eager" and settings.lanes == 1 and settings.sampling.greedy:
                timing = replace(timing, baseline_tokens_per_second=self._baseline(settings, prompts, progress))
        stats = engine.stats
        return Trace(
            "bundled", __version__, settings, tuple(_row(g) for g in generations), timing=timing,
            native={"steps": engine.timings.steps, "untimed_steps": engine.timings.untimed,
                    "draft_seconds": engine.timings.draft,
                    "verify_seconds": engine.timings.verify, "accept_seconds": engine.timings.accept},
            runner={"name": stats.name, "graphs_captured": stats.graphs_captured, "replays": stats.replays,
                    "host_syncs": stats.host_syncs, "device": stats.device}, notes=stats.notes)


    def _baseline(self, settings: Settings, prompts: Sequence[Sequence[int]], progress: Progress) -> float | None:
        """Tokens a second of the target alone, token by token through the same eager decoder; one prompt in sixteen.

        Prefill is left out, as it is for the drafts: what one token takes is timed, and taken off.
        """
        from eagle_runtime.reference import Reference

        oracle, seconds, tokens = Reference(self.target, self.view), 0.0, 0
        for prompt in prompts[: 1 + len(prompts) // 16]:
            progress("bundled: target alone")
            marks = [time.perf_counter()]
            oracle.greedy(prompt, 1)
            marks.append(time.perf_counter())
            text = oracle.greedy(prompt, settings.max_new_tokens, settings.eos_token_ids)
            marks.append(time.perf_counter())
            seconds += (marks[2] - marks[1]) - (marks[1] - marks[0])
            tokens += len(text) - 1
        return tokens / seconds if tokens and seconds > 0 else None


def _row(generation: Generation) -> PromptTrace:
    steps = tuple(StepRecord(s.proposed, s.accepted, s.emitted, None if s.matches is None else tuple(s.matches),
                             s.truncated) for s in generation.steps)
    return PromptTrace(tuple(generation.prompt_ids), tuple(generation.output_ids), steps)


def _timing(engine: SpeculativeEngine, generations: Sequence[Generation]) -> Timing:
    """Speeds of all steps, from those that were timed; with several lanes one step serves several prompts."""
    steps = [step for g in generations for step in g.steps]
    times, drafted = engine.timings, sum(step.proposed for step in steps)
    if not times.total or not drafted:
        return Timing()
    all_of_them = 1 + times.untimed / times.steps
    return Timing(tokens_per_second=sum(step.emitted for step in steps) / (times.total * all_of_them),
                  draft_ms_per_token=1e3 * times.draft * all_of_them / drafted,
                  verify_ms_per_step=1e3 * times.verify / times.steps)
