"""A draft, and the target it is checked against, opened and read: what ``inspect`` and ``convert`` begin with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from . import dialects
from .dialects import Reading
from .errors import PairingError
from .findings import Finding, finding
from .manifest import FILE as MANIFEST
from .manifest import Manifest, decode
from .pairing import Target, open_target
from .source import HubOptions, Source, open_source
from .tensors import TensorIndex
from .verification import verify_manifest


@dataclass(frozen=True)
class Opened:
    """The draft's source, its header index and what they were read as; the target, where one was given and is one.

    ``mispaired`` says why the given target cannot be one; ``earlier`` is the manifest of a compact folder.
    """

    source: Source
    index: TensorIndex
    reading: Reading
    target: Target | None
    mispaired: Finding | None
    earlier: Manifest | None

    @property
    def ignored(self) -> tuple[Finding, ...]:
        """Files of the source that look like weights and are not read."""
        return tuple(finding("EC901", file, why=reason) for file, reason in self.source.ignored)

    def against_manifest(self, *, deep: bool = False) -> list[Finding]:
        """A compact folder held against its manifest, and the target against what the manifest borrows."""
        theirs = (self.target.source, self.target.index) if self.target else (None, None)
        return verify_manifest(self.source, self.index, *theirs, deep=deep)


@contextmanager
def opened(ref: str, target_ref: str | None = None, *, revision: str | None = None, hub: HubOptions | None = None,
           **hints: Any) -> Iterator[Opened]:
    """Open and read a draft and its target; both are closed at the end.

    Args:
        hints: handed to :func:`eagle_convert.dialects.read`.

    Raises:
        DialectError, ConfigError, SourceError, BrokenFileError, HubError: the draft or the target cannot be read.
    """
    with ExitStack() as stack:
        source = open_source(ref, revision=revision, hub=hub)
        index = stack.enter_context(dialects.open_draft(source))
        target: Target | None = None
        problem: PairingError | None = None
        if target_ref is not None:
            try:
                target = open_target(target_ref, hub)
                stack.callback(target.close)
                hints["target_hidden_size"] = target.hidden_size
            except PairingError as error:
                problem = error
        reading = dialects.read(index, source, **hints)
        earlier = decode(source.read_bytes(MANIFEST)) if MANIFEST in source.files else None
        mispaired = None if problem is None else _mispaired(problem, reading, str(target_ref))
        yield Opened(source, index, reading, target, mispaired, earlier)


def _mispaired(problem: PairingError, reading: Reading, target_ref: str) -> Finding:
    if reading.kind == "not a draft" and reading.dialect == "whole-model":
        return finding("EC710", f"--target {target_ref}", target=target_ref)
    return finding("EC712", problem.where, what=problem.what, how=problem.how)
