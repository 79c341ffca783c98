"""Typed errors: what happened, where (file and tensor or key; found against expected), and how to go on.

Commands do not catch these; ``cli/`` turns each into a message or an ``eagle-convert/error/1`` document.
Exit codes are the contract's: 1 could not, 2 usage, 3 checked and the answer is no, 4 inconclusive.
"""

from __future__ import annotations


class EagleConvertError(Exception):
    """Base of every error that a user can meet.

    Attributes:
        what: one sentence, what is wrong.
        where: file and tensor or key, found against expected.
        how: the flag, command or edit that gets the user on.
        exit_code: the process exit code.
    """

    exit_code: int = 1

    def __init__(self, what: str, *, where: str = "", how: str = "") -> None:
        super().__init__(what)
        self.what, self.where, self.how = what, where, how

    def __str__(self) -> str:
        return "\n".join(part for part in (self.what, self.where and f"where: {self.where}",
                                           self.how and f"how: {self.how}") if part)


class UsageError(EagleConvertError):
    """The command's words do not fit together (exit 2)."""

    exit_code = 2


class SourceError(EagleConvertError):
    """A folder, file or hub id that cannot be opened or is incomplete."""


class BrokenFileError(EagleConvertError):
    """A file whose bytes are not what its format promises."""


class UnsafePickleError(BrokenFileError):
    """A pickle that wants to import something; nothing of it was executed."""


class ConfigError(EagleConvertError):
    """config.json is absent, not JSON, of wrong types, or contradicts itself."""


class DialectError(EagleConvertError):
    """No dialect, or more than one, fits; or a tensor is unknown or missing."""


class CompactionError(EagleConvertError):
    """The evidence does not decide what may be dropped; a flag is needed."""


class UnfaithfulError(EagleConvertError):
    """The destination layout cannot express the head."""


class PairingError(EagleConvertError):
    """Draft and target do not fit each other."""


class DestinationError(EagleConvertError):
    """DEST cannot be written: not empty, inside SOURCE, no space, no permission."""


class EngineError(EagleConvertError):
    """An engine is missing, failed, or cannot do what was asked."""


class HubError(EagleConvertError):
    """The hub said no, or could not be reached."""
