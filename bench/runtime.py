"""Steps and tokens a second: the bundled runtime, the official implementation, vLLM, and plain greedy decoding.

    python bench/runtime.py                         SmolLM2, EAGLE-1 head, chain K = 4 and tree 60/7/10, one stream
    python bench/runtime.py --shapes chain --num-prompts 8
    python bench/runtime.py --save                  also writes bench/results/runtime-<maker of the CPU>.json

One run, one stream, float32 on a CPU, the same head, prompts and shapes for all; each engine in its own interpreter,
two prompts to warm up. They take turns (``--rounds``), since a shared machine is not the same from one minute to the
next; the bound is that of the round in which the machine was quickest. An engine whose interpreter is not there is left
out, and the result says so: ``make engines`` builds them, and EAGLE_REPO names a checkout of SafeAILab/EAGLE. vLLM has
no trees on this path.

Beside every time stands what bounds it (``roofline.py``), measured in the same run; ``profile_step.py`` says where a
step's time goes. Use an idle machine: the load average before and after is part of the result.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "runtime")]

import torch  # noqa: E402
from machine import describe  # noqa: E402
from roofline import bandwidth, nbytes, product_rate, step_products  # noqa: E402
from worker import launch  # noqa: E402

from eagle_convert.dialects import read  # noqa: E402
from eagle_convert.source import open_source  # noqa: E402
from eagle_convert.tensors import open_index  # noqa: E402
from eagle_runtime.config import TreeShape  # noqa: E402
from eagle_runtime.cpu import maker  # noqa: E402
from eagle_runtime.target_spec import target_spec  # noqa: E402
from eagle_runtime.tree import grower  # noqa: E402
from eagle_runtime.weights import read_config  # noqa: E402
from fixtures.smollm2.build_target import target_folder  # noqa: E402

SHAPES = {"chain": TreeShape.chain(4), "tree": TreeShape.dynamic(60, 7, 10)}
#: What design asks for: ours against each, steps a second; and a step's time against what bounds it.
BUDGETS = {"chain": {"official": 2.5, "vllm": 1.2, "bytes_ms": 1.5}, "tree": {"ms": 1.3}}


def prompts(count: int) -> list[list[int]]:
    """The bundled prompts as the traces render them."""
    from tokenizers import Tokenizer

    folder = ROOT / "fixtures" / "smollm2"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    rows = [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()][:count]
    texts = [row["prompt"] if "prompt" in row else row["turns"][0] for row in rows]
    return [tokenizer.encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n",
                             add_special_tokens=False).ids for text in texts]


def interpreters(args: argparse.Namespace) -> dict[str, tuple[Path, str | None]]:
    """Engine -> its Python, and why it cannot run (None: it can)."""
    found: dict[str, tuple[Path, str | None]] = {"bundled": (Path(sys.executable), None),
                                                 "transformers": (Path(sys.executable), None)}
    for name, python in (("official", args.official_python), ("vllm", args.vllm_python)):
        found[name] = python, None if python.is_file() else f"{python} is not there: make engines"
    if found["official"][1] is None and not args.eagle_repo:
        found["official"] = args.official_python, "EAGLE_REPO names no checkout of SafeAILab/EAGLE"
    return found


def bound(shape: TreeShape, args: argparse.Namespace, head: Path, target: Path) -> dict[str, float]:
    """What a step cannot be faster than, in ms.

    ``bytes_ms``: all its bytes over the bandwidth. ``ms``: the passes one after another, each the longer of its bytes
    over the bandwidth and its operations over the rate at its number of rows. ``verify_rate_ms``: the longer of all
    bytes over the bandwidth and all operations over the rate at the verified rows, as if ten rows were multiplied as
    quickly as sixty: nothing reaches that.
    """
    cpu = torch.device("cpu")
    source = open_source(str(head))
    draft = read(open_index(source), source).spec
    plan = grower(shape, draft.draft_vocab_size, torch.float32, cpu)
    step = step_products(target_spec(read_config(target)), draft, plan, args.context)
    speed, rates, seconds = bandwidth(cpu), {}, 0.0
    for part in step:
        key = part.rows, part.shapes
        if key not in rates:
            rates[key] = product_rate(cpu, torch.float32, part)
        seconds += max(nbytes([part], 4) / speed, part.flops / rates[key])
    flops, read_ms = sum(part.flops for part in step), nbytes(step, 4) / speed * 1e3
    rate = rates[step[-1].rows, step[-1].shapes]
    return {"bytes": nbytes(step, 4), "gb_per_s": round(speed / 1e9, 2), "flops": flops,
            "gflop_per_s": {rows: round(value / 1e9, 1) for (rows, _), value in rates.items()},
            "bytes_ms": round(read_ms, 2), "verify_rate_ms": round(max(read_ms, flops / rate * 1e3), 2),
            "ms": round(seconds * 1e3, 2)}


def merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """An engine's rounds as one, ``rounds_ms_per_step`` keeps them apart; one that did not run as it is."""
    lost = next((part for part in parts if "steps" not in part), None)
    if lost is not None:
        return lost
    steps, tokens, seconds = (sum(part[key] for part in parts) for key in ("steps", "tokens", "seconds"))
    row = {**parts[0], "steps": steps, "tokens": tokens, "seconds": round(seconds, 4),
           "ms_per_step": round(seconds / steps * 1e3, 2), "steps_per_second": round(steps / seconds, 3),
           "tokens_per_second": round(tokens / seconds, 3),
           "rounds_ms_per_step": [part["ms_per_step"] for part in parts]}
    if "step_ms" in row:
        row["step_ms"] = {key: round(sum(part["step_ms"][key] * part["steps"] for part in parts) / steps, 3)
                          for key in row["step_ms"]}
    return row


