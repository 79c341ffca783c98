"""What the package logs goes where warnings and notices go. Imported when a command runs; `--help` does not pay it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from ._output import Output


class _Handler(logging.Handler):
    """Warnings (a cost that is about to arise, a fallback) as warnings; the rest with ``-v``."""

    def __init__(self, out: Output) -> None:
        super().__init__()
        self._out = out

    def emit(self, record: logging.LogRecord) -> None:
        say = self._out.warn if record.levelno >= logging.WARNING else self._out.notice
        say(record.getMessage())


@contextmanager
def logs_to(out: Output) -> Iterator[None]:
    """Route the package's log records to ``out`` while a command runs."""
    log, handler = logging.getLogger("eagle_convert"), _Handler(out)
    level, propagate = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False  # else the root logger's last resort says it again
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = propagate
