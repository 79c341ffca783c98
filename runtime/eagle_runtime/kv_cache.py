"""Preallocated keys and values with a lane dimension.

One tensor holds everything: ``rows[layer, lane * capacity + slot]`` is the key and value of one position, contiguous
(``2 * kv_heads * head_dim`` elements). A forward writes whole rows, and moving accepted positions is one gather and one
scatter for all layers together. ``k`` and ``v`` are strided views of it in the shape that attention reads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .config import EagleRuntimeError


class KVCache:
    """Keys and values of ``lanes`` sequences. All methods work in place and never look at a tensor's value.

    Attributes:
        rows: [layers, lanes * capacity, 2, kv_heads, head_dim], the storage.
        k, v: views [layers, lanes, kv_heads, capacity, head_dim].
    """

    def __init__(self, layers: int, lanes: int, kv_heads: int, capacity: int, head_dim: int, *,
                 dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> None:
        shape = (layers, lanes * capacity, 2, kv_heads, head_dim)
        try:
            storage = torch.zeros(shape, dtype=dtype, device=device)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            need = nbytes(layers, lanes, kv_heads, capacity, head_dim, dtype)
            raise EagleRuntimeError(
                f"not enough memory for the KV cache: {need / 1e6:.0f} MB ({need} bytes) are needed",
                where=f"{layers} layers, {lanes} lanes of {capacity} positions, {kv_heads} heads of {head_dim}, "
                      f"{dtype}, on {device}: {error}",
                how="give fewer lanes, a shorter prompt or fewer new tokens, or a smaller dtype") from error
        self._adopt(storage, lanes, capacity, 0, capacity)

    def _adopt(self, rows: Tensor, lanes: int, capacity: int, first: int, length: int) -> None:
        self.rows, self.lanes, self.capacity, self._first = rows, lanes, capacity, first
        self.layers = rows.shape[0]
        self.k, self.v = self._lanewise(0), self._lanewise(1)
        # what `slots` lack to be row numbers of the whole storage; None where they already are
        self._base = None if lanes == 1 and first == 0 else (
            torch.arange(first, first + lanes, device=rows.device).mul_(capacity).unsqueeze(1))
        # each layer's parts as rows, and the views of one length that a step reads again and again: taking them anew
        # costs a few percent of a small model's pass on a CPU
        self._parts = [(rows[layer, :, 0], rows[layer, :, 1]) for layer in range(self.layers)]
        self._length, self._views = length, [
            (self.k[layer].narrow(2, 0, length), self.v[layer].narrow(2, 0, length)) for layer in range(self.layers)]

    def _lanewise(self, part: int) -> Tensor:
        layers, _, _, heads, width = self.rows.shape
        mine = self.rows.narrow(1, self._first * self.capacity, self.lanes * self.capacity)
        return mine.view(layers, self.lanes, self.capacity, 2, heads, width).select(3, part).transpose(2, 3)

    def write(self, layer: int, k: Tensor, v: Tensor, slots: Tensor) -> None:
        """Store k, v [B, kv_heads, T, head_dim] at ``slots`` [B, T] int64 (positions within each lane); B = lanes.

        Where a slot stands twice in one lane, one of the two rows stays; which one is not defined.
        """
        index = self._index(slots)
        if torch.compiler.is_compiling():
            # whole rows of the one storage: anything less a compiler turns into a copy of all of it
            both = torch.stack((k.transpose(1, 2), v.transpose(1, 2)), 2).flatten(0, 1)
            self.rows.flatten(0, 1).index_copy_(0, index + layer * self.rows.shape[1], both)
            return
        for part, new in zip(self._parts[layer], (k, v), strict=True):
            part.index_copy_(0, index, new[0].transpose(0, 1) if self.lanes == 1 else new.transpose(1, 2).flatten(0, 1))

    def view(self, layer: int, length: int) -> tuple[Tensor, Tensor]:
        """The first ``length`` slots of a layer: k, v [B, kv_heads, length, head_dim], no copy."""
        if torch.compiler.is_compiling():  # see write
            return self._lanewise(0)[layer].narrow(2, 0, length), self._lanewise(1)[layer].narrow(2, 0, length)
        if length == self._length:
            return self._views[layer]
        return self.k[layer].narrow(2, 0, length), self.v[layer].narrow(2, 0, length)

    def compact(self, src: Tensor, dst: Tensor) -> None:
        """Move the rows at ``src`` [B, A] to ``dst`` [B, A] in every layer; all are read before one is written."""
        self.rows.index_copy_(1, self._index(dst), self.rows.index_select(1, self._index(src)))

    def narrow(self, first: int, lanes: int, length: int | None = None) -> KVCache:
        """The lanes ``first .. first + lanes - 1`` as a cache of their own over the same storage.

        ``length``: which :meth:`view` will be asked for most; all are right.
        """
        part = object.__new__(KVCache)
        part._adopt(self.rows, lanes, self.capacity, self._first + first, length or self.capacity)
        return part

    def copy_lane(self, src: int, dst: int) -> None:
        """Make lane ``dst`` hold what lane ``src`` holds."""
        self.k[:, dst].copy_(self.k[:, src])
        self.v[:, dst].copy_(self.v[:, src])

    @property
    def nbytes(self) -> int:
        return self.rows.numel() * self.rows.element_size()

    def _index(self, slots: Tensor) -> Tensor:
        return (slots if self._base is None else slots + self._base).flatten()


def nbytes(layers: int, lanes: int, kv_heads: int, capacity: int, head_dim: int, dtype: torch.dtype) -> int:
    """Bytes of such a cache, before anything is allocated."""
    return 2 * layers * lanes * kv_heads * capacity * head_dim * dtype.itemsize
