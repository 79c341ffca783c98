"""``runtime.py``'s worker: our own runtime. Adds the time of each stage and a step's time without the prefill."""

from __future__ import annotations

import sys
from pathlib import Path

from worker import job, measure

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "runtime")]

import torch  # noqa: E402

from eagle_convert.dialects import draft_view, read  # noqa: E402
from eagle_convert.source import open_source  # noqa: E402
from eagle_convert.tensors import open_index  # noqa: E402
from eagle_runtime.config import TreeShape  # noqa: E402
from eagle_runtime.engine import SpeculativeEngine  # noqa: E402
from eagle_runtime.loader import load_draft, load_target  # noqa: E402
from eagle_runtime.pipeline import Timings  # noqa: E402


def main() -> None:
    work = job()
    torch.set_num_threads(work["threads"])
    target = load_target(work["target"])
    source = open_source(work["head"])
    index = open_index(source)
    draft = load_draft(draft_view(read(index, source), index), target)
    shape = (TreeShape.chain(work["total_token"] - 1) if work["top_k"] == 1
             else TreeShape.dynamic(work["total_token"], work["depth"], work["top_k"]))
    engine = SpeculativeEngine(target, draft, shape, runner=work["runner"])
    prompts = 0

    def generate(prompt: list[int]) -> tuple[int, int]:
        nonlocal prompts
        prompts += 1
        if prompts == 3:  # the two before were to warm up; ``measure`` has no fewer
            engine.timings = Timings()
        (output,) = engine.generate([prompt], work["max_new_tokens"], stop_ids=work["stop_ids"])
        return len(output.steps), len(output.output_ids)

    measure(work, generate, runner=engine.stats.name, version=torch.__version__,
            step_ms=lambda: {name: round(getattr(engine.timings, name) / engine.timings.steps * 1e3, 3)
                             for name in ("draft", "verify", "accept", "total")})


main()
