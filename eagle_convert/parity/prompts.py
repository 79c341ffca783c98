"""Prompts: every form a file may have, as token ids. The template is the target's own and its digest is reported."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any

from eagle_convert.errors import BrokenFileError, SourceError

from .settings import digest
from .trace_file import is_trace, json_lines, parse_trace, read_text

FORMS = ("prompt", "messages", "turns", "conversations", "text", "prompt_ids")
BUNDLED = "bundled"

Message = dict[str, str]


@dataclass(frozen=True)
class PromptRow:
    """One prompt before tokenization; exactly one of the three is set.

    Attributes:
        messages: a chat, to be rendered with the target's template.
        text: taken as it is.
        ids: token ids already.
    """

    place: str
    messages: tuple[Message, ...] | None = None
    text: str | None = None
    ids: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Prompts:
    """Prompts as token ids, with what must be said of them beside every number.

    Attributes:
        source: ``bundled`` or the file's name.
        ids: token ids of each prompt.
        raw: chats were not templated.
        template: ``{sha256, file}`` of the chat template used, else None.
        system_prompt: whether a row brings a system message of its own; None where all rows are ids.
        first: the first prompt as text, as the target sees it; None where all that is known are ids.
    """

    source: str
    ids: tuple[tuple[int, ...], ...]
    raw: bool = False
    template: Mapping[str, str] | None = None
    system_prompt: bool | None = None
    first: str | None = None

    def document(self) -> dict[str, Any]:
        """The prompts' part of the report's settings: digests, not texts."""
        return {"prompts": {"source": self.source, "count": len(self.ids), "digests": row_digests(self.ids)},
                "template": None if self.template is None else dict(self.template), "raw": self.raw,
                "system_prompt": self.system_prompt}


def row_digests(ids: Sequence[Sequence[int]]) -> list[str]:
    """A short digest of each prompt's ids, so that two reports can name the row that differs."""
    return [digest(list(row))[:16] for row in ids]


