"""Comparing a draft's table with the target's: every relation that people have shipped, on tables of known relation."""

import hashlib

import numpy as np
import pytest

from eagle_convert import tables
from eagle_convert.source import open_source
from eagle_convert.tables import Table, comparable, compare
from eagle_convert.tensors import open_index
from tests.builders import bfloat16, write

ROWS, WIDTH = 96, 32
BASE = np.random.default_rng(5).standard_normal((ROWS, WIDTH)).astype(np.float32) * 0.01


@pytest.fixture
def table(tmp_path):
    def make(values, name="t"):
        folder = write(tmp_path / f"{name}{len(list(tmp_path.iterdir()))}", None, {"table": values})
        return Table(open_index(open_source(str(folder))), "table")
    return make


@pytest.fixture(params=[1, 1 << 20], ids=["a row a chunk", "one chunk"])
def chunk(request, monkeypatch):
    monkeypatch.setattr(tables, "CHUNK_BYTES", request.param)


def half(values):
    return values.astype(np.float16)


def test_equal_bytes(table, chunk):
    result = compare(table(half(BASE)), table(half(BASE)))
    assert (result.equal, result.differing, result.elements) == ("bits", 0, ROWS * WIDTH)
    assert result.draft_sha256 == result.target_sha256 == hashlib.sha256(half(BASE).tobytes()).hexdigest()
    assert result.related


def test_equal_after_the_cast_counts_what_the_cast_moved(table, chunk):
    result = compare(table(half(BASE)), table(BASE))
    moved = half(BASE).astype(np.float32) != BASE
    assert result.equal == "cast"
    assert result.differing == moved.sum() > 0
    assert result.largest == np.abs(half(BASE).astype(np.float32) - BASE).max()
    assert (result.draft_sha256, result.target_sha256) == tuple(
        hashlib.sha256(t.tobytes()).hexdigest() for t in (half(BASE), BASE))


def test_a_wider_copy_of_a_narrow_table_is_equal_without_a_difference(table):
    result = compare(table(half(BASE).astype(np.float32)), table(half(BASE)))
    assert (result.equal, result.differing) == ("cast", 0)


def test_a_bfloat16_target_cast_to_float16(table, tmp_path):
    """What vLLM's exact comparison misses: small bfloat16 values are lost in float16 (they become 0)."""
    values = (BASE.view(np.uint32) & 0xFFFF0000).view(np.float32).copy()
    values[0, 0] = 2.0**-30
    header = b'{"table":{"dtype":"BF16","shape":[96,32],"data_offsets":[0,%d]}}' % (ROWS * WIDTH * 2)
    (tmp_path / "bf16").mkdir()
    (tmp_path / "bf16" / "model.safetensors").write_bytes(
        len(header).to_bytes(8, "little") + header + bfloat16(values).tobytes())
    target = Table(open_index(open_source(str(tmp_path / "bf16"))), "table")
    result = compare(table(half(values)), target)
    assert (target.dtype, result.equal) == ("BF16", "cast")
    assert result.differing >= 1
    assert compare(target, target).equal == "bits"


def test_negative_zero_is_a_difference_in_bits_and_not_in_value(table):
    a, b = half(BASE).copy(), half(BASE).copy()
    a[1, 1], b[1, 1] = 0.0, -0.0
    result = compare(table(a), table(b))
    assert (result.equal, result.differing, result.ranges) == ("no", 0, ((1, 2),))


def test_rows_that_differ_are_named(table, chunk):
    changed = BASE.copy()
    changed[3] += 0.01
    changed[10:15] = BASE[::-1][10:15]
    result = compare(table(half(changed)), table(half(BASE)))
    assert result.ranges == ((3, 4), (10, 15))
    assert (result.equal, result.rows_differing) == ("no", 6)
    assert result.median_cosine == 1.0
    assert result.related
    assert not result.rotated


