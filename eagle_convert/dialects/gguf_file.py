"""llama.cpp's GGUF, for ``inspect`` only: metadata and tensor headers through the ``gguf`` package (optional)."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from eagle_convert.errors import BrokenFileError, SourceError
from eagle_convert.tensors import TensorIndex, TensorInfo

if TYPE_CHECKING:
    from eagle_convert.source import Source

_SHOWN = 64  # elements of an array that metadata keeps; tokenizer tables have a hundred thousand


class GgufIndex(TensorIndex):
    """Tensor headers of a GGUF file; no data. Dtypes are GGUF's own names (``F16``, ``Q4_K``, ...).

    Attributes:
        gguf_metadata: the file's metadata; long arrays are cut after 64 elements.
    """

    def __init__(self, values: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> None:
        super().__init__()
        self.gguf_metadata, self._infos = dict(values), dict(tensors)

    def __getitem__(self, name: str) -> TensorInfo:
        return self._infos[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)

    @property
    def nbytes(self) -> int:
        return sum(info.nbytes for info in self._infos.values())


def open_gguf(source: Source) -> GgufIndex:
    """Read the headers of the source's GGUF file.

    Raises:
        SourceError: the ``gguf`` package is not installed, or the file is not local.
        BrokenFileError: the file is no GGUF, or its headers lead nowhere.
    """
    file = source.weight_files[0]
    if source.path is None:
        raise SourceError("GGUF files are read from a local folder only", where=f"{source.name}: {file}",
                          how=f"download {file} and give its path")
    try:
        from gguf import GGUFReader
    except ImportError:
        raise SourceError("reading GGUF needs the gguf package", where=f"{source.name}: {file}",
                          how="pip install gguf") from None
    folder = source.path if source.path.is_dir() else source.path.parent
    try:
        reader = GGUFReader(folder / file)
        values = {key: _value(field) for key, field in reader.fields.items()}
        tensors = {}
        for t in reader.tensors:
            shape = tuple(int(size) for size in reversed(t.shape.tolist()))  # GGUF counts from the fastest axis
            tensors[t.name] = TensorInfo(t.name, t.tensor_type.name, shape, int(t.n_bytes), file)
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, struct.error, OSError, MemoryError) as error:
        raise BrokenFileError("the GGUF file cannot be read", where=f"{file}: {' '.join(str(error).split())[:200]}",
                              how="fetch the file again") from None
    return GgufIndex(values, tensors)


def _value(field: Any) -> Any:
    value = field.contents(slice(0, _SHOWN)) if len(field.data) > _SHOWN else field.contents()
    return value if isinstance(value, (str, int, float, bool, list)) else str(value)
