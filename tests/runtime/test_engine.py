"""The engine: PLANT's known acceptance, the contract's counting, lanes, stop rules, limits and errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from eagle_runtime import prefill as prefill_module
from eagle_runtime.choices import CHOICES
from eagle_runtime.config import EagleRuntimeError, Sampling, TreeShape
from eagle_runtime.engine import Output, SpeculativeEngine
from eagle_runtime.loader import load_target
from eagle_runtime.target import Target
from tests.runtime.pairs import FIXTURES, ROOT, pair, plant_prompts
from tests.runtime.rig import Rig

CHAIN4 = TreeShape.chain(4)


def acceptance_length(outputs: list[Output]) -> float:
    steps = [step for output in outputs for step in output.steps if not step.truncated]
    return 1 + sum(step.accepted for step in steps) / len(steps)


@torch.no_grad()
def greedy(target: Target, prompt: list[int], n: int) -> list[int]:
    """The target alone, without a cache."""
    ids = list(prompt)
    for _ in range(n):
        hidden = target.forward_full(torch.tensor(ids)).hidden
        ids.append(int(target.head(hidden[-1:]).argmax()))
    return ids[len(prompt):]


def counts(outputs: list[Output]) -> list[tuple[list[int], list[int]]]:
    return [(output.output_ids, [step.accepted for step in output.steps]) for output in outputs]


@pytest.mark.parametrize("k", [1, 2, 4, 5])
@pytest.mark.parametrize("head", ["e1", "e1b", "e3"])
def test_plant_accepts_everything(head: str, k: int) -> None:
    target, draft = pair("plant", head)
    outputs = SpeculativeEngine(target, draft, TreeShape.chain(k)).generate(plant_prompts(6), 48)
    assert acceptance_length(outputs) == k + 1
    for prompt, output in zip(plant_prompts(6), outputs, strict=True):
        assert output.prompt_ids == prompt
        assert output.output_ids == greedy(target, prompt, len(output.output_ids))


@pytest.mark.parametrize(("head", "on", "shape", "low", "high"), [
    ("e3", "tgt_tuned", CHAIN4, 2.8, 3.4), ("e1", None, TreeShape.static(CHOICES["mc_sim_7b_63"]), 6, 6),
    ("e3", None, TreeShape.dynamic(60, 7, 10), 8.9, 9), ("e1b", None, TreeShape.static([(0,), (0, 0), (1,)]), 3, 3)])
def test_plant_numbers(head: str, on: str | None, shape: TreeShape, low: float, high: float) -> None:
    target, draft = pair("plant", head, on=on)
    outputs = SpeculativeEngine(target, draft, shape).generate(plant_prompts(16), 48)
    assert low <= acceptance_length(outputs) <= high
    assert outputs[3].output_ids == greedy(target, outputs[3].prompt_ids, len(outputs[3].output_ids))


@pytest.mark.parametrize(("fault", "head", "expected"), [
    ("token-shift", "e1", 1.0), ("residual-lost", "e1", 1.01), ("fc-bias-dropped", "e1b", 1.0),
    ("stale-kv", "e3", 5.0)])
def test_faults_show_what_plant_says(fault: str, head: str, expected: float) -> None:
    target, draft = pair("plant", head, faults=(fault,))
    outputs = SpeculativeEngine(target, draft, CHAIN4).generate(plant_prompts(8), 48)
    assert acceptance_length(outputs) == pytest.approx(expected, abs=0.03)


def test_stale_kv_on_a_tree_points_to_the_reference() -> None:
    target, draft = pair("plant", "e1", faults=("stale-kv",))
    with pytest.raises(EagleRuntimeError, match="on chains only") as caught:
        SpeculativeEngine(target, draft, TreeShape.dynamic())
    assert "--engine reference" in caught.value.how


def test_a_tree_that_contains_the_chain_never_accepts_less() -> None:
    """From every root of the tree's run, a chain drafted there accepts no more."""
    target, draft = pair("plant", "e3", on="tgt_tuned")
    paths = [(0,) * n for n in range(1, 5)] + [(1,), (0, 1), (1, 0)]
    tree = SpeculativeEngine(target, draft, TreeShape.static(paths))
    chain = SpeculativeEngine(target, draft, CHAIN4)
    more = 0
    for output in tree.generate(plant_prompts(4), 40):
        root = 0
        for step in output.steps:
            (alone,) = chain.generate([output.prompt_ids + output.output_ids[:root]], 1)
            assert step.accepted >= alone.steps[0].accepted
            assert alone.output_ids[0] == step.tokens[0]
            more += step.accepted - alone.steps[0].accepted
            root += step.emitted
    assert more >= 0


