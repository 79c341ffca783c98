"""What pins a run: which settings two runs must share before their numbers may be compared. Standard library only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from eagle_convert.errors import BrokenFileError, UsageError
from eagle_runtime.choices import CHOICES
from eagle_runtime.config import EagleRuntimeError, Sampling, TreeShape

DTYPES = ("float32", "float16", "bfloat16")
METHODS = ("eagle", "eagle3")
GREEDY = Sampling()
# the settings in which two runs must agree (contract, section 4), beside the prompts' ids and, sampling, the seed
COMPARED = ("method", "draft_tokens", "tree", "temperature", "top_p", "top_k", "max_new_tokens", "eos_token_ids")


@dataclass(frozen=True)
class Settings:
    """One run's settings, complete. The first block is compared between runs, the second says how it was run.

    Attributes:
        method: ``eagle`` (EAGLE-1/2) or ``eagle3``.
        shape: what one step drafts.
        max_new_tokens: y0 counts as one of them.
        sampling: temperature, top-p, top-k and seed.
        eos_token_ids: the stop tokens, sorted.
        dtype: of the weights and states (``float32``, ``float16``, ``bfloat16``).
        device, runner, lanes: how the bundled engine runs.
    """

    method: str
    shape: TreeShape
    max_new_tokens: int = 64
    sampling: Sampling = GREEDY
    eos_token_ids: tuple[int, ...] = ()
    dtype: str = "float32"
    device: str = "auto"
    runner: str = "auto"
    lanes: int = 1

    def document(self) -> dict[str, Any]:
        """All of it by its names in a trace file, for the report's ``settings`` and a trace's first line."""
        sampling = self.sampling
        return {"method": self.method, **shape_document(self.shape), "temperature": sampling.temperature,
                "top_p": sampling.top_p, "top_k": sampling.top_k, "seed": sampling.seed,
                "max_new_tokens": self.max_new_tokens, "eos_token_ids": sorted(self.eos_token_ids),
                "dtype": self.dtype, "device": self.device, "runner": self.runner, "lanes": self.lanes}


def shape_document(shape: TreeShape) -> dict[str, Any]:
    """``draft_tokens`` and ``tree`` as a trace file has them: one of the two is null."""
    if shape.is_chain:
        return {"draft_tokens": shape.drafts, "tree": None}
    if shape.choices is not None:
        return {"draft_tokens": None, "tree": {"choices": [list(path) for path in shape.choices]}}
    return {"draft_tokens": None, "tree": {"total_token": shape.total_token, "depth": shape.depth,
                                           "top_k": shape.top_k}}


def shape_from(draft_tokens: Any, tree: Any) -> TreeShape:
    """The shape that a trace's first line states; raises :class:`EagleRuntimeError` or ValueError.

    A tree of top-k 1 is a chain, whatever its depth leaves unused: both spellings become equal here.
    """
    if (draft_tokens is None) == (tree is None):
        raise ValueError("exactly one of draft_tokens and tree is given, the other is null")
    if tree is None:
        return TreeShape.chain(_whole(draft_tokens, "draft_tokens"))
    if not isinstance(tree, Mapping):
        raise ValueError(f"tree is {json.dumps(tree)}, expected an object")
    if "choices" in tree:
        choices = tree["choices"]
        if not isinstance(choices, list) or not all(isinstance(p, list) for p in choices):
            raise ValueError("tree.choices is no list of paths")
        return TreeShape.static([[_whole(rank, "a rank of tree.choices") for rank in path] for path in choices])
    return dynamic_shape(*(_whole(tree.get(key), f"tree.{key}") for key in ("total_token", "depth", "top_k")))


def dynamic_shape(total_token: int, depth: int, top_k: int) -> TreeShape:
    """The dynamic tree NODES,DEPTH,TOPK; with top-k 1 the chain that it is."""
    shape = TreeShape.dynamic(total_token, depth, top_k)
    return TreeShape.chain(shape.drafts) if top_k == 1 else shape


def _whole(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} is {json.dumps(value)}, expected a whole number")
    return value


def parse_shape(draft_tokens: int | None, tree: str | None, tree_choices: str | None) -> TreeShape | None:
    """The shape that the command line asks for; None where it asks for none.

    Raises UsageError where more than one of the three is given or one of them makes no tree.
    """
    given = [flag for flag, value in (("--draft-tokens", draft_tokens), ("--tree", tree),
                                      ("--tree-choices", tree_choices)) if value is not None]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} exclude each other", where="what a step drafts",
                         how="give one of them")
    try:
        if draft_tokens is not None:
            return TreeShape.chain(draft_tokens)
        if tree is not None:
            return _parse_tree(tree)
        if tree_choices is not None:
            return TreeShape.static(_choices(tree_choices))
    except EagleRuntimeError as error:
        raise UsageError(error.what, where=f"{given[0]}: {error.where}", how=error.how) from error
    return None


def _parse_tree(text: str) -> TreeShape:
    parts = text.split(",")
    if len(parts) != 3 or not all(part.strip().isdecimal() for part in parts):
        raise UsageError("--tree takes three whole numbers", where=f"found {text!r}, expected NODES,DEPTH,TOPK",
                         how="for example --tree 60,7,10 (the official default; NODES counts the root)")
    return dynamic_shape(*(int(part) for part in parts))


def _choices(name: str) -> list[list[int]]:
    """A static tree: a name from the runtime's list, or a JSON file that holds the list of paths."""
    if name in CHOICES:
        return [list(path) for path in CHOICES[name]]
    path = Path(name)
    if not path.is_file():
        names = f"; named trees: {', '.join(CHOICES)}"
        raise UsageError("--tree-choices names no tree and no file", where=name,
                         how=f"give a JSON file with a list of paths, such as [[0], [1], [0, 0]]{names}")
    try:
        rows = json.loads(path.read_text("utf-8"))
        return [[_whole(rank, "a rank") for rank in row] for row in rows]
    except (ValueError, TypeError, RecursionError) as error:
        raise BrokenFileError("the tree list is not a JSON list of paths", where=f"{path.name}: {error}",
                              how="a path is a list of candidate ranks, such as [0, 0, 1]") from error


