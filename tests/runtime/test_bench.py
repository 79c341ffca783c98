"""The scripts behind the numbers: the GPU one runs on a CPU with a tiny shape, and bounds are what they say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from eagle_runtime.config import TreeShape
from eagle_runtime.layers import Linear
from eagle_runtime.tree import grower
from tests.runtime.pairs import ROOT, pair

sys.path.insert(0, str(ROOT / "bench"))

import roofline


def products(owner: object) -> list[torch.Tensor]:
    """Every weight of a product that hangs on ``owner``, once."""
    found, todo, seen = [], [owner], set()
    while todo:
        thing = todo.pop()
        if id(thing) in seen or (not hasattr(thing, "__dict__") and not isinstance(thing, (list, tuple))):
            continue
        seen.add(id(thing))
        if isinstance(thing, Linear):
            found.append(thing.weight)
        elif not isinstance(thing, torch.Tensor):
            todo += list(thing) if isinstance(thing, (list, tuple)) else [
                part for name, part in vars(thing).items() if name != "target"]
    return found


def test_a_steps_work_is_its_weights_once_a_pass() -> None:
    for head, shape in (("e1", TreeShape.chain(4)), ("e3", TreeShape.dynamic(12, 3, 3))):
        target, draft = pair("plant", head)
        plan = grower(shape, draft.spec.draft_vocab_size, torch.float32, torch.device("cpu"))
        step = roofline.step_products(target.spec, draft.spec, plan, 0)
        of_target, of_draft = (sum(w.numel() for w in products(m)) for m in (target, draft))
        fc = draft.fc.weight.numel()
        passes = 1 + len(plan.passes)
        if head == "e1":  # borrows the target's head, and fuses in every pass
            expected = of_target + passes * (of_draft + target.head_weight.numel())
        else:
            expected = of_target + passes * (of_draft - fc) + fc
        assert roofline.nbytes(step, 4) == 4 * expected
        one = roofline.step_products(target.spec, draft.spec, plan, 10)
        assert roofline.nbytes(one, 4) - roofline.nbytes(step, 4) == 4 * 10 * 2 * 32 * (8 + passes)
        assert [part.rows for part in step] == [plan.deepest + 1, 1, *plan.passes, plan.nodes]
        assert step[-1].flops == 2 * plan.nodes * of_target


def test_rates_are_measured() -> None:
    cpu = torch.device("cpu")
    assert 1e8 < roofline.bandwidth(cpu, 1 << 20, 3) < 1e13
    assert 1e7 < roofline.product_rate(cpu, torch.float32, roofline.Products(5, ((64, 64),)), 3) < 1e14


def test_the_gpu_script_runs_on_a_cpu() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "runtime_gpu.py"), "--tiny", "--runners", "eager,graph", "--shapes",
         "chain", "--max-new-tokens", "20"], capture_output=True, text=True, check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"})
    chain = json.loads(done.stdout)["shapes"]["chain"]
    assert chain["eager"]["tokens_per_step"] == 5
    assert set(chain["eager"]["waits"].values()) == {0}
    assert (chain["graph"] == {"left_out": "the graph runner needs a CUDA device"}) != torch.cuda.is_available()


@pytest.mark.live
@pytest.mark.skipif("EAGLE_REPO" not in os.environ, reason="EAGLE_REPO names no checkout of the official repository")
def test_the_official_code_takes_the_same_steps_on_these_weights(engine_python: Callable[[str], Path]) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "runtime_gpu.py"), "--tiny", "--runners", "eager", "--max-new-tokens",
         "20", "--official-python", str(engine_python("official"))], capture_output=True, text=True, check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"})
    for name, accepted in (("chain", 5), ("tree", 3)):
        result = json.loads(done.stdout)["shapes"][name]
        assert result["eager"]["tokens_per_step"] == accepted
        assert result["official"]["tokens"] == accepted * result["official"]["steps"]
