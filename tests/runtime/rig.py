"""An engine opened up: its stages driven one by one, with the buffers and caches in reach."""

from __future__ import annotations

import torch
from torch import Tensor

from eagle_runtime.config import Sampling, TreeShape
from eagle_runtime.draft import Draft
from eagle_runtime.engine import SpeculativeEngine
from eagle_runtime.runners import Runner
from eagle_runtime.target import Target


class Rig:
    """One lane a prompt, prefilled.

    Attributes:
        committed: per lane, the tokens whose positions are committed (prompt, roots, accepted drafts).
        calls: the three stages.
    """

    @torch.no_grad()
    def __init__(self, target: Target, draft: Draft, shape: TreeShape, prompts: list[list[int]],
                 sampling: Sampling | None = None, runner: Runner | str = "eager", slots: int = 128) -> None:
        engine = SpeculativeEngine(target, draft, shape, lanes=len(prompts), sampling=sampling, runner=runner)
        engine._reserve(slots // 2)
        assert engine._caches is not None
        for lane, prompt in enumerate(prompts):
            engine._start(lane, lane, prompt)
        self.target_cache, self.draft_cache = engine._caches
        self.stages, self.calls = engine._stages((len(prompts), slots))
        self.buffers, self.draft = self.stages.buffers, engine._drafter
        self.committed = [list(prompt) for prompt in prompts]

    @torch.no_grad()
    def step(self) -> list[list[int]]:
        """One step; -> the rows the host reads."""
        for call in self.calls:
            call()
        rows: list[list[int]] = self.buffers.result.tolist()
        for tokens, row, active in zip(self.committed, rows, self.buffers.active.tolist(), strict=True):
            if active:
                tokens += [row[0], *row[4:4 + row[1]]]
        return rows

    @torch.no_grad()
    def logits_of_draft(self) -> list[Tensor]:
        """Run the draft stage; -> what the draft's head said in the refresh and in each pass."""
        said: list[Tensor] = []
        plain = self.draft.logits

        def heard(x: Tensor) -> Tensor:
            said.append(plain(x))
            return said[-1]

        self.draft.logits = heard  # type: ignore[method-assign]
        try:
            self.calls[0]()
        finally:
            del self.draft.logits
        return said
