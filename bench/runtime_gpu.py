"""Step time of the bundled runtime on a GPU: Llama-3-8B shapes in bfloat16; eager, compiled, and CUDA graphs of both.

    python bench/runtime_gpu.py                       chain K = 4 and tree 60/7/10, one stream
    python bench/runtime_gpu.py --lanes 8 --save      also writes bench/results/runtime_gpu.json
    python bench/runtime_gpu.py --tiny                a tiny shape, on a CPU too: the script itself is what is tested
    EAGLE_REPO=path python bench/runtime_gpu.py --official-python .engines/official/bin/python
                                                      the official implementation too, on the same weights (one lane)

The weights are PLANT's (``plant_weights.py``), made on the device. Nothing is downloaded.

Given beside each step time: the bytes a step must move over the bandwidth measured here, and the calls that make the
host wait inside a step, as the profiler sees them (there must be none; closing the profiler itself waits once).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "runtime")]

import torch  # noqa: E402
from machine import describe  # noqa: E402
from plant_weights import Plant, specs  # noqa: E402
from roofline import bandwidth, nbytes, step_products  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402
from worker import launch  # noqa: E402

from eagle_runtime.config import EagleRuntimeError, TreeShape  # noqa: E402
from eagle_runtime.draft import Draft  # noqa: E402
from eagle_runtime.engine import SpeculativeEngine  # noqa: E402
from eagle_runtime.pipeline import Timings  # noqa: E402
from eagle_runtime.runners import CompiledRunner, GraphRunner  # noqa: E402
from eagle_runtime.target import LlamaTarget  # noqa: E402
from eagle_runtime.tree import grower  # noqa: E402

SHAPES = {"chain": TreeShape.chain(4), "tree": TreeShape.dynamic(60, 7, 10)}
BUDGET = 1.2
#: What makes the host wait, by the names the profiler gives.
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "aten::item",
         "aten::_local_scalar_dense", "aten::nonzero")


def measure(engine: SpeculativeEngine, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
    """A step's time by stage, over whole generations; the first is to warm up (and to compile or capture)."""
    begin = time.perf_counter()
    engine.generate(prompts, tokens, stop_ids=())
    first = time.perf_counter() - begin
    engine.timings = Timings()
    begin = time.perf_counter()
    outputs = engine.generate(prompts, tokens, stop_ids=())
    seconds = time.perf_counter() - begin
    t = engine.timings
    steps = [s for o in outputs for s in o.steps]
    return {"step_ms": round(t.total / t.steps * 1e3, 4), "steps": t.steps,
            "stages_ms": {n: round(getattr(t, n) / t.steps * 1e3, 4) for n in ("draft", "verify", "accept")},
            "tokens_per_second": round(sum(s.emitted for s in steps) / seconds, 1),
            "tokens_per_step": round(sum(s.emitted for s in steps) / len(steps), 3), "first_run_s": round(first, 1),
            "runner": vars(engine.stats)}


def waits(engine: SpeculativeEngine) -> dict[str, int]:
    """Calls that make the host wait inside steps, by name: ten steps over idle lanes, launched without reading."""
    _, calls = next(iter(engine._ready.values()))
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if engine.target.device.type == "cuda" else [])
    with torch.no_grad(), profile(activities=activities) as profiler:
        for _ in range(10):
            for call in calls:
                call()
    seen = {event.key: event.count for event in profiler.key_averages()}
    return {name: seen.get(name, 0) for name in WAITS}


def official(args: argparse.Namespace, shape: TreeShape, device: torch.device, dtype: torch.dtype,
             prompt: list[int]) -> dict[str, Any]:
    """The official implementation's steps, each with its share of the prefill, on the same weights."""
    if args.lanes > 1:
        return {"left_out": "it has one lane"}
    if not (args.official_python and args.eagle_repo):
        return {"left_out": "say --official-python and --eagle-repo (EAGLE_REPO)"}
    return launch("official_gpu", args.official_python, {
        "repo": args.eagle_repo, "tiny": args.tiny, "device": str(device), "dtype": str(dtype).removeprefix("torch."),
        "total_token": shape.total_token, "depth": shape.depth, "top_k": shape.top_k, "prompts": [prompt] * 3,
        "max_new_tokens": args.max_new_tokens, "threads": torch.get_num_threads()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a tiny shape, on the CPU where there is no GPU")
    parser.add_argument("--shapes", default="chain,tree")
    parser.add_argument("--runners", default="eager,compiled,graph,graph-compiled")
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=64, help="tokens of each prompt")
    parser.add_argument("--max-new-tokens", type=int, default=256)
    parser.add_argument("--official-python", type=Path, help="an interpreter with torch and transformers 4.53.1")
    parser.add_argument("--eagle-repo", default=os.environ.get("EAGLE_REPO"), help="a checkout of SafeAILab/EAGLE")
    parser.add_argument("--save", action="store_true", help="write bench/results/runtime_gpu.json")
    args = parser.parse_args()
    if not torch.cuda.is_available() and not args.tiny:
        raise SystemExit("no CUDA device here; --tiny runs this script on a CPU with a tiny shape")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    target_spec, draft_spec = specs(args.tiny)
    with torch.no_grad():
        weights = Plant(target_spec, device, dtype)
        target = LlamaTarget(target_spec, weights.target, dtype=dtype, device=device)
        draft = Draft(draft_spec, weights.draft, target)
    prompts = [[int(t) for t in torch.randint(3, target_spec.vocab_size, (args.prompt,)).tolist()]
               for _ in range(args.lanes)]
    speed = bandwidth(device, 1 << (20 if args.tiny else 30))
    report: dict[str, Any] = {
        "machine": describe(ROOT), "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": torch.__version__, "dtype": str(dtype), "lanes": args.lanes, "tiny": args.tiny,
        "gb_per_s": round(speed / 1e9, 1), "shapes": {}}
    for name in args.shapes.split(","):
        shape = SHAPES[name]
        plan = grower(shape, draft_spec.draft_vocab_size, dtype, device)
        moved = nbytes(step_products(target_spec, draft_spec, plan,
                                     (args.prompt + args.max_new_tokens // 2) * args.lanes), dtype.itemsize)
        rows: dict[str, Any] = {"bytes": moved, "bytes_ms": round(moved / speed * 1e3, 4)}
        for runner in args.runners.split(","):
            try:
                chosen = GraphRunner(device, inner=CompiledRunner(device)) if runner == "graph-compiled" else runner
                engine = SpeculativeEngine(target, draft, shape, runner=chosen, lanes=args.lanes)
                rows[runner] = measure(engine, prompts, args.max_new_tokens)
            except EagleRuntimeError as error:
                rows[runner] = {"left_out": str(error).splitlines()[0]}
                continue
            rows[runner]["over_bytes"] = round(rows[runner]["step_ms"] / rows["bytes_ms"], 3)
            rows[runner]["waits"] = waits(engine)
        rows["official"] = official(args, shape, device, dtype, prompts[0])
        for runner in args.runners.split(","):
            if "step_ms" in rows[runner] and "ms_per_step" in rows["official"]:
                rows[runner]["steps over official"] = round(
                    rows["official"]["ms_per_step"] / rows[runner]["step_ms"], 3)
        report["shapes"][name] = rows
    report["budget"] = {"a graph, chain, one lane: over_bytes": BUDGET}
    print(json.dumps(report, indent=1))
    if args.save:
        path = ROOT / "bench" / "results" / "runtime_gpu.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
