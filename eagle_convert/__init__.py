"""Inspect, convert and prove EAGLE speculative-decoding drafts.

The four commands are functions here with the same semantics as on the command line; each raises
:class:`EagleConvertError` (fields ``what``, ``where``, ``how``, ``exit_code``). Importing this package costs
the standard library only; torch is imported when tensors are touched.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__
from .errors import EagleConvertError

if TYPE_CHECKING:
    from .conversion import convert
    from .hub.push import push_to_hub
    from .inspection import inspect
    from .parity.check import parity_check

__all__ = ["EagleConvertError", "__version__", "convert", "inspect", "parity_check", "push_to_hub"]

_HOMES = {"inspect": "inspection", "convert": "conversion", "parity_check": "parity.check", "push_to_hub": "hub.push"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module("." + _HOMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
