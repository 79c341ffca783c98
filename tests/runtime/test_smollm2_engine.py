"""The engine on a real pair: the official implementation's traces, lanes, trees against chains, sampling.

A step that differs from the official one is excused by nothing but a margin below 1e-3 in what decided it, which the
reference knows; the rest of that prompt is then another walk.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_runtime.choices import CHOICES
from eagle_runtime.config import Sampling, TreeShape
from eagle_runtime.engine import SpeculativeEngine
from eagle_runtime.loader import load_draft, load_target
from eagle_runtime.reference import Reference
from eagle_runtime.target import Target
from eagle_runtime.verify import distribution
from fixtures.smollm2 import build_target
from tests.runtime.pairs import FIXTURES, view

# The chains of the EAGLE-1 head run through parity-check, with both engines: tests/parity/test_smollm2.py.
TRACES = ["eagle1_tree26", "eagle1_tree60", *(f"eagle3_chain{k}" for k in range(1, 6)), "eagle3_tree60"]
FOLDER = FIXTURES / "smollm2"
TIE = 1e-3


@pytest.fixture(scope="module")
def target() -> Target:
    folder = build_target.target_folder()
    if not (folder / "config.json").is_file():
        pytest.skip("the real target is not built here (make smollm2)")
    return load_target(folder)


def trace(name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    head, *rows = [json.loads(line) for line in (FOLDER / "traces" / f"{name}.jsonl").read_text().splitlines()]
    return head, rows


def replay(target: Target, name: str, prompts: int, lanes: int = 1) -> list[str]:
    """Run the trace's prompts -> what differs and is not a tie; every token is checked to be the target's own."""
    head, rows = trace(name)
    rows = rows[:prompts]
    shape = TreeShape.chain(head["draft_tokens"]) if head["tree"] is None else TreeShape.dynamic(**head["tree"])
    draft_view = view(FOLDER / name.split("_")[0])
    engine = SpeculativeEngine(target, load_draft(draft_view, target), shape, lanes=lanes)
    outputs = engine.generate([row["prompt_ids"] for row in rows], head["max_new_tokens"], head["eos_token_ids"])
    reference = Reference(target, draft_view)
    wrong = []
    for row, output in zip(rows, outputs, strict=True):
        states = reference.states(output.prompt_ids, output.output_ids)
        off = states.says[:-1] != torch.tensor(output.output_ids)
        if bool((off & (states.margin[:-1] >= TIE)).any()):
            wrong.append(f"prompt {row['id']}: a token is not the target's choice")
        theirs = [(s["proposed"], s["accepted"], s["emitted"], s["truncated"]) for s in row["steps"]]
        mine = [(s.proposed, s.accepted, s.emitted, s.truncated) for s in output.steps]
        # the official loop takes one more step when exactly max_new_tokens are out
        assert len(mine) <= len(theirs)
        assert all(truncated for *_, truncated in theirs[len(mine):]) or mine != theirs[:len(mine)]
        at = next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), None)
        if at is None:
            assert output.output_ids == row["output_ids"][:len(output.output_ids)]
            continue
        decided = reference.steps(states, shape, head["max_new_tokens"], head["eos_token_ids"])[at]
        if decided.margin >= TIE:
            wrong.append(f"prompt {row['id']}, step {at}: {mine[at]} against {theirs[at]}, margin {decided.margin}")
    return wrong


@pytest.mark.parametrize("name", ["eagle1_chain4", "eagle1_tree60", "eagle3_chain3"])
def test_official_trace_sample(target: Target, name: str) -> None:
    """Four prompts of three traces, wherever the real target has been built; all of all: ``make test-real``."""
    assert replay(target, name, 4) == []


@pytest.mark.real
@pytest.mark.parametrize("name", TRACES)
def test_official_trace(target: Target, name: str) -> None:
    assert replay(target, name, 24) == []


@pytest.mark.real
@pytest.mark.parametrize("name", ["eagle1_chain4", "eagle3_tree60"])
def test_official_trace_in_eight_lanes(target: Target, name: str) -> None:
    assert replay(target, name, 24, lanes=8) == []


@pytest.mark.real
def test_a_tree_that_contains_the_chain_never_accepts_less(target: Target) -> None:
    """From every root of the 26-node tree's run (it contains the chain of 5), on all prompts of the trace."""
    draft = load_draft(view(FOLDER / "eagle1"), target)
    tree = SpeculativeEngine(target, draft, TreeShape.static(CHOICES["mc_sim_7b_63"]), lanes=4)
    chain = SpeculativeEngine(target, draft, TreeShape.chain(5), lanes=4)
    more = 0
    for output in tree.generate([row["prompt_ids"] for row in trace("eagle1_chain5")[1]], 32, (2,)):
        ends = [0]
        for step in output.steps:
            ends.append(ends[-1] + step.emitted)
        alone = chain.generate([output.prompt_ids + output.output_ids[:end] for end in ends[:-1]], 1, (2,))
        for step, other in zip(output.steps, alone, strict=True):
            assert step.tokens[0] == other.output_ids[0]
            assert step.accepted >= other.steps[0].accepted
            more += step.accepted - other.steps[0].accepted
    assert more > 50


