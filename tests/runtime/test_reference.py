"""The oracle against arithmetic that a reader can follow: every path from scratch, PLANT's numbers, official traces."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_runtime import EagleRuntimeError, TreeShape
from eagle_runtime.forced import Forced, Stale
from eagle_runtime.growth import Drafted
from eagle_runtime.loader import load_target
from eagle_runtime.plain_draft import PlainDraft
from eagle_runtime.records import truncated
from eagle_runtime.reference import Reference, ReferenceStep, States
from eagle_runtime.views import DraftView
from fixtures.smollm2 import build_target
from tests.runtime.tiny import EAGLE1, EAGLE3, passing, prompts_of, random_target, random_view, view_of

PROMPT = [3, 80, 17, 17, 4, 55]
SHAPES = {"chain": TreeShape.chain(4), "tree": TreeShape.dynamic(12, 3, 3), "all": TreeShape.dynamic(13, 2, 3),
          "static": TreeShape.static([[0], [1], [3], [0, 0], [0, 2], [1, 0], [0, 2, 1], [0, 2, 1, 0]])}


class Scratch:
    """One path at a time, from scratch: the committed rows and the path's own, one causal sequence, no mask tricks."""

    def __init__(self, draft: PlainDraft, states: States, root: int) -> None:
        self.draft, self.length = draft, states.prompt + root
        self.ids, self.hidden = states.ids[1:self.length + 1], draft.states(states.full)[:self.length]

    def logits(self, path: Sequence[int]) -> torch.Tensor:
        """Logits over draft ids after the committed text and ``path`` (target ids)."""
        hidden = self.hidden
        for n in range(len(path) + 1):
            ids = torch.cat((self.ids, torch.tensor(path[:n], dtype=torch.int64)))
            at = torch.arange(len(ids))
            x, _ = self.draft.rows(ids, hidden, at, [], self.draft.near(at, at, at[:, None] >= at))
            hidden = torch.cat((hidden, self.draft.recycle(x[-1:])))
        return self.draft.logits(x[-1])

    def children(self, path: Sequence[int], count: int) -> list[tuple[int, float]]:
        """The best next target ids with their log-probabilities."""
        top = self.logits(path).log_softmax(-1).topk(count)
        return [(int(self.draft.ids[i]), float(v)) for v, i in zip(*top, strict=True)]


def dynamic_by_hand(scratch: Scratch, shape: TreeShape) -> list[tuple[int, ...]]:
    """The proposed paths of a dynamic tree, in order, by lists and sorting."""
    level = [((t,), s) for t, s in scratch.children((), shape.top_k)]
    every, beam = list(level), level
    for _ in range(shape.depth):
        level = [((*path, t), score + s) for path, score in beam for t, s in scratch.children(path, shape.top_k)]
        every += level
        beam = sorted(level, key=lambda c: -c[1])[:shape.top_k]
    best = sorted(range(len(every)), key=lambda i: -every[i][1])[:shape.drafts]
    return [every[i][0] for i in sorted(best)]


def static_by_hand(scratch: Scratch, shape: TreeShape) -> list[tuple[int, ...]]:
    assert shape.choices is not None
    tokens: dict[tuple[int, ...], tuple[int, ...]] = {(): ()}
    for ranks in shape.choices:
        above = tokens[ranks[:-1]]
        tokens[ranks] = (*above, scratch.children(above, ranks[-1] + 1)[ranks[-1]][0])
    return [tokens[ranks] for ranks in shape.choices]


def paths(step: Drafted | ReferenceStep) -> list[tuple[int, ...]]:
    """Proposed nodes as paths of target ids."""
    tokens, parents = step.nodes() if isinstance(step, Drafted) else (step.drafts, step.parents)
    out: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents, strict=True):
        out.append((*(out[parent] if parent >= 0 else ()), token))
    return out


