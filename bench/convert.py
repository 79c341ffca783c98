"""Time and memory of ``convert``, and what the quick commands cost to start.

    python bench/convert.py                          2.6 GB Llama-3-8B-shaped legacy folder (8 GB of disk)
    python bench/convert.py --shape llama-3-70b      6.2 GB
    python bench/convert.py --format bin             the same as a torch.save file
    python bench/convert.py --save                   also writes bench/results/convert.json

The folder is a head as old scripts left it: the target's embedding and lm_head beside the core, float16, wrapped
config. ``convert --target`` must find both tables equal to the target's and keep the core alone. Measured in turn, on
a warm page cache: the conversion, and as its yardstick ``cp`` of its output + ``sha256sum`` of every source and
compared byte + ``sync``. The same with ``openssl dgst`` is given beside it, since coreutils does not use the CPU's
SHA instructions everywhere. Peak anonymous memory is sampled from ``/proc/PID/status``. CPU seconds (user + system)
stand beside the wall clock's: they tell a busy machine from slow code. Start-up ratios are of the quickest runs.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "runtime")]

from machine import describe  # noqa: E402

from eagle_convert.source import open_source  # noqa: E402
from eagle_convert.tensors import open_index  # noqa: E402
from eagle_convert.writer import OutTensor, write_folder  # noqa: E402

BUDGETS = {"convert": 1.25, "help": 1.6, "inspect": 3.0, "peak_rss_anon_mb": 350}
PYTHON_PATH = {"PYTHONPATH": f"{ROOT}:{ROOT / 'runtime'}"}


@dataclass(frozen=True)
class Shape:
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocab: int
    layers: int

    @property
    def config(self) -> dict[str, object]:
        return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
                "hidden_size": self.hidden, "intermediate_size": self.intermediate, "rms_norm_eps": 1e-5,
                "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "rope_theta": 500000.0,
                "vocab_size": self.vocab, "max_position_embeddings": 8192, "torch_dtype": "float16"}

    @property
    def core(self) -> dict[str, tuple[int, ...]]:
        """The tensors that a compact EAGLE-1 head keeps."""
        h, kv = self.hidden, self.hidden // self.heads * self.kv_heads
        layer = {"self_attn.q_proj.weight": (h, h), "self_attn.k_proj.weight": (kv, h),
                 "self_attn.v_proj.weight": (kv, h), "self_attn.o_proj.weight": (h, h),
                 "mlp.gate_proj.weight": (self.intermediate, h), "mlp.up_proj.weight": (self.intermediate, h),
                 "mlp.down_proj.weight": (h, self.intermediate), "post_attention_layernorm.weight": (h,)}
        return {"fc.weight": (h, 2 * h)} | {f"layers.0.{name}": shape for name, shape in layer.items()}


SHAPES = {"llama-3-8b": Shape(4096, 14336, 32, 8, 128256, 32), "llama-3-70b": Shape(8192, 28672, 64, 8, 128256, 80),
          "llama-2-7b": Shape(4096, 11008, 32, 32, 32000, 32), "tiny": Shape(64, 160, 4, 2, 320, 8)}


def numbers(shape: tuple[int, ...], seed: int) -> Iterator[memoryview]:
    """Finite float16 below 2 in magnitude, little time: one random block, rotated by an odd step each time."""
    block = (np.random.default_rng(seed).integers(0, 1 << 16, 4 << 20, np.uint16) & 0xBFFF).astype("<u2")
    left, turn = int(np.prod(shape)), 0
    while left:
        piece = np.roll(block, turn)[:left]
        yield piece.view(np.uint8).data
        left, turn = left - len(piece), turn + 40961


def make_inputs(folder: Path, shape: Shape) -> tuple[Path, Path]:
    """The legacy draft folder, and a target of two shards that holds the two tables (and no decoder layers)."""
    table, norm = (shape.vocab, shape.hidden), (shape.hidden,)
    seeds = {name: i for i, name in enumerate(shape.core)}

    def out(name: str, size: tuple[int, ...], seed: int) -> OutTensor:
        return OutTensor(name, "F16", size, partial(numbers, size, seed))

    core = [out(name, size, seeds[name]) for name, size in shape.core.items()]
    tables = [out("embed_tokens.weight", table, 100), out("lm_head.weight", table, 101)]
    wrapped = {"model_type": "eagle", "architectures": ["EAGLEModel"],
               "model": shape.config | {"num_hidden_layers": 1, "bias": False}}
    write_folder(folder / "draft", core + tables, {"config.json": json.dumps(wrapped).encode()})
    target = [out("model.embed_tokens.weight", table, 100), out("lm_head.weight", table, 101),
              out("model.norm.weight", norm, 102)]
    write_folder(folder / "target", target, {"config.json": json.dumps(
        shape.config | {"num_hidden_layers": shape.layers}).encode()}, max_shard_size=shape.vocab * shape.hidden * 2)
    return folder / "draft", folder / "target"


def as_bin(draft: Path) -> None:
    """Rewrite the draft's weights with ``torch.save``; the tensors stay mapped, so this takes little memory."""
    import torch
    from safetensors.torch import load_file

    torch.save(load_file(draft / "model.safetensors"), draft / "pytorch_model.bin")
    (draft / "model.safetensors").unlink()


