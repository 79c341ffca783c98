"""Typed access to a config whose keys may stand at top level or in nested blocks.

A key that stands at several places must say the same at each; a value of another type stops with key and value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from eagle_convert.errors import ConfigError

LARGEST = 2**31  # no size, id or count of a decoder reaches it

# Keys for which null is the usual way of saying "none"; null elsewhere is a value of the wrong type.
NULLABLE = frozenset({
    "rope_scaling", "rope_parameters", "sliding_window", "layer_types", "draft_vocab_size", "head_dim",
    "quantization_config", "truncated_vocab_size", "eagle_aux_hidden_state_layer_ids", "target_hidden_size",
    "mask_token_id", "logit_scale", "num_aux_hidden_states", "eagle_config", "dflash_config", "text_config",
    "eagle_fc_bias", "rope_theta", "num_key_value_heads", "attention_bias", "mlp_bias", "use_aux_hidden_state"})


class Fields:
    """A config read block by block, outermost first.

    Attributes:
        used: keys that a reader has asked for; what is left is reported as not carried.
    """

    def __init__(self, file: str, blocks: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        self.file, self.blocks = file, tuple(blocks)
        self.used: set[str] = set()

    def seen(self, key: str) -> list[tuple[str, Any]]:
        """(dotted path, value) of every place where ``key`` stands with a value that is not a permitted null."""
        self.used.add(key)
        return [(path + key, block[key]) for path, block in self.blocks
                if key in block and not (block[key] is None and key in NULLABLE)]

    def get(self, key: str, *aliases: str) -> tuple[str, Any] | None:
        """The one (path, value) of a key or its aliases; None where absent. Raises ConfigError if places differ."""
        places = [place for name in (key, *aliases) for place in self.seen(name)]
        for path, value in places[1:]:
            if value != places[0][1] or isinstance(value, bool) != isinstance(places[0][1], bool):
                raise ConfigError(
                    f"{self.file} contradicts itself about {key}",
                    where=f"{self.file}: {places[0][0]} = {places[0][1]!r}, {path} = {value!r}",
                    how="keep the value that the draft was trained with and remove the other one")
        return places[0] if places else None

    def refuse(self, path: str, value: Any, expected: str) -> ConfigError:
        """The error for a value of another type or out of range."""
        return ConfigError(f"{self.file} has a value that {path.rpartition('.')[2]} cannot have",
                           where=f"{self.file}: {path} = {_short(value)}, expected {expected}",
                           how=f"correct {path} in {self.file}; the model that the draft was trained with knows it")

    def missing(self, key: str, use: str) -> ConfigError:
        """The error for a key that no tensor can replace."""
        return ConfigError(f"{self.file} does not say {key}", where=f"{self.file}: {key} is absent; {use}",
                           how=f"add {key} to {self.file}, with the value that the draft was trained with")

    def integer(self, key: str, *aliases: str, least: int = 1) -> int | None:
        """An integer in [least, 2**31), None where absent."""
        place = self.get(key, *aliases)
        if place is None:
            return None
        path, value = place
        if type(value) is not int or not least <= value < LARGEST:
            raise self.refuse(path, value, f"an integer from {least} to {LARGEST - 1}")
        return value

    def number(self, key: str) -> float | None:
        """A finite number above zero, None where absent."""
        place = self.get(key)
        if place is None:
            return None
        path, value = place
        if not is_number(value) or value <= 0:
            raise self.refuse(path, value, "a finite number above 0")
        return float(value)

    def flag(self, key: str) -> bool | None:
        """true or false, None where absent."""
        place = self.get(key)
        if place is None:
            return None
        path, value = place
        if not isinstance(value, bool):
            raise self.refuse(path, value, "true or false")
        return value

    def text(self, key: str) -> str | None:
        """A string, None where absent."""
        place = self.get(key)
        if place is None:
            return None
        path, value = place
        if not isinstance(value, str):
            raise self.refuse(path, value, "a string")
        return value

    def texts(self, key: str) -> tuple[str, ...] | None:
        """A list of strings, None where absent."""
        place = self.get(key)
        if place is None:
            return None
        path, value = place
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.refuse(path, value, "a list of strings")
        return tuple(value)

    def block(self, key: str) -> Mapping[str, Any] | None:
        """An object, None where absent."""
        place = self.get(key)
        if place is None:
            return None
        path, value = place
        if not isinstance(value, dict):
            raise self.refuse(path, value, "an object")
        return value

    def flat(self) -> dict[str, Any]:
        """All blocks merged, inner ones last."""
        return {key: value for _, block in self.blocks for key, value in block.items()}

    def left(self) -> Iterator[tuple[str, str, Any]]:
        """(path, key, value) of everything that no reader asked for."""
        for path, block in self.blocks:
            for key, value in block.items():
                if key not in self.used:
                    yield path + key, key, value


def nested(file: str, config: Mapping[str, Any], *keys: str) -> tuple[Fields, dict[str, Any]]:
    """Fields over a config and those of its blocks ``keys`` that are there, and the flat merge.

    Raises ConfigError where one of the keys holds something else than an object.
    """
    blocks: list[tuple[str, Mapping[str, Any]]] = [("", {k: v for k, v in config.items() if k not in keys})]
    for key in keys:
        value = config.get(key)
        if value is None:
            continue
        if not isinstance(value, dict):
            raise Fields(file, ()).refuse(key, value, "an object")
        blocks.append((key + ".", value))
    fields = Fields(file, blocks)
    return fields, fields.flat()


def is_number(value: Any) -> bool:
    """A finite int or float that is no bool and fits a double."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
