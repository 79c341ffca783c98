"""A draft of any readable layout as engines take it: exactly what ``convert`` would write, without writing it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from eagle_convert import dialects
from eagle_convert.compaction import Item, Plan, plan
from eagle_convert.errors import CompactionError, DialectError
from eagle_convert.pairing import open_target
from eagle_convert.source import HubOptions, Source, open_source
from eagle_convert.tensors import TensorIndex

from .weights import Weights

if TYPE_CHECKING:
    from torch import Tensor

    from eagle_runtime.views import DraftView


@dataclass(frozen=True)
class OpenDraft:
    """A draft's view, and where it came from."""

    source: Source
    view: DraftView


def open_draft(ref: str, weights: Weights, *, revision: str | None, hub: HubOptions) -> OpenDraft:
    """Open a draft for the target in ``weights``.

    Norms are read as ``convert --norms auto`` reads them; tables that are in the file are used as they are.

    Raises DialectError for a file that is no draft or one that cannot be run, CompactionError where the file leaves its
    function open: which flag of ``convert`` decides is said.
    """
    from eagle_runtime.views import DraftView

    source = open_source(ref, revision=revision, hub=hub)
    index = dialects.open_draft(source)  # stays open: the view reads tensors from it
    spec = weights.target.spec
    reading = dialects.read(index, source, target_hidden_size=spec.hidden_size)
    reading.draft()
    if not reading.runnable:
        raise DialectError("this draft is read, but running it is not supported",
                           where=f"{source.name}: {reading.title}", how="'eagle-convert inspect' says what it is")
    decided = plan(reading, index)
    if decided.spec.vocab_size != spec.vocab_size:  # padding rows go, anything else is a misfit: the tables decide
        with closing(open_target(weights.source.ref, hub)) as target:
            decided = plan(reading, index, target)
    _refuse_undecided(decided)
    return OpenDraft(source, DraftView(decided.spec, {
        item.destination: partial(_load, index, item) for item in decided.items if item.destination is not None}))


def _load(index: TensorIndex, item: Item) -> Tensor:
    import torch

    if item.value is not None:
        return torch.from_numpy(item.value.copy())
    assert item.source is not None
    tensor = index.torch(item.source)
    return tensor if item.rows is None else tensor[torch.from_numpy(item.rows)].contiguous()


def _refuse_undecided(decided: Plan) -> None:
    if decided.errors:
        first = decided.errors[0]
        raise CompactionError(first.message, where=first.where,
                              how=f"convert it first, then check what was written: {first.fix}")
