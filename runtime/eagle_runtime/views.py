"""A draft as the runtime takes it, whatever layout it came from. Importing it does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .config import DraftSpec

if TYPE_CHECKING:
    from torch import Tensor

Read = Callable[[], "Tensor"]


@dataclass(frozen=True)
class DraftView:
    """A draft's description, and its tensors by canonical name (contract section 2), read on demand on the CPU."""

    spec: DraftSpec
    tensors: Mapping[str, Read]