@dataclass(frozen=True)
class Difference:
    """One compared setting in which two runs differ."""

    key: str
    first: Any
    second: Any

    def __str__(self) -> str:
        return f"{self.key}: {json.dumps(self.first)} against {json.dumps(self.second)}"


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Difference]:
    """The compared settings (:data:`COMPARED`) in which two settings documents differ.

    The seed counts above temperature 0 only. ``system_prompt`` counts where both runs state it: it is in the prompts'
    ids too, but two reports hold digests of those, and the word says more.
    """
    keys = list(COMPARED)
    if first.get("temperature") or second.get("temperature"):
        keys.append("seed")
    if first.get("system_prompt") is not None and second.get("system_prompt") is not None:
        keys.append("system_prompt")
    return [Difference(key, first.get(key), second.get(key)) for key in keys if first.get(key) != second.get(key)]


def prompt_differences(first: Sequence[Sequence[int]], second: Sequence[Sequence[int]]) -> list[Difference]:
    """The prompts, compared row by row; the first row that differs stands for all."""
    if len(first) != len(second):
        return [Difference("prompts", len(first), len(second))]
    for row, (one, two) in enumerate(zip(first, second, strict=True)):
        if list(one) != list(two):
            return [Difference(f"prompt_ids of prompt {row}", list(one), list(two))]
    return []


def refuse(found: Sequence[Difference], first: str, second: str) -> NoReturn:
    """Unlike runs are not compared (exit 2): names every setting that differs with both values."""
    raise UsageError(f"{first} and {second} were not run with the same settings",
                     where="; ".join(map(str, found)), how="repeat one of them with the other's settings")


def digest(document: Any) -> str:
    """sha256 of a JSON document in its one canonical spelling."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