def test_a_foreign_table(table, chunk):
    other = np.random.default_rng(6).standard_normal((ROWS, WIDTH)).astype(np.float32) * 0.00125
    result = compare(table(half(other)), table(half(BASE)))
    assert abs(result.median_cosine) < 0.1
    assert not result.related
    assert result.ranges == ((0, ROWS),)


def test_rows_shifted_by_one_are_foreign(table):
    assert not compare(table(half(np.roll(BASE, 1, axis=0))), table(half(BASE))).related


def test_a_rotated_table_is_a_relative(table, chunk):
    q = np.linalg.qr(np.random.default_rng(7).standard_normal((WIDTH, WIDTH)))[0]
    result = compare(table(half(BASE @ q)), table(half(BASE)))
    assert abs(result.median_cosine) < 0.2
    assert result.rotated
    assert result.related


def test_a_scaled_table(table, chunk):
    result = compare(table(BASE * 8.0), table(BASE))
    assert result.scale == pytest.approx(8.0)
    assert result.median_cosine == pytest.approx(1.0)
    assert compare(table(BASE + 1e-6), table(BASE)).scale is None


def test_a_trained_table_is_a_relative(table):
    trained = BASE + np.random.default_rng(8).standard_normal(BASE.shape).astype(np.float32) * 0.005
    result = compare(table(trained), table(BASE))
    assert 0.8 < result.median_cosine < 1.0
    assert result.related


@pytest.mark.parametrize(("surplus", "padding"), [
    (np.zeros((8, WIDTH)), True), (np.repeat((BASE + 0.003).mean(0, keepdims=True), 8, 0), True),
    (BASE[:8], False), (np.full((8, WIDTH), 0.01), False)], ids=["zero", "mean", "real rows", "constant"])
@pytest.mark.parametrize("longer", ["draft", "target"])
def test_surplus_rows_are_padding_only_if_they_are_zero_or_the_mean(table, surplus, padding, longer, chunk):
    short, long = table(half(BASE + 0.003)), table(half(np.concatenate([BASE + 0.003, surplus])))
    result = compare(long, short) if longer == "draft" else compare(short, long)
    assert result.unequal_rows is not padding
    if padding:
        assert (result.equal, result.padding) == ("bits", 8 if longer == "draft" else -8)


def test_nan_is_counted_as_a_difference_and_breaks_nothing(table):
    bad = half(BASE).copy()
    bad[2, 2] = np.nan
    result = compare(table(bad), table(half(BASE)))
    assert (result.differing, result.ranges) == (1, ((2, 3),))
    assert np.isfinite(result.largest)
    assert compare(table(bad), table(bad)).equal == "bits"


def test_only_plain_tables_of_one_width_are_compared(table):
    plain = table(half(BASE))
    assert comparable(plain, table(BASE))
    assert not comparable(plain, table(half(BASE[:, :16])))
    assert not comparable(plain, table(np.zeros((ROWS, WIDTH), np.int32)))
    assert not comparable(plain, table(half(BASE[0])))


def test_progress_hears_every_byte(table):
    heard = []
    a, b = table(half(BASE)), table(BASE)
    compare(a, b, digests=False, progress=heard.append)
    assert sum(heard) == half(BASE).nbytes + BASE.nbytes


@pytest.mark.parametrize("at", [None, 0, ROWS // 2, ROWS - 1])
@pytest.mark.parametrize("surplus", [0, 3])
def test_digests_are_right_wherever_the_first_difference_lies(table, chunk, at, surplus):
    """Equal bytes are hashed once for both; from the first difference on, each table has its own digest."""
    mine, other = half(BASE), np.concatenate([half(BASE), np.zeros((surplus, WIDTH), np.float16)])
    if at is not None:
        mine[at, 3] += 1
    result = compare(table(mine), table(other))
    assert (result.draft_sha256, result.target_sha256) == tuple(
        hashlib.sha256(t.tobytes()).hexdigest() for t in (mine, other))
