"""Losslessness at temperature 0: every token of the output is the target's argmax, given what came before.

The judging itself needs the standard library only; the logits come from a target pass (``engines/judge.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# unit roundoff of the 16-bit formats: distance from 1 to the next number
EPS = {"float16": 2.0 ** -10, "bfloat16": 2.0 ** -7}
FP32_TIE_MARGIN = 1e-3


@dataclass(frozen=True)
class Judged:
    """One output token under the target.

    Attributes:
        token: what the engine put out; -1 where it ended although the target goes on.
        argmax: what the target says there.
        top: the target's largest logit.
        chosen: the logit of ``token``.
    """

    token: int
    argmax: int
    top: float
    chosen: float

    @property
    def margin(self) -> float:
        """How far the chosen token is below the best: the top-2 margin where it is the second best."""
        return self.top - self.chosen


@dataclass(frozen=True)
class Deviation:
    """A token that is not the argmax: a tie where ``margin`` is below ``tie_margin``, else a mismatch."""

    prompt: int
    position: int
    token: int
    expected: int
    margin: float
    tie_margin: float

    def document(self) -> dict[str, Any]:
        return {"prompt": self.prompt, "position": self.position, "token": None if self.token < 0 else self.token,
                "expected": self.expected, "margin": self.margin if self.margin != float("inf") else None,
                "tie_margin": self.tie_margin}


@dataclass(frozen=True)
class Lossless:
    """The losslessness check; ``checked`` False says why in ``reason``."""

    checked: bool
    reason: str
    prompts: int = 0
    tokens: int = 0
    mismatches: tuple[Deviation, ...] = ()
    ties: tuple[Deviation, ...] = ()

    @property
    def tie_share(self) -> float:
        return len(self.ties) / self.tokens if self.tokens else 0.0

    def document(self) -> dict[str, Any]:
        """The ``lossless`` block of ``parity/1``."""
        return {"checked": self.checked, "reason": self.reason, "prompts": self.prompts, "tokens": self.tokens,
                "mismatches": [d.document() for d in self.mismatches], "ties": [d.document() for d in self.ties]}


def tie_margin(dtype: str, top: float, given: float | None = None) -> float:
    """Below which logit gap two tokens are tied: 1e-3 in fp32, 4 eps |top logit| in 16 bit, unless ``given``."""
    if given is not None:
        return given
    return 4 * EPS[dtype] * abs(top) if dtype in EPS else FP32_TIE_MARGIN


def judge(rows: Sequence[Sequence[Judged]], dtype: str, given_margin: float | None = None) -> Lossless:
    """The verdict over every token of every prompt."""
    mismatches: list[Deviation] = []
    ties: list[Deviation] = []
    for prompt, row in enumerate(rows):
        for position, token in enumerate(row):
            if token.token == token.argmax:
                continue
            limit = tie_margin(dtype, token.top, given_margin)
            deviation = Deviation(prompt, position, token.token, token.argmax, token.margin, limit)
            (ties if token.margin < limit else mismatches).append(deviation)
    return Lossless(True, "every token against the target's argmax, given what came before", len(rows),
                    sum(map(len, rows)), tuple(mismatches), tuple(ties))
