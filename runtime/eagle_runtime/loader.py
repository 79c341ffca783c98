"""Folders -> targets and drafts, straight to device and dtype, tensor by tensor.

Everything that can be told from the headers is told before a weight is read: missing shards, missing or misshapen
tensors, and whether it all fits.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from .compact import spec_from_compact, tensor_shapes
from .config import EagleRuntimeError
from .draft import Draft
from .faults import STRUCTURAL, apply_faults
from .pairing import check_names
from .target import LlamaTarget, Target, short
from .target_spec import UnsupportedTarget, target_spec, target_tensors
from .views import DraftView
from .weights import FLOATS, Entry, bare, entries, read_config, reader

log = logging.getLogger("eagle_runtime")

def free_bytes(device: torch.device | str) -> int | None:
    """Memory free on a device; None where the system does not say (then nothing is refused)."""
    device = torch.device(device)
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None
    try:  # a container may have less than the machine
        group = Path("/sys/fs/cgroup")
        limit, used = (int((group / f).read_text()) for f in ("memory.max", "memory.current"))
        return min(free, limit - used)
    except (OSError, ValueError):
        return free


def check_room(needed: int, device: torch.device | str, what: str) -> None:
    """Raise before anything is loaded when ``needed`` bytes do not fit."""
    free = free_bytes(device)
    if free is not None and needed > free:
        raise EagleRuntimeError(
            f"{what} does not fit on {device}", where=f"{needed:,} bytes needed, {free:,} found free",
            how="use a 16-bit --dtype or another --device, or measure a deployment instead: "
                "parity-check --engine vllm, or --engine server:URL")


def load_target(folder: str | Path, *, dtype: torch.dtype | None = None, device: torch.device | str = "cpu",
                pack: bool = True) -> Target:
    """A target from a folder (``config.json`` and safetensors, single or sharded; or ``pytorch_model.bin``).

    Args:
        folder: as transformers writes it; names may carry ``model.`` / ``language_model.`` prefixes.
        dtype: to run in; None: the file's, but float32 on a CPU.
        device: where.
        pack: reorder weights for oneDNN where possible (fp32 on a CPU).

    Models that our decoder does not run go through transformers (``Target.notes`` says so). Raises
    :class:`EagleRuntimeError` before reading any weight when shards or tensors are missing or misshapen, or when the
    weights do not fit the device.
    """
    config = read_config(folder)
    try:
        spec = target_spec(config)
    except UnsupportedTarget as refusal:
        from .hf_target import load_transformers_target

        size = torch.empty((), dtype=dtype or (torch.float32 if torch.device(device).type == "cpu" else torch.float16)
                           ).element_size()
        check_room(sum(prod(entry.shape) for entry in entries(folder).values()) * size, device, "the target")
        target = load_transformers_target(folder, dtype=dtype, device=device, why=refusal)
        log.warning("%s", target.notes[0])
        return target
    table = {bare(name): entry for name, entry in entries(folder).items()}
    if "lm_head.weight" not in table and not spec.tie_word_embeddings:
        raise EagleRuntimeError("the target has no head", where=f"{folder}: no lm_head.weight, and config.json says "
                                "tie_word_embeddings is false", how="fetch every shard, or correct the config")
    want = target_tensors(spec)
    missing = sorted(want.keys() - table.keys())
    if missing:
        raise EagleRuntimeError("tensors of the target are missing",
                                where=f"{folder}: {len(missing)} of {len(want)}, such as {', '.join(missing[:4])}",
                                how="download the folder again, or check that config.json belongs to these weights")
    wrong = [n for n in want if table[n].shape != want[n]]
    if wrong:
        raise EagleRuntimeError(
            "a tensor of the target has another shape than config.json says",
            where=f"{table[wrong[0]].file.name}: {table[wrong[0]].name}: found {list(table[wrong[0]].shape)}, expected "
                  f"{list(want[wrong[0]])}" + (f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""),
            how="check that config.json belongs to these weights")
    device = torch.device(device)
    dtype = dtype or _default_dtype(table["embed_tokens.weight"], device)
    size = torch.empty((), dtype=dtype).element_size()
    needed = sum(prod(shape) for shape in want.values()) * size
    if spec.tie_word_embeddings and pack and device.type == "cpu" and dtype == torch.float32:
        needed += prod(want["embed_tokens.weight"]) * size  # the table for look-ups, and its reordered copy as the head
    check_room(needed, device, f"the target in {short(dtype)}")
    with torch.no_grad():
        return LlamaTarget(spec, reader(table, dtype, device), dtype=dtype, device=device, pack=pack)


def _default_dtype(entry: Entry, device: torch.device) -> torch.dtype:
    if device.type == "cpu":
        return torch.float32
    if entry.code not in FLOATS:
        raise EagleRuntimeError("the target's weights are of a dtype we do not run",
                                where=f"{entry.file.name}: {entry.name} is {entry.code}",
                                how=f"give --dtype, or weights in one of {', '.join(FLOATS)}")
    return FLOATS[entry.code]


def view_of_compact(folder: str | Path) -> DraftView:
    """A compact folder (contract section 2) as a :class:`DraftView`; nothing is read but the headers."""
    table = entries(folder)
    spec = spec_from_compact(read_config(folder), {name: entry.shape for name, entry in table.items()})
    get = reader(table, None, "cpu")
    return DraftView(spec, {name: partial(get, name) for name in table})


def load_draft(source: str | Path | DraftView, target: Target, *, pack: bool = True,
               faults: Iterable[str] = ()) -> Draft:
    """A draft on ``target``, in its dtype and on its device.

    Args:
        source: a compact folder, or a :class:`DraftView` of any layout.
        target: what :func:`load_target` gave.
        pack: see :class:`~eagle_runtime.layers.Linear`.
        faults: known faults to switch on (``faults.py``).

    Raises :class:`EagleRuntimeError` for tensors that are not those of the spec, :class:`PairingError` for a target
    that does not fit.
    """
    view = source if isinstance(source, DraftView) else view_of_compact(source)
    names = frozenset(faults)
    if names:
        view = apply_faults(names, view, target)

    check_names(view)
    want = tensor_shapes(view.spec)

    def get(name: str) -> Tensor:
        tensor = view.tensors[name]()
        if tuple(tensor.shape) != want[name]:
            raise EagleRuntimeError("a tensor of the draft has another shape than its description",
                                    where=f"{name}: found {list(tensor.shape)}, expected {list(want[name])}",
                                    how="convert the source again with `eagle-convert convert`")
        tensor = tensor.to(target.device)
        return tensor.to(target.dtype) if tensor.is_floating_point() else tensor

    with torch.no_grad():
        return Draft(view.spec, get, target, pack=pack, faults=names & STRUCTURAL)
