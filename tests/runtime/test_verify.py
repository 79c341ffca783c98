"""Acceptance: greedy against a plain walk; sampling against the distribution it must keep."""

from __future__ import annotations

import pytest
import torch

from eagle_runtime.config import EagleRuntimeError, Sampling
from eagle_runtime.tree import Tree
from eagle_runtime.verify import check, distribution, draw, greedy, sample

DRAWS = 200_000


def tree_of(tokens: list[int], parents: list[int], lanes: int = 1) -> Tree:
    n = len(tokens)
    depths = [0] * n
    for i in range(1, n):
        depths[i] = depths[parents[i]] + 1
    ancestors = torch.eye(n, dtype=torch.bool)
    for i in range(1, n):
        ancestors[i] |= ancestors[parents[i]]

    def rows(values: list[int]) -> torch.Tensor:
        return torch.tensor([values]).repeat(lanes, 1)

    return Tree(rows(tokens), rows(parents), rows(depths), ancestors.repeat(lanes, 1, 1), torch.empty(0))


def test_greedy_equals_a_plain_walk() -> None:
    """Random trees with distinct siblings over 5 tokens; the walk follows the child that the target names."""
    generator = torch.Generator().manual_seed(3)
    full = 0
    for _ in range(300):
        parents, children = [0], [[]]
        while len(parents) < 14:
            parent = int(torch.randint(len(parents), (1,), generator=generator))
            if len(children[parent]) < 4:
                children[parent].append(len(parents))
                parents.append(parent)
                children.append([])
        order = sorted(range(14), key=lambda i: (_depth(i, parents), i))  # parents before children, levels in order
        parents = [order.index(parents[i]) for i in order]
        tokens = [9] * 14
        for i in range(14):
            kids = [j for j in range(1, 14) if parents[j] == i]
            for j, token in zip(kids, torch.randperm(5, generator=generator).tolist(), strict=False):
                tokens[j] = token
        choice = torch.randint(5, (1, 14), generator=generator)
        tree = tree_of(tokens, parents)
        width = int(tree.depths.max()) + 1
        out = greedy(choice, tree, width)
        node, path = 0, [0]
        while True:
            named = [j for j in range(1, 14) if parents[j] == node and tokens[j] == int(choice[0, node])]
            if not named:
                break
            node = named[0]
            path.append(node)
        assert int(out.count) == len(path) - 1
        assert out.path[0, :len(path)].tolist() == path
        assert out.path.shape == (1, width)
        assert int(out.bonus) == int(choice[0, node])
        assert out.agrees[0].tolist() == [True] + [tokens[j] == int(choice[0, parents[j]]) for j in range(1, 14)]
        full += len(path) > 2
    assert full > 20  # deep acceptances were among them


def _depth(i: int, parents: list[int]) -> int:
    return 0 if i == 0 else 1 + _depth(parents[i], parents)


def test_greedy_lanes_are_independent() -> None:
    tree = tree_of([0, 1, 2], [0, 0, 1], lanes=2)
    out = greedy(torch.tensor([[1, 2, 4], [3, 2, 4]]), tree, 3)
    assert out.count.tolist() == [2, 0]
    assert out.bonus.tolist() == [4, 3]
    assert out.path[0].tolist() == [0, 1, 2]


def total_variation(counts: torch.Tensor, expected: torch.Tensor) -> float:
    return float((counts.double() / counts.sum() - expected.double()).abs().sum() / 2)


# node 0 is the root; its children 1, 2 propose tokens 0 and 2; node 3 hangs on 1, node 4 on 2
TOYS = {
    "chain": ([0, 0, 1], [0, 0, 1]),
    "tree": ([0, 0, 2, 1, 1], [0, 0, 0, 1, 2]),
    "all-children": ([0, 2, 0, 1, 0], [0, 0, 0, 0, 1]),
}
SAMPLINGS = {
    "t1": Sampling(1.0), "t0.7": Sampling(0.7), "top-p": Sampling(1.0, top_p=0.75), "top-k": Sampling(1.3, top_k=2)}


