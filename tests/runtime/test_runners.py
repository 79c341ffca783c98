"""Runners: every one gives the eager tokens. CUDA's own tests are marked ``gpu``."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from eagle_runtime.choices import CHOICES
from eagle_runtime.config import EagleRuntimeError, Sampling, TreeShape
from eagle_runtime.engine import SpeculativeEngine
from eagle_runtime.loader import load_draft, load_target
from eagle_runtime.runners import Call, RecordedRunner, Runner, check_addresses, make_runner
from tests.runtime.pairs import FIXTURES, pair, plant_prompts, view

SHAPES = {"chain": (TreeShape.chain(4), Sampling()), "tree": (TreeShape.dynamic(26, 5, 8), Sampling()),
          "static": (TreeShape.static(CHOICES["mc_sim_7b_63"]), Sampling()),
          "sampled": (TreeShape.dynamic(12, 3, 3), Sampling(0.8, top_p=0.95, seed=3))}


def run(engine: SpeculativeEngine, prompts: list[list[int]]) -> list[tuple[list[int], list[int]]]:
    return [(g.output_ids, [s.accepted for s in g.steps]) for g in engine.generate(prompts, 40)]


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_recorded_graph_drives_whole_generations(shape: str, lanes: int) -> None:
    """Recorded on one prompt, replayed on others of other lengths with other accept counts: the eager tokens."""
    target, draft = pair("plant", "e3", on="tgt_tuned")
    kind, sampling = SHAPES[shape]
    prompts = [p + p[:n] for n, p in enumerate(plant_prompts(6))]
    eager = SpeculativeEngine(target, draft, kind, sampling=sampling, lanes=lanes, runner="eager")
    runner = RecordedRunner(target.device, debug=True)
    frozen = SpeculativeEngine(target, draft, kind, sampling=sampling, lanes=lanes, runner=runner)
    right = run(eager, prompts[:1]), run(eager, prompts)
    assert run(frozen, prompts[:1]) == right[0]
    recorded = runner.captured
    assert recorded
    assert run(frozen, prompts) == right[1]
    assert frozen.stats.replays > 10 * frozen.stats.graphs_captured
    assert len({accepted for _, counts in right[1] for accepted in counts}) > 1


class Capturing(RecordedRunner):
    """Does with the recorder what the graph runner does with CUDA: warms up, records over idle lanes, then replays."""

    ahead = True

    def __init__(self, device: torch.device) -> None:
        super().__init__(device, debug=True)
        self.keys: list[Any] = []

    def wrap(self, key: Hashable, call: Call, addresses: Callable[[], Mapping[str, int]]) -> Call:
        self.keys.append(key)
        call()
        call()
        run = super().wrap(key, call, addresses)
        run()
        return run


@pytest.mark.parametrize("shape", SHAPES)
def test_stages_captured_ahead_over_idle_lanes_drive_generations(shape: str) -> None:
    target, draft = pair("plant", "e3", on="tgt_tuned")
    kind, sampling = SHAPES[shape]
    prompts = [p + p[:n] for n, p in enumerate(plant_prompts(5))]
    right = run(SpeculativeEngine(target, draft, kind, sampling=sampling, lanes=3, runner="eager"), prompts)
    runner = Capturing(target.device)
    engine = SpeculativeEngine(target, draft, kind, sampling=sampling, lanes=3, runner=runner, pipelined=True)
    assert run(engine, prompts) == right
    assert engine.stats.graphs_captured == len(runner.keys)
    slots = [slots for _, slots, stage in runner.keys if stage == "draft"]
    assert slots == sorted(slots, reverse=True)  # the largest first: smaller graphs fit into its memory
    assert [lanes for lanes, _, stage in runner.keys if stage == "draft"][:3] == [3, 2, 1]
    captured = len(runner.keys)
    assert run(engine, prompts) == right
    assert len(runner.keys) == captured


def test_compiled_gives_the_eager_tokens() -> None:
    """On packed weights, as they are loaded; a target of one layer keeps the compiler's time short."""
    target = load_target(FIXTURES / "plant" / "tgt_tuned")
    target.spec = replace(target.spec, num_layers=1)
    draft = load_draft(view(FIXTURES / "plant" / "e1"), target)
    prompts = plant_prompts(3)
    right = run(SpeculativeEngine(target, draft, TreeShape.chain(2), runner="eager"), prompts)
    engine = SpeculativeEngine(target, draft, TreeShape.chain(2), runner="compiled")
    assert run(engine, prompts) == right
    assert engine.stats.name == "compiled"


def test_graph_without_cuda_says_why() -> None:
    target, draft = pair("plant", "e1")
    with pytest.raises(EagleRuntimeError, match="needs a CUDA device") as caught:
        SpeculativeEngine(target, draft, runner="graph")
    assert "device cpu" in caught.value.where
    assert "--runner eager" in caught.value.how


def test_unknown_runner_names_the_known() -> None:
    with pytest.raises(EagleRuntimeError, match="no runner is called 'fast'") as caught:
        make_runner("fast", torch.device("cpu"))
    assert "auto, eager, compiled, graph" in caught.value.how


def test_auto_on_a_cpu_is_eager() -> None:
    assert type(make_runner("auto", torch.device("cpu"))) is Runner


def test_addresses_are_compared_by_name() -> None:
    check_addresses("k", {"a": 1, "b": 2}, {"a": 1, "b": 2})
    with pytest.raises(EagleRuntimeError) as caught:
        check_addresses("k", {"a": 1, "b": 2}, {"a": 1, "b": 3})
    assert caught.value.where == "stage k: b"


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES)
def test_graph_equals_eager_on_a_gpu(shape: str) -> None:
    """Same tokens, and after the same steps the same bits in every buffer."""
    target = load_target(FIXTURES / "plant" / "tgt_tuned", dtype=torch.float32, device="cuda")
    draft = load_draft(view(FIXTURES / "plant" / "e3"), target)
    kind, sampling = SHAPES[shape]
    prompts = [p + p[:n] for n, p in enumerate(plant_prompts(6))]
    engines = [SpeculativeEngine(target, draft, kind, sampling=sampling, lanes=3, runner=name, debug=True)
               for name in ("eager", "graph")]
    assert run(engines[0], prompts) == run(engines[1], prompts)
    stats = engines[1].stats
    assert stats.graphs_captured
    assert stats.replays
    assert stats.host_syncs == 0
    first, second = (engine._buffers.tensors() for engine in engines)
    for name in first:
        assert torch.equal(first[name], second[name]), name


def test_steps_that_are_watched_recorded_or_compiled_are_not_timed() -> None:
    target, draft = pair("plant", "e1")
    engine = SpeculativeEngine(target, draft, TreeShape.chain(4), runner=RecordedRunner(target.device))
    (output,) = engine.generate(plant_prompts(1), 30, stop_ids=())  # 9 + 35 tokens and what a step reaches: one bucket
    assert engine.timings.untimed == 2, "the first is watched, the second is recorded"
    assert engine.timings.steps == len(output.steps) - 2
