"""The result of a check: the ``eagle-convert/parity/1`` document and the same for people. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .divergence import Divergence
from .lossless import Lossless
from .metrics import Sheet, prompt_counts, prompts_sheet
from .settings import COMPARED, digest
from .trace import Counts, PromptTrace, Timing, Trace, Trajectory
from .verdict import Verdict
from .words import shape_words, sheet_rows

SCHEMA = "eagle-convert/parity/1"


@dataclass(frozen=True)
class Column:
    """One side of the report.

    Attributes:
        engine, version, trajectory, timing, native, runner: as in its trace.
        rows: counters of each prompt, and a digest of its steps (None where it has none).
        sheet: the pooled ratios.
    """

    engine: str
    version: str
    trajectory: Trajectory
    timing: Timing
    native: Mapping[str, Any]
    runner: Mapping[str, Any] | None
    rows: tuple[Counts, ...]
    step_digests: tuple[str | None, ...]
    sheet: Sheet

    def document(self) -> dict[str, Any]:
        counts = self.sheet.counts
        out = {"engine": self.engine, "version": self.version, "trajectory": self.trajectory, **self.sheet.document(),
               "k": counts.k, "steps": counts.steps, "proposed": counts.drafted, "accepted": counts.accepted,
               "emitted": counts.emitted, "tokens_per_second": self.timing.tokens_per_second,
               "draft_ms_per_token": self.timing.draft_ms_per_token,
               "verify_ms_per_step": self.timing.verify_ms_per_step, "native": dict(self.native),
               "rows": [{**row.document(), "steps_digest": steps}
                        for row, steps in zip(self.rows, self.step_digests, strict=True)]}
        if self.runner is not None:
            out["runner"] = dict(self.runner)
        return out


def column_of(trace: Trace) -> Column:
    """The column of a run."""
    rows = tuple(prompt_counts(trace))
    return Column(trace.engine, trace.version, trace.trajectory, trace.timing, trace.native, trace.runner, rows,
                  tuple(_steps_digest(row) for row in trace.prompts),
                  prompts_sheet(rows, tree=not trace.settings.shape.is_chain))


def _steps_digest(row: PromptTrace) -> str | None:
    """Of the steps that count: equal digests are identical steps, also where a report no longer has them."""
    if row.steps is None:
        return None
    return digest([[step.proposed, step.accepted] for step in row.steps if not step.truncated])[:16]


@dataclass(frozen=True)
class FaultMatch:
    """How well a known fault explains what the candidate shows (``--diagnose``).

    Attributes:
        id: the fault, or ``none``: the head as the reference computes it.
        acceptance_length, per_position: what the reference accepts with that fault.
        distance: root mean square of the differences of the per-position rates.
        in_group: no worse an explanation than the nearest one, given how few steps were measured.
    """

    id: str
    acceptance_length: float
    per_position: tuple[float, ...]
    distance: float
    in_group: bool

    def document(self) -> dict[str, Any]:
        return {"id": self.id, "acceptance_length": self.acceptance_length, "per_position": list(self.per_position),
                "distance": self.distance, "in_group": self.in_group}


@dataclass(frozen=True)
class ParityReport:
    """What ``parity_check`` returns. ``exit_code`` is 0 pass, 3 fail, 4 inconclusive."""

    verdict: Verdict
    settings: Mapping[str, Any]
    reference: Column
    candidate: Column
    lossless: Lossless
    first_divergence: Divergence | None
    faults: tuple[FaultMatch, ...] = ()
    warnings: tuple[str, ...] = ()
    first_prompt: str = ""

    @property
    def exit_code(self) -> int:
        return self.verdict.exit_code

    @property
    def speedup(self) -> float | None:
        """Candidate tokens/s over target-only tokens/s; None where the engine did not measure the target alone."""
        speed, baseline = (self.candidate.timing.tokens_per_second, self.candidate.timing.baseline_tokens_per_second)
        return speed / baseline if speed and baseline else None

    def document(self) -> dict[str, Any]:
        """The ``eagle-convert/parity/1`` document."""
        spread = self.verdict.spread
        return {
            "schema": SCHEMA, "verdict": self.verdict.answer, "reason": self.verdict.reason,
            "warnings": [*self.warnings, *self.verdict.warnings], "settings": dict(self.settings),
            "settings_digest": settings_digest(self.settings),
            "reference": self.reference.document(), "candidate": self.candidate.document(),
            "baseline": {"tokens_per_second": self.candidate.timing.baseline_tokens_per_second},
            "speedup": self.speedup,
            "difference": {"acceptance_length": None, "relative": None, "ci95": None} if spread is None
            else spread.document(),
            "more_prompts": self.verdict.more_prompts, "lossless": self.lossless.document(),
            "first_divergence": None if self.first_divergence is None else self.first_divergence.document(),
            "faults": [fault.document() for fault in self.faults]}


# what the settings' digest covers: everything that pins the numbers, nothing of the machine
PINNED = (*COMPARED, "seed", "dtype", "raw", "system_prompt")


def settings_digest(settings: Mapping[str, Any]) -> str:
    """Of everything that pins a run's numbers; equal digests are runs that may be compared."""
    template = settings.get("template")
    return digest({**{key: settings.get(key) for key in PINNED}, "prompts": settings["prompts"]["digests"],
                   "template": template and template["sha256"]})


