"""A product of few rows with a weight that comes from memory: oneDNN's layout, MKL's, and rows of zeros below.

    python bench/products.py            SmolLM2's shapes and two larger ones
    python bench/products.py --save     also writes bench/results/products-<maker>.json

``eagle_runtime/cpu.py`` takes its choices from these numbers, and they differ by the CPU's maker. Every figure is GB/s
of weight bytes (best of several passes over 600 MB of different weights, more than most caches hold); 2 MB pages where
the kernel gives them. Use an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "runtime")]

import torch  # noqa: E402
from machine import describe  # noqa: E402
from roofline import bandwidth, best  # noqa: E402
from torch import Tensor  # noqa: E402

from eagle_runtime import huge_pages  # noqa: E402
from eagle_runtime.cpu import maker  # noqa: E402

SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536), (49152, 576), (2048, 2048), (4096, 4096))
ROWS = (1, 4, 5, 10, 26, 60, 120, 240)
NBYTES = 600_000_000


def measure(shape: tuple[int, int], rows: int, repeats: int) -> dict[str, float]:
    """GB/s of weight bytes by layout."""
    count = max(2, NBYTES // (4 * shape[0] * shape[1]))
    weights = [torch.randn(shape) for _ in range(count)]
    plain = [torch.ops.mkldnn._reorder_linear_weight(w) for w in weights]
    for packed in plain:
        huge_pages.collapse(torch.ops.mkldnn.data_ptr(packed), packed.numel() * 4)
    like = torch.zeros(1).expand(shape)

    def one_dnn(x: Tensor) -> Callable[[], None]:
        def run() -> None:
            for weight in plain:
                torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
        return run

    x = torch.randn(1, rows, shape[1])
    runs = {"onednn": one_dnn(x)}
    if rows < 4:
        runs["onednn, padded to 4 rows"] = one_dnn(torch.randn(1, 4, shape[1]))
    if torch.backends.mkl.is_available():
        reordered = [torch.ops.mkl._mkl_reorder_linear_weight(w, rows) for w in weights]

        def mkl() -> None:
            for weight in reordered:
                torch.ops.mkl._mkl_linear(x, weight, like, None, rows)
        runs["mkl"] = mkl
    nbytes = 4 * shape[0] * shape[1] * count
    return {name: round(nbytes / best(run, torch.device("cpu"), repeats + 1) / 1e9, 1) for name, run in runs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--save", action="store_true", help="write bench/results/products-<maker>.json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    table = {}
    for shape in SHAPES:
        for rows in ROWS:
            key = f"{shape[0]} x {shape[1]}, {rows} rows"
            table[key] = measure(shape, rows, args.repeats)
            print(key, table[key], flush=True)
    result = {"machine": describe(ROOT), "maker": maker(), "torch": torch.__version__, "threads": args.threads,
              "read_gb_per_s": round(bandwidth(torch.device("cpu")) / 1e9, 1), "gb_per_s": table}
    if args.save:
        path = ROOT / "bench" / "results" / f"products-{maker() or 'unknown'}.json"
        path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
