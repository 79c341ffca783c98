"""Vocabulary tables: offsets and ids are inverse, and every way of being wrong is told apart."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_convert.errors import BrokenFileError, DialectError
from eagle_convert.vocab import check_d2t, check_ids, ids_of, integers, mask_of, offsets_of, plain_d2t
from fixtures.plant import SUBSET

V = 320
IDS = SUBSET.astype(np.int64)
OFFSETS = offsets_of(IDS)
MASK = mask_of(IDS, V)


@given(st.lists(st.integers(0, 2**31), min_size=1, max_size=50))
def test_offsets_and_ids_are_inverse(ids):
    np.testing.assert_array_equal(ids_of(offsets_of(np.array(ids, np.int64))), ids)


def test_a_right_table_passes_with_its_mask():
    found = check_d2t(OFFSETS, V, t2d=MASK, rows=160)
    np.testing.assert_array_equal(found.ids, IDS)
    np.testing.assert_array_equal(found.offsets, OFFSETS)
    assert (found.ascending, found.identity, found.evenly) == (True, False, None)
    assert found.describe() == "160 of 320 ids, 3 to 319, strictly increasing"


def test_c38_a_table_of_zeros_over_the_whole_vocabulary_is_the_identity():
    found = check_d2t(np.zeros(V, np.int64), V, t2d=np.ones(V, bool), rows=V)
    assert found.identity
    assert found.evenly is None


@pytest.mark.parametrize(("table", "step"), [(np.zeros(160, np.int64), 1), (np.arange(160), 2)])
def test_a_table_that_was_never_filled_is_valid_but_looks_it(table, step):
    assert check_d2t(table, V).evenly == step


@pytest.mark.parametrize("table", [np.zeros(160, np.int64), np.arange(160), OFFSETS[::-1].copy()])
def test_the_mask_catches_unfilled_and_foreign_tables(table):
    with pytest.raises(DialectError):
        check_d2t(table, V, t2d=MASK)


def test_ids_stored_as_offsets_are_told():
    with pytest.raises(DialectError, match="holds absolute ids, not offsets") as caught:
        check_d2t(IDS, V, t2d=MASK)
    assert "read as absolute ids it fits and agrees with t2d" in caught.value.where
    with pytest.raises(DialectError, match="holds offsets, not absolute ids"):
        check_d2t(OFFSETS, V, t2d=MASK, stored="ids")


def test_range_names_the_first_offender():
    table = OFFSETS.copy()
    table[5], table[9] = 400, -50
    with pytest.raises(DialectError, match="leaves the target's") as caught:
        check_d2t(table, V, where="model.safetensors: d2t")
    assert caught.value.where == ("model.safetensors: d2t: draft id 5 means target id 405, expected 0 to 319; "
                                  "2 of 160 are out of range")


def test_doubles_are_named():
    with pytest.raises(DialectError, match="mean the same target id") as caught:
        check_ids(np.array([3, 5, 9, 5]), V, "d2t")
    assert "draft ids 1 and 3 both mean 5; 1 doubles" in caught.value.where


def test_head_and_table_of_other_lengths():
    with pytest.raises(DialectError, match="differ in length") as caught:
        check_d2t(OFFSETS, V, rows=159)
    assert "d2t has 160 entries, lm_head.weight 159 rows" in caught.value.where


def test_the_mask_and_the_table_of_two_files():
    mask = MASK.copy()
    mask[[0, int(IDS[0])]] = [True, False]
    with pytest.raises(DialectError, match="different draft vocabularies") as caught:
        check_d2t(OFFSETS, V, t2d=mask)
    assert "differ for 2 target ids, first 0: t2d says True" in caught.value.where


@pytest.mark.parametrize("mask", [np.ones(319, bool), np.full(V, 2), np.ones((V, 1), bool), np.ones(V)])
def test_a_mask_that_is_none(mask):
    with pytest.raises(BrokenFileError):
        check_d2t(OFFSETS, V, t2d=mask)


def test_a_mask_of_zeros_and_ones_is_one():
    assert check_d2t(OFFSETS, V, t2d=MASK.astype(np.uint8)).ascending


@pytest.mark.parametrize("table", [np.zeros((2, 2), np.int64), np.zeros(0, np.int64), np.zeros(4, np.float32),
                                   np.array([2**63], np.uint64)])
def test_a_table_that_is_none(table):
    with pytest.raises(BrokenFileError):
        integers(table, "d2t")


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63)])
def test_garbage_does_not_wrap_around(value):
    with pytest.raises(DialectError, match="leaves the target's"):
        check_d2t(np.array([value, value, 0]), V)


def test_out_of_order_is_valid_and_said():
    assert check_ids(np.array([5, 3, 9]), V, "d2t").ascending is False


@given(ids=st.lists(st.integers(-2, 21), min_size=1, max_size=20), ordered=st.booleans(), masked=st.booleans(),
       flipped=st.none() | st.integers(0, 19), rows=st.none() | st.integers(1, 20))
def test_the_quick_check_takes_exactly_what_the_thorough_one_takes(ids, ordered, flipped, masked, rows):
    """And says the same of it; what it does not take is left to the one that can say why."""
    ids = sorted(set(ids)) if ordered else ids
    table = offsets_of(np.array(ids, np.int64))
    mask = None
    if masked:
        mask = mask_of(np.array([i for i in ids if 0 <= i < 20], np.int64), 20)
        if flipped is not None:
            mask[flipped] ^= True
    quick = plain_d2t(table.tobytes(), 20, t2d=None if mask is None else mask.tobytes(), rows=rows)
    try:
        thorough = check_d2t(table, 20, t2d=mask, rows=rows)
    except DialectError:
        thorough = None
    assert quick == thorough


@pytest.mark.parametrize("table", [b"", b"\xff" * 7 + b"\x7f" + b"\xff" * 7 + b"\x7f"])
def test_the_quick_check_leaves_what_is_no_table(table):
    assert plain_d2t(table, V) is None


@pytest.mark.parametrize("mask", [b"\2" + b"\1" * 159 + b"\0" * 160, b"\1" * 160])
def test_the_quick_check_leaves_what_is_no_mask(mask):
    assert plain_d2t(np.zeros(160, np.int64).tobytes(), V, t2d=mask) is None
