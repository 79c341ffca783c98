"""JSON objects from files that nobody vouches for: one reading, one set of messages.

Python's parser takes NaN, infinities and repeated keys; other readers refuse or keep another value, so what they
mean is refused here instead of guessed.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from eagle_convert.errors import ConfigError, EagleConvertError

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # half of a pair when it stands alone: no text, and no file can hold it


class _Refused(ValueError):
    pass


def parse_object(raw: bytes, name: str, *, error: type[EagleConvertError] = ConfigError, strict: bool = False,
                 infinite: bool = False) -> dict[str, Any]:
    """The JSON object in ``raw``; ``name`` is the file, for messages.

    A key that stands there twice is accepted only with equal values, with ``strict`` never. NaN is never a value;
    infinities are with ``infinite`` (transformers writes them into some configs of hybrid models).

    Raises:
        error: not UTF-8, not Unicode, not JSON, not an object, nested too deeply, or one of the above.
    """
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        table: dict[str, Any] = {}
        for key, value in items:
            if key in table and (strict or table[key] != value):
                raise _Refused(f"the key '{key}' stands there twice ({_short(table[key])} and {_short(value)})")
            table[key] = value
        return table

    def number(text: str) -> float:
        value = float(text)
        if math.isnan(value) or (math.isinf(value) and not infinite):
            raise _Refused(f"{text} is not a number that JSON has")
        return value

    how = "correct the file, or download it again"
    try:
        table = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=pairs, parse_constant=number, parse_float=number)
        if _SURROGATE.search(raw):
            json.dumps(table, ensure_ascii=False).encode()
    except UnicodeDecodeError as e:
        raise error(f"{name} is not UTF-8 text", where=f"{name}: byte {e.start}", how=how) from None
    except json.JSONDecodeError as e:
        where = f"{name}, line {e.lineno}, column {e.colno}: {e.msg}"
        if raw.startswith(b"version https://git-lfs"):
            where, how = f"{name} is a git-lfs pointer", "run `git lfs pull` in that repository"
        raise error(f"{name} is not JSON", where=where, how=how) from None
    except RecursionError:
        raise error(f"{name} is nested too deeply", where=name, how=how) from None
    except ValueError as e:  # ours, numbers with thousands of digits, halves of surrogate pairs
        raise error(f"{name} cannot be read as JSON", where=f"{name}: {e}", how=how) from None
    if not isinstance(table, dict):
        raise error(f"{name} is not a JSON object", where=f"{name}: found {_short(table)}, expected {{...}}", how=how)
    return table


def _short(value: object, limit: int = 60) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else text[:limit] + "…"
