"""Launching stages and reading their results without making the device wait.

On CUDA the result of a step is copied to pinned memory behind the step, and read when the next one is under way; stage
times come from events. On a CPU both are immediate. The interface is the same, so the lag can be tested anywhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

STAGES = ("draft", "verify", "accept")


@dataclass
class Timings:
    """Seconds spent in each stage, over ``steps`` steps; of those whose results have been read.

    ``untimed`` counts the steps that are left out: those that were audited, or paid for compiling.
    """

    draft: float = 0.0
    verify: float = 0.0
    accept: float = 0.0
    steps: int = 0
    untimed: int = 0

    @property
    def total(self) -> float:
        return self.draft + self.verify + self.accept

    def add(self, seconds: Sequence[float]) -> None:
        self.draft += seconds[0]
        self.verify += seconds[1]
        self.accept += seconds[2]
        self.steps += 1


@dataclass
class Ticket:
    """A step under way: where its result will stand, and the marks between its stages."""

    host: Tensor
    timed: bool = True
    marks: list[float] = field(default_factory=list)
    events: list[torch.cuda.Event] = field(default_factory=list)

    def read(self, timings: Timings) -> list[list[int]]:
        """Wait for the result (lanes x columns) and book the stage times."""
        if self.events:
            self.events[-1].synchronize()
            marks = [self.events[0].elapsed_time(event) / 1e3 for event in self.events[:-1]]
        else:
            marks = self.marks
        if self.timed:
            timings.add([after - before for before, after in pairwise(marks)])
        else:
            timings.untimed += 1
        rows: list[list[int]] = self.host.tolist()
        return rows


class Pipeline:
    """Runs the three stages of a step and hands out tickets; at most ``depth`` + 1 of them are unread at a time.

    Args:
        shape: of the results, lanes x columns.
        depth: how many steps may be under way while the host still works on an earlier one.
    """

    def __init__(self, shape: tuple[int, int], device: torch.device, depth: int) -> None:
        self.device, self.depth = device, depth
        cuda = device.type == "cuda"
        self._ring = [torch.zeros(shape, dtype=torch.int64, pin_memory=cuda) for _ in range(depth + 1)]
        self._turn = 0

    def launch(self, stages: Sequence[Callable[[], None]], result: Tensor, *, timed: bool = True) -> Ticket:
        """Run ``stages``, then send ``result`` [B, columns] on its way to the host."""
        host = self._ring[self._turn][:result.shape[0]]
        self._turn = (self._turn + 1) % len(self._ring)
        ticket = Ticket(host, timed)
        self._mark(ticket)
        for stage in stages:
            stage()
            self._mark(ticket)
        host.copy_(result, non_blocking=True)
        if self.device.type == "cuda":
            self._mark(ticket)  # the result has arrived
        return ticket

    def _mark(self, ticket: Ticket) -> None:
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            ticket.events.append(event)
        else:
            ticket.marks.append(time.perf_counter())
