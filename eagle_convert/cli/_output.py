"""The one output sink: results to stdout, everything else to stderr.

Commands compute and hand over; nothing else in the package prints. With ``--json`` stdout carries exactly one document.
"""

from __future__ import annotations

import json
import os
import sys
import time
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

STYLES = {"error": {"fg": "red", "bold": True}, "warn": {"fg": "yellow"}, "info": {"fg": "cyan"},
          "good": {"fg": "green"}, "head": {"bold": True}, "dim": {"dim": True}}


class Output:
    """What one command run says, and where.

    Attributes:
        json: stdout is one JSON document, nothing for people.
        quiet: stdout is the one-line answer; stderr only errors.
        verbosity: 0, 1 (``-v``: notices) or 2 (``-vv``: also details and tracebacks of internal errors).
    """

    def __init__(self, *, json: bool = False, quiet: bool = False, verbosity: int = 0, no_color: bool = False) -> None:
        self.json, self.quiet, self.verbosity = json, quiet, verbosity
        # click drops colour off a terminal (color=None) but knows nothing of NO_COLOR (https://no-color.org)
        self._color = False if no_color or os.environ.get("NO_COLOR") else None

    def style(self, text: str, style: str) -> str:
        """``text`` in one of :data:`STYLES`; the codes are dropped again where stdout or stderr is no terminal."""
        return text if self._color is False else click.style(text, **STYLES[style])  # type: ignore[arg-type]

    def result(self, document: Mapping[str, Any], human: str | Callable[[], str], brief: str) -> None:
        """The answer, once a run: ``document`` with ``--json``, ``brief`` with ``--quiet``, else ``human``."""
        if self.json:
            click.echo(dump(document, _encoding(sys.stdout)))
        elif self.quiet:
            click.echo(_writable(brief, sys.stdout))
        else:
            text = human if isinstance(human, str) else human()
            click.echo(_writable(text, sys.stdout), color=self._color)

    def warn(self, text: str) -> None:
        """Something the user should know although the command goes on (stderr; not with ``--quiet``)."""
        if not self.quiet:
            self._stderr(f"{self.style('warning:', 'warn')} {text}")

    def hint(self, text: str) -> None:
        """What to do next (stderr; not with ``--quiet`` or ``--json``)."""
        if not self.quiet and not self.json:
            self._stderr(f"{self.style('hint:', 'info')} {text}")

    def notice(self, text: str, level: int = 1) -> None:
        """A detail for ``-v`` (level 1) or ``-vv`` (level 2), on stderr."""
        if self.verbosity >= level and not self.quiet:
            self._stderr(self.style(text, "dim"))

    def error(self, text: str) -> None:
        self._stderr(text)

    def progress(self, text: str) -> None:
        """One line that overwrites itself; on a terminal only. An empty text clears it."""
        if not self.quiet and _is_terminal():
            click.echo(f"\r\x1b[K{text}", nl=False, err=True)

    def findings(self, findings: Sequence[Mapping[str, Any]]) -> None:
        """Warnings and errors as such, the rest with ``-v``; each with what can be done about it."""
        for f in findings:
            fix = f"\n  how: {f['fix']}" if f["fix"] else ""
            text = f"{f['id']} {f['where']}: {f['message']}{fix}"
            if f["severity"] == "warn":
                self.warn(text)
            elif f["severity"] == "error" and not self.quiet:
                self._stderr(f"{self.style('finding:', 'error')} {text}")
            else:
                self.notice(f"info: {text}")

    def bytes_read(self, what: str) -> Callable[[int], None]:
        """A progress callback that is told bytes; shows their sum, ten times a second at most."""
        total, last = 0, 0.0

        def add(n: int) -> None:
            nonlocal total, last
            total += n
            now = time.monotonic()
            if now - last >= 0.1:
                last = now
                self.progress(f"{what}: {human_bytes(total)}")

        return add

    def _stderr(self, text: str) -> None:
        if _is_terminal():
            click.echo("\r\x1b[K", nl=False, err=True)
        click.echo(_writable(text, sys.stderr), err=True, color=self._color)


def dump(document: Mapping[str, Any], encoding: str = "utf-8") -> str:
    """``document`` as the JSON text that the commands print, without NaN (a reader could not parse it).

    What ``encoding`` holds stays readable; a text that it cannot hold (a file name that is no Unicode, a terminal
    that is no UTF-8) is escaped as JSON escapes.
    """
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return json.dumps(document, indent=2, allow_nan=False)
    return text


def _is_terminal() -> bool:
    """Whether a person watches stderr (None where the caller closed it)."""
    return sys.stderr is not None and sys.stderr.isatty()


def _encoding(stream: Any) -> str:
    return getattr(stream, "encoding", None) or "utf-8"


def _writable(text: str, stream: Any) -> str:
    """``text`` with what the stream's encoding cannot hold as backslash escapes: a message never dies of a name."""
    encoding = _encoding(stream)
    return text.encode(encoding, "backslashreplace").decode(encoding)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """A plain text table; the columns numbered in ``right`` are aligned right. Never cut: it may be piped."""
    cells = [list(head), *map(list, rows)]
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]

    def line(row: Sequence[str]) -> str:
        out = [" " * (w - _width(cell)) + cell if i in right else cell + " " * (w - _width(cell))
               for i, (cell, w) in enumerate(zip(row, widths, strict=True))]
        return "  ".join(out).rstrip()

    return "\n".join([line(cells[0]), line(["-" * w for w in widths]), *map(line, cells[1:])])


def _width(text: str) -> int:
    """Terminal columns of ``text``, colour codes not counted."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in click.unstyle(text))


def human_bytes(n: int) -> str:
    """``n`` bytes in decimal units, as sizes on the hub are: 503316480 -> '503.3 MB'."""
    if n < 1000:
        return f"{n} B"
    size = float(n)
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 1000:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"
