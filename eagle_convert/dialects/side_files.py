"""Vocabulary tables that lie beside the weights: ``eagle_meta.pt`` of NeMo Automodel's trainer, and ``--token-map``.

They hold absolute target ids. Pickles are read without executing anything.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from eagle_convert.errors import BrokenFileError, SourceError
from eagle_convert.files.lazy_numpy import NDArray, np
from eagle_convert.vocab import Ids, ids_of, integers

if TYPE_CHECKING:
    from eagle_convert.source import Source
    from eagle_convert.tensors import TensorIndex

META = "eagle_meta.pt"
_TENSOR_FILES = (".pt", ".pth", ".bin", ".safetensors")
_TEXT_FILES = (".json", ".txt")
_LARGEST = 64 << 20  # bytes; ten times the largest vocabulary in use as text


class SideTable(NamedTuple):
    """Absolute target ids int64 [draft vocabulary], and the file (and name inside it) that they are from."""

    ids: Ids
    where: str


def read_token_map(path: str | Path) -> SideTable:
    """The absolute ids of a ``--token-map`` file.

    Read are ``torch.save`` and safetensors files with one vector of integers (or with ``selected_token_ids``,
    ``token_map``, or ``d2t``, which by that name is offsets), ``.npy``, a JSON list, and text with one id a line.

    Raises:
        SourceError: not there, unreadable, or of another kind.
        BrokenFileError: no list of integers; an ``.npy`` or pickle that wants to run code.
    """
    from eagle_convert.tensors import open_file

    path = Path(path)
    try:
        if path.suffix in _TENSOR_FILES:
            with open_file(path) as index:
                return _from_index(index, path.name)
        if path.suffix == ".npy":
            return SideTable(integers(np.load(path, allow_pickle=False), path.name), path.name)
        if path.suffix in _TEXT_FILES:
            if path.stat().st_size > _LARGEST:
                raise BrokenFileError("the token map is too large to be one", where=f"{path.name}: "
                                      f"{path.stat().st_size} bytes", how="give a list of token ids")
            return SideTable(_numbers(path.read_text(), path), path.name)
    except OSError as error:
        raise SourceError("the token map cannot be read", where=f"{path.name}: {error.strerror or error}",
                          how="check the path given with --token-map") from None
    except (ValueError, EOFError, RecursionError) as error:
        raise BrokenFileError("the token map is no list of integers", where=f"{path.name}: {error}",
                              how="give a list of absolute target ids") from None
    raise SourceError("the token map is of a kind that is not read",
                      where=f"{path.name}: endings read are {', '.join((*_TENSOR_FILES, '.npy', *_TEXT_FILES))}",
                      how="save the absolute target ids as one of these")


def read_meta(source: Source) -> SideTable | None:
    """The ids of the ``eagle_meta.pt`` in the source's folder or, as its trainer writes it, one level up."""
    from eagle_convert.tensors import open_file, open_index

    if META in source.files:
        with open_index(replace(source, weight_map=None), [META]) as index:
            return _from_index(index, META)
    if source.path is not None:
        folder = (source.path if source.path.is_dir() else source.path.parent).resolve()
        if (folder.parent / META).is_file():
            with open_file(folder.parent / META) as index:
                return _from_index(index, f"../{META}")
    return None


def _from_index(index: TensorIndex, file: str) -> SideTable:
    for name in ("selected_token_ids", "token_map", "hot_token_id"):
        if name in index:
            return SideTable(integers(index.array(name), f"{file}: {name}"), f"{file}: {name}")
    if "d2t" in index:
        return SideTable(ids_of(integers(index.array("d2t"), f"{file}: d2t")), f"{file}: d2t")
    vectors = [name for name, info in index.items() if len(info.shape) == 1 and info.dtype[0] in "IU"]
    if len(vectors) != 1:
        raise BrokenFileError("the file holds no vocabulary table that can be told",
                              where=f"{file}: integer vectors {', '.join(vectors) or 'none'}",
                              how="save the absolute target ids alone, as one vector, and give it with --token-map")
    return SideTable(integers(index.array(vectors[0]), file), file)


def _numbers(text: str, path: Path) -> Ids:
    values: Any = json.loads(text) if path.suffix == ".json" else [int(word) for word in text.split()]
    if not isinstance(values, list) or not values or any(type(value) is not int for value in values):
        raise ValueError("expected a list of integers")
    try:
        table: NDArray[Any] = np.array(values, np.int64)
    except OverflowError:
        raise ValueError("an integer is beyond 64 bits") from None
    return integers(table, path.name)