def lines(report: ParityReport) -> Sequence[tuple[str, str]]:
    """(kind, text) of the report for people; kinds are ``head``, ``table``, ``plain``, ``good`` and ``bad``."""
    settings, prompts = report.settings, report.settings["prompts"]
    out = [("head", f"{settings['method']}, {shape_words(settings)}; {prompts['count']} prompts ({prompts['source']}), "
                    f"{settings['max_new_tokens']} new tokens, temperature {settings['temperature']:g}, "
                    f"{settings['dtype']}")]
    if settings["template"]:
        out.append(("plain", f"template {settings['template']['sha256'][:16]} ({settings['template']['file']}), "
                             f"system message in the prompts: {'yes' if settings['system_prompt'] else 'no'}"))
    if settings["raw"]:
        out.append(("plain", "untemplated (--raw)"))
    if settings.get("fault"):
        out.append(("plain", f"fault switched on in the candidate: {settings['fault']}"))
    if report.first_prompt:
        out.append(("plain", f"first prompt {report.first_prompt}"))
    out += [("plain", ""), ("table", ""), ("plain", "")]
    out += [("plain", text) for text in _findings(report)]
    out.append(("good" if report.verdict.answer == "pass" else "bad",
                f"{report.verdict.answer.upper()}: {report.verdict.reason}"))
    return out


def table_rows(report: ParityReport) -> tuple[tuple[str, str, str], list[tuple[str, str, str]]]:
    """Head and rows of the two columns side by side."""
    head = ("", f"reference ({report.reference.engine})", f"candidate ({report.candidate.engine})")
    pairs = zip(sheet_rows(report.reference.sheet), sheet_rows(report.candidate.sheet), strict=True)
    rows = [(label, one, two) for (label, one, _), (_, two, _) in pairs]
    for label, key in (("steps", "steps"), ("drafted", "drafted"), ("accepted", "accepted"), ("emitted", "emitted")):
        one, two = (getattr(c.sheet.counts, key) for c in (report.reference, report.candidate))
        rows.append((label, _dash(one, "d"), _dash(two, "d")))
    for label, key in (("tokens per second", "tokens_per_second"), ("draft ms a token", "draft_ms_per_token"),
                       ("verify ms a step", "verify_ms_per_step")):
        one, two = (getattr(c.timing, key) for c in (report.reference, report.candidate))
        if one is not None or two is not None:
            rows.append((label, _dash(one, ".2f"), _dash(two, ".2f")))
    if report.speedup is not None:
        rows.append(("speedup over the target alone", "-", f"{report.speedup:.2f}"))
    return head, rows


def _dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _findings(report: ParityReport) -> list[str]:
    out = []
    check = report.lossless
    if check.checked:
        out.append(f"lossless: {len(check.mismatches)} mismatches and {len(check.ties)} ties in {check.tokens} tokens")
        out += [f"  prompt {d.prompt}, position {d.position}: token {d.token}, the target says {d.expected} "
                f"(margin {d.margin:.2e}, tie below {d.tie_margin:.2e})"
                for d in (*check.mismatches, *check.ties)[:5]]
    else:
        out.append(f"lossless: not checked ({check.reason})")
    if report.first_divergence is not None:
        d = report.first_divergence
        margin = "" if d.margin is None else f" (margin {d.margin:.2e})"
        out.append(f"first divergence: prompt {d.prompt}, step {d.step}: {d.what} {d.reference} in the reference, "
                   f"{d.candidate} in the candidate{margin}")
    group = [fault for fault in report.faults if fault.in_group]
    if group:
        out.append("looks like: " + ", ".join(f"{f.id} (acceptance length {f.acceptance_length:.2f})" for f in group))
    return out
