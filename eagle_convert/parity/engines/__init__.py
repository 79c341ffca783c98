"""The engines of ``parity-check``: one explicit tuple, from which every list of choices is derived."""

from __future__ import annotations

from dataclasses import dataclass

from eagle_convert.errors import EngineError, UsageError


@dataclass(frozen=True)
class EngineKind:
    """One engine as the command line names it.

    Attributes:
        word: its name.
        argument: what follows a colon (``FILE``, ``URL``), or empty.
        weights: whether it computes with the target's and the draft's weights.
        worker: whether it runs in an interpreter of its own.
        available: whether this version has it; else ``why`` says what to use instead.
    """

    word: str
    argument: str
    weights: bool
    worker: bool
    available: bool
    why: str = ""

    @property
    def spelling(self) -> str:
        return f"{self.word}:{self.argument}" if self.argument else self.word


ENGINES: tuple[EngineKind, ...] = (
    EngineKind("bundled", "", True, False, True),
    EngineKind("reference", "", True, False, True),
    EngineKind("replay", "FILE", False, False, True),
    EngineKind("official", "", True, True, False, "not in this version; record a trace with that code and replay it"),
    EngineKind("vllm", "", True, True, False, "not in this version; record a trace with vLLM and replay it"),
    EngineKind("server", "URL", False, False, False,
               "not in this version; save the server's /metrics and read it with 'eagle-convert metrics'"),
)


@dataclass(frozen=True)
class EngineChoice:
    """An engine as chosen: its kind, and what stood behind the colon."""

    kind: EngineKind
    argument: str = ""

    def __str__(self) -> str:
        return f"{self.kind.word}:{self.argument}" if self.argument else self.kind.word


def parse_engine(text: str, flag: str) -> EngineChoice:
    """``bundled``, ``reference``, ``replay:FILE``, ... as given to ``flag``.

    Raises UsageError for a word that is no engine, EngineError for one that this version does not have.
    """
    word, _, argument = text.partition(":")
    kind = next((k for k in ENGINES if k.word == word), None)
    if kind is None or bool(argument) != bool(kind.argument):
        expected = kind.spelling if kind is not None else ", ".join(k.spelling for k in ENGINES)
        raise UsageError(f"{flag} names no engine", where=f"found {text!r}, expected {expected}",
                         how="see 'eagle-convert parity-check --help'")
    if not kind.available:
        there = ", ".join(k.spelling for k in ENGINES if k.available)
        raise EngineError(f"the engine {word} is not available", where=f"{flag} {text}: {kind.why}",
                          how=f"available: {there}")
    return EngineChoice(kind, argument)
