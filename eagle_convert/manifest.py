"""``eagle_convert.json``: where a compact folder comes from and what was done to it (``eagle-convert/manifest/1``).

Written by ``convert`` and read by everything that wants to know a folder's source and target. It holds no clock time
and no absolute path: equal inputs give equal files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ._version import __version__
from .errors import BrokenFileError
from .files.json_text import parse_object

SCHEMA = "eagle-convert/manifest/1"
FILE = "eagle_convert.json"


@dataclass(frozen=True)
class Origin:
    """The draft's source: hub id or folder name, resolved commit (None for a folder), sha256 by tensor name."""

    id: str
    revision: str | None = None
    digests: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Borrowed:
    """A tensor of the target that stands in for one that was dropped: its name there, digest, dtype and shape."""

    tensor: str
    sha256: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class TargetOrigin:
    """The target: hub id or folder name, resolved commit, and what the draft borrows, by the draft's own name."""

    id: str
    revision: str | None = None
    digests: Mapping[str, Borrowed] = field(default_factory=dict)


@dataclass(frozen=True)
class Manifest:
    """The document.

    Attributes:
        ledger: entries as in ``eagle-convert/convert/1``: source, destination, action, reason, sha256, bytes.
        findings: entries as in ``eagle-convert/inspect/1``.
        options: the flags of the convert command that made the folder, as typed, without paths.
        trained_window: the draft's own ``max_position_embeddings`` where the written one is larger.
    """

    source: Origin
    target: TargetOrigin | None
    algorithm: str
    dialect: str
    ledger: tuple[Mapping[str, Any], ...] = ()
    findings: tuple[Mapping[str, Any], ...] = ()
    options: tuple[str, ...] = ()
    trained_window: int | None = None
    version: str = __version__

    def document(self) -> dict[str, Any]:
        target = self.target and {
            "id": self.target.id, "revision": self.target.revision,
            "digests": {name: {"tensor": b.tensor, "sha256": b.sha256, "dtype": b.dtype, "shape": list(b.shape)}
                        for name, b in sorted(self.target.digests.items())}}
        return {"schema": SCHEMA, "tool_version": self.version, "algorithm": self.algorithm, "dialect": self.dialect,
                "source": {"id": self.source.id, "revision": self.source.revision,
                           "digests": dict(sorted(self.source.digests.items()))},
                "target": target, "options": list(self.options), "trained_window": self.trained_window,
                "ledger": [dict(entry) for entry in self.ledger],
                "findings": [dict(finding) for finding in self.findings]}

    def encode(self) -> bytes:
        """The file's bytes: a function of the content."""
        return (json.dumps(self.document(), indent=2, ensure_ascii=False) + "\n").encode()


def decode(data: bytes, where: str = FILE) -> Manifest:
    """Read the file.

    Raises:
        BrokenFileError: not JSON, another schema, or a key that is missing or of the wrong type.
    """
    try:
        document = parse_object(data, where, error=BrokenFileError)
        if document["schema"] != SCHEMA:
            raise BrokenFileError(f"{where} is a manifest of another kind",
                                  where=f"{where}: schema '{document['schema']}', expected '{SCHEMA}'",
                                  how="upgrade eagle-convert, or convert the source again")
        source, target = document["source"], document["target"]
        return Manifest(
            source=Origin(str(source["id"]), _text(source["revision"]), dict(source["digests"])),
            target=None if target is None else TargetOrigin(str(target["id"]), _text(target["revision"]), {
                name: Borrowed(str(b["tensor"]), str(b["sha256"]), str(b["dtype"]), tuple(map(int, b["shape"])))
                for name, b in target["digests"].items()}),
            algorithm=str(document["algorithm"]), dialect=str(document["dialect"]),
            ledger=_entries(document["ledger"]), findings=_entries(document["findings"]),
            options=tuple(map(str, document["options"])),
            trained_window=_window(document["trained_window"]), version=str(document["tool_version"]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        what = f"key {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise BrokenFileError(f"{where} is no manifest of ours", where=f"{where}: {what}",
                              how="convert the source again, or remove the file") from None


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _window(value: Any) -> int | None:
    if value is not None and (type(value) is not int or value < 1):
        raise TypeError("trained_window is a number of positions")
    return value


def _entries(rows: Any) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise TypeError("ledger and findings are lists of objects")
    return tuple(rows)
