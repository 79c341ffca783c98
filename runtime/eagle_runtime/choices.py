"""Static trees that have a name. Standard library only: the command line lists them without importing torch."""

from __future__ import annotations

#: Name -> paths of candidate ranks. ``mc_sim_7b_63`` is EAGLE-1's tree of 26 nodes (SafeAILab/EAGLE ``choices.py``).
CHOICES: dict[str, tuple[tuple[int, ...], ...]] = {"mc_sim_7b_63": (
    (0,), (1,), (2,), (3,),
    (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0),
    (0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0), (0, 1, 1), (0, 2, 0), (0, 2, 1), (1, 0, 0),
    (0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 0, 2), (0, 0, 0, 0, 0), (0, 0, 0, 0, 1))}