class Timer:
    """Wall and CPU seconds of the child processes in a ``with`` block, collected over several blocks."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []

    def __enter__(self) -> None:
        self._start = time.perf_counter(), self._children()

    def __exit__(self, *_: object) -> None:
        self.wall.append(time.perf_counter() - self._start[0])
        self.cpu.append(self._children() - self._start[1])

    @staticmethod
    def _children() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    def report(self) -> dict[str, float]:
        return {"median": round(statistics.median(self.wall), 4), "min": round(min(self.wall), 4),
                "max": round(max(self.wall), 4), "cpu_median": round(statistics.median(self.cpu), 4)}


def run(command: list[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=PYTHON_PATH, cwd="/")
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed ({done.returncode}):\n{done.stdout}{done.stderr}")


def run_watched(command: list[str | Path]) -> tuple[float, str]:
    """Peak anonymous resident memory in MB, and stdout."""
    with tempfile.TemporaryFile("w+") as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, text=True, env=PYTHON_PATH, cwd="/")
        peak = [0]
        watcher = threading.Thread(target=_watch, args=(child, peak))
        watcher.start()
        errors = child.stderr.read() if child.stderr else ""
        code = child.wait()
        watcher.join()
        if code:
            raise SystemExit(f"{' '.join(map(str, command))} failed ({code}):\n{errors}")
        out.seek(0)
        return peak[0] / 1000, out.read()


def _watch(child: subprocess.Popen[str], peak: list[int]) -> None:
    while child.poll() is None:
        try:
            status = Path(f"/proc/{child.pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return
        for line in status.splitlines():
            if line.startswith("RssAnon:"):
                peak[0] = max(peak[0], int(line.split()[1]))
        time.sleep(0.002)


def yardstick(folder: Path, made: Path, read: list[Path], digest: list[str], timer: Timer) -> None:
    """Copy what was made, digest what was read, flush the copy."""
    copy = folder / "copy"
    with timer:
        for command in (["cp", "-r", made, copy], [*digest, *read], ["sync"]):
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(copy)


def bench_convert(folder: Path, draft: Path, target: Path, shape: Shape, repeats: int) -> dict[str, object]:
    """Conversion and yardstick in turn, each from a quiet disk and a warm cache."""
    dest = folder / "compact"
    read = sorted([*draft.glob("*.safetensors"), *draft.glob("*.bin"), *target.glob("*.safetensors")])
    command = [sys.executable, "-m", "eagle_convert", "convert", draft, dest, "--target", target, "--json"]
    ours, peaks = Timer(), []
    theirs = {name: Timer() for name in ("sha256sum", "openssl dgst -sha256") if shutil.which(name.split()[0])}
    for path in read:
        subprocess.run(["cat", path], check=True, stdout=subprocess.DEVNULL)
    for _ in range(repeats):
        shutil.rmtree(dest, ignore_errors=True)
        subprocess.run(["sync"], check=True)
        with ours:
            peak, stdout = run_watched(command)
        peaks.append(peak)
        for name, timer in theirs.items():
            subprocess.run(["sync"], check=True)
            yardstick(folder, dest, read, name.split(), timer)
    with open_index(open_source(str(dest))) as index:
        written, names = index.nbytes, sorted(index)
    wanted = sum(2 * int(np.prod(size)) for size in shape.core.values())
    if written != wanted or names != sorted(shape.core) or json.loads(stdout)["bytes"]["destination"] != wanted:
        raise SystemExit(f"the output holds {written} bytes of tensors, {wanted} expected: {', '.join(names)}")
    ratios = {name: {"wall": round(statistics.median(ours.wall) / statistics.median(timer.wall), 3),
                     "cpu": round(statistics.median(ours.cpu) / statistics.median(timer.cpu), 3)}
              for name, timer in theirs.items()}
    return {"source_bytes": draft_bytes(draft), "read_bytes": sum(p.stat().st_size for p in read),
            "output_tensor_bytes": written, "seconds": ours.report(),
            "yardstick_seconds": {name: timer.report() for name, timer in theirs.items()},
            "ratio": ratios, "budget_ratio": BUDGETS["convert"],
            "peak_rss_anon_mb": round(max(peaks), 1), "budget_rss_anon_mb": BUDGETS["peak_rss_anon_mb"]}


def draft_bytes(draft: Path) -> int:
    with open_index(open_source(str(draft))) as index:
        return index.nbytes


def bench_start(draft: Path, repeats: int) -> dict[str, object]:
    """``--help`` and ``inspect`` against an interpreter that imports click, taken in turn."""
    commands: dict[str, list[str | Path]] = {
        "import click": [sys.executable, "-c", "import click"],
        "help": [sys.executable, "-m", "eagle_convert", "--help"],
        "inspect": [sys.executable, "-m", "eagle_convert", "inspect", draft, "--json"]}
    timers = {name: Timer() for name in commands}
    for _ in range(repeats):
        for name, command in commands.items():
            with timers[name]:
                run(command)
    base = timers["import click"]
    return {"seconds": {name: timer.report() for name, timer in timers.items()},
            "ratio": {name: round(min(timers[name].wall) / min(base.wall), 3) for name in ("help", "inspect")},
            "budget_ratio": {name: BUDGETS[name] for name in ("help", "inspect")}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="llama-3-8b")
    parser.add_argument("--format", choices=["safetensors", "bin"], default="safetensors")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--start-repeats", type=int, default=21)
    parser.add_argument("--dir", type=Path, help="where to make the folders (default: the temporary folder)")
    parser.add_argument("--save", action="store_true", help="add the result to bench/results/convert.json")
    args = parser.parse_args()
    shape = SHAPES[args.shape]
    with tempfile.TemporaryDirectory(prefix="bench-convert-", dir=args.dir) as made:
        folder = Path(made)
        draft, target = make_inputs(folder, shape)
        result = {"machine": describe(folder), "start": bench_start(draft, args.start_repeats)}
        if args.format == "bin":
            as_bin(draft)
        result["convert"] = bench_convert(folder, draft, target, shape, args.repeats)
    print(json.dumps(result, indent=1))
    if args.save:
        path = ROOT / "bench" / "results" / "convert.json"
        path.parent.mkdir(exist_ok=True)
        known = json.loads(path.read_text()) if path.exists() else {}
        known[f"{args.shape}, {args.format}"] = result
        path.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
