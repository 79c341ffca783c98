"""Rope settings in both spellings: ``rope_theta`` + ``rope_scaling``, and the ``rope_parameters`` of transformers 5.

Absent stays absent: official EAGLE configs without ``rope_theta`` mean base 10000 whatever the target uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from eagle_convert.errors import ConfigError

from ._fields import Fields, is_number

# Numbers that each scaling needs, all above zero. Other types are carried as stated and not run.
_NEEDS = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
RUNNABLE = frozenset({"default", *_NEEDS})


class Rope(NamedTuple):
    """``scaling`` is the block as stated, without a base; None where there is none or it says "default"."""

    theta: float | None
    scaling: Mapping[str, Any] | None

    @property
    def type(self) -> str:
        """Name of the scaling, ``default`` where there is none."""
        return "default" if self.scaling is None else str(self.scaling.get("rope_type", self.scaling.get("type")))


def read_rope(fields: Fields) -> Rope:
    """Base and scaling from every place that states them; ConfigError with both values where two differ."""
    thetas = [(path, _theta(fields, path, value)) for path, value in fields.seen("rope_theta")]
    blocks: list[tuple[str, dict[str, Any]]] = []
    for key in ("rope_scaling", "rope_parameters"):
        for path, block in fields.seen(key):
            if not isinstance(block, dict):
                raise fields.refuse(path, block, "an object or null")
            if block.get("rope_theta") is not None:
                thetas.append((path + ".rope_theta", _theta(fields, path + ".rope_theta", block["rope_theta"])))
            rest = {k: v for k, v in block.items() if k != "rope_theta"}
            if rest or key == "rope_scaling":
                _check(fields, path, rest)
            blocks.append((path, rest))
    _agree(fields, thetas)
    _agree(fields, [(path, _plain(block)) for path, block in blocks])
    stated = [block for _, block in blocks if _plain(block)]
    return Rope(thetas[0][1] if thetas else None, stated[0] if stated else None)


def _theta(fields: Fields, path: str, value: Any) -> float:
    if not is_number(value) or value <= 0:
        raise fields.refuse(path, value, "a finite number above 0")
    return float(value)


def _check(fields: Fields, path: str, block: Mapping[str, Any]) -> None:
    if block and all(isinstance(value, dict) for value in block.values()):
        raise ConfigError("the rope settings differ by layer type; an EAGLE draft has one rotary table",
                          where=f"{fields.file}: {path} has blocks {', '.join(map(str, block))}",
                          how=f"replace {path} with the block that the draft was trained with")
    names = {key: block[key] for key in ("rope_type", "type") if block.get(key) is not None}
    if not names or not all(isinstance(name, str) for name in names.values()):
        raise fields.refuse(path + ".rope_type", names.get("rope_type", names.get("type")),
                            "the name of a rope scaling, such as 'llama3'")
    if len(set(names.values())) > 1:
        raise ConfigError(f"{fields.file} names two rope scalings in one block",
                          where=f"{fields.file}: {path}.rope_type = {names['rope_type']!r}, "
                                f"{path}.type = {names['type']!r}", how="keep the one the draft was trained with")
    for key, value in block.items():
        if not _finite(value):
            raise fields.refuse(f"{path}.{key}", value, "finite numbers")
    for key in _NEEDS.get(next(iter(names.values())), ()):
        if not is_number(block.get(key)) or block[key] <= 0:
            raise fields.refuse(f"{path}.{key}", block.get(key), "a finite number above 0")


def _finite(value: Any) -> bool:
    """No number in a value of JSON is infinite or beyond a double: the block is written as it was read."""
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    if isinstance(value, list):
        return all(map(_finite, value))
    return isinstance(value, bool) or not isinstance(value, (int, float)) or is_number(value)


def _plain(block: Mapping[str, Any]) -> dict[str, Any]:
    """A block with ``type`` spelt ``rope_type``; empty where it asks for nothing."""
    out = {("rope_type" if key == "type" else key): value for key, value in block.items() if value is not None}
    return {} if out.get("rope_type", "default") == "default" and len(out) <= 1 else out


def _agree(fields: Fields, places: list[tuple[str, Any]]) -> None:
    for path, value in places[1:]:
        if value != places[0][1]:
            raise ConfigError(f"{fields.file} contradicts itself about rope",
                              where=f"{fields.file}: {places[0][0]} = {places[0][1]!r}, {path} = {value!r}",
                              how="keep the value that the draft was trained with and remove the other one")
