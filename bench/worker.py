"""A worker of ``runtime.py`` or ``runtime_gpu.py``: how it is launched, and what its side shares. Any Python >= 3.10.

The job is a JSON file: ``target, head, method, total_token, depth, top_k, prompts (token ids), max_new_tokens,
stop_ids, threads, repo, runner, eager, result``. The result, written to the file ``job["result"]``, holds ``steps,
tokens, seconds`` over all prompts in turn (prefill included) and whatever the worker adds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Job = dict[str, Any]
Generate = Callable[[list[int]], tuple[int, int]]  # prompt ids -> steps, tokens


def launch(engine: str, python: Path, work: Job) -> dict[str, Any]:
    """Run ``worker_<engine>.py`` in its interpreter; its result, or the last lines of what went wrong."""
    here = Path(__file__).resolve().parent
    with tempfile.TemporaryDirectory(prefix="bench-runtime-") as folder:
        work = {**work, "result": str(Path(folder) / "result.json")}
        file = Path(folder) / "job.json"
        file.write_text(json.dumps(work))
        env = {**os.environ, "OMP_NUM_THREADS": str(work["threads"]), "PYTHONPATH": str(here)}
        print(f"{engine} …", file=sys.stderr, flush=True)
        done = subprocess.run([str(python), str(here / f"worker_{engine}.py"), str(file)], env=env,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            return {"failed": done.stderr.strip().splitlines()[-5:], "exit_code": done.returncode}
        result: dict[str, Any] = json.loads(Path(work["result"]).read_text())
        return result


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