def plain_draws(target: Target, prompt: list[int], sampling: Sampling, draws: int) -> list[tuple[int, int]]:
    """(y0, y1) drawn from the target alone, one token after the other."""
    generator = torch.Generator().manual_seed(99)

    @torch.no_grad()
    def p(ids: list[int]) -> torch.Tensor:
        return distribution(target.head(target.forward_full(torch.tensor(ids)).hidden[-1:]), sampling)[0]

    first = torch.multinomial(p(prompt), draws, replacement=True, generator=generator).tolist()
    out = []
    for token, times in Counter(first).items():
        second = torch.multinomial(p([*prompt, token]), times, replacement=True, generator=generator)
        out += [(token, t) for t in second.tolist()]
    return out


def same_distribution(a: Counter[Any], b: Counter[Any]) -> float:
    """Two-sample chi-square over categories seen 20 times or more (the rest is one) -> a standard normal's value."""
    common = [key for key in a.keys() | b.keys() if a[key] + b[key] >= 20]
    rows = [[count[key] for key in common] for count in (a, b)]
    rows = [[*row, count.total() - sum(row)] for row, count in zip(rows, (a, b), strict=True)]
    share = a.total() / (a.total() + b.total())
    x = 0.0
    for in_a, in_b in zip(*rows, strict=True):
        for found, expected in ((in_a, (in_a + in_b) * share), (in_b, (in_a + in_b) * (1 - share))):
            x += (found - expected) ** 2 / expected if expected else 0.0
    free = len(common)
    return (math.cbrt(x / free) - (1 - 2 / (9 * free))) / math.sqrt(2 / (9 * free)) if free else 0.0


@pytest.mark.real
@pytest.mark.parametrize("shape", [TreeShape.chain(3), TreeShape.dynamic(12, 2, 4)], ids=["chain", "tree"])
def test_sampling_is_the_targets_own(target: Target, shape: TreeShape) -> None:
    """1000 draws of (y0, y1) by speculation against 1000 plain ones: y1 is the first token that drafts could bend."""
    sampling, draws = Sampling(0.8, top_p=0.95, seed=7), 1000
    prompt = trace("eagle1_chain1")[1][3]["prompt_ids"]
    draft = load_draft(view(FOLDER / "eagle1"), target)
    engine = SpeculativeEngine(target, draft, shape, sampling=sampling, lanes=8)
    outputs = engine.generate([prompt] * draws, 2, ())
    ours = [(o.output_ids[0], o.output_ids[1]) for o in outputs]
    plain = plain_draws(target, prompt, sampling, draws)
    assert sum(step.accepted for o in outputs for step in o.steps) > 100
    assert same_distribution(Counter(ours), Counter(plain)) < 3.1
    assert same_distribution(Counter(y1 for _, y1 in ours), Counter(y1 for _, y1 in plain)) < 3.1


@pytest.mark.real
def test_kv_of_accepted_positions_equals_the_true_one(target: Target, fixtures_dir: Path) -> None:
    from tests.runtime.rig import Rig
    from tests.runtime.test_step import true_rows

    draft = load_draft(view(fixtures_dir / "smollm2" / "eagle1"), target)
    for shape in (TreeShape.chain(4), TreeShape.dynamic(60, 7, 10)):
        rig = Rig(target, draft, shape, [trace("eagle1_chain1")[1][0]["prompt_ids"]], slots=256)
        for _ in range(8):
            rig.step()
        _, true, _ = true_rows(target, draft, rig.committed[0])
        n = len(rig.committed[0]) - int(rig.buffers.count)
        for mine, expected in ((rig.draft_cache.k, true.k), (rig.draft_cache.v, true.v)):
            assert float((mine[:, 0, :, :n] - expected[:, 0, :, :n]).abs().max()) < 1e-5
