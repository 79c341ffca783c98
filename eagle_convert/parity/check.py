"""``parity_check``: run both sides, check losslessness, compare, decide."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from eagle_convert.errors import EngineError, UsageError

from . import gate, plan
from .diagnose import NONE, matches
from .divergence import Divergence, compare
from .engines.bundled import BundledEngine
from .engines.faults import check_fault, with_each_fault
from .engines.judge import judged_rows
from .engines.reference import Followed, ReferenceEngine, greedy_only
from .html import write_html
from .lossless import Judged, Lossless, judge
from .metrics import trace_sheet
from .options import NAMES, Options
from .prompts import Prompts
from .report import Column, FaultMatch, ParityReport, column_of
from .settings import Settings
from .sides import Sides
from .trace import Trace, accounting_faults
from .trace_file import write_trace
from .verdict import Evidence, decide


def parity_check(candidate: str | Path, **options: Any) -> ParityReport:
    """Check that ``candidate`` accepts what the reference accepts and says what the target says.

    Args:
        candidate: a draft in any readable layout, or, with ``compare``, also an earlier report file.
        options: the flags of ``eagle-convert parity-check`` (:class:`~eagle_convert.parity.options.Options`), such as
            ``target=``, ``reference=``, ``engine="bundled"``, ``draft_tokens=4``.

    Returns:
        the report; ``report.document()`` is the ``eagle-convert/parity/1`` document.

    Raises:
        EagleConvertError: UsageError (exit 2) for options that do not fit or runs that may not be compared; else exit 1
            where the check could not be made.
    """
    unknown = sorted(options.keys() - NAMES)
    if unknown:
        near = difflib.get_close_matches(unknown[0], NAMES, n=1)
        raise UsageError(f"parity_check has no option {unknown[0]!r}", where="parity_check(...)",
                         how=f"did you mean {near[0]}?" if near else f"options: {', '.join(sorted(NAMES))}")
    asked = Options(**options)
    check_fault(asked.fault)
    report = _report(candidate, asked)
    if asked.report is not None:
        write_html(Path(asked.report), report)
    return report


def _report(candidate: str | Path, asked: Options) -> ParityReport:
    if asked.compare is None:
        return _check(str(candidate), asked)
    earlier = gate.read_report(Path(asked.compare))
    if gate.is_report(Path(candidate)):
        return _compare_reports(earlier, gate.read_report(Path(candidate)), asked)
    return _check_against_report(str(candidate), earlier, asked)


def _check(candidate: str, asked: Options) -> ParityReport:
    """Both sides, each run or replayed."""
    sides = Sides(candidate, asked)
    settings, prompts, document, warnings = _prepare(sides)
    if asked.reference_choice.kind.word == "reference":
        greedy_only(settings)  # before the candidate is run for nothing
    mine = _run_candidate(sides, settings, prompts)
    theirs, followed = _run_reference(sides, settings, prompts, mine)
    lossless = _lossless(sides, mine, followed)
    _write_traces(asked, candidate=mine, reference=theirs)
    found = compare(theirs, mine)
    divergence = found.divergences[0] if found.divergences else None
    if divergence is not None and followed is not None and divergence.step is not None:
        divergence = replace(divergence, margin=followed.margins[divergence.prompt].get(divergence.position))
    one, two = column_of(theirs), column_of(mine)
    report = _decide(asked, document, one, two, lossless, found.identical,
                     theirs.trajectory == "candidate" or found.same_text, divergence)
    if asked.diagnose and followed is not None:
        report = replace(report, faults=_diagnose(sides, settings, followed, two))
    return replace(report, warnings=tuple(warnings), first_prompt=plan.first_prompt(prompts))


def _check_against_report(candidate: str, earlier: gate.StoredReport, asked: Options) -> ParityReport:
    """The candidate is run; an earlier report's candidate column stands for the reference."""
    sides = Sides(candidate, asked)
    settings, prompts, document, warnings = _prepare(sides)
    gate.check_alike(earlier.settings, document, earlier.name, "this run")
    mine = _run_candidate(sides, settings, prompts)
    lossless = _lossless(sides, mine, None)
    _write_traces(asked, candidate=mine)
    column = column_of(mine)
    report = _decide(asked, document, earlier.candidate, column, lossless, gate.identical(earlier.candidate, column),
                     False, None)
    return replace(report, warnings=tuple(warnings), first_prompt=plan.first_prompt(prompts))


def _compare_reports(earlier: gate.StoredReport, mine: gate.StoredReport, asked: Options) -> ParityReport:
    """Two report files: nothing is run."""
    gate.check_alike(earlier.settings, mine.settings, earlier.name, mine.name)
    return _decide(asked, dict(mine.settings), earlier.candidate, mine.candidate, mine.lossless,
                   gate.identical(earlier.candidate, mine.candidate), False, None)


