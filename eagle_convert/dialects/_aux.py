"""Auxiliary layer ids. Canonical are boundaries: "boundary i" is the residual stream after i decoder layers.

Two conventions are in use: the top-level ``eagle_aux_hidden_state_layer_ids`` (vLLM, speculators) holds boundaries;
the same key inside ``eagle_config`` (NVIDIA Model-Optimizer, SpecForge; read by SGLang, which adds one) holds the
numbers of the layers whose *output* is taken, so boundary - 1.
"""

from __future__ import annotations

from typing import Any

from eagle_convert.errors import ConfigError
from eagle_convert.findings import Finding, finding

from ._fields import LARGEST, Fields

KEY = "eagle_aux_hidden_state_layer_ids"


def read_aux(fields: Fields, taps: int | None, layers: int | None = None,
             ) -> tuple[tuple[int, ...] | None, list[Finding]]:
    """(boundaries or None where none are declared, findings).

    ``taps`` is what ``fc`` has room for; ``layers`` the target's number of layers, where it is known: NVIDIA's gpt-oss
    heads nest boundaries, and the last of them would be the output of a layer that does not exist.
    """
    places = [(path, _ids(fields, path, value)) for path, value in fields.seen(KEY)]
    if not places:
        return None, [finding("EC210", fields.file)] if taps else []
    outputs = {path: nested_place(path) and not (layers is not None and max(value) >= layers) for path, value in places}
    read = [(path, value, tuple(i + outputs[path] for i in value)) for path, value in places]
    for path, value, boundaries in read[1:]:
        if boundaries != read[0][2]:
            raise ConfigError(
                "the auxiliary layer ids of two places differ, also after bringing them to one convention",
                where=f"{fields.file}: {read[0][0]} = {list(read[0][1])} (boundaries {list(read[0][2])}), "
                      f"{path} = {list(value)} (boundaries {list(boundaries)})",
                how="top-level ids are boundaries, ids inside eagle_config are layer outputs (boundary - 1); keep one "
                    "of the two, and let `parity-check` with --fault aux-shift measure the other reading")
    path, value, boundaries = read[0]
    if taps is not None and len(boundaries) != taps:
        raise ConfigError("the number of auxiliary layers is not the one that fc has room for",
                          where=f"{fields.file}: {path} = {list(value)}; fc.weight takes {taps} states",
                          how="correct the ids; the draft reads as many states as fc has columns for")
    other = tuple(i - 1 if outputs[path] else i + 1 for i in boundaries)
    return boundaries, [finding("EC209", f"{fields.file}: {path}", ids=list(value), boundaries=list(boundaries),
                                kind="layer outputs" if outputs[path] else "boundaries", other=list(other))]


def nested_place(path: str) -> bool:
    """The place holds layer outputs."""
    return path.startswith(("eagle_config.", "eagle_architecture_config."))


def _ids(fields: Fields, path: str, value: Any) -> tuple[int, ...]:
    least = -1 if nested_place(path) else 0  # boundary 0, the embedding output, is "the output of layer -1"
    if not isinstance(value, list) or not value or any(type(i) is not int or not least <= i < LARGEST for i in value):
        raise fields.refuse(path, value, f"a list of layer numbers >= {least}")
    if list(value) != sorted(set(value)):
        raise fields.refuse(path, value, "ascending layer numbers, none twice (engines sort them and drop doubles)")
    return tuple(value)
