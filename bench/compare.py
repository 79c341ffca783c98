"""What comparing a draft's table with its target's costs, against reading both once.

    python bench/compare.py            two equal tables of 1.05 GB, [128256, 4096] float16 (2.1 GB of disk)
    python bench/compare.py --save     also writes bench/results/compare.json

"cold": the pages of both files are dropped before each run, so that both sides wait for the disk; "warm": the cache
holds them, and what is left is the comparison itself and, as ``convert`` wants it for the ledger, one SHA-256.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "runtime")]

from machine import describe  # noqa: E402

from eagle_convert.source import open_source  # noqa: E402
from eagle_convert.tables import Table, compare  # noqa: E402
from eagle_convert.tensors import open_index  # noqa: E402

ROWS, COLUMNS, BUDGET = 128256, 4096, 1.5


def make(folder: Path) -> list[Path]:
    table = np.random.default_rng(0).standard_normal((ROWS, COLUMNS), dtype=np.float32).astype(np.float16)
    files = [folder / name / "model.safetensors" for name in ("draft", "target")]
    for file in files:
        file.parent.mkdir()
        save_file({"embed_tokens.weight": table}, file, {"format": "pt"})
    return files


def drop(files: list[Path]) -> None:
    for file in files:
        with file.open("rb") as f:
            os.fsync(f.fileno())
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(files: list[Path]) -> None:
    buffer = bytearray(8 << 20)
    for file in files:
        with file.open("rb", buffering=0) as f:
            while f.readinto(buffer):
                pass


def compared(files: list[Path], digests: bool) -> None:
    tables = [Table(open_index(open_source(str(file))), "embed_tokens.weight") for file in files]
    result = compare(*tables, digests=digests)
    assert result.equal == "bits", "the two files hold the same table"


def seconds(run: Callable[[], None], before: Callable[[], None]) -> float:
    before()
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--save", action="store_true", help="write bench/results/compare.json")
    args = parser.parse_args()
    runs: dict[str, Callable[[list[Path]], None]] = {
        "read": read, "compare": lambda f: compared(f, False), "compare_and_sha256": lambda f: compared(f, True)}
    result: dict[str, object] = {"bytes": 2 * ROWS * COLUMNS * 2, "budget_ratio": BUDGET}
    with tempfile.TemporaryDirectory() as tmp:
        files = make(Path(tmp))
        result["machine"] = describe(tmp)
        for state, before in (("cold", lambda: drop(files)), ("warm", lambda: None)):
            read(files)
            times = [{name: seconds(lambda run=run: run(files), before) for name, run in runs.items()}
                     for _ in range(args.repeats)]
            result[state] = {
                "seconds": {name: round(statistics.median(t[name] for t in times), 3) for name in runs},
                "ratio": {name: round(statistics.median(t[name] / t["read"] for t in times), 2) for name in runs}}
    text = json.dumps(result, indent=1)
    print(text)
    if args.save:
        (ROOT / "bench" / "results" / "compare.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
