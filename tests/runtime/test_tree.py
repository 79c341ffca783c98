"""Trees against a plain list-based restatement of the official algorithm, with a made-up draft of known logits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from eagle_runtime.choices import CHOICES
from eagle_runtime.config import EagleRuntimeError, TreeShape
from eagle_runtime.tree import (
    Candidates,
    Grower,
    Rows,
    Tree,
    additive,
    argmax,
    best,
    causal_table,
    grower,
    spread,
    window,
)

VOCAB = 23
CPU = torch.device("cpu")


def logits_of(seed: int, path: tuple[int, ...]) -> torch.Tensor:
    """The made-up draft: logits [VOCAB] behind a path of tokens, the same whenever they are asked for."""
    generator = torch.Generator().manual_seed(hash((seed, path)) % 2**31)
    return torch.randn(VOCAB, generator=generator) * 3


@dataclass
class Made:
    """A tree as plain lists: per node the token path, the parent's number, and what each pass's rows see."""

    paths: list[tuple[int, ...]]
    parents: list[int]
    row_paths: list[list[tuple[int, ...]]]


def plain_dynamic(seed: int, total: int, depth: int, k: int) -> Made:
    """topK_genrate restated: numbered candidates, k rows a level, the best total - 1 of all."""
    def children(path: tuple[int, ...]) -> list[tuple[float, int]]:
        logp = torch.log_softmax(logits_of(seed, path), 0)
        top = logp.topk(k)
        return list(zip(top.values.tolist(), top.indices.tolist(), strict=True))

    candidates = [(score, (token,), -1) for score, token in children(())]  # score, path, candidate it hangs on
    rows, row_paths = list(range(k)), []
    for level in range(depth):
        row_paths.append([candidates[c][1] for c in rows])
        new = [(candidates[c][0] + score, (*candidates[c][1], token), c)
               for c in rows for score, token in children(candidates[c][1])]
        first = len(candidates)
        candidates += new
        order = sorted(range(len(new)), key=lambda i: (-new[i][0], i))
        rows = [first + i for i in order[:k]]
        assert level < depth
    chosen = sorted(sorted(range(len(candidates)), key=lambda i: (-candidates[i][0], i))[:total - 1])
    number = {c: n + 1 for n, c in enumerate(chosen)} | {-1: 0}
    return Made([candidates[c][1] for c in chosen], [number[candidates[c][2]] for c in chosen], row_paths)


def plain_static(seed: int, choices: tuple[tuple[int, ...], ...]) -> Made:
    tokens: dict[tuple[int, ...], tuple[int, ...]] = {(): ()}
    for ranks in choices:
        before = tokens[ranks[:-1]]
        top = logits_of(seed, before).topk(ranks[-1] + 1).indices[-1]
        tokens[ranks] = (*before, int(top))
    number = {ranks: i for i, ranks in enumerate(((), *choices))}
    grown = {ranks[:-1] for ranks in choices}
    rows = [[tokens[r] for r in choices if len(r) == d and r in grown] for d in range(1, len(choices[-1]))]
    return Made([tokens[r] for r in choices], [number[r[:-1]] for r in choices], rows)


def grow(plan: Grower, seeds: list[int]) -> tuple[Tree, list[list[list[tuple[int, ...]]]], list[Rows]]:
    """Drive a grower with the made-up draft; -> the tree, the path of every row of every pass and lane, the rows."""
    def candidates(paths: list[list[tuple[int, ...]]], i: int) -> Candidates:
        lanes = zip(seeds, paths, strict=True)
        logits = torch.stack([torch.stack([logits_of(seed, path) for path in lane]) for seed, lane in lanes])
        return Candidates(*best(logits, plan.tops[i], plan.scored))

    tree = plan.allocate(len(seeds), CPU)
    tree.tokens[:, 0] = -7
    before: list[list[tuple[int, ...]]] = [[()] for _ in seeds]
    growth = plan.start(candidates(before, 0))
    seen, all_rows = [], []
    for i, width in enumerate(plan.passes):
        rows = growth.rows(i)
        source = torch.arange(width).unsqueeze(0) if rows.source is None else rows.source
        now = [[(*before[b][int(source.expand(len(seeds), -1)[b, r])], int(rows.ids[b, r])) for r in range(width)]
               for b in range(len(seeds))]
        growth.add(i, candidates(now, i + 1))
        seen.append(now)
        all_rows.append(rows)
        before = now
    growth.finish(tree)
    return tree, seen, all_rows


SHAPES = {
    "chain1": TreeShape.chain(1), "chain4": TreeShape.chain(4), "tree60": TreeShape.dynamic(60, 7, 10),
    "tree26": TreeShape.dynamic(26, 5, 8), "flat": TreeShape.dynamic(5, 0, 6), "pairs": TreeShape.dynamic(12, 3, 2),
    "all": TreeShape.dynamic(2 + 3 * 4 + 1, 3, 2), "mc_sim_7b_63": TreeShape.static(CHOICES["mc_sim_7b_63"]),
    "odd": TreeShape.static([(1,), (3,), (3, 2), (1, 0), (3, 2, 1), (3, 0)])}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("lanes", [1, 3])
def test_nodes_rows_and_masks_equal_the_plain_algorithm(name: str, lanes: int) -> None:
    shape, seeds = SHAPES[name], list(range(lanes))
    plan = grower(shape, VOCAB, torch.float32, CPU)
    tree, rows, given = grow(plan, seeds)
    assert plan.nodes == shape.total_token
    assert plan.deepest == shape.deepest
    for b, seed in enumerate(seeds):
        if shape.choices is not None:
            made = plain_static(seed, shape.choices)
        elif shape.is_chain:
            made = plain_static(seed, tuple((0,) * (i + 1) for i in range(shape.drafts)))
        else:
            made = plain_dynamic(seed, shape.total_token, shape.depth, shape.top_k)
        assert tree.tokens[b].tolist() == [-7, *(path[-1] for path in made.paths)]
        assert tree.parents[b].tolist() == [0, *made.parents]
        assert tree.depths[b].tolist() == [0, *map(len, made.paths)]
        nodes = [(), *made.paths]
        ancestors = [[mine[:len(other)] == other for other in nodes] for mine in nodes]
        assert tree.ancestors[b].tolist() == ancestors
        assert torch.equal(tree.table[b], additive(torch.tensor(ancestors), torch.float32))
        assert [lane[b] for lane in rows] == made.row_paths
        scratch = [path for level in made.row_paths for path in level]
        for level, pass_rows in zip(made.row_paths, given, strict=True):
            table = pass_rows.table.expand(lanes, -1, -1)[b]
            visible = torch.tensor([[mine[:len(other)] == other for other in scratch] for mine in level])
            assert torch.equal(table, additive(visible, torch.float32))


def test_equal_scores_never_orphan_a_node() -> None:
    """Certain continuations have log-probability 0, so parent and child tie; the parent comes first."""
    shape = TreeShape.dynamic(6, 4, 3)
    plan = grower(shape, 8, torch.float32, CPU)
    certain = torch.full((1, 1, 8), -1e9)
    certain[..., 5] = 0.0

    def candidates(rows: int) -> Candidates:
        return Candidates(*best(certain.expand(1, rows, 8).contiguous(), 3, True))

    tree = plan.allocate(1, CPU)
    growth = plan.start(candidates(1))
    for i in range(4):
        growth.rows(i)
        growth.add(i, candidates(3))
    growth.finish(tree)
    assert tree.tokens[0, 1:].tolist() == [5] * 5
    assert tree.parents[0].tolist() == [0, 0, 1, 2, 3, 4]
    assert tree.depths[0].tolist() == [0, 1, 2, 3, 4, 5]


def test_lanes_do_not_mix() -> None:
    plan = grower(SHAPES["tree26"], VOCAB, torch.float32, CPU)
    together, _, _ = grow(plan, [4, 9])
    for b, seed in enumerate((4, 9)):
        alone, _, _ = grow(plan, [seed])
        for name in vars(together):
            assert torch.equal(getattr(together, name)[b], getattr(alone, name)[0]), name


@pytest.mark.parametrize("lanes", [1, 2])
def test_window_spreads_a_table_over_slots(lanes: int) -> None:
    table = causal_table(3, torch.float32, CPU)
    start = torch.tensor([2, 5])[:lanes]
    mask = spread(table, window(start, torch.arange(10), 5))
    for b in range(lanes):
        for r in range(3):
            seen = [s for s in range(10) if mask[b, r, s] == 0]
            assert seen == list(range(int(start[b]) + r + 1))
    assert torch.isneginf(mask[mask != 0]).all()


def test_scores_are_log_probabilities() -> None:
    logits = torch.randn(2, 3, 50) * 5
    ids, logp = best(logits, 4, True)
    assert logp is not None
    expected = torch.log_softmax(logits, -1).topk(4)
    assert torch.equal(ids, expected.indices)
    assert torch.allclose(logp, expected.values, atol=1e-6)
    assert best(logits, 1, False)[0].squeeze(-1).tolist() == logits.argmax(-1).tolist()
    assert math.isclose(float(best(logits, 1, True)[1].exp().max()), float(logits.softmax(-1).max()), rel_tol=1e-5)


@pytest.mark.parametrize("vocab", [320, 4096, 4096 + 1])
@pytest.mark.parametrize("top", [1, 3, 10])
def test_the_best_are_found_in_blocks(vocab: int, top: int) -> None:
    """The same as argmax and topk over the whole vocabulary; of equal ones the first is the argmax."""
    logits = torch.randn(2, 3, vocab, generator=torch.Generator().manual_seed(vocab)) * 4
    assert torch.equal(best(logits, top, False)[0], logits.topk(top).indices)
    ids, logp = best(logits, top, True)
    expected = logits.log_softmax(-1).topk(top)
    assert torch.equal(ids, expected.indices)
    assert torch.equal(logp, expected.values)
    few = torch.randint(0, 3, (4, vocab)).float()
    assert torch.equal(argmax(few), few.argmax(-1))
    assert torch.equal(few.gather(1, best(few.unsqueeze(0), top, False)[0][0]), few.topk(top).values)


def test_more_candidates_than_tokens() -> None:
    with pytest.raises(EagleRuntimeError, match="more candidates than the draft has tokens") as caught:
        grower(TreeShape.dynamic(60, 7, 10), 8, torch.float32, CPU)
    assert "draft vocabulary 8" in caught.value.where


@pytest.mark.parametrize("choices", ["mc_sim_7b_63", [0, 1], [[0], ["1"]], [[0], [1.5]]])
def test_a_tree_list_is_a_list_of_lists(choices: Any) -> None:
    with pytest.raises(EagleRuntimeError, match="list of lists"):
        TreeShape.static(choices)