@pytest.mark.parametrize(("algorithm", "shape"), list(product(["eagle", "eagle3"], SHAPES)))
@torch.no_grad()
def test_trees_are_those_of_the_definition(algorithm: str, shape: str) -> None:
    """Nodes, their order and how far a text goes into them at five roots, against each path computed from scratch."""
    view = random_view(EAGLE1, fc_bias=True) if algorithm == "eagle" else random_view(EAGLE3, norm_output=True)
    target = random_target()
    reference = Reference(target, view)
    text = reference.greedy(PROMPT, 12)
    states = reference.states(PROMPT, text)
    known = [*text, int(states.says[-1])]
    drafted = Forced(reference.draft, states.full, states.ids, states.prompt).draft_from(range(5), known, SHAPES[shape])
    by_hand = dynamic_by_hand if SHAPES[shape].choices is None else static_by_hand
    for root, here in drafted.items():
        scratch = Scratch(reference.draft, states, root)
        wanted = by_hand(scratch, SHAPES[shape])
        assert paths(here) == wanted
        # whatever the truth is: walk along each proposed path, and one token off it
        for path in wanted:
            inside = sum(path[:n] in wanted for n in range(1, len(path) + 1))
            assert here.against(path)[0] == inside
            absent = next(t for t in range(90) if (*path, t) not in wanted)
            assert here.against([*path, absent])[0] == inside


@torch.no_grad()
def test_chain_margins_are_top_two_gaps() -> None:
    """For a chain the deciding margin is the smallest top-2 gap up to and including the first wrong draft."""
    reference = Reference(random_target(), random_view(EAGLE1))
    text = reference.greedy(PROMPT, 8)
    states = reference.states(PROMPT, text)
    walker = Forced(reference.draft, states.full, states.ids, states.prompt)
    scratch = Scratch(reference.draft, states, 2)
    first = scratch.children((), 2)
    second = scratch.children((first[0][0],), 2)
    truth = [text[2], first[0][0], second[1][0]]  # the second draft is wrong, by the gap between its best two
    here = walker.draft_from([2], [*text[:2], *truth], TreeShape.chain(4))[2]
    accepted, margin, _ = here.against(truth[1:])
    assert accepted == 1
    assert margin == pytest.approx(min(first[0][1] - first[1][1], second[0][1] - second[1][1]), abs=1e-4)


@torch.no_grad()
def test_a_tree_that_contains_the_chain_accepts_no_less() -> None:
    target, shape = random_target(), TreeShape.static([[0] * n for n in (1, 2, 3, 4)] + [[1], [2], [1, 0], [0, 1]])
    reference = Reference(target, passing(random_view(EAGLE1)))
    states = reference.states(PROMPT, reference.greedy(PROMPT, 30))
    known = [*states.ids[len(PROMPT):].tolist(), int(states.says[-1])]
    walker = Forced(reference.draft, states.full, states.ids, states.prompt)
    chain = walker.draft_from(range(25), known, TreeShape.chain(4))
    tree = walker.draft_from(range(25), known, shape)
    counts = [(chain[r].against(known[r + 1:])[0], tree[r].against(known[r + 1:])[0]) for r in range(25)]
    assert all(t >= c for c, t in counts)
    assert sum(t for _, t in counts) > sum(c for c, _ in counts)


@torch.no_grad()
def test_one_target_pass_judges_every_token() -> None:
    """says, margin and given at each output token; a changed token shows where it stands, and changes what follows."""
    target = random_target()
    reference = Reference(target, random_view(EAGLE1))
    text = reference.greedy(PROMPT, 10)
    states = reference.states(PROMPT, text)
    assert states.says[:10].tolist() == text
    assert int(states.says[10]) == reference.greedy(PROMPT, 11)[10]
    assert torch.equal(states.given, states.top[:10, 0])
    changed = [*text[:4], (text[4] + 1) % 90, *text[5:]]
    other = reference.states(PROMPT, changed)
    assert [j for j in range(5) if int(other.says[j]) != changed[j]] == [4]
    logits = target.head(target.forward_full(torch.tensor(PROMPT + text[:4])).hidden[-1])
    assert float(other.given[4]) == pytest.approx(float(logits[changed[4]]), abs=1e-4)
    assert float(other.margin[4]) == pytest.approx(float(logits.topk(2).values.diff().abs()), abs=1e-4)


