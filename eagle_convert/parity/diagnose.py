"""``--diagnose``: which known fault's per-position profile is the one that the candidate shows. Standard library."""

from __future__ import annotations

import math
from collections.abc import Mapping

from .metrics import Sheet
from .report import FaultMatch

NONE = "none"


def matches(profiles: Mapping[str, Sheet], shown: Sheet) -> tuple[FaultMatch, ...]:
    """What the reference accepts with each fault (and with :data:`NONE`), by its distance to what is shown.

    Faults belong to one group with the nearest where the measurement cannot tell them apart from it: no rate differs
    from the shown one by more than two standard errors of that rate more than the nearest one's does.
    """
    if shown.per_position is None or not shown.counts.steps:
        return ()
    seen = shown.per_position
    found = []
    for name, sheet in profiles.items():
        if sheet.per_position is not None and sheet.acceptance_length is not None:
            gaps = [abs(a - b) for a, b in zip(sheet.per_position, seen, strict=True)]
            found.append((math.sqrt(sum(g * g for g in gaps) / len(gaps)), name, sheet, gaps))
    if not found:
        return ()
    found.sort(key=lambda entry: (entry[0], entry[1]))
    nearest = found[0][3]
    errors = [math.sqrt(max(p * (1 - p), 0.25 / shown.counts.steps) / shown.counts.steps) for p in seen]
    return tuple(FaultMatch(name, sheet.acceptance_length or 1.0, sheet.per_position or (), distance,
                            all(g <= n + 2 * e for g, n, e in zip(gaps, nearest, errors, strict=True)))
                 for distance, name, sheet, gaps in found)
