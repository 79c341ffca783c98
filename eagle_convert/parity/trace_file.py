"""Trace files (``eagle-convert/trace/1``, JSON Lines): reading with an error that names file and line, and writing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from eagle_convert.errors import BrokenFileError, SourceError
from eagle_runtime.config import EagleRuntimeError, Sampling

from .settings import DTYPES, METHODS, Settings, shape_from
from .trace import COUNTERS, SCHEMA, Counts, PromptTrace, StepRecord, Timing, Trace

_HOW = "see 'Trace file' in docs/metrics.md for the format; record the trace again"


class _Line:
    """One line of a file as a JSON object, and the errors that point at it."""

    def __init__(self, name: str, number: int, value: Mapping[str, Any]) -> None:
        self.place, self.value = f"{name}, line {number}", value

    def fail(self, what: str) -> NoReturn:
        raise BrokenFileError("not a trace that can be used", where=f"{self.place}: {what}", how=_HOW)

    def get(self, key: str, of: Mapping[str, Any] | None = None) -> Any:
        of = self.value if of is None else of
        if key not in of:
            self.fail(f"{key!r} is missing")
        return of[key]

    def whole(self, value: Any, name: str, least: int = 0) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self.fail(f"{name} is {_short(value)}, expected a whole number of at least {least}")
        return value

    def wholes(self, value: Any, name: str) -> tuple[int, ...]:
        if not isinstance(value, list):
            self.fail(f"{name} is {_short(value)}, expected a list of whole numbers")
        return tuple(self.whole(v, f"{name}[{i}]") for i, v in enumerate(value))

    def number(self, value: Any, name: str) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
            self.fail(f"{name} is {_short(value)}, expected a number >= 0")
        return value

    def word(self, value: Any, name: str) -> str:
        if not isinstance(value, str) or not value:
            self.fail(f"{name} is {_short(value)}, expected a text")
        return value


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def read_text(path: Path) -> str:
    """A UTF-8 text file; typed errors for one that is absent, unreadable or of another encoding."""
    try:
        return path.read_text("utf-8-sig")
    except FileNotFoundError as error:
        raise SourceError("no such file", where=str(path), how="check the path") from error
    except IsADirectoryError as error:
        raise SourceError("a folder, where a file is expected", where=str(path), how="give the file in it") from error
    except UnicodeDecodeError as error:
        raise BrokenFileError("not a text file", where=f"{path.name}: not UTF-8 at byte {error.start}",
                              how="give a UTF-8 file") from error


def json_lines(text: str, name: str) -> Iterator[tuple[int, Any]]:
    """(line number from 1, value) of every line that is not blank."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                raise BrokenFileError("a line is not JSON", where=f"{name}, line {number}: {error}",
                                      how="a JSON Lines file has one JSON value a line") from error


def is_trace(text: str) -> bool:
    """Whether the text's first line announces a trace file, of whatever version."""
    first = text.lstrip().partition("\n")[0]
    return first.startswith("{") and '"eagle-convert/trace/' in first


def read_trace(path: Path) -> Trace:
    """The trace in ``path``, every field checked.

    Raises SourceError (no such file) or BrokenFileError naming file and line, the field, found and expected.
    """
    return parse_trace(read_text(path), path.name)


def parse_trace(text: str, name: str) -> Trace:
    """The trace in ``text``; ``name`` is the file's, for errors."""
    lines = []
    for number, value in json_lines(text, name):
        line = _Line(name, number, value)
        if not isinstance(value, dict):
            line.fail(f"{_short(value)}, expected a JSON object")
        lines.append(line)
    if not lines:
        raise BrokenFileError("not a trace that can be used", where=f"{name}: the file is empty", how=_HOW)
    settings = _settings(lines[0])
    head = lines[0]
    trajectory = head.value.get("trajectory", "own")
    if trajectory not in ("own", "candidate"):
        head.fail(f"trajectory is {_short(trajectory)}, expected \"own\" or \"candidate\"")
    native = head.value.get("native", {})
    return Trace(engine=head.word(head.get("engine"), "engine"), version=head.word(head.get("version"), "version"),
                 settings=settings, prompts=tuple(_prompt(line, settings) for line in lines[1:]),
                 trajectory=trajectory, timing=Timing(), native=native if isinstance(native, dict) else {})