@torch.no_grad()
def test_stale_kv_keeps_guesses_and_forced_forgets_them() -> None:
    """After two of a chain's guesses were accepted: K/V of their positions are the guesses' in one (more than 1e-3
    away from the true ones), the true ones in the other; the position after them is computed in both."""
    reference = Reference(random_target(), random_view(EAGLE1, num_layers=2))
    text = reference.greedy(PROMPT, 8)
    states = reference.states(PROMPT, text)
    stale = Stale(reference.draft, states.full, states.ids, states.prompt)
    forced = Forced(reference.draft, states.full, states.ids, states.prompt)
    stale.draft_from([0], text, TreeShape.chain(3))
    guessed = [k.clone() for k, _ in stale.guesses.kv]
    stale.accept(0, 2, [1, 2])
    n = len(PROMPT)
    for layer in range(2):
        old, true = stale.past[layer][0], forced.past[layer][0]
        assert old.shape[0] == n + 3
        torch.testing.assert_close(old[:n], true[:n], atol=1e-5, rtol=0)
        assert torch.equal(old[n:n + 2], guessed[layer])
        assert (old[n:n + 2] - true[n:n + 2]).abs().amin(-1).amax() > 1e-3
    torch.testing.assert_close(stale.past[0][0][n + 2], forced.past[0][0][n + 2], atol=1e-5, rtol=0)


# --- PLANT: acceptance known by construction --------------------------------------------------------------------------

NEW = 48


class Plant:
    """The PLANT pairs, with the target's texts generated once."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.prompts = folder, prompts_of(folder / "prompts.jsonl")
        self.targets = {name: load_target(folder / name) for name in ("tgt", "tgt_offset", "tgt_tuned")}
        self.texts: dict[tuple[str, int], list[int]] = {}

    def length(self, head: str, target: str = "tgt", faults: Sequence[str] = (), shape: TreeShape = SHAPES["chain"],
               prompts: int = 32, **change: Any) -> float:
        """Acceptance length over the counting steps."""
        reference = Reference(self.targets[target], view_of(self.folder / head, **change), faults)
        steps = accepted = 0
        for i, prompt in enumerate(self.prompts[:prompts]):
            if (target, i) not in self.texts:
                self.texts[target, i] = reference.greedy(prompt, NEW, (2,), beyond=8)
            for step in reference.trace(prompt, self.texts[target, i], shape, NEW, (2,)):
                if not step.truncated:
                    steps, accepted = steps + 1, accepted + step.accepted
        return 1 + accepted / steps


@pytest.fixture(scope="module")
def plant(fixtures_dir: Path) -> Plant:
    return Plant(fixtures_dir / "plant")


@pytest.mark.parametrize(("head", "target"), [("e1", "tgt"), ("e1b", "tgt_offset"), ("e3", "tgt")])
@pytest.mark.parametrize("k", [1, 4, 7])
def test_plant_accepts_everything(plant: Plant, head: str, target: str, k: int) -> None:
    assert plant.length(head, target, shape=TreeShape.chain(k), prompts=6) == k + 1


@pytest.mark.parametrize(("head", "target", "fault", "wanted"), [
    ("e1", "tgt", "input-norm", 1.01), ("e1", "tgt", "residual-lost", 1.01), ("e1", "tgt", "token-shift", 1.00),
    ("e1", "tgt", "concat-swapped", 1.00), ("e1", "tgt", "foreign-embedding", 1.00), ("e1", "tgt", "output-norm", 5.00),
    ("e1", "tgt", "stale-kv", 5.00), ("e1b", "tgt_offset", "fc-bias-dropped", 1.00), ("e3", "tgt", "d2t-as-ids", 1.01),
    ("e3", "tgt", "norm-before-residual", 4.78), ("e3", "tgt", "recycled-norm", 4.86), ("e3", "tgt", "aux-shift", 5.00),
    ("e3", "tgt", "stale-kv", 5.00),
])
def test_plant_numbers_of_the_faults(plant: Plant, head: str, target: str, fault: str, wanted: float) -> None:
    """Published numbers; those that are exact for any draw need few prompts."""
    prompts = 32 if wanted not in (1.0, 5.0) else 8
    assert round(plant.length(head, target, [fault], prompts=prompts), 2) == wanted


def test_plant_on_a_tuned_target(plant: Plant) -> None:
    """A quarter of the target's successors changed, the draft keeps its own head: 3.02."""
    assert round(plant.length("e3", "tgt_tuned"), 2) == 3.02


