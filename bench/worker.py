"""What the workers of ``runtime.py`` share: a job in, one stream of prompts timed, a result out. Any Python >= 3.10.

The job is a JSON file: ``target, head, method, total_token, depth, top_k, prompts (token ids), max_new_tokens,
stop_ids, threads, repo, runner, eager, result``. The result, written to the file ``job["result"]``, holds ``steps,
tokens, seconds`` over all prompts in turn (prefill included) and whatever the worker adds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Job = dict[str, Any]
Generate = Callable[[list[int]], tuple[int, int]]  # prompt ids -> steps, tokens


def job() -> Job:
    loaded: Job = json.loads(Path(sys.argv[1]).read_text())
    return loaded


def measure(job: Job, generate: Generate, **more: Any) -> None:
    """Time ``generate`` prompt by prompt, after two that are not counted, and write the result."""
    for prompt in job["prompts"][:2]:
        generate(prompt)
    rows = []
    for prompt in job["prompts"]:
        start = time.perf_counter()
        steps, tokens = generate(prompt)
        rows.append((steps, tokens, time.perf_counter() - start))
    steps, tokens, seconds = (sum(column) for column in zip(*rows, strict=True))
    Path(job["result"]).write_text(json.dumps({
        "steps": steps, "tokens": tokens, "seconds": round(seconds, 4), "ms_per_step": round(seconds / steps * 1e3, 2),
        "steps_per_second": round(steps / seconds, 3), "tokens_per_second": round(tokens / seconds, 3),
        **{name: value() if callable(value) else value for name, value in more.items()}}))
