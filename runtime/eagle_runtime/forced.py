"""Walking through a known text: what has been committed at each root, and drafting from there. For ``reference.py``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .config import EagleRuntimeError, TreeShape
from .growth import Drafted, Guesses, dynamic, static
from .plain_draft import Past, PlainDraft
from .target import FullPass

ROWS_AT_ONCE = 64  # roots drafted together, times the tree's top-k squared: bounds the rows and logits held


class Forced:
    """Drafts from true states: K/V of all committed positions come from one causal pass over the known text.

    Args:
        draft: the formula.
        full: the target's pass over ``ids``.
        ids: [n+m] prompt and output.
        prompt: n.
    """

    def __init__(self, draft: PlainDraft, full: FullPass, ids: Tensor, prompt: int) -> None:
        self.draft, self.ids, self.prompt = draft, ids, prompt
        self.hidden = draft.states(full)
        self.past: Past = []
        self.x = self._commit(0, self._first())

    def _first(self) -> int:
        return len(self.ids) - 1

    def _commit(self, start: int, stop: int) -> Tensor:
        """Compute positions start .. stop-1 from true states, and append their K/V to the past -> x."""
        at = torch.arange(start, stop, device=self.ids.device)
        before = torch.arange(stop, device=self.ids.device)
        shift = 0 if "token-shift" in self.draft.faults else 1
        x, new = self.draft.rows(self.ids[start + shift:stop + shift], self.hidden[start:stop], at, self.past,
                                 self.draft.near(at, before, before <= at[:, None]))
        self._append(new)
        return x

    def _append(self, new: Past) -> None:
        self.past = [(torch.cat((k, a)), torch.cat((v, b))) for (k, v), (a, b) in zip(self.past, new, strict=True)
                     ] if self.past else new

    def ahead(self, shape: TreeShape) -> int:
        """How many roots to draft at once: a tree fills the machine by itself, a chain does not."""
        return max(1, ROWS_AT_ONCE // shape.top_k**2)

    def state(self, lengths: Tensor) -> Tensor:
        """x [R,H] of the last committed position of each root."""
        return self.x[lengths - 1]

    def draft_from(self, roots: Sequence[int], known: Sequence[int], shape: TreeShape) -> dict[int, Drafted]:
        """What is drafted at each of ``roots`` (indices into ``known``, the output and the choice behind it)."""
        if shape.top_k > self.draft.spec.draft_vocab_size:
            raise EagleRuntimeError("the tree is wider than the draft's vocabulary",
                                    where=f"top-k {shape.top_k}, draft vocabulary {self.draft.spec.draft_vocab_size}",
                                    how="give a smaller top-k")
        device = self.ids.device
        lengths = torch.tensor([self.prompt + r for r in roots], device=device)
        truth = torch.tensor([[*known[r:], *[-1] * shape.deepest][:shape.deepest + 1] for r in roots], device=device)
        self.guesses = Guesses(self.draft, self.past, lengths)
        grow = dynamic if shape.choices is None else static
        return dict(zip(roots, grow(self.draft, self.guesses, self.state(lengths), truth, shape), strict=True))

    def accept(self, root: int, accepted: int, path: list[int]) -> None:
        """Nothing to do: what was guessed is forgotten, and what is committed was computed from true states."""


class Stale(Forced):
    """The fault stale-kv: K/V of accepted guesses stay in the past; only rows that were never guessed are computed."""

    def _first(self) -> int:
        return self.prompt

    def ahead(self, shape: TreeShape) -> int:
        return 1

    def state(self, lengths: Tensor) -> Tensor:
        return self.x[-1:]

    def accept(self, root: int, accepted: int, path: list[int]) -> None:
        start = self.prompt + root
        kept = torch.tensor([row - 1 for row in path], dtype=torch.int64, device=self.ids.device)
        if path:
            self._append([(k[kept], v[kept]) for k, v in self.guesses.kv])
        stop = min(start + accepted + 1, len(self.ids) - 1)
        if stop > start + len(path):
            self.x = self._commit(start + len(path), stop)
