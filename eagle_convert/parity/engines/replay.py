"""A recorded trace as an engine: nothing is run, prompts and settings are the file's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from eagle_convert.errors import BrokenFileError
from eagle_convert.parity.trace import Trace, accounting_faults
from eagle_convert.parity.trace_file import read_trace


def open_replay(path: Path, num_prompts: int | None = None) -> Trace:
    """The trace in ``path``, cut to the first ``num_prompts``.

    Raises BrokenFileError where its rows contradict the counting rules: a ratio over them would mean something else.
    """
    trace = read_trace(path)
    if not trace.prompts:
        raise BrokenFileError("a trace without prompts", where=f"{path.name}: only the settings line",
                              how="record it again")
    if num_prompts is not None:
        trace = replace(trace, prompts=trace.prompts[:num_prompts])
    for prompt, what in accounting_faults(trace):
        raise BrokenFileError("a trace that contradicts the counting rules",
                              where=f"{path.name}, line {prompt + 2}: {what}",
                              how="see 'Tokens and steps' in docs/metrics.md; record it again")
    return trace
