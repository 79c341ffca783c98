"""Small checkpoints written by tests: a folder of a config and one safetensors file, and what reading it gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from eagle_convert import dialects
from eagle_convert.dialects import Reading
from eagle_convert.source import open_source
from fixtures.formats import safetensors_bytes

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "fixtures"

Tensors = dict[str, np.ndarray]


def load(name: str) -> tuple[dict[str, Any], Tensors]:
    """(config, tensors) of a bundled checkpoint, for a test to change."""
    folder = FIXTURES / name
    source = open_source(str(folder))
    with dialects.open_draft(source) as index:
        return json.loads((folder / "config.json").read_text()), {name: index.array(name) for name in index}


def write(folder: Path, config: Any, tensors: Tensors, **files: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    for name, data in files.items():
        (folder / name.replace("__", ".")).write_bytes(data)
    return folder


def read(folder: Path, **hints: Any) -> Reading:
    source = open_source(str(folder))
    with dialects.open_draft(source) as index:
        return dialects.read(index, source, **hints)


def ids(reading: Reading) -> set[str]:
    return {finding.id for finding in reading.findings}


def found(reading: Reading, id: str) -> Any:
    """The one finding with this id."""
    hits = [finding for finding in reading.findings if finding.id == id]
    assert len(hits) == 1, f"{id}: {[finding.id for finding in reading.findings]}"
    return hits[0]
