"""Checkpoints for tests: a change to a bundled one, written to a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fixtures import plant, rand
from fixtures.formats import json_bytes, safetensors_bytes, torch_bytes

Tensors = dict[str, NDArray[Any]]
Config = dict[str, Any]

PLANT = plant.checkpoints()
RAND = rand.checkpoints()


def checkpoint(name: str, family: str = "plant") -> tuple[Config, Tensors]:
    """A bundled checkpoint to change: its config and its tensors, both copied."""
    config, tensors = (PLANT if family == "plant" else RAND)[name]
    return dict(config), {key: value.copy() for key, value in tensors.items()}


def write(folder: Path, config: Mapping[str, Any] | None, tensors: Mapping[str, NDArray[Any]],
          file: str = "model.safetensors", **files: bytes) -> Path:
    """Write ``config.json`` and one weight file (``.bin`` as torch writes it); returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if config is not None:
        (folder / "config.json").write_bytes(json_bytes(config))
    ready = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    (folder / file).write_bytes(torch_bytes(ready) if file.endswith(".bin") else safetensors_bytes(ready))
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def bfloat16(values: NDArray[Any]) -> NDArray[np.uint16]:
    """float32 values that bfloat16 holds exactly, as its bit patterns."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    assert not (bits & 0xFFFF).any(), "not exactly bfloat16"
    return (bits >> 16).astype(np.uint16)
