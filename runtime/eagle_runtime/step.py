"""One step: everything between two target passes, and the target pass, over preallocated buffers.

Three stages, called in this order, each a callable without arguments or result that a runner may compile or capture:

``draft``   gives the draft the pairs whose target states are new (``count`` of them, so every committed position's K/V
            come from true states), then grows the tree from the last one.
``verify``  one target pass over the root and all drafts.
``accept``  which drafts hold, moves their K/V into place, makes them the next step's pending pairs, and advances.

No stage looks at a tensor's value in Python. Lanes differ only in what their tensors hold: a lane with fewer pending
pairs computes junk rows that land in slots nothing reads before they are written again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import verify
from .buffers import Buffers
from .config import Sampling
from .draft import Draft
from .kv_cache import KVCache
from .target import Target
from .tree import Candidates, Grower, StaticTree, argmax, best, causal_table, spread, window


class Stages:
    """The stages for one number of lanes and one number of visible slots.

    Args:
        plan: the tree.
        buffers: of the lanes it works on.
        target_cache, draft_cache: of the same lanes.
        slots: S, how many cache slots a pass sees; every lane's length plus :func:`reach` must fit.
        stale_kv: the fault of that name (chains only): K/V that the draft guessed for accepted positions stay.
        token_shift: the fault of that name: every pair carries the token of its own position.
    """

    def __init__(self, target: Target, draft: Draft, plan: Grower, buffers: Buffers, target_cache: KVCache,
                 draft_cache: KVCache, slots: int, sampling: Sampling, *, stale_kv: bool = False,
                 token_shift: bool = False) -> None:
        self._target, self._draft, self._plan, self._sampling = target, draft, plan, sampling
        self.buffers, self._target_cache, self._draft_cache = buffers, target_cache, draft_cache
        self._stale_kv, self._token_shift = stale_kv, token_shift
        self._chain = isinstance(plan, StaticTree) and plan.nodes == plan.deepest + 1
        device = target.device
        self._width = plan.deepest + 1
        self._columns = torch.arange(slots, device=device)
        self._rows = torch.arange(max(plan.nodes, plan.scratch, self._width), device=device)
        self._causal = causal_table(self._width, target.dtype, device)

    def draft(self) -> None:
        """Refresh, then grow: fills ``buffers.tree``."""
        b, draft, plan = self.buffers, self._draft, self._plan
        lanes = b.length.shape[0]
        first = b.length - b.count
        at = first.unsqueeze(1) + self._rows[:self._width]
        x = draft.forward(b.pending_ids, draft.fuse(b.pending_states), at, self._draft_cache,
                          self._refresh_slots(at) if self._stale_kv else at,
                          spread(self._causal, window(first, self._columns, self._causal.shape[2])))
        x = x.gather(1, (b.count - 1).view(lanes, 1, 1).expand(lanes, 1, x.shape[2]))
        candidates, bad = self._candidates(x, 0)
        growth = plan.start(candidates)
        visible = window(b.length, self._columns, plan.scratch + 2)
        fed = b.tree.tokens[:, :1]
        for i, width in enumerate(plan.passes):
            rows, state = growth.rows(i), draft.recycle(x)
            if rows.source is not None:
                state = state.gather(1, rows.source.unsqueeze(2).expand(lanes, width, state.shape[2]))
            offset = plan.offset(i)
            slots = b.length.unsqueeze(1) + self._rows[offset:offset + width]
            positions = (b.length + i).unsqueeze(1).expand(lanes, width)
            ids = rows.ids
            if self._token_shift:
                ids = fed if rows.source is None else fed.gather(1, rows.source.expand(lanes, width))
                fed = rows.ids
            x = draft.forward(ids, state, positions, self._draft_cache, slots, spread(rows.table, visible))
            candidates, worse = self._candidates(x, i + 1)
            bad = bad | worse
            growth.add(i, candidates)
        growth.finish(b.tree)
        b.bad[:, 1].copy_(bad)

    def verify(self) -> None:
        """One target pass over the tree: fills ``buffers.states`` and ``choice`` or ``logits``."""
        b, tree = self.buffers, self.buffers.tree
        nodes, taps = self._plan.nodes, self._draft.taps
        visible = window(b.length, self._columns, nodes + 2)
        hidden, _ = self._target.forward(
            tree.tokens, b.length.unsqueeze(1) + tree.depths, self._target_cache,
            b.length.unsqueeze(1) + self._rows[:nodes], spread(tree.table, visible), taps, b.states if taps else None)
        if not taps:
            b.states.copy_(hidden)
        logits = self._target.head(hidden)
        if self._sampling.greedy:
            choice = argmax(logits)
            b.choice.copy_(choice)
            top = logits.gather(2, choice.unsqueeze(2))
        else:
            b.logits.copy_(logits)
            top = logits.amax(2)
        b.bad[:, 0].copy_(_not_finite(top))

    def accept(self) -> None:
        """Accept, compact, advance: fills ``pending_*``, ``length``, ``count``, the next root, and ``result``."""
        b, tree, width = self.buffers, self.buffers.tree, self._width
        if self._sampling.greedy:
            out = verify.greedy(b.choice, tree, width)
        else:
            out = verify.sample(b.logits, tree, width, b.uniforms, self._sampling)
        if not self._chain:  # a chain's accepted rows lie where they belong
            start = b.length.unsqueeze(1)
            self._target_cache.compact(start + out.path, start + self._rows[:width])
        # the tokens behind the root: accepted drafts, then the bonus
        behind = torch.cat((tree.tokens.gather(1, out.path)[:, 1:], out.bonus.unsqueeze(1)), 1)
        behind.scatter_(1, out.count.unsqueeze(1), out.bonus.unsqueeze(1))
        b.result.copy_(torch.cat((tree.tokens[:, :1], out.count.unsqueeze(1), b.bad, behind, out.agrees), 1))
        b.pending_ids.copy_(tree.tokens.gather(1, out.path) if self._token_shift else behind)
        b.pending_states.copy_(b.states.gather(1, out.path.unsqueeze(2).expand(-1, -1, b.states.shape[2])))
        tree.tokens[:, 0].copy_(out.bonus)
        b.count.copy_(out.count * b.active + 1)
        b.length.add_(b.count * b.active)

    def _candidates(self, x: Tensor, i: int) -> tuple[Candidates, Tensor]:
        """The best continuations of rows [B, R, H], and whether a lane's logits are not finite: [B] bool."""
        logits = self._draft.logits(x)
        ids, logp = best(logits, self._plan.tops[i], self._plan.scored)
        top = logits.gather(2, ids[:, :, :1]) if logp is None else logp[:, :, 0]
        return Candidates(self._draft.to_target_ids(ids), logp), _not_finite(top)

    def _refresh_slots(self, at: Tensor) -> Tensor:
        """Where the refresh writes when guesses are to stay: rows that have a guess go where nothing reads."""
        row = self._rows[:self._width]
        guessed = (row < self.buffers.count.unsqueeze(1) - 1) & (row < self._plan.deepest - 1)
        return torch.where(guessed, at + self._width, at)


def reach(plan: Grower) -> int:
    """Slots a step may touch beyond a lane's length."""
    return max(plan.nodes, plan.scratch, 2 * (plan.deepest + 1))


def _not_finite(top: Tensor) -> Tensor:
    """The greatest logit of each row, [B, R, ...] -> [B] bool.

    A NaN counts as the greatest, and states that are not finite make every logit so: this one number a row tells.
    """
    return torch.isfinite(top.flatten(1)).all(1).logical_not_()