def test_plant_final_norm_of_minus_one(plant: Plant) -> None:
    change = {"change": lambda t: t.update({"norm.weight": -torch.ones(64)}), "skip_output_norm": False}
    assert plant.length("e1", prompts=8, **change) == 1.00


# --- steps and counting -----------------------------------------------------------------------------------------------

def test_a_run_adds_up(plant: Plant) -> None:
    """Steps tile the output; a step is truncated where the contract says so, and the run ends where it says."""
    reference = Reference(plant.targets["tgt_tuned"], view_of(plant.folder / "e3"))
    for prompt in plant.prompts[:4]:
        run = reference.run(prompt, SHAPES["chain"], NEW, (2,))
        root = 0
        for step in run.steps:
            assert step.proposed == 4
            assert step.emitted == step.accepted + 1
            assert step.truncated is (root + 5 >= NEW)
            root += step.emitted
        assert root == len(run.output_ids) >= NEW
        assert root - run.steps[-1].emitted < NEW
        assert run.output_ids[:NEW] == reference.greedy(prompt, NEW)


def test_a_stop_token_ends_the_run(plant: Plant) -> None:
    """The step that puts a stop token out is the last, is truncated, and keeps its tokens behind the stop."""
    reference = Reference(plant.targets["tgt"], view_of(plant.folder / "e1"))
    text = reference.greedy(plant.prompts[0], 20)
    run = reference.run(plant.prompts[0], SHAPES["chain"], 20, (text[7],))
    assert run.output_ids == text[:10]  # steps emit 0-4 and 5-9; the stop token is number 7
    assert [step.truncated for step in run.steps] == [False, True]
    assert reference.greedy(plant.prompts[0], 20, (text[7],)) == text[:8]
    assert reference.greedy(plant.prompts[0], 20, (text[7],), beyond=3) == text[:11]


@pytest.mark.parametrize(("root", "accepted", "wanted"), [(0, 4, False), (3, 0, True), (2, 0, False), (2, 1, True)])
def test_truncation_is_the_contracts(root: int, accepted: int, wanted: bool) -> None:
    """r + k + 1 < max_new_tokens, and no stop token among y_r … y_{r+a}: here y_3 is one, k = 4, 8 tokens asked."""
    out = [9, 9, 9, 2, 9, 9, 9, 9] if root else [9] * 8
    assert truncated(root, accepted, 4, out, 8, (2,)) is wanted


@torch.no_grad()
def test_non_finite_states_are_an_error_not_a_number() -> None:
    target = random_target(dtype=torch.float16)
    target.blocks[2].mlp.down._weight.mul_(1e4)
    with pytest.raises(EagleRuntimeError, match=r"target layer 2 output (inf|nan) in fp16"):
        Reference(target, random_view(EAGLE1)).states(PROMPT, [1, 2, 3])


@torch.no_grad()
def test_a_draft_that_overflows_is_an_error_not_a_low_number() -> None:
    view = random_view(EAGLE1)
    big = DraftView(view.spec, {**view.tensors, "fc.weight": lambda: 1e4 * view.tensors["fc.weight"]()})
    target = random_target(dtype=torch.float16)
    with pytest.raises(EagleRuntimeError, match=r"draft layer 0 output (inf|nan) in fp16"):
        Reference(target, big).trace(PROMPT, [1, 2, 3], SHAPES["chain"], 3)