def test_counting_is_the_contracts() -> None:
    target, draft = pair("plant", "e1")
    engine = SpeculativeEngine(target, draft, CHAIN4)
    (output,) = engine.generate(plant_prompts(1), 18, stop_ids=())
    # roots 0, 5, 10, 15: a step counts if root + k + 1 < 18
    assert [(s.proposed, s.accepted, s.emitted) for s in output.steps] == [(4, 4, 5)] * 4
    assert [s.truncated for s in output.steps] == [False, False, False, True]
    assert [s.matches for s in output.steps] == [[True] * 4] * 4
    assert output.output_ids == [t for s in output.steps for t in s.tokens]
    assert len(output.output_ids) == 20
    assert output.text_ids == output.output_ids[:18]
    assert engine.timings.steps == 3
    assert engine.timings.untimed == 1, "the first step is watched for synchronising operations"
    assert engine.timings.total > 0
    assert engine.stats.host_syncs == 0


def test_matches_are_known_behind_a_refusal() -> None:
    target, draft = pair("plant", "e3", on="tgt_tuned")
    steps = [s for o in SpeculativeEngine(target, draft, CHAIN4).generate(plant_prompts(16), 48) for s in o.steps]
    for step in steps:
        assert step.matches is not None
        assert [*step.matches, False].index(False) == step.accepted
    assert any(True in step.matches[step.accepted + 1:] for step in steps if step.matches)


