"""The one place where an error of the runtime becomes one of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from eagle_convert.errors import EngineError
from eagle_runtime.config import EagleRuntimeError


@contextmanager
def runtime_errors() -> Iterator[None]:
    """Turn :class:`EagleRuntimeError` into :class:`EngineError`; the fields are the same."""
    try:
        yield
    except EagleRuntimeError as error:
        raise EngineError(error.what, where=error.where, how=error.how) from error
