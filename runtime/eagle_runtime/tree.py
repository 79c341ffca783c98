"""Growing a tree of drafts and choosing its nodes, in fixed shapes and without looking at a value in Python.

Two growers share one interface. :class:`StaticTree` drafts a fixed list of paths (EAGLE-1's trees, and every chain: a
chain is the list (0), (0, 0), ...). :class:`DynamicTree` is EAGLE-2's: the ``top_k`` best rows of a level are expanded,
and the ``total_token - 1`` best of all candidates are kept, best by the sum of log-probabilities along the path.

Source of the semantics: SafeAILab/EAGLE cb7e084, ``cnets.py: topK_genrate`` and (static) ``utils.py:
generate_tree_buffers``. Node order is the official one: candidates by level, then parent row, then rank.

Shapes: B lanes, N nodes (root included), R rows of a pass, G scratch rows of all passes, V draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import pairwise

import torch
from torch import Tensor

from .config import EagleRuntimeError, TreeShape


@dataclass
class Tree:
    """A drafted tree; node 0 is the root, parents come before their children, siblings stand in draft order.

    Attributes:
        tokens: [B, N] int64, target ids.
        parents: [B, N] int64, node numbers; the root's is 0.
        depths: [B, N] int64, the root's is 0.
        ancestors: [B, N, N] bool; row i is true at i and at its ancestors.
        table: [B, N, N + 2], the same as an additive table (see :class:`Rows`).
    """

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    ancestors: Tensor
    table: Tensor

    def narrow(self, lanes: int) -> Tree:
        """The first ``lanes`` lanes, over the same storages."""
        return Tree(*(getattr(self, f.name)[:lanes] for f in fields(self)))


@dataclass
class Rows:
    """What one draft pass works on.

    Attributes:
        ids: [B, R] target ids.
        source: [B or 1, R], the row of the previous pass whose state each row continues; None: its own number.
        table: [B or 1, R, G + 2], what a row may see (0) and what not (-inf): column 0 the committed slots, 1 .. G the
            scratch rows, G + 1 whatever lies beyond. :func:`spread` makes a mask of it.
    """

    ids: Tensor
    source: Tensor | None
    table: Tensor


class Grower:
    """What the two kinds of trees have in common.

    Attributes:
        nodes: N, the root included.
        deepest: drafts on the longest path.
        passes: rows of each draft pass after the refresh.
        scratch: G, the scratch rows all passes write.
        tops: how many candidates of a row are asked of the refresh and of each pass: one more than ``passes``.
        scored: whether log-probabilities are needed.
        dtype: of the additive tables.
    """

    nodes: int
    deepest: int
    passes: tuple[int, ...]
    tops: tuple[int, ...]
    scored: bool
    dtype: torch.dtype

    @property
    def scratch(self) -> int:
        return sum(self.passes)

    def offset(self, i: int) -> int:
        """The first scratch row of pass ``i``."""
        return sum(self.passes[:i])

    def allocate(self, lanes: int, device: torch.device) -> Tree:
        """The buffers :meth:`finish` writes; whatever never changes is filled in here."""
        n = self.nodes
        seen = torch.eye(n, dtype=torch.bool, device=device).repeat(lanes, 1, 1)
        tokens, parents, depths = (torch.zeros(lanes, n, dtype=torch.int64, device=device) for _ in range(3))
        return Tree(tokens, parents, depths, seen, additive(seen, self.dtype))

    def start(self, candidates: Candidates) -> Growth:
        """Begin with the candidates behind the root."""
        raise NotImplementedError


class Growth:
    """One tree while it grows. Only Python's bookkeeping of tensors lives here; their storages are temporaries."""

    def rows(self, i: int) -> Rows:
        """The rows of pass ``i``."""
        raise NotImplementedError

    def add(self, i: int, candidates: Candidates) -> None:
        """Take the candidates that pass ``i`` gave."""
        raise NotImplementedError

    def finish(self, tree: Tree) -> None:
        """Choose the nodes and write them into ``tree`` (tokens of nodes 1 .. N-1; the root's is the caller's)."""
        raise NotImplementedError


@dataclass
class Candidates:
    """The best continuations of R rows.

    Attributes:
        ids: [B, R, k] target ids, best first.
        logp: [B, R, k] float32 log-probabilities, or None where no tree needs them (a static list).
    """

    ids: Tensor
    logp: Tensor | None


