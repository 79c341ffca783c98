"""Where a step's time goes: by stage and operator, as the profiler sees it. SmolLM2, EAGLE-1 head, float32, one stream.

    python bench/profile_step.py                chain K = 4 and tree 60/7/10
    python bench/profile_step.py --save         also writes bench/results/profile-<maker of the CPU>.json

``ms`` is an operator's own time a step. The profiler itself slows small operators down (the stage times say by how
much: ``unprofiled_ms`` is measured without it).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "runtime")]

import torch  # noqa: E402
from machine import describe  # noqa: E402
from torch.profiler import ProfilerActivity, profile, record_function  # noqa: E402

from eagle_convert.dialects import draft_view, read  # noqa: E402
from eagle_convert.source import open_source  # noqa: E402
from eagle_convert.tensors import open_index  # noqa: E402
from eagle_runtime.cpu import maker  # noqa: E402
from eagle_runtime.engine import SpeculativeEngine  # noqa: E402
from eagle_runtime.loader import load_draft, load_target  # noqa: E402
from eagle_runtime.pipeline import STAGES, Timings  # noqa: E402
from eagle_runtime.runners import Call, Runner  # noqa: E402
from fixtures.smollm2.build_target import target_folder  # noqa: E402
from runtime import SHAPES, prompts  # noqa: E402


class Marked(Runner):
    """Runs stages as they are, each under its name."""

    def wrap(self, key: Any, call: Call, addresses: Callable[[], Any]) -> Call:
        def run() -> None:
            with record_function(f"stage:{call.__name__}"):
                call()
        return run


def operators(event: Any, into: defaultdict[str, list[float]]) -> None:
    """Own time in us and calls of everything below ``event``."""
    for child in event.cpu_children:
        into[child.name][0] += child.self_cpu_time_total
        into[child.name][1] += 1
        operators(child, into)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="chain,tree")
    parser.add_argument("--num-prompts", type=int, default=4)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--top", type=int, default=16, help="operators of each stage to list")
    parser.add_argument("--save", action="store_true", help="write bench/results/profile-<maker>.json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    target = load_target(target_folder())
    source = open_source(str(ROOT / "fixtures" / "smollm2" / "eagle1"))
    index = open_index(source)
    draft = load_draft(draft_view(read(index, source), index), target)
    report: dict[str, Any] = {"machine": describe(ROOT), "maker": maker(), "torch": torch.__version__,
                              "threads": args.threads, "prompts": args.num_prompts, "shapes": {}}
    for name in args.shapes.split(","):
        engine = SpeculativeEngine(target, draft, SHAPES[name], runner=Marked(target.device))

        def generate(engine: SpeculativeEngine = engine) -> None:
            for prompt in prompts(args.num_prompts):
                engine.generate([prompt], 64, stop_ids=[2])

        generate()
        engine.timings = Timings()
        generate()
        plain = engine.timings
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            generate()
        rows: dict[str, Any] = {}
        for stage in STAGES:
            found = [event for event in profiler.events() if event.name == f"stage:{stage}"]
            times: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
            for event in found:
                operators(event, times)
            own = Counter({op: us for op, (us, _) in times.items()})
            rows[stage] = {
                "unprofiled_ms": round(getattr(plain, stage) / plain.steps * 1e3, 2),
                "ms": round(sum(event.cpu_time_total for event in found) / len(found) / 1e3, 2),
                "python_ms": round(sum(event.self_cpu_time_total for event in found) / len(found) / 1e3, 2),
                "operators": {op: f"{us / len(found) / 1e3:.3f} ms in {times[op][1] / len(found):.0f} calls"
                              for op, us in own.most_common(args.top)}}
        report["shapes"][name] = rows
    text = json.dumps(report, indent=1)
    print(text)
    if args.save:
        (ROOT / "bench" / "results" / f"profile-{maker() or 'unknown'}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
