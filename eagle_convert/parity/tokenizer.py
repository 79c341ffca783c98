"""The target's own tokenizer and chat template. ``tokenizers`` and ``jinja2`` come with the ``runtime`` extra.

A template is input: it is rendered in jinja2's sandbox, as its authors expect (transformers ``chat_template_utils``
names the variables), and nothing else in the folder is executed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from eagle_convert.errors import BrokenFileError, SourceError

from .trace_file import read_text

_IDS_HOW = "give prompts as token ids (--prompts FILE with prompt_ids rows), or a target folder with its tokenizer"
_RAW_HOW = "pass --raw to send the prompts untemplated (the result is labelled so), or put chat_template.jinja there"
# Templates that print today's date would give other ids every day; this one is what Llama 3's own falls back to.
_TODAY = datetime(2024, 7, 26)


class Tokenizer:
    """Text to ids, and chats to text.

    ``folder`` holds the template; ``encoder`` is a tokenizer of ``tokenizers`` or ``transformers``.
    """

    def __init__(self, folder: Path, encoder: Any) -> None:
        self.folder, self._encoder = folder, encoder
        self._config = _json(folder / "tokenizer_config.json")
        self._compiled: Any = None

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Token ids; ``special`` adds what the tokenizer puts around a bare text (a rendered chat has it already)."""
        out = self._encoder.encode(text, add_special_tokens=special)
        return list(out if isinstance(out, list) else out.ids)

    def template(self) -> tuple[str, str]:
        """(text, file) of the chat template: the file of its own first, as transformers does."""
        alone = self.folder / "chat_template.jinja"
        if alone.is_file():
            return read_text(alone), alone.name
        for name in ("tokenizer_config.json", "chat_template.json"):
            found = (self._config if name.startswith("tok") else _json(self.folder / name)).get("chat_template")
            if isinstance(found, str):
                return found, name
            if isinstance(found, list):
                named = {t.get("name"): t.get("template") for t in found if isinstance(t, dict)}
                default = named.get("default")
                if isinstance(default, str):
                    return default, f"{name} (the template named default)"
                raise SourceError("several chat templates and none named default", where=f"{name}: "
                                  f"{', '.join(map(str, named))}", how=_RAW_HOW)
        raise SourceError("the target has no chat template", where=f"{self.folder.name}: neither chat_template.jinja "
                          "nor chat_template in tokenizer_config.json", how=_RAW_HOW)

    def render(self, messages: Sequence[Mapping[str, str]], place: str) -> str:
        """The chat as the target wants it, up to where the answer begins."""
        try:
            import jinja2
        except ImportError as error:
            raise _missing(error) from error
        body, file = self.template()
        try:
            if self._compiled is None:
                self._compiled = _environment().from_string(body)
            text: str = self._compiled.render(messages=[dict(m) for m in messages], add_generation_prompt=True,
                                              tools=None, documents=None, **self._special_tokens())
        except (jinja2.TemplateError, TypeError, ValueError, RecursionError) as error:
            raise BrokenFileError("the chat template cannot render this prompt",
                                  where=f"{file}, {place}: {error}", how=_RAW_HOW) from error
        return text

    def _special_tokens(self) -> dict[str, str]:
        out = {}
        for key, value in self._config.items():
            if key.endswith("_token"):
                if isinstance(value, dict):
                    value = value.get("content")
                if isinstance(value, str):
                    out[key] = value
        return out


def _environment() -> Any:
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    def plain_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None,
                   sort_keys: bool = False) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                extensions=["jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = plain_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = _TODAY.strftime
    return environment


def open_tokenizer(folder: Path | None) -> Tokenizer:
    """The tokenizer in ``folder``; SourceError says how to go without one."""
    if folder is None:
        raise SourceError("prompts that are text need the target's tokenizer, and no target was given",
                          where="--target", how=f"give --target; {_IDS_HOW}")
    file = folder / "tokenizer.json"
    if file.is_file():
        try:
            from tokenizers import Tokenizer as Fast
        except ImportError as error:
            raise _missing(error) from error
        try:
            return Tokenizer(folder, Fast.from_file(str(file)))
        except Exception as error:  # the library's errors are plain Exceptions
            raise _broken(file.name, error) from error
    if not any((folder / name).is_file() for name in ("tokenizer.model", "vocab.json", "spiece.model")):
        raise SourceError("the target has no tokenizer", where=f"{folder.name}: no tokenizer.json", how=_IDS_HOW)
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise _missing(error) from error
    try:
        return Tokenizer(folder, AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False,
                                                               local_files_only=True))
    except (OSError, ValueError, ImportError) as error:
        raise _broken(folder.name, error) from error


def _broken(name: str, error: Exception) -> BrokenFileError:
    return BrokenFileError("the tokenizer cannot be read", where=f"{name}: {error}", how=_IDS_HOW)


def _missing(error: ImportError) -> SourceError:
    return SourceError("a library for tokenizers is not installed", where=str(error),
                       how=f"pip install 'eagle-convert[runtime]'; or {_IDS_HOW}")


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise BrokenFileError("not JSON", where=f"{path.name}: {error}", how="repair the target's file") from error
    return value if isinstance(value, dict) else {}