def _settings(line: _Line) -> Settings:
    schema = line.value.get("schema")
    if schema != SCHEMA:
        line.fail(f"schema is {_short(schema)}, expected {json.dumps(SCHEMA)}")
    method, dtype = line.get("method"), line.get("dtype")
    if method not in METHODS:
        line.fail(f"method is {_short(method)}, expected one of {', '.join(METHODS)}")
    if dtype not in DTYPES:
        line.fail(f"dtype is {_short(dtype)}, expected one of {', '.join(DTYPES)}")
    try:
        shape = shape_from(line.get("draft_tokens"), line.get("tree"))
    except (ValueError, EagleRuntimeError) as error:
        line.fail(str(error).replace("\n", "; "))
    sampling = Sampling(temperature=line.number(line.get("temperature"), "temperature"),
                        top_p=line.number(line.value.get("top_p", 1.0), "top_p"),
                        top_k=line.whole(line.value.get("top_k", 0), "top_k"),
                        seed=line.whole(line.get("seed"), "seed"))
    return Settings(method=method, shape=shape, sampling=sampling, dtype=dtype,
                    max_new_tokens=line.whole(line.get("max_new_tokens"), "max_new_tokens", 1),
                    eos_token_ids=tuple(sorted(line.wholes(line.get("eos_token_ids"), "eos_token_ids"))))


def _prompt(line: _Line, settings: Settings) -> PromptTrace:
    prompt_ids = line.wholes(line.get("prompt_ids"), "prompt_ids")
    output_ids = line.wholes(line.get("output_ids"), "output_ids")
    if not prompt_ids:
        line.fail("prompt_ids is empty")
    if ("steps" in line.value) == ("counts" in line.value):
        line.fail("exactly one of 'steps' and 'counts' is expected")
    if "counts" in line.value:
        return PromptTrace(prompt_ids, output_ids, counts=_counts(line, line.value["counts"]))
    steps = line.value["steps"]
    if not isinstance(steps, list):
        line.fail(f"steps is {_short(steps)}, expected a list")
    return PromptTrace(prompt_ids, output_ids, tuple(_step(line, s, i, settings) for i, s in enumerate(steps)))


def _step(line: _Line, step: Any, index: int, settings: Settings) -> StepRecord:
    name = f"steps[{index}]"
    if not isinstance(step, dict):
        line.fail(f"{name} is {_short(step)}, expected an object")
    proposed, accepted, emitted = (line.whole(line.get(key, step), f"{name}.{key}")
                                   for key in ("proposed", "accepted", "emitted"))
    truncated, matches = line.get("truncated", step), step.get("matches")
    if not isinstance(truncated, bool):
        line.fail(f"{name}.truncated is {_short(truncated)}, expected true or false")
    shape = settings.shape
    if proposed > shape.drafts:
        line.fail(f"{name}.proposed is {proposed}, the shape drafts at most {shape.drafts}")
    if accepted > min(proposed, shape.deepest):
        line.fail(f"{name}.accepted is {accepted}, at most {min(proposed, shape.deepest)} can be")
    if emitted > accepted + 1 or (emitted != accepted + 1 and not truncated):
        line.fail(f"{name}.emitted is {emitted}, expected accepted + 1 = {accepted + 1}")
    return StepRecord(proposed, accepted, emitted,
                      None if matches is None else _matches(line, matches, name, proposed, accepted, truncated),
                      truncated)


def _matches(line: _Line, matches: Any, name: str, proposed: int, accepted: int, truncated: bool) -> tuple[bool, ...]:
    if not isinstance(matches, list) or not all(isinstance(m, bool) for m in matches):
        line.fail(f"{name}.matches is {_short(matches)}, expected a list of true and false, or null")
    if len(matches) != proposed:
        line.fail(f"{name}.matches has {len(matches)} entries, expected one for each of {proposed} proposed")
    agree = next((i for i, m in enumerate(matches) if not m), proposed)
    if agree != accepted and not (truncated and accepted < agree):
        line.fail(f"{name}.matches begins with {agree} true, but {accepted} were accepted")
    return tuple(matches)


def _counts(line: _Line, value: Any) -> Counts:
    if not isinstance(value, dict):
        line.fail(f"counts is {_short(value)}, expected an object")
    return counts_from(value, line.place)


def counts_from(value: Mapping[str, Any], place: str) -> Counts:
    """Counters as a JSON object has them; unknown ones are left out or null. BrokenFileError names the key."""
    line = _Line("", 0, value)
    line.place = place
    unknown = [key for key in value if key not in COUNTERS]
    if unknown:
        line.fail(f"{unknown[0]!r} is no counter; they are {', '.join(COUNTERS)}")
    known = {key: v for key, v in value.items() if v is not None}
    per_position = known.pop("per_position", None)
    numbers = {key: line.whole(v, key, 1 if key == "k" else 0) for key, v in known.items()}
    if per_position is not None:
        per_position = line.wholes(per_position, "per_position")
    return Counts(per_position=per_position, **numbers)


def write_trace(path: Path, trace: Trace) -> None:
    """Write a trace file; the old one stays until the new one is complete."""
    rows = [trace.header(), *({"id": i, **row.document()} for i, row in enumerate(trace.prompts))]
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_text("".join(json.dumps(row, allow_nan=False) + "\n" for row in rows), "utf-8")
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
