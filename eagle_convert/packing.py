"""The destination's tensors: every kept one under the name it has there, and those the destination wants made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from eagle_runtime.config import DraftSpec

from .compaction import Item, Plan
from .dialects import compact, layouts
from .dialects.layouts import Layout, Made, Request
from .errors import UnfaithfulError
from .files.dtypes import DTYPES
from .opening import Opened
from .streams import Outgoing
from .vocab import ids_of, mask_of


@dataclass(frozen=True)
class Packed:
    """A row of the ledger: the tensor's fate, and how its bytes come out (None for a dropped one)."""

    item: Item
    out: Outgoing | None


@dataclass(frozen=True)
class Package:
    """A destination folder, decided: its config and its tensors. ``dtype`` is the code that the config names."""

    layout: Layout
    rows: tuple[Packed, ...]
    dtype: str

    @property
    def outgoing(self) -> dict[str, Outgoing]:
        """Name in the destination -> tensor."""
        return {str(row.item.destination): row.out for row in self.rows if row.out is not None}


def pack(it: Opened, decided: Plan, spec: DraftSpec, layout: str, dtype: str | None,
         allow_unfaithful: bool) -> Package:
    """Decide the destination.

    Args:
        spec: the plan's, with what the user overrode.
        layout: one of ``layouts.FORMATS``.
        dtype: code that float tensors are cast to; None keeps them.

    Raises:
        UnfaithfulError: the layout has no place for something, or needs a table of the target.
    """
    main = dtype or _main_dtype(decided)
    target = it.target
    layers = target.number("num_hidden_layers") if target else None
    config = compact.to_config(spec, source=it.reading.config, dtype=DTYPES[main].torch, num_target_layers=layers)
    tables = [kind for kind, name in (("embedding", target.embedding), ("head", target.head)) if name] if target else []
    whose = {"embed_tokens.weight": decided.embeddings, "lm_head.weight": decided.head}
    request = Request(spec, config, tables, target.source.name if target else None,
                      _texts(target.config.get("architectures")) if target else (),
                      unproved=[name for name, said in whose.items() if said == "unproved"])
    made = layouts.layout(layout, request, num_target_layers=layers, allow_unfaithful=allow_unfaithful)
    rows = [packed for item in decided.items if (packed := _carried(it, item, made, dtype)) is not None]
    rows += [_made(it, name, what, main) for name, what in made.made.items()]
    return Package(made, tuple(rows), main)


def _main_dtype(decided: Plan) -> str:
    """The dtype of the largest float tensor that is kept."""
    floats = [item for item in decided.items if item.destination and DTYPES[item.dtype].is_float]
    return max(floats, key=lambda item: item.nbytes).dtype if floats else "F32"


def _carried(it: Opened, item: Item, made: Layout, dtype: str | None) -> Packed | None:
    """A tensor of the source (or made while reading it) under its name in the destination."""
    if item.destination is None:
        return Packed(item, None)
    if item.destination in made.drops:
        if item.source is None:
            return None
        return Packed(replace(item, destination=None, action="dropped", out_shape=(), rows=None,
                              reason="the layout holds it in another form"), None)
    name = made.names[item.destination]
    action = item.action if item.action == "created" else "kept" if name == item.source else "renamed"
    item = replace(item, destination=name, action=action)
    return Packed(item, Outgoing(it.index, item, dtype))


def _made(it: Opened, name: str, what: Made, dtype: str) -> Packed:
    if what.kind in ("embedding", "head"):
        return _from_target(it, name, what, dtype)
    value = _value(it, what, dtype)
    code = {"zeros": dtype, "t2d": "BOOL", "ids": "I64"}[what.kind]
    item = Item(None, name, "created", what.reason, code, what.shape, value.nbytes, what.shape, value=value)
    return Packed(item, Outgoing(it.index, item))


def _value(it: Opened, what: Made, dtype: str) -> Any:
    if what.kind == "zeros":
        return np.zeros(what.shape, DTYPES[dtype].view)
    if it.reading.d2t is None:
        raise UnfaithfulError("the layout wants a vocabulary table, and the draft has none", where=what.reason,
                              how="convert without --for")
    ids = ids_of(it.reading.d2t)
    return ids if what.kind == "ids" else mask_of(ids, what.shape[0]).view("|u1")


def _from_target(it: Opened, name: str, what: Made, dtype: str) -> Packed:
    assert it.target is not None  # layouts.Request offers the table only then
    theirs = it.target.table("embed_tokens.weight" if what.kind == "embedding" else "lm_head.weight")
    info = it.target.index[theirs.name]
    source = Item(info.name, name, "created", what.reason, info.dtype, info.shape, info.nbytes, info.shape)
    out = Outgoing(it.target.index, source, dtype)
    shown = replace(source, source=None, reason=f"the target's {info.name}: {what.reason}")
    return Packed(shown, out)


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(v for v in value if isinstance(v, str)) if isinstance(value, list) else ()