def window(start: Tensor, columns: Tensor, width: int) -> Tensor:
    """Which column of a table each cache slot reads: ``clamp(s - start + 1, 0, width - 1)``.

    Args:
        start: [B] int64, the first slot that is not committed.
        columns: [S] int64, 0 .. S-1.
        width: G + 2, the table's.

    Returns:
        [B, S] int64.
    """
    return (columns - start.unsqueeze(1)).add_(1).clamp_(0, width - 1)


def spread(table: Tensor, index: Tensor) -> Tensor:
    """A table [B or 1, R, G + 2] over the slots of :func:`window`: the additive mask [B, R, S]."""
    lanes, slots = index.shape
    if lanes == 1:
        return table.index_select(2, index.squeeze(0))
    return table.expand(lanes, -1, -1).gather(2, index.unsqueeze(1).expand(lanes, table.shape[1], slots))


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """[..., R, G] bool -> table [..., R, G + 2]: committed slots visible, what lies beyond hidden."""
    shape = (*visible.shape[:-1], visible.shape[-1] + 2)
    table = torch.full(shape, float("-inf"), dtype=dtype, device=visible.device)
    table[..., 0] = 0
    table[..., 1:-1].masked_fill_(visible, 0)
    return table


def causal_table(rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The table of a plain causal run of ``rows`` rows: [1, rows, rows + 2]."""
    return additive(torch.ones(1, rows, rows, dtype=torch.bool, device=device).tril(), dtype)


class StaticTree(Grower):
    """A fixed list of paths of candidate ranks; every constant is computed here, once.

    Args:
        paths: prefix-closed, sorted by length, then lexicographically (``TreeShape.static`` sees to both).
    """

    def __init__(self, paths: tuple[tuple[int, ...], ...], dtype: torch.dtype, device: torch.device) -> None:
        self.paths = ((), *paths)
        self.nodes = len(self.paths)
        self.deepest = len(self.paths[-1])
        number = {path: i for i, path in enumerate(self.paths)}
        grown = {path[:-1] for path in paths}
        #: nodes by depth, and of those the ones a draft pass expands
        self.levels = [[p for p in self.paths if len(p) == d] for d in range(self.deepest + 1)]
        expanded = [[p for p in level if p in grown] for level in self.levels]
        self.passes = tuple(len(level) for level in expanded[1:-1])
        self.scored, self.dtype = False, dtype

        def const(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        self._first = [number[level[0]] for level in self.levels]
        self.tops = tuple(max(p[-1] for p in level) + 1 for level in self.levels[1:])
        # where each node of a level stands among its candidates; None: it takes them all, in order
        self._pick: list[Tensor | None] = []
        for above, level, top in zip(expanded, self.levels[1:], self.tops, strict=False):
            pick = [above.index(p[:-1]) * top + p[-1] for p in level]
            self._pick.append(None if pick == list(range(len(above) * top)) else const(pick))
        self._row_nodes = [const([number[p] for p in rows]) for rows in expanded[1:-1]]
        sources = [[above.index(p[:-1]) for p in rows] for above, rows in pairwise(expanded[:-1])]
        self._sources = [None if source == list(range(len(above))) else const(source).unsqueeze(0)
                         for above, source in zip(expanded, sources, strict=False)]
        scratch = [p for rows in expanded[1:-1] for p in rows]
        self._tables = [additive(torch.tensor([[[p[:len(q)] == q for q in scratch] for p in rows]], device=device),
                                 dtype) for rows in expanded[1:-1]]
        self._parents = const([number[p[:-1]] for p in self.paths])
        self._depths = const([len(p) for p in self.paths])
        self._ancestors = torch.tensor([[p[:len(q)] == q for q in self.paths] for p in self.paths], device=device)

    def allocate(self, lanes: int, device: torch.device) -> Tree:
        tree = super().allocate(lanes, device)
        tree.parents.copy_(self._parents)
        tree.depths.copy_(self._depths)
        tree.ancestors.copy_(self._ancestors)
        tree.table.copy_(additive(self._ancestors, self.dtype))
        return tree

    def start(self, candidates: Candidates) -> Growth:
        return _StaticGrowth(self, candidates)

    def nodes_of(self, level: int, candidates: Candidates) -> Tensor:
        """The tokens of a level's nodes, [B, nodes of the level]."""
        flat, pick = candidates.ids.flatten(1), self._pick[level - 1]
        return flat if pick is None else flat.index_select(1, pick)


class _StaticGrowth(Growth):
    def __init__(self, plan: StaticTree, candidates: Candidates) -> None:
        self.plan = plan
        self.tokens = [plan.nodes_of(1, candidates)]

    def rows(self, i: int) -> Rows:
        plan, ids = self.plan, self.tokens[i]
        if plan.passes[i] != ids.shape[1]:
            ids = ids.index_select(1, plan._row_nodes[i] - plan._first[i + 1])
        return Rows(ids, plan._sources[i], plan._tables[i])

    def add(self, i: int, candidates: Candidates) -> None:
        self.tokens.append(self.plan.nodes_of(i + 2, candidates))

    def finish(self, tree: Tree) -> None:
        tree.tokens[:, 1:].copy_(torch.cat(self.tokens, 1))


class DynamicTree(Grower):
    """EAGLE-2's tree: ``top_k`` rows a level, ``depth`` passes, the ``total_token - 1`` best candidates.

    Among equal scores the candidate that comes first in the official numbering wins, and a parent always comes before
    its children: the chosen set is closed under taking parents whatever the scores (the official ``topk`` may drop a
    parent whose only child is certain).
    """

    def __init__(self, total_token: int, depth: int, top_k: int, dtype: torch.dtype, device: torch.device) -> None:
        self.nodes, self.depth, self.top_k = total_token, depth, top_k
        self.deepest, self.scored, self.dtype = depth + 1, True, dtype
        self.passes, self.tops = (top_k,) * depth, (top_k,) * (depth + 1)
        k = top_k

        def arange(n: int) -> Tensor:
            return torch.arange(n, dtype=torch.int64, device=device)

        #: candidates in the official numbering: the root's k, then k * k a pass
        self.candidates = k + depth * k * k
        later = arange(depth * k * k)
        self._depth_of = torch.cat((torch.ones(k, dtype=torch.int64, device=device), later // (k * k) + 2))
        # rows are numbered 1 .. depth * k over all passes; 0 stands for the root
        self._row_of = torch.cat((torch.zeros(k, dtype=torch.int64, device=device), later // k + 1))
        self._ranks = arange(k).unsqueeze(0)
        self._node_numbers = arange(total_token)[1:].unsqueeze(0)
        self._root_row = torch.zeros(1, 1, dtype=torch.int64, device=device)
        eye = torch.eye(k, dtype=torch.bool, device=device)
        self._own = additive(eye, dtype)[:, 1:-1]  # what a row sees of its own pass: itself
        first = torch.zeros(1, k, max(1, depth) * k, dtype=torch.bool, device=device)
        first[:, :, :k] = eye
        self._table = additive(first, dtype)
        self._doublings = depth.bit_length()  # (I + M)^(2^n) reaches every ancestor

    def start(self, candidates: Candidates) -> Growth:
        return _DynamicGrowth(self, candidates)


class _DynamicGrowth(Growth):
    def __init__(self, plan: DynamicTree, candidates: Candidates) -> None:
        assert candidates.logp is not None
        self.plan = plan
        self.ids, self.scores = [candidates.ids.flatten(1)], [candidates.logp.flatten(1)]
        lanes = candidates.ids.shape[0]
        # candidate numbers (from 1; 0 is the root) of the rows of every pass
        self.row_candidates = [plan._root_row.expand(lanes, 1), plan._ranks.expand(lanes, -1) + 1]
        self.row_scores = self.scores[0]
        self.row_ids = self.ids[0]
        self.source = plan._root_row.expand(lanes, plan.top_k)
        self.table = plan._table.expand(lanes, -1, -1)

    def rows(self, i: int) -> Rows:
        return Rows(self.row_ids, self.source, self.table)

    def add(self, i: int, candidates: Candidates) -> None:
        assert candidates.logp is not None
        plan, k = self.plan, self.plan.top_k
        ids, scores = candidates.ids.flatten(1), (candidates.logp + self.row_scores.unsqueeze(2)).flatten(1)
        self.ids.append(ids)
        self.scores.append(scores)
        if i + 1 == plan.depth:
            return
        best = scores.topk(k, 1)
        self.row_scores, chosen = best.values, best.indices
        self.row_ids = ids.gather(1, chosen)
        self.source = chosen.div(k, rounding_mode="floor")
        self.row_candidates.append(chosen + (1 + k + i * k * k))
        # a new row sees what its parent saw, and itself; hidden columns of its own pass are overwritten
        table = self.table.gather(1, self.source.unsqueeze(2).expand(-1, -1, self.table.shape[2]))
        table[:, :, 1 + (i + 1) * k:1 + (i + 2) * k].copy_(plan._own)
        self.table = table

    def finish(self, tree: Tree) -> None:
        plan = self.plan
        ids, scores = torch.cat(self.ids, 1), torch.cat(self.scores, 1)
        best = torch.sort(scores, dim=1, descending=True, stable=True).indices[:, :plan.nodes - 1]
        chosen = torch.sort(best, 1).values
        tree.tokens[:, 1:].copy_(ids.gather(1, chosen))
        flat = chosen.flatten()
        tree.depths[:, 1:].copy_(plan._depth_of.index_select(0, flat).view_as(chosen))
        # candidate number -> node number, for the chosen ones (a parent is always chosen)
        node_of = torch.zeros_like(torch.cat((ids[:, :1], ids), 1)).scatter_(
            1, chosen + 1, plan._node_numbers.expand_as(chosen))
        rows = plan._row_of.index_select(0, flat).view_as(chosen)
        parents = torch.cat(self.row_candidates, 1).gather(1, rows)
        tree.parents[:, 1:].copy_(node_of.gather(1, parents))
        reach = torch.eye(plan.nodes, device=ids.device).repeat(ids.shape[0], 1, 1)
        reach.scatter_(2, tree.parents.unsqueeze(2), 1.0)
        for _ in range(plan._doublings):
            reach = torch.bmm(reach, reach).clamp_(max=1.0)
        tree.ancestors.copy_(reach > 0)
        tree.table[:, :, 1:-1].fill_(float("-inf")).masked_fill_(tree.ancestors, 0)


def grower(shape: TreeShape, draft_vocab: int, dtype: torch.dtype, device: torch.device) -> Grower:
    """The grower of a shape. ``draft_vocab`` bounds the candidates a row can give."""
    if shape.choices is not None:
        plan: Grower = StaticTree(shape.choices, dtype, device)
    elif shape.is_chain:
        plan = StaticTree(tuple((0,) * (i + 1) for i in range(shape.drafts)), dtype, device)
    else:
        plan = DynamicTree(shape.total_token, shape.depth, shape.top_k, dtype, device)
    widest = max(plan.tops)
    if widest > draft_vocab:
        raise EagleRuntimeError(
            "the tree asks for more candidates than the draft has tokens",
            where=f"{widest} candidates of one node, draft vocabulary {draft_vocab}", how="give a smaller top-k")
    return plan


def best(logits: Tensor, top: int, scored: bool) -> tuple[Tensor, Tensor | None]:
    """The ``top`` best of [B, R, V] logits: draft ids [B, R, top], and their float32 log-probabilities if ``scored``.

    As in the official code they are the best by log-probability, and equal ones stand in ``torch.topk``'s order.
    """
    if scored:
        logp, ids = _topk(logits.float().log_softmax(-1), top)
        return ids, logp
    return (argmax(logits).unsqueeze(-1) if top == 1 else _topk(logits, top)[1]), None


def argmax(logits: Tensor) -> Tensor:
    """[..., V] -> [...] int64, the first of equal ones, as ``torch.argmax``."""
    if not _in_blocks(logits, 1):
        return logits.argmax(-1)
    blocks = logits.reshape(*logits.shape[:-1], -1, BLOCK)
    block = blocks.amax(-1).argmax(-1, keepdim=True)
    inside = blocks.gather(-2, block.unsqueeze(-1).expand(*block.shape, BLOCK)).squeeze(-2).argmax(-1)
    found: Tensor = block.squeeze(-1) * BLOCK + inside
    return found


def _topk(scores: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """``scores.topk(top)`` over the last dimension."""
    if not _in_blocks(scores, top):
        values, ids = scores.topk(top, -1)
        return values, ids
    # the best stand in the blocks whose own best are the best
    blocks = scores.reshape(*scores.shape[:-1], -1, BLOCK)
    chosen = blocks.amax(-1).topk(top, -1).indices.sort(-1).values
    some = blocks.gather(-2, chosen.unsqueeze(-1).expand(*chosen.shape, BLOCK)).flatten(-2)
    values, at = some.topk(top, -1)
    return values, chosen.gather(-1, at.div(BLOCK, rounding_mode="floor")) * BLOCK + at % BLOCK


#: On a CPU the maximum over a vocabulary is quick and everything that must know *where* is not (a sixth of the speed),
#: so blocks of this size are looked at first.
BLOCK = 64


def _in_blocks(scores: Tensor, top: int) -> bool:
    vocab = scores.shape[-1]
    return scores.device.type == "cpu" and vocab % BLOCK == 0 and vocab >= 4 * BLOCK * top
