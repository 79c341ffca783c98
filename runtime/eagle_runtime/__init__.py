"""The speculative runtime of eagle-convert, usable by itself. See ``README.md`` beside this package.

Importing it costs the standard library only; names are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .config import DraftSpec, EagleRuntimeError, Sampling, TargetSpec, TreeShape

if TYPE_CHECKING:
    from .engine import SpeculativeEngine
    from .loader import load_draft, load_target
    from .records import Generation, Step

__all__ = ["DraftSpec", "EagleRuntimeError", "Generation", "Sampling", "SpeculativeEngine", "Step", "TargetSpec",
           "TreeShape", "load_draft", "load_target"]

_HOMES = {"load_target": "loader", "load_draft": "loader", "SpeculativeEngine": "engine",
          "Generation": "records", "Step": "records"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module("." + _HOMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
