"""The two sides of a check: which engine, which draft, which file; the weights they share; what they run with."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle_convert.errors import UsageError
from eagle_convert.pairing import open_target
from eagle_convert.source import Source, open_source

from . import plan
from .engines import EngineChoice
from .engines.drafts import OpenDraft, open_draft
from .engines.replay import open_replay
from .engines.weights import Weights
from .options import Options
from .origin import default_reference
from .prompts import Prompts
from .settings import Settings
from .trace import Trace


@dataclass
class Side:
    """One side: its engine, and the draft that it runs or the trace that it replays."""

    choice: EngineChoice
    draft: OpenDraft | None = None
    replay: Trace | None = None

    @property
    def runs(self) -> bool:
        return self.choice.kind.weights


class Sides:
    """Both sides, opened. With ``compare`` an earlier report is the reference: then ``reference`` is None.

    Raises UsageError where --target or --reference is needed and not given, or where two replayed files, or the two
    drafts, do not belong together.
    """

    def __init__(self, candidate: str, asked: Options) -> None:
        self.asked, self._candidate_ref = asked, candidate
        self.candidate = Side(asked.engine_choice)
        self.reference = None if asked.compare is not None else Side(asked.reference_choice)
        self._both = [side for side in (self.candidate, self.reference) if side is not None]
        self._open_replays()
        self.weights = self._open_target()
        self._open_drafts()

    def _open_replays(self) -> None:
        """``replays``: (file name, trace) of the sides that are replayed; the first gives prompts and settings."""
        self.replays: list[tuple[str, Trace]] = []
        for side in self._both:
            if side.choice.kind.word == "replay":
                path = Path(side.choice.argument)
                side.replay = open_replay(path, self.asked.num_prompts)
                self.replays.append((path.name, side.replay))
        if len(self.replays) == 2:
            plan.same_runs(*self.replays)

    def _open_target(self) -> Weights | None:
        """In the dtype that is asked for, else the replayed file's, else the target's own."""
        asked = self.asked
        if asked.target is None:
            if any(side.runs for side in self._both):
                raise UsageError("--target is needed",
                                 where="computing with its weights: " + ", ".join(
                                     f"{flag} {side.choice}" for flag, side in zip(
                                         ("--engine", "--reference-engine"), self._both, strict=False) if side.runs),
                                 how="give --target TARGET, the full model that the draft was trained for")
            return None
        dtype = asked.dtype if asked.dtype != "auto" else None
        if dtype is None and self.replays:
            dtype = self.replays[0][1].settings.dtype
        with closing(open_target(asked.target, asked.hub)) as target:  # headers only: is it a model, and not a draft?
            return Weights(target.source, asked.hub, dtype, asked.device)

    def _open_drafts(self) -> None:
        asked, weights = self.asked, self.weights
        if weights is None or not any(side.runs for side in self._both):
            return
        if self.candidate.runs:
            self.candidate.draft = open_draft(self._candidate_ref, weights, revision=asked.revision, hub=asked.hub)
        if self.reference is not None and self.reference.runs:
            ref = asked.reference if asked.reference is not None else default_reference(self._candidate_source())
            self.reference.draft = open_draft(ref, weights, revision=None, hub=asked.hub)

    def _candidate_source(self) -> Source:
        if self.candidate.draft is not None:
            return self.candidate.draft.source
        return open_source(self._candidate_ref, revision=self.asked.revision, hub=self.asked.hub)

    @property
    def loaded(self) -> Weights:
        """The target, for engines that compute with it; they are refused at once where there is none."""
        assert self.weights is not None
        return self.weights

    @property
    def method(self) -> str | None:
        """``eagle`` or ``eagle3``, from the drafts' tensors; None where no draft is run."""
        methods = [side.draft.view.spec.algorithm for side in self._both if side.draft is not None]
        if len(set(methods)) > 1:
            raise UsageError("candidate and reference are heads of two kinds",
                             where=f"candidate {methods[0]}, reference {methods[1]}",
                             how="give the checkpoint that CANDIDATE was made from as --reference")
        return methods[0] if methods else None

    def settings(self) -> tuple[Settings, list[str]]:
        """What both sides run with, and warnings."""
        method = self.method
        if self.replays:
            return plan.settings_of_replay(self.asked, *self.replays[0], method)
        assert method is not None  # without a replay a side runs, so there is a draft
        return plan.fresh_settings(self.asked, method, self.loaded.dtype_name, self.loaded.stop_ids), []

    def prompts(self) -> tuple[Prompts, list[str]]:
        """The prompts as token ids, and warnings."""
        folder = None if self.weights is None else self.weights.folder
        if self.replays:
            return plan.prompts_of_replay(self.asked, *self.replays[0], folder), []
        return plan.fresh_prompts(self.asked, folder)

    def names(self) -> dict[str, Any]:
        """Who was compared, for the report's settings: names and revisions, no paths."""
        def name(source: Source | None) -> dict[str, Any] | None:
            return None if source is None else {"id": source.name, "revision": source.revision}

        return {"target": name(None if self.weights is None else self.weights.source),
                **{key: name(None if side is None or side.draft is None else side.draft.source)
                   for key, side in (("candidate", self.candidate), ("reference", self.reference))}}
