"""The reference's drafting: the tree that grows at a root, by the plainest code, and how far y's path goes into it.

Node sets follow SafeAILab/EAGLE cb7e084, ``cnets.py: topK_genrate``: the ``top_k`` best children of the root are the
first level; of every level the ``top_k`` best candidates by sum of log-probabilities are expanded, each by its own
``top_k`` best; of all candidates the ``total_token - 1`` best are proposed, in the order in which they came up. Where
scores tie, the earlier candidate is taken, so that a proposed node's parent is always proposed.

R roots are drafted at once; each sees its own guesses and its own committed positions only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .config import TreeShape
from .plain_draft import Past, PlainDraft

NEVER = float("inf")


class Guesses:
    """Guessed rows behind the committed positions of R roots; all are computed anew whenever a level is added.

    Args:
        draft: the formula.
        past: K/V of the committed positions, of which root i sees the first ``lengths[i]``.
        lengths: [R].
    """

    def __init__(self, draft: PlainDraft, past: Past, lengths: Tensor) -> None:
        self.draft, self.past, self.lengths = draft, past, lengths
        device, r = lengths.device, len(lengths)
        self.ids = torch.empty((r, 0), dtype=torch.int64, device=device)
        self.hidden: Tensor | None = None
        self.depth = torch.empty(0, dtype=torch.int64, device=device)
        self.sees = torch.empty((r, 0, 0), dtype=torch.bool, device=device)
        self.kv: Past = []

    def add(self, ids: Tensor, hidden: Tensor, parents: Tensor | None) -> Tensor:
        """Add a level: ids [R,W], states [R,W,H], parents [R,W] among the rows so far (None: the root) -> x [R,W,H]."""
        (r, w), old = ids.shape, self.ids.shape[1]
        sees = torch.zeros((r, old + w, old + w), dtype=torch.bool, device=ids.device)
        sees[:, :old, :old] = self.sees
        sees[:, old:, old:] = torch.eye(w, dtype=torch.bool, device=ids.device)
        if parents is not None:
            sees[:, old:, :old] = self.sees.gather(1, parents[..., None].expand(r, w, old))
        level = 0 if old == 0 else int(self.depth[-1]) + 1
        self.sees, self.ids = sees, torch.cat((self.ids, ids), 1)
        self.hidden = hidden if self.hidden is None else torch.cat((self.hidden, hidden), 1)
        self.depth = torch.cat((self.depth, torch.full((w,), level, device=ids.device)))
        return self._compute()[:, old:]

    def _compute(self) -> Tensor:
        assert self.hidden is not None
        r, g = self.ids.shape
        columns = torch.arange(self.past[0][0].shape[0], device=self.ids.device)
        positions = (self.lengths[:, None] + self.depth).flatten()
        committed = (columns < self.lengths[:, None]).repeat_interleave(g, 0)
        same = torch.eye(r, dtype=torch.bool, device=self.ids.device)[:, None, :, None]
        guessed = (same & self.sees[:, :, None, :]).reshape(r * g, r * g)  # nothing of another root
        mask = torch.cat((self.draft.near(positions, columns, committed),
                          self.draft.near(positions, positions, guessed)), 1)
        x, self.kv = self.draft.rows(self.ids.flatten(), self.hidden.flatten(0, 1), positions, self.past, mask)
        return x.view(r, g, -1)


@dataclass
class Drafted:
    """What was considered at one root. Candidates stand in the official flat order; rows are those that were expanded.

    Attributes:
        tokens: target id of each candidate.
        row: the row it is a child of; row 0 is the root.
        expands: the row it became, or -1.
        chosen: whether it is proposed.
        chosen_by, expands_by: distance of its score from the line between in and out.
        row_by: of each row, the distance of y's child from the line between the row's best and the others.
    """

    tokens: list[int] = field(default_factory=list)
    row: list[int] = field(default_factory=list)
    expands: list[int] = field(default_factory=list)
    chosen: list[bool] = field(default_factory=list)
    chosen_by: list[float] = field(default_factory=list)
    expands_by: list[float] = field(default_factory=list)
    row_by: list[float] = field(default_factory=list)

    def against(self, truth: Sequence[int]) -> tuple[int, float, list[int]]:
        """(drafts accepted, deciding margin, rows of accepted nodes) for y_{r+1}, y_{r+2}, …"""
        row, accepted, margin = 0, 0, NEVER
        path: list[int] = []
        for token in truth:
            margin = min(margin, self.row_by[row])
            child = next((c for c, t in enumerate(self.tokens) if t == token and self.row[c] == row), None)
            if child is None:
                break
            margin = min(margin, self.chosen_by[child])
            if not self.chosen[child]:
                break
            accepted += 1
            row = self.expands[child]
            if row >= 0:
                path.append(row)
            margin = min(margin, self.expands_by[child])
            if row < 0:
                break
        return accepted, margin, path

    def nodes(self) -> tuple[list[int], list[int]]:
        """The proposed tokens, and for each its parent's number among them (-1: the root)."""
        kept = [c for c, chosen in enumerate(self.chosen) if chosen]
        became = {self.expands[c]: number for number, c in enumerate(kept) if self.expands[c] >= 0}
        return [self.tokens[c] for c in kept], [became.get(self.row[c], -1) for c in kept]