def compare(name: str, result: dict[str, Any]) -> dict[str, Any]:
    """Ours against the others, with the budget beside each ratio, and the least and the greatest of any round."""
    ours, out = result["engines"]["bundled"], {}
    for other, row in result["engines"].items():
        if other not in ("bundled", "transformers") and "steps_per_second" in row:
            rounds = [theirs / mine for mine, theirs in zip(
                ours["rounds_ms_per_step"], row["rounds_ms_per_step"], strict=True)]
            out[f"steps_per_second over {other}"] = {
                "ratio": round(ours["steps_per_second"] / row["steps_per_second"], 3),
                "rounds": [round(min(rounds), 3), round(max(rounds), 3)], "at_least": BUDGETS[name].get(other)}
    for key in ("bytes_ms", "ms", "verify_rate_ms"):
        ratio = ours["step_ms"]["total"] / result["bound"][key]
        out[f"step over bound.{key}"] = {"ratio": round(ratio, 3), "at_most": BUDGETS[name].get(key)}
    plain = result["engines"].get("transformers", {})
    if "tokens_per_second" in plain:
        out["tokens_per_second over plain greedy"] = {
            "ratio": round(ours["tokens_per_second"] / plain["tokens_per_second"], 3)}
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="chain,tree", help="chain, tree or both (default)")
    parser.add_argument("--engines", default="bundled,official,vllm,transformers")
    parser.add_argument("--num-prompts", type=int, default=48)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3, help="turns; each has its share of the prompts")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--runner", default="auto", help="ours: auto, eager or compiled")
    parser.add_argument("--context", type=int, default=64, help="committed positions that the bound assumes")
    parser.add_argument("--vllm-eager", action="store_true", help="vLLM without its compiler")
    engines = Path(os.environ.get("EAGLE_ENGINES") or ROOT / ".engines")
    parser.add_argument("--official-python", type=Path, default=engines / "official" / "bin" / "python")
    parser.add_argument("--vllm-python", type=Path, default=engines / "vllm" / "bin" / "python")
    parser.add_argument("--eagle-repo", default=os.environ.get("EAGLE_REPO"))
    parser.add_argument("--save", action="store_true", help="write bench/results/runtime-<maker>.json")
    args = parser.parse_args()
    for word, known in (("engines", interpreters(args)), ("shapes", SHAPES)):
        unknown = set(getattr(args, word).split(",")) - set(known)
        if unknown:
            parser.error(f"--{word}: no {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if not 1 <= args.rounds <= args.num_prompts // 2:
        parser.error(f"--rounds {args.rounds}: each needs two of the {args.num_prompts} prompts")
    torch.set_num_threads(args.threads)
    target, head = target_folder(), ROOT / "fixtures" / "smollm2" / "eagle1"
    texts = prompts(args.num_prompts)
    work = {"target": str(target), "head": str(head), "method": "eagle", "max_new_tokens": args.max_new_tokens,
            "stop_ids": [2], "threads": args.threads, "runner": args.runner, "repo": args.eagle_repo,
            "eager": args.vllm_eager}
    report: dict[str, Any] = {
        "machine": describe(ROOT), "maker": maker(), "torch": torch.__version__, "threads": args.threads,
        "prompts": len(texts), "max_new_tokens": args.max_new_tokens, "rounds": args.rounds, "shapes": {}}
    plain: dict[str, Any] = {}
    for name in args.shapes.split(","):
        shape = SHAPES[name]
        job = {**work, "total_token": shape.total_token, "depth": shape.depth, "top_k": shape.top_k}
        bounds, parts = [], {engine: [] for engine in interpreters(args) if engine in args.engines.split(",")}
        for turn in range(args.rounds):
            bounds.append(bound(shape, args, head, target))
            for engine, rows in parts.items():
                python, why = interpreters(args)[engine]
                if engine == "vllm" and name == "tree":
                    why = "no trees here"
                if engine == "transformers" and plain:
                    rows.append(plain)
                elif rows and "steps" not in rows[-1]:
                    continue
                else:
                    rows.append({"left_out": why} if why else launch(
                        engine, python, {**job, "prompts": texts[turn::args.rounds]}))
        result: dict[str, Any] = {
            "bound": min(bounds, key=lambda one: one["ms"]),
            "engines": {engine: rows[0] if rows[0] is plain else merged(rows) for engine, rows in parts.items()}}
        plain = result["engines"].get("transformers", {})
        if "steps_per_second" in result["engines"].get("bundled", {}):
            result["against"] = compare(name, result)
        report["shapes"][name] = result
    report["load_average_after"] = os.getloadavg()[0]
    print(json.dumps(report, indent=1))
    if args.save:
        path = ROOT / "bench" / "results" / f"runtime-{maker() or 'unknown'}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