def test_a_tree_wider_than_the_vocabulary_is_refused() -> None:
    reference = Reference(random_target(), random_view(EAGLE3))
    with pytest.raises(EagleRuntimeError, match="wider than the draft's vocabulary"):
        reference.trace(PROMPT, [1, 2, 3], TreeShape.dynamic(100, 2, 60), 3)


# --- the official implementation's traces -----------------------------------------------------------------------------

# The chains of the EAGLE-1 head run through parity-check, with both engines: tests/parity/test_smollm2.py.
TRACES = ["eagle1_tree26", "eagle1_tree60", *(f"eagle3_chain{k}" for k in range(1, 6)), "eagle3_tree60"]
TIE = 1e-3


def replay(folder: Path, trace: str, target_folder: Path, prompts: int) -> tuple[int, int]:
    """Every step of every prompt equals the official one, or was decided by a tie -> (prompts equal, prompts tied).

    The official loop takes one more step when exactly ``max_new_tokens`` are out; that step is truncated.
    """
    head, *rows = [json.loads(line) for line in (folder / "traces" / f"{trace}.jsonl").read_text().splitlines()]
    shape = TreeShape.chain(head["draft_tokens"]) if head["tree"] is None else TreeShape.dynamic(**head["tree"])
    reference = Reference(load_target(target_folder), view_of(folder / trace.split("_")[0]))
    equal = tied = 0
    for row in rows[:prompts]:
        states = reference.states(row["prompt_ids"], row["output_ids"])
        off = states.says[:-1] != torch.tensor(row["output_ids"])
        assert not bool((off & (states.margin[:-1] >= TIE)).any())
        ours = reference.steps(states, shape, head["max_new_tokens"], head["eos_token_ids"])
        theirs = row["steps"]
        assert all(step["truncated"] for step in theirs[len(ours):])
        for mine, step in zip(ours, theirs, strict=False):
            if (mine.proposed, mine.accepted, mine.emitted, mine.truncated) != (
                    step["proposed"], step["accepted"], step["emitted"], step["truncated"]):
                assert mine.margin < TIE, f"{trace}, prompt {row['id']}, root {mine.root}: {mine} against {step}"
                tied += 1
                break
        else:
            equal += 1
    return equal, tied


@pytest.mark.parametrize("trace", ["eagle1_chain4", "eagle3_chain4", "eagle1_tree26"])
def test_official_trace_sample(fixtures_dir: Path, trace: str) -> None:
    """Four prompts of three traces, wherever the real target has been built; all of all: ``make test-real``."""
    folder = build_target.target_folder()
    if not (folder / "config.json").is_file():
        pytest.skip("the real target is not built here (make smollm2)")
    assert sum(replay(fixtures_dir / "smollm2", trace, folder, 4)) == 4


@pytest.mark.real
@pytest.mark.parametrize("trace", TRACES)
def test_official_trace(fixtures_dir: Path, smollm2_target: Path, trace: str) -> None:
    equal, tied = replay(fixtures_dir / "smollm2", trace, smollm2_target, 24)
    assert equal + tied == 24
    assert tied <= 1


@pytest.mark.real
@pytest.mark.parametrize(("k", "steps", "accepted"), [(2, 862, 220), (4, 822, 217)])
def test_vllm_drops_the_bias(fixtures_dir: Path, smollm2_target: Path, k: int, steps: int, accepted: int) -> None:
    """fc-bias-dropped gives what stock vLLM 0.32 shows on the same prompts: 1.2552 at K = 2, 1.2640 at K = 4."""
    folder = fixtures_dir / "smollm2"
    lines = (folder / "traces" / f"eagle1_chain{k}.jsonl").read_text().splitlines()[1:]
    reference = Reference(load_target(smollm2_target), view_of(folder / "eagle1"), ["fc-bias-dropped"])
    found = [step for row in map(json.loads, lines)
             for step in reference.trace(row["prompt_ids"], row["output_ids"], TreeShape.chain(k), 48, (2,))
             if not step.truncated]
    assert abs(len(found) - steps) <= 2
    assert 1 + sum(step.accepted for step in found) / len(found) == pytest.approx(1 + accepted / steps, abs=2e-3)