def test_a_stop_token_ends_a_prompt_with_the_step_that_brings_it_out() -> None:
    target, draft = pair("plant", "e1")
    engine = SpeculativeEngine(target, draft, CHAIN4)
    (free,) = engine.generate(plant_prompts(1), 40, stop_ids=())
    for at in (0, 3, 5, 12):
        (output,) = engine.generate(plant_prompts(1), 40, stop_ids=[free.output_ids[at]])
        assert len(output.steps) == at // 5 + 1
        assert output.output_ids == free.output_ids[:(at // 5 + 1) * 5]
        assert [s.truncated for s in output.steps] == [False] * (at // 5) + [True]
        assert output.text_ids == free.output_ids[:at + 1]


def test_stop_ids_default_to_the_targets() -> None:
    target, draft = pair("plant", "e1")
    (free,) = SpeculativeEngine(target, draft, CHAIN4).generate(plant_prompts(1), 40)
    target.spec = replace(target.spec, eos_token_ids=(free.output_ids[7],))
    (output,) = SpeculativeEngine(target, draft, CHAIN4).generate(plant_prompts(1), 40)
    assert output.text_ids == free.output_ids[:8]


@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize("shape", [CHAIN4, TreeShape.dynamic(26, 5, 8)], ids=["chain", "tree"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.9, seed=5)], ids=["greedy", "sampled"])
def test_lanes_and_lag_change_nothing(sampling: Sampling, shape: TreeShape, pipelined: bool) -> None:
    """Ten prompts of other lengths that stop at other times: the same tokens and steps in 1 and 8 lanes."""
    target, draft = pair("plant", "e3", on="tgt_tuned")
    prompts = [p[:n % 9 + 1] + p for n, p in enumerate(plant_prompts(10))]
    one = SpeculativeEngine(target, draft, shape, sampling=sampling)
    right = counts(one.generate(prompts, 24, stop_ids=[75, 104]))
    many = SpeculativeEngine(target, draft, shape, sampling=sampling, lanes=8, pipelined=pipelined)
    assert counts(many.generate(prompts, 24, stop_ids=[75, 104])) == right
    assert counts(many.generate(prompts[:2], 24, stop_ids=[75, 104])) == right[:2]  # and again on used lanes


def test_sampling_of_one_candidate_is_greedy() -> None:
    target, draft = pair("plant", "e3", on="tgt_tuned")
    right = counts(SpeculativeEngine(target, draft, CHAIN4).generate(plant_prompts(4), 32))
    one = SpeculativeEngine(target, draft, CHAIN4, sampling=Sampling(1.0, top_k=1))
    assert counts(one.generate(plant_prompts(4), 32)) == right


def test_seeds_make_runs() -> None:
    target, draft = pair("plant", "e3", on="tgt_tuned")

    def run(seed: int) -> list[list[int]]:
        engine = SpeculativeEngine(target, draft, CHAIN4, sampling=Sampling(20.0, seed=seed))
        return [o.output_ids for o in engine.generate(plant_prompts(2) * 2, 12)]

    assert run(1) == run(1)
    assert run(1) != run(2)
    assert run(1)[0] != run(1)[2]  # the same prompt twice is two draws


def test_steps_stream_one_prompt() -> None:
    target, draft = pair("plant", "e3", on="tgt_tuned")
    engine = SpeculativeEngine(target, draft, CHAIN4)
    seen: list[int] = []
    (whole,) = engine.generate(plant_prompts(1), 24, on_step=lambda number, step: seen.append(number))
    assert seen == [0] * len(whole.steps)
    assert list(engine.steps(plant_prompts(1)[0], 24)) == whole.steps
    # an iterator that is dropped half way leaves the engine ready
    half = engine.steps(plant_prompts(1)[0], 24)
    next(half)
    with pytest.raises(EagleRuntimeError, match="already generating"):
        engine.generate(plant_prompts(1), 24)
    half.close()
    assert engine.generate(plant_prompts(1), 24)[0].steps == whole.steps


def test_text_needs_a_tokenizer() -> None:
    class Letters:
        def encode(self, text: str) -> list[int]:
            return [ord(c) for c in text]

    target, draft = pair("plant", "e1")
    with pytest.raises(EagleRuntimeError, match="has no tokenizer"):
        SpeculativeEngine(target, draft).generate(["abc"])
    (output,) = SpeculativeEngine(target, draft, tokenizer=Letters()).generate(["abc"], 5)
    assert output.prompt_ids == [97, 98, 99]


def test_caches_grow_by_bucket_and_prompts_outgrow_the_drafts_window() -> None:
    """A prompt of 702 tokens on a draft trained for 512 positions, after a short one on the same engine."""
    target, draft = pair("plant", "e3")
    target.spec = replace(target.spec, max_position_embeddings=2048)
    engine = SpeculativeEngine(target, draft, CHAIN4)
    assert acceptance_length(engine.generate(plant_prompts(1), 20)) == 5
    assert engine._caches is not None
    before = engine._caches[0].capacity
    long = plant_prompts(1)[0] * 78
    outputs = engine.generate([long], 24)
    assert (before, engine._caches[0].capacity) == (64, 1024)
    assert acceptance_length(outputs) == 5
    assert outputs[0].output_ids == greedy(target, long, 25)


def test_prefill_in_chunks_fills_the_same_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = pair("rand", "e3narrow")
    whole = Rig(target, draft, CHAIN4, plant_prompts(1))
    for size in (1, 4, 9):
        monkeypatch.setattr(prefill_module, "CHUNK", size)
        parts = Rig(target, draft, CHAIN4, plant_prompts(1))
        for mine, other, n in ((parts.target_cache, whole.target_cache, 9), (parts.draft_cache, whole.draft_cache, 8)):
            assert torch.allclose(mine.k[:, 0, :, :n], other.k[:, 0, :, :n], atol=1e-6)
            assert torch.allclose(mine.v[:, 0, :, :n], other.v[:, 0, :, :n], atol=1e-6)
        assert torch.allclose(parts.buffers.pending_states, whole.buffers.pending_states, atol=1e-5)


def test_a_prompt_of_one_token() -> None:
    target, draft = pair("plant", "e3")
    start = plant_prompts(1)[0][-1:]
    (output,) = SpeculativeEngine(target, draft, CHAIN4).generate([start], 20)
    assert output.output_ids == greedy(target, start, 20)


@pytest.mark.parametrize(("prompts", "limit", "what", "where"), [
    ([[5], []], 4, "a prompt is empty", "prompt 1"),
    ([[5, 320]], 4, "not in the target's vocabulary", "prompt 0, token 1: id 320, vocabulary 320"),
    ([[5, -1]], 4, "not in the target's vocabulary", "id -1"),
    ([[5] * 500], 13, "longer than the target's limit", "500 + 13 tokens, the target ends at 512"),
    ([[5]], 0, "0 new tokens", "max_new_tokens 0")])
def test_input_that_cannot_be_run(prompts: list[list[int]], limit: int, what: str, where: str) -> None:
    target, draft = pair("plant", "e1")
    engine = SpeculativeEngine(target, draft)
    with pytest.raises(EagleRuntimeError, match=what) as caught:
        engine.generate(prompts, limit)
    assert where in caught.value.where
    assert caught.value.how
    assert engine.generate(plant_prompts(1), 5)  # and goes on working


def test_lanes_must_hold_a_prompt() -> None:
    target, draft = pair("plant", "e1")
    with pytest.raises(EagleRuntimeError, match="0 lanes"):
        SpeculativeEngine(target, draft, lanes=0)


def test_chain_of_none() -> None:
    with pytest.raises(EagleRuntimeError, match="drafts nothing"):
        TreeShape.chain(0)


def test_states_that_are_not_finite_name_the_layer() -> None:
    target, draft = pair("plant", "e1")
    target.blocks[3].post_norm.weight[0] = float("nan")  # type: ignore[attr-defined]
    with pytest.raises(EagleRuntimeError, match="layer 3 output nan in fp32"):
        SpeculativeEngine(target, draft).generate(plant_prompts(1), 8)


def test_a_draft_that_is_not_finite_is_named() -> None:
    target, draft = pair("plant", "e3")
    draft.blocks[0].post_norm.weight.fill_(float("inf"))
    with pytest.raises(EagleRuntimeError, match="the draft's states are not finite in fp32") as caught:
        SpeculativeEngine(target, draft).generate(plant_prompts(1), 8)
    assert "prompt 0, step 0, position 9" in caught.value.where


def test_no_prompts_no_output() -> None:
    target, draft = pair("plant", "e1")
    assert SpeculativeEngine(target, draft).generate([]) == []


def test_the_readmes_example_runs_as_pasted(monkeypatch: pytest.MonkeyPatch,
                                            capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    code = (ROOT / "runtime" / "README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    assert len([line for line in code.splitlines() if line]) == 9
    exec(compile(code, "README.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("[4, 4, 4, 4]")
    assert len(lines) == 5


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0)])
@pytest.mark.parametrize("shape", [CHAIN4, TreeShape.dynamic(8, 2, 3)])
@pytest.mark.parametrize("row", [7, slice(None)])
def test_logits_that_are_not_finite_are_told_though_the_states_are(sampling: Sampling, shape: TreeShape,
                                                                   row: int | slice) -> None:
    target, draft = pair("plant", "e1")
    target.lm_head.weight[row].fill_(float("nan"))  # type: ignore[attr-defined]
    with pytest.raises(EagleRuntimeError, match="target logits non-finite") as caught:
        SpeculativeEngine(target, draft, shape, sampling=sampling).generate(plant_prompts(1), 8)
    assert "id " in caught.value.where


def test_logits_that_stop_being_finite_inside_a_step_are_told() -> None:
    target, draft = pair("plant", "e1")
    engine = SpeculativeEngine(target, draft, CHAIN4)
    steps = engine.steps(plant_prompts(1)[0], 40)
    next(steps)
    target.lm_head.weight[9].fill_(float("inf"))  # type: ignore[attr-defined]
    with pytest.raises(EagleRuntimeError, match="target logits non-finite"):
        list(steps)


def test_a_seed_may_be_any_integer_of_64_bits() -> None:
    target, draft = pair("plant", "e1")
    for seed in (1764500000000000000, 2**63 - 1):
        engine = SpeculativeEngine(target, draft, CHAIN4, sampling=Sampling(1.0, seed=seed))
        assert len(engine.generate(plant_prompts(1), 8)[0].text_ids) == 8


def test_an_error_while_lanes_are_cleared_does_not_lock_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = pair("plant", "e1")
    engine = SpeculativeEngine(target, draft, CHAIN4)
    with monkeypatch.context() as patch:
        patch.setattr(engine._buffers, "idle", lambda lane: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.generate(plant_prompts(1), 8)
    assert engine.generate(plant_prompts(1), 8)


def test_a_draft_belongs_to_the_target_it_was_loaded_on() -> None:
    _, draft = pair("plant", "e1")
    other = load_target(FIXTURES / "plant" / "tgt", dtype=torch.bfloat16)
    with pytest.raises(EagleRuntimeError, match="another target") as caught:
        SpeculativeEngine(other, draft, CHAIN4)
    assert "bf16" in caught.value.where


@pytest.mark.parametrize("prompts", ["text", [1, 2, 3]])
def test_one_prompt_is_not_a_list_of_prompts(prompts: Any) -> None:
    target, draft = pair("plant", "e1")
    with pytest.raises(EagleRuntimeError, match="a list of prompts"):
        SpeculativeEngine(target, draft, CHAIN4).generate(prompts, 8)