@pytest.mark.parametrize("toy", TOYS)
@pytest.mark.parametrize("how", SAMPLINGS)
def test_sampling_keeps_the_distribution(toy: str, how: str) -> None:
    """The first two tokens out, over 200k draws, are distributed as plain sampling: total variation below 0.01."""
    tokens, parents = TOYS[toy]
    sampling, n = SAMPLINGS[how], len(tokens)
    generator = torch.Generator().manual_seed(17)
    table = torch.randn(4, 3, generator=generator)  # logits behind the root (row 3) and behind each token
    p = torch.stack([distribution(row.unsqueeze(0), sampling)[0] for row in table])
    rows = [table[3]] + [table[tokens[i]] for i in range(1, n)]
    logits = torch.stack(rows).expand(DRAWS, n, 3)
    tree = tree_of(tokens, parents, DRAWS)
    out = sample(logits, tree, int(tree.depths.max()) + 1, torch.rand(DRAWS, n + 1, generator=generator), sampling)

    behind = torch.cat((tree.tokens.gather(1, out.path)[:, 1:], torch.zeros(DRAWS, 1, dtype=torch.int64)), 1)
    behind.scatter_(1, out.count.unsqueeze(1), out.bonus.unsqueeze(1))
    first = behind[:, 0]
    assert total_variation(torch.bincount(first, minlength=3), p[3]) < 0.01
    # where nothing was accepted the second token is the next step's: drawn plainly from the target
    next_step = draw(p[first], torch.rand(DRAWS, generator=generator))
    second = torch.where(out.count > 0, behind[:, 1], next_step)
    joint = (p[3].unsqueeze(1) * p[:3]).flatten()
    assert total_variation(torch.bincount(first * 3 + second, minlength=9), joint) < 0.01
    assert (out.count > 0).float().mean() > 0.05


def test_a_certain_draft_is_always_accepted() -> None:
    logits = torch.full((1000, 2, 3), -1e9)
    logits[:, :, 1] = 0
    out = sample(logits, tree_of([0, 1], [0, 0], 1000), 2, torch.rand(1000, 3), Sampling(1.0))
    assert out.count.tolist() == [1] * 1000
    assert out.bonus.tolist() == [1] * 1000


def test_an_impossible_draft_is_never_accepted() -> None:
    logits = torch.zeros(1000, 2, 3)
    logits[:, :, 1] = -1e9
    uniforms = torch.rand(1000, 3)
    uniforms[0] = 0.0
    out = sample(logits, tree_of([0, 1], [0, 0], 1000), 2, uniforms, Sampling(1.0))
    assert out.count.tolist() == [0] * 1000
    assert 1 not in out.bonus.tolist()


def test_top_p_keeps_the_fewest_tokens_that_reach_it() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    assert distribution(logits, Sampling(1.0, top_p=0.7)).gt(0).tolist() == [[True, True, False, False]]
    assert distribution(logits, Sampling(1.0, top_p=1e-9)).tolist() == [[1.0, 0.0, 0.0, 0.0]]
    assert torch.allclose(distribution(logits, Sampling(1.0, top_k=3)), torch.tensor([[0.5, 0.3, 0.15, 0.0]]) / 0.95)
    assert torch.allclose(distribution(logits, Sampling(0.5)), torch.tensor([[.25, .09, .0225, .0025]]) / 0.365)


def test_draw_never_gives_what_has_no_probability() -> None:
    p = torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0]])
    edge = 1 - 2.0**-24
    for uniform, token in ((0.0, 1), (0.2999, 1), (0.3001, 3), (edge, 3)):
        assert draw(p, torch.tensor([uniform])).item() == token
    tiny = torch.tensor([[0.1, 1e-30, 0.0]])
    assert draw(tiny, torch.tensor([edge])).item() in (0, 1)


@pytest.mark.parametrize("wrong", [Sampling(-1.0), Sampling(1.0, top_p=0.0), Sampling(1.0, top_p=1.5),
                                   Sampling(1.0, top_k=-1)])
def test_settings_that_mean_nothing(wrong: Sampling) -> None:
    with pytest.raises(EagleRuntimeError, match="means nothing"):
        check(wrong)
