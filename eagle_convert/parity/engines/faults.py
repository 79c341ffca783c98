"""The known faults as parity uses them: their names, and what the reference accepts with each."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from eagle_convert.errors import UsageError
from eagle_convert.parity.settings import Settings
from eagle_convert.parity.trace import Trace

from .reference import ReferenceEngine

if TYPE_CHECKING:
    from eagle_runtime.reference import States


def check_fault(name: str | None) -> None:
    """Raises UsageError for a name that is no known fault; needs no weights."""
    if name is None:
        return
    from eagle_runtime.faults import BY_ID

    if name not in BY_ID:
        near = difflib.get_close_matches(name, BY_ID, n=1)
        raise UsageError(f"--fault names no known fault: {name}", where=f"known: {', '.join(BY_ID)}",
                         how=f"did you mean {near[0]}?" if near else "choose one of them")


def with_each_fault(engine: ReferenceEngine, settings: Settings, passes: Sequence[States],
                    progress: Callable[[str], None]) -> dict[str, Trace]:
    """The reference's steps with each fault that this draft can have, over texts whose target passes are known."""
    from eagle_runtime.faults import applicable

    traces = {}
    for name in applicable(engine.view, engine.target):
        progress(f"diagnose: {name}")
        traces[name] = replace(engine, faults=frozenset([name])).again(settings, passes)
    return traces