def read_rows(path: Path | None) -> tuple[str, list[PromptRow]]:
    """(source, rows) of a prompts file; None is the bundled set.

    Raises BrokenFileError naming file and line for a row of no known form, SourceError for a file without rows.
    """
    if path is None:
        text, name, source = bundled_text(), "the bundled prompts", BUNDLED
    else:
        text, name, source = read_text(path), path.name, path.name
    if is_trace(text):
        rows = [PromptRow(f"{name}, prompt {i}", ids=row.prompt_ids)
                for i, row in enumerate(parse_trace(text, name).prompts)]
    elif text.lstrip().startswith(("{", "[")):
        rows = [_row(value, place) for place, value in _json_values(text, name)]
    else:
        rows = [_chat([{"role": "user", "content": line.strip()}], f"{name}, line {i}")
                for i, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not rows:
        raise SourceError("no prompts in this file", where=name, how="one prompt a line; see --prompts in the docs")
    return source, rows


def bundled_text() -> str:
    """The 48 default prompts, JSON Lines."""
    return resources.files("eagle_convert.data").joinpath("prompts.jsonl").read_text("utf-8")


def _json_values(text: str, name: str) -> list[tuple[str, Any]]:
    """(place, value) of each row: JSON Lines, or one JSON document (a list of rows, or a single row)."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        return [(f"{name}, line {number}", value) for number, value in json_lines(text, name)]
    values = whole if isinstance(whole, list) else [whole]
    return [(f"{name}, row {i}", value) for i, value in enumerate(values)]


def _row(value: Any, place: str) -> PromptRow:
    if isinstance(value, str):
        return _chat([{"role": "user", "content": value}], place)
    if not isinstance(value, dict):
        raise _bad(place, f"found {json.dumps(value)[:60]}, expected an object")
    forms = [form for form in FORMS if value.get(form) is not None]
    if not forms:
        raise _bad(place, f"found the keys {', '.join(value) or '(none)'}, expected one of {', '.join(FORMS)}")
    return _READERS[_first_of(forms)](value[_first_of(forms)], place)


def _first_of(forms: Sequence[str]) -> str:
    """Ids say more than a text, and a chat more than a bare prompt, where a row has several."""
    return next(form for form in ("prompt_ids", "messages", "conversations", "turns", "prompt", "text")
                if form in forms)


def _ids(value: Any, place: str) -> PromptRow:
    if not isinstance(value, list) or not value or not all(
            isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in value):
        raise _bad(place, "prompt_ids is no list of token ids")
    return PromptRow(place, ids=tuple(value))


def _text(value: Any, place: str) -> PromptRow:
    return PromptRow(place, text=_string(value, "text", place))


def _prompt(value: Any, place: str) -> PromptRow:
    return _chat([{"role": "user", "content": _string(value, "prompt", place)}], place)


def _turns(value: Any, place: str) -> PromptRow:
    if not isinstance(value, list) or not value:
        raise _bad(place, "turns is no list of texts")
    return _prompt(value[0], place)


def _messages(value: Any, place: str) -> PromptRow:
    return _chat(_chat_rows(value, "messages", place), place)


def _conversations(value: Any, place: str) -> PromptRow:
    """Up to the first answer. ShareGPT spells role and content ``from`` and ``value``."""
    rows = _chat_rows(value, "conversations", place)
    answer = next((i for i, row in enumerate(rows) if row["role"] == "assistant"), len(rows))
    if answer == 0:
        raise _bad(place, "conversations begins with an answer, nothing is asked")
    return _chat(rows[:answer], place)


_READERS: Mapping[str, Callable[[Any, str], PromptRow]] = {
    "prompt": _prompt, "messages": _messages, "turns": _turns, "conversations": _conversations, "text": _text,
    "prompt_ids": _ids}
_ROLES = {"human": "user", "gpt": "assistant", "bing": "assistant", "chatgpt": "assistant"}


def _chat_rows(value: Any, key: str, place: str) -> list[Message]:
    if not isinstance(value, list) or not value or not all(isinstance(row, dict) for row in value):
        raise _bad(place, f"{key} is no list of messages")
    rows = []
    for row in value:
        role = _string(row.get("role", row.get("from")), f"the role of a message in {key}", place)
        content = _string(row.get("content", row.get("value")), f"the content of a message in {key}", place)
        rows.append({"role": _ROLES.get(role, role), "content": content})
    return rows


def _chat(rows: list[Message], place: str) -> PromptRow:
    return PromptRow(place, messages=tuple(rows))


def _string(value: Any, name: str, place: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _bad(place, f"{name} is {json.dumps(value)[:60]}, expected a text")
    return value


def _bad(place: str, what: str) -> BrokenFileError:
    return BrokenFileError("a row of the prompts file cannot be used", where=f"{place}: {what}",
                           how=f"a row has one of {', '.join(FORMS)}; or plain text, one prompt a line")


def take(rows: list[PromptRow], count: int | None) -> tuple[list[PromptRow], str | None]:
    """The first ``count`` rows, and a warning where there are fewer."""
    if count is None or count == len(rows):
        return rows, None
    if count > len(rows):
        return rows, f"{count} prompts were asked for, {len(rows)} are there: all of them are used"
    return rows[:count], None


def tokenize(source: str, rows: Sequence[PromptRow], target: Path | None, *, raw: bool = False) -> Prompts:
    """The rows as token ids, with the tokenizer and chat template in ``target``.

    A tokenizer is only opened where a row needs one. Raises SourceError where there is none, or no template, and says
    how to go without.
    """
    if all(row.ids is not None for row in rows):
        return Prompts(source, tuple(row.ids for row in rows if row.ids is not None), raw=raw)
    from .tokenizer import open_tokenizer

    tokenizer = open_tokenizer(target)
    ids, first = [], None
    for number, row in enumerate(rows):
        text = row.text
        if row.messages is not None:
            text = "\n".join(m["content"] for m in row.messages) if raw else tokenizer.render(row.messages, row.place)
        if number == 0:
            first = text
        found = list(row.ids) if row.ids is not None else tokenizer.encode(
            text or "", special=row.messages is None or raw)
        if not found:
            raise _bad(row.place, "the prompt has no tokens")
        ids.append(tuple(found))
    chats = [row for row in rows if row.messages is not None]
    template = None
    if chats and not raw:
        body, file = tokenizer.template()
        template = {"sha256": sha256(body.encode()).hexdigest(), "file": file}
    system = any(m["role"] == "system" for row in chats for m in row.messages or ())
    return Prompts(source, tuple(ids), raw, template, system, first)