def _ranked(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` best of the last dimension, best first, the lower index first where equal -> (indices, values)."""
    found = scores.topk(min(count, scores.shape[-1]), -1).indices.sort(-1).values
    values = scores.gather(-1, found)
    order = values.sort(stable=True, dim=-1, descending=True).indices
    return found.gather(-1, order), values.gather(-1, order)


def _line(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Which of ``scores [R,C]`` are among the ``count`` best, and each one's distance from the line between."""
    order = scores.sort(stable=True, dim=-1, descending=True)
    inside = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, order.indices[:, :count], True)
    if count >= scores.shape[-1]:
        return inside, torch.full_like(scores, NEVER)
    last, next_ = order.values[:, count - 1:count], order.values[:, count:count + 1]
    return inside, torch.where(inside, scores - next_, last - scores)


def _truth_scores(draft: PlainDraft, scores: Tensor, truth: Tensor) -> Tensor:
    """Score of y's child in every row: ``scores [R,W,Vd]``, truth [R] target ids -> [R,W]; NaN where it has none."""
    ids = torch.where(truth < 0, -1, draft.draft_ids[truth.clamp(min=0)])
    picked = scores.gather(-1, ids.clamp(min=0)[:, None, None].expand(*scores.shape[:2], 1))[..., 0]
    return torch.where(ids[:, None] < 0, float("nan"), picked)


def _distance(mine: Tensor, inside: Tensor, outside: Tensor) -> Tensor:
    """How far y's child [R,W] is from changing sides, given the best of a row that are in [R,W,a] and out [R,W,b]."""
    is_in = (mine[..., None] == inside).any(-1)
    far = torch.where(is_in, (mine[..., None] - outside).abs().amin(-1) if outside.shape[-1] else NEVER,
                      (mine[..., None] - inside).abs().amin(-1))
    return torch.nan_to_num(far, nan=NEVER, posinf=NEVER)


def dynamic(draft: PlainDraft, guesses: Guesses, x: Tensor, truth: Tensor, shape: TreeShape) -> list[Drafted]:
    """The dynamic tree of EAGLE-2 at R roots: x [R,H], truth [R,1+deepest] (y_r, y_{r+1}, …)."""
    k, r = shape.top_k, len(x)
    tokens, rows, scores, expands, expands_by, row_by = [], [], [], [], [], []
    level, parent_score, fed = x[:, None], x.new_zeros((r, 1), dtype=torch.float32), truth[:, :1]
    for depth in range(shape.depth + 1):
        logp = draft.logits(level).log_softmax(-1)
        ids, values = _ranked(logp, k + 1)
        row_by.append(_distance(_truth_scores(draft, logp, truth[:, 1 + depth]), values[..., :k], values[..., k:]))
        token = draft.ids[ids[..., :k]].flatten(1)
        score = (values[..., :k] + parent_score[..., None]).flatten(1)
        first = 0 if depth == 0 else 1 + (depth - 1) * k  # number of this level's first row
        rows.append(torch.arange(first, first + level.shape[1], device=x.device).repeat_interleave(k).expand(r, -1))
        tokens.append(token)
        scores.append(score)
        became = torch.full_like(token, -1)
        if depth == shape.depth:
            expands_by.append(torch.full_like(score, NEVER))
        else:
            beam, parent_score = _ranked(score, k)
            became.scatter_(1, beam, torch.arange(1 + depth * k, 1 + depth * k + k, device=x.device).expand(r, -1))
            expands_by.append(_line(score, k)[1])
            parent, states = beam // k, draft.recycle(level)
            states = states.gather(1, parent[..., None].expand(r, k, states.shape[-1]))
            picked = token.gather(1, beam)
            given = fed.gather(1, parent) if "token-shift" in draft.faults else picked
            level = guesses.add(given, states, None if depth == 0 else parent + (depth - 1) * k)
            fed = picked
        expands.append(became)
    chosen, chosen_by = _line(torch.cat(scores, 1), shape.drafts)
    return _unbatched(tokens, rows, expands, [chosen], [chosen_by], expands_by, row_by)


def static(draft: PlainDraft, guesses: Guesses, x: Tensor, truth: Tensor, shape: TreeShape) -> list[Drafted]:
    """A fixed list of paths at R roots: node (a, b, c) is the c-th best child of node (a, b), counted from 0."""
    assert shape.choices is not None
    paths, r = shape.choices, len(x)  # sorted by length, then by ranks
    children: dict[tuple[int, ...], list[int]] = {}
    for path in paths:
        children.setdefault(path[:-1], []).append(path[-1])
    row_of: dict[tuple[int, ...], int] = {(): 0}
    tokens, row_by = [], []
    here: list[tuple[int, ...]] = [()]
    level, fed = x[:, None], truth[:, :1]
    for depth in range(shape.deepest):
        logits = draft.logits(level)
        mine = _truth_scores(draft, logits, truth[:, 1 + depth])
        wide = [max(children[path]) + 2 for path in here]
        ids, values = _ranked(logits, max(wide))
        level_tokens: dict[tuple[int, ...], Tensor] = {}
        for w, path in enumerate(here):
            taken = children[path]
            others = [i for i in range(min(wide[w], ids.shape[-1])) if i not in taken]
            row_by.append(_distance(mine[:, w:w + 1], values[:, w:w + 1, taken], values[:, w:w + 1, others]))
            level_tokens |= {(*path, rank): draft.ids[ids[:, w, rank]] for rank in taken}
        tokens += [token[:, None] for token in level_tokens.values()]
        following = [path for path in level_tokens if path in children]
        if not following:
            break
        parents = torch.tensor([here.index(path[:-1]) for path in following], device=x.device)
        picked = torch.stack([level_tokens[path] for path in following], 1)
        given = fed[:, parents] if "token-shift" in draft.faults else picked
        rows_before = torch.tensor([row_of[path[:-1]] - 1 for path in following], device=x.device)
        row_of |= {path: len(row_of) + i for i, path in enumerate(following)}
        level = guesses.add(given, draft.recycle(level)[:, parents],
                            None if depth == 0 else rows_before.expand(r, -1))
        here, fed = following, picked
    whole = torch.ones((r, len(paths)), dtype=torch.bool, device=x.device)
    row = torch.tensor([row_of[path[:-1]] for path in paths], device=x.device).expand(r, -1)
    expands = torch.tensor([row_of.get(path, -1) for path in paths], device=x.device).expand(r, -1)
    far = torch.full((r, len(paths)), NEVER, device=x.device)
    return _unbatched(tokens, [row], [expands], [whole], [far], [far], row_by)


def _unbatched(*columns: list[Tensor]) -> list[Drafted]:
    """Columns of [R,…] pieces, in :class:`Drafted`'s order -> one record a root."""
    joined = [torch.cat(pieces, 1).tolist() for pieces in columns]
    return [Drafted(*fields) for fields in zip(*joined, strict=True)]
