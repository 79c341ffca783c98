"""Weight files of a folder: an index from their headers, and tensors from them one by one.

Safetensors are read straight to the device. Older targets (Vicuna) come as ``pytorch_model.bin``: read as weights only,
memory-mapped where the file allows it.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .config import EagleRuntimeError

PREFIXES = ("model.", "language_model.", "text_model.")
CODES = {torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32"}
FLOATS = {code: dtype for dtype, code in CODES.items()}


@dataclass(frozen=True)
class Entry:
    """A tensor in a folder: the file it is in, its name there, its shape and its dtype by safetensors' code."""

    file: Path
    name: str
    shape: tuple[int, ...]
    code: str


def read_config(folder: str | Path) -> dict[str, Any]:
    """``config.json`` of a folder, as a dict."""
    return _object(Path(folder) / "config.json", "give a folder with config.json")


def _object(path: Path, how: str) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise EagleRuntimeError(f"no readable {path.name}", where=f"{path}: {e.strerror}", how=how) from e
    except ValueError as e:
        raise EagleRuntimeError(f"{path.name} is not JSON", where=f"{path}: {e}", how="fetch the file again") from e
    if not isinstance(value, dict):
        raise EagleRuntimeError(f"{path.name} is not an object", where=str(path), how="fetch the file again")
    return value


def weight_files(folder: str | Path) -> list[Path]:
    """The files that hold a folder's weights: the shards of its index, or one file; safetensors before ``.bin``."""
    folder = Path(folder)
    for name, pattern in (("model.safetensors", "*.safetensors"), ("pytorch_model.bin", "pytorch_model.bin")):
        if (folder / f"{name}.index.json").is_file():
            return _shards(folder, f"{name}.index.json")
        if (folder / name).is_file():
            return [folder / name]
        if found := sorted(folder.glob(pattern)):
            return found
    raise EagleRuntimeError("no weights", where=f"{folder}: neither safetensors nor pytorch_model.bin",
                            how="give a folder with model.safetensors (save_pretrained writes one)")


def _shards(folder: Path, index: str) -> list[Path]:
    table = _object(folder / index, "fetch the index again").get("weight_map")
    names = sorted({str(name) for name in table.values()}) if isinstance(table, dict) else []
    outside = [name for name in names if Path(name).name != name]
    if not names or outside:
        raise EagleRuntimeError("the shard index names no files of its folder",
                                where=f"{folder / index}: weight_map {outside[:1] or 'is absent or empty'}",
                                how="fetch the index again")
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:
        raise EagleRuntimeError("shards are missing", where=f"{folder / index} names {', '.join(absent)}",
                                how="download the folder again; it is incomplete")
    return [folder / name for name in names]


def entries(folder: str | Path) -> dict[str, Entry]:
    """Name -> :class:`Entry` of every tensor of a folder, from headers (of a ``.bin``, its pickle without the data)."""
    found: dict[str, Entry] = {}
    for file in weight_files(folder):
        if file.suffix == ".bin":
            found |= {name: Entry(file, name, tuple(t.shape), CODES.get(t.dtype, str(t.dtype)))
                      for name, t in _read_bin(file).items()}
            continue
        try:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118  (not a dict)
                    part = opened.get_slice(name)
                    found[name] = Entry(file, name, tuple(part.get_shape()), part.get_dtype())
        except (SafetensorError, OSError) as e:
            raise EagleRuntimeError("not a readable safetensors file", where=f"{file}: {e}",
                                    how="download it again; it is truncated or of another format") from e
    return found


def _read_bin(file: Path) -> dict[str, Tensor]:
    try:
        tensors = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
    except (RuntimeError, OSError, EOFError, ValueError, pickle.UnpicklingError) as e:
        raise EagleRuntimeError("not a readable weight file", where=f"{file}: {str(e).splitlines()[0]}",
                                how="save it again as safetensors (save_pretrained does)") from e
    if not isinstance(tensors, dict):
        raise EagleRuntimeError("the weight file holds no table of tensors", where=str(file),
                                how="save the model's state_dict")
    return {name: t for name, t in tensors.items() if isinstance(t, Tensor)}


def reader(table: Mapping[str, Entry], dtype: torch.dtype | None,
           device: torch.device | str) -> Callable[[str], Tensor]:
    """name -> tensor on the device; floats in ``dtype`` (None: as stored). Each file is opened once."""
    opened: dict[Path, Callable[[str], Tensor]] = {}

    def get(name: str) -> Tensor:
        entry = table[name]
        if entry.file not in opened:
            opened[entry.file] = (_read_bin(entry.file).__getitem__ if entry.file.suffix == ".bin" else
                                  safe_open(entry.file, framework="pt", device=str(device)).get_tensor)
        tensor = opened[entry.file](entry.name).to(device)
        return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor

    return get


def bare(name: str) -> str:
    """A target tensor's name without ``model.``, ``language_model.`` and ``text_model.``, in any order."""
    while name.startswith(PREFIXES):
        name = name.split(".", 1)[1]
    return name
