"""Findings: what a reader of a checkpoint should know. Their ids and texts are the catalogue in ``finding_texts``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .finding_texts import CATALOGUE, Entry, Severity

__all__ = ["CATALOGUE", "Entry", "Finding", "Severity", "finding"]


@dataclass(frozen=True)
class Finding:
    """One finding about one place.

    Attributes:
        id: catalogue id, such as ``EC301``.
        severity: ``info``; ``warn`` (the command goes on); ``error`` (``inspect`` exits 3, ``convert`` refuses).
        where: file and tensor, or config key.
        message: what was found, with its numbers.
        fix: the flag, command or edit that gets the user on; may be empty for ``info``.
    """

    id: str
    severity: Severity
    where: str
    message: str
    fix: str

    def document(self) -> dict[str, str]:
        """The form it has in the JSON documents."""
        return asdict(self)


def _by_id(entries: tuple[Entry, ...]) -> dict[str, Entry]:
    table: dict[str, Entry] = {}
    for entry in entries:
        if entry.id in table:
            raise ValueError(f"finding id {entry.id} stands twice in the catalogue")
        table[entry.id] = entry
    return table


_ENTRIES = _by_id(CATALOGUE)


def finding(id: str, where: str, *, severity: Severity | None = None, **values: Any) -> Finding:
    """The finding ``id`` at ``where``; ``values`` fill its texts.

    ``severity`` overrides the catalogue's where a flag of the user has decided the matter (error -> warn).
    Raises KeyError for an unknown id or a value that a text needs.
    """
    entry = _ENTRIES[id]
    return Finding(id, severity or entry.severity, where, entry.message.format(**values), entry.fix.format(**values))
