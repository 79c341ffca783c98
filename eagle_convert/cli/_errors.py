"""The one error table: every exception a command can end with becomes what, where, how and an exit code.

Commands do not catch; :func:`report` is called once, by the main group.
"""

from __future__ import annotations

import errno
import traceback
from dataclasses import dataclass
from typing import Any

import click

from eagle_convert.errors import EagleConvertError

from ._output import Output

EXIT_COULD_NOT, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130


@dataclass(frozen=True)
class Failure:
    """How a command ended, in the terms of ``eagle-convert/error/1``."""

    type: str
    what: str
    where: str
    how: str
    exit_code: int

    def document(self) -> dict[str, Any]:
        return {"schema": "eagle-convert/error/1",
                "error": {"type": self.type, "what": self.what, "where": self.where, "how": self.how},
                "exit_code": self.exit_code}


_OS_HOW = {
    errno.ENOSPC: "free some space there, or write to another disk; nothing was left half done",
    errno.EDQUOT: "the disk quota is used up: free some space, or write to another disk; nothing was left half done",
    errno.EACCES: "check the permissions of that path",
    errno.EPERM: "check the permissions of that path",
    errno.EROFS: "that disk is mounted read-only: write to another one",
    errno.ENOENT: "check the path",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


def classify(error: BaseException) -> Failure:
    """The table. Errors of the runtime carry the same fields as ours and are recognised by them."""
    name = type(error).__name__
    if isinstance(error, EagleConvertError):
        return Failure(name, error.what, error.where, error.how, error.exit_code)
    if _is_runtime_error(error):
        return Failure(name, error.what, error.where, error.how, EXIT_COULD_NOT)  # type: ignore[attr-defined]
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx else "eagle-convert"
        return Failure("UsageError", error.format_message(), command, f"see '{command} --help'", EXIT_USAGE)
    if isinstance(error, click.ClickException):
        return Failure(name, error.format_message(), "", "", error.exit_code)
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return Failure("Interrupted", "interrupted", "", "run the command again; nothing was left half done",
                       EXIT_INTERRUPTED)
    if isinstance(error, OSError):
        where = " -> ".join(str(f) for f in (error.filename, error.filename2) if f is not None)
        return Failure("OSError", error.strerror or str(error) or name, where,
                       _OS_HOW.get(error.errno or 0, "check that the path can be read and written"), EXIT_COULD_NOT)
    if isinstance(error, MemoryError):
        return Failure("MemoryError", str(error) or "out of memory", "",
                       "close other programs or use a machine with more memory", EXIT_COULD_NOT)
    return Failure("InternalError", f"internal error: {name}: {error}", _origin(error),
                   "this is a bug of eagle-convert: run again with -vv and report the traceback, "
                   "with the output of 'eagle-convert env'", EXIT_COULD_NOT)


def report(error: BaseException, out: Output) -> int:
    """Say how the command ended (stderr, and stdout with ``--json``); the exit code."""
    failure = classify(error)
    if out.verbosity >= 2:
        out.error("".join(traceback.format_exception(error)).rstrip())
    if out.json:
        out.result(failure.document(), "", "")
        return failure.exit_code
    lines = [f"{out.style('error:', 'error')} {failure.what}"]
    lines += [f"  {key}: {value}" for key, value in (("where", failure.where), ("how", failure.how)) if value]
    out.error("\n".join(lines))
    return failure.exit_code


def _is_runtime_error(error: BaseException) -> bool:
    """By name, so that an error does not cost the import of the runtime."""
    return any(c.__name__ == "EagleRuntimeError" and c.__module__.startswith("eagle_runtime.")
               for c in type(error).__mro__)


def _origin(error: BaseException) -> str:
    """The innermost frame as module and line, without a machine's paths."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    parts = frames[-1].filename.replace("\\", "/").split("/")
    return f"{'/'.join(parts[-2:])}:{frames[-1].lineno}"