def _prepare(sides: Sides) -> tuple[Settings, Prompts, dict[str, Any], list[str]]:
    """Settings, prompts, the report's ``settings`` block, and warnings."""
    settings, warnings = sides.settings()
    prompts, more = sides.prompts()
    if sides.weights is not None:
        replay = sides.candidate.replay
        texts = [] if replay is None else [row.output_ids for row in replay.prompts]
        sides.weights.check_ids(prompts.ids, texts, settings.max_new_tokens)
    document = {**settings.document(), **prompts.document(), **sides.names(), "fault": sides.asked.fault}
    return settings, prompts, document, warnings + more


def _decide(asked: Options, settings: dict[str, Any], reference: Column, candidate: Column, lossless: Lossless,
            identical: bool, same_trajectory: bool, divergence: Divergence | None) -> ParityReport:
    evidence = Evidence(reference.rows, candidate.rows, reference.sheet, candidate.sheet, lossless, identical,
                        same_trajectory, one_sided=asked.compare is not None)
    settings |= {"tolerance": asked.tolerance, "tie_margin": asked.tie_margin}
    return ParityReport(decide(evidence, asked.tolerance, asked.seed or 0), settings, reference, candidate, lossless,
                        divergence)


def _run_candidate(sides: Sides, settings: Settings, prompts: Prompts) -> Trace:
    side, asked = sides.candidate, sides.asked
    if side.replay is not None:
        return side.replay
    target, draft = sides.loaded.target, side.draft
    assert draft is not None
    faults = frozenset([asked.fault] if asked.fault else [])
    if side.choice.kind.word == "bundled":
        return _sound(BundledEngine(target, draft.view, faults).run(settings, prompts.ids, asked.progress))
    other = None if sides.reference is None else sides.reference.replay
    hints = None if other is None else [row.output_ids for row in other.prompts]
    return _sound(ReferenceEngine(target, draft.view, faults).run(settings, prompts.ids, asked.progress, hints))


def _run_reference(sides: Sides, settings: Settings, prompts: Prompts, mine: Trace) -> tuple[Trace, Followed | None]:
    """The reference's trace; with the teacher-forced engine it follows the candidate's text."""
    side, asked = sides.reference, sides.asked
    assert side is not None
    if side.replay is not None:
        return side.replay, None
    target, draft = sides.loaded.target, side.draft
    assert draft is not None
    if side.choice.kind.word == "bundled":
        return _sound(BundledEngine(target, draft.view).run(settings, prompts.ids, asked.progress)), None
    followed = ReferenceEngine(target, draft.view).follow(settings, mine.prompts, asked.progress)
    return _sound(followed.trace), followed


def _lossless(sides: Sides, mine: Trace, followed: Followed | None) -> Lossless:
    """Every token of the candidate's text against the target, where that can be told."""
    if not mine.settings.sampling.greedy:
        return Lossless(False, "the temperature is above 0: acceptance alone decides")
    if sides.weights is None:
        return Lossless(False, "no target's weights are given (--target)")
    rows: Sequence[Sequence[Judged]] = (
        followed.judged if followed is not None else judged_rows(sides.loaded.target, mine, sides.asked.progress))
    return judge(rows, sides.loaded.dtype_name, sides.asked.tie_margin)


def _diagnose(sides: Sides, settings: Settings, followed: Followed, shown: Column) -> tuple[FaultMatch, ...]:
    assert sides.reference is not None  # followed comes from it
    assert sides.reference.draft is not None
    engine = ReferenceEngine(sides.loaded.target, sides.reference.draft.view)
    traces = with_each_fault(engine, settings, followed.states, sides.asked.progress)
    profiles = {NONE: trace_sheet(followed.trace), **{name: trace_sheet(trace) for name, trace in traces.items()}}
    return matches(profiles, shown.sheet)


def _write_traces(asked: Options, **traces: Trace) -> None:
    if asked.trace_out is not None:
        folder = Path(asked.trace_out)
        folder.mkdir(parents=True, exist_ok=True)
        for name, trace in traces.items():
            write_trace(folder / f"{name}.jsonl", trace)


def _sound(trace: Trace) -> Trace:
    """An engine of ours must keep the counting rules too; a fault here is a bug, and no number is printed over it."""
    for prompt, what in accounting_faults(trace):
        raise EngineError(f"the engine {trace.engine} broke the counting rules", where=f"prompt {prompt}: {what}",
                          how="this is a bug of eagle-convert: report it with the output of 'eagle-convert env'")
    return trace
