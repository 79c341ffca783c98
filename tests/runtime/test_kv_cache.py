"""KVCache: rows land where they are written, lanes do not touch each other, compaction reads before it writes."""

import pytest
import torch

from eagle_runtime.config import EagleRuntimeError
from eagle_runtime.kv_cache import KVCache, nbytes


def filled(lanes: int = 3) -> KVCache:
    cache = KVCache(2, lanes, 2, 8, 4)
    cache.rows.copy_(torch.arange(cache.rows.numel(), dtype=torch.float32).view(cache.rows.shape))
    return cache


@pytest.mark.parametrize("lanes", [1, 3])
def test_write_then_view(lanes: int) -> None:
    cache = KVCache(2, lanes, 2, 8, 4)
    k, v = torch.randn(lanes, 2, 3, 4), torch.randn(lanes, 2, 3, 4)
    slots = torch.tensor([[5, 0, 2], [1, 2, 3], [7, 6, 4]])[:lanes]
    cache.write(1, k, v, slots)
    seen_k, seen_v = cache.view(1, 8)
    for lane in range(lanes):
        assert torch.equal(seen_k[lane][:, slots[lane]], k[lane])
        assert torch.equal(seen_v[lane][:, slots[lane]], v[lane])
    assert int((cache.rows != 0).sum()) == 2 * k.numel()  # nothing else was touched
    assert seen_k.shape == (lanes, 2, 8, 4)
    assert cache.view(1, 5)[0].data_ptr() == cache.k[1].data_ptr()


def test_compact_reads_before_it_writes() -> None:
    cache = filled()
    before = cache.k.clone(), cache.v.clone()
    src, dst = torch.tensor([[3, 4], [1, 2], [7, 0]]), torch.tensor([[4, 3], [2, 3], [0, 1]])
    cache.compact(src, dst)
    for now, old in zip((cache.k, cache.v), before, strict=True):
        for lane in range(3):
            assert torch.equal(now[:, lane][:, :, dst[lane]], old[:, lane][:, :, src[lane]])
            rest = [s for s in range(8) if s not in dst[lane].tolist()]
            assert torch.equal(now[:, lane][:, :, rest], old[:, lane][:, :, rest])


def test_narrowed_lanes_share_storage() -> None:
    cache = filled()
    part = cache.narrow(1, 1)
    part.write(0, torch.full((1, 2, 1, 4), -1.0), torch.full((1, 2, 1, 4), -2.0), torch.tensor([[6]]))
    assert (cache.k[0, 1, :, 6] == -1).all()
    assert (cache.v[0, 1, :, 6] == -2).all()
    assert int((cache.rows < 0).sum()) == 16
    part.narrow(0, 1).compact(torch.tensor([[6]]), torch.tensor([[0]]))
    assert (cache.k[0, 1, :, 0] == -1).all()


def test_copy_lane() -> None:
    cache = filled()
    old = cache.k[:, 0].clone()
    cache.copy_lane(2, 1)
    assert torch.equal(cache.k[:, 1], cache.k[:, 2])
    assert torch.equal(cache.v[:, 1], cache.v[:, 2])
    assert torch.equal(cache.k[:, 0], old)


def test_bytes_are_known_beforehand() -> None:
    assert filled().nbytes == nbytes(2, 3, 2, 8, 4, torch.float32) == 2 * 2 * 3 * 2 * 8 * 4 * 4


def test_out_of_memory_says_how_much() -> None:
    with pytest.raises(EagleRuntimeError) as caught:
        KVCache(80, 4096, 64, 1 << 20, 128)
    assert str(nbytes(80, 4096, 64, 1 << 20, 128, torch.float32)) in str(caught.value)
    assert "fewer lanes" in caught.value.how
