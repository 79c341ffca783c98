"""The decision table for norms of EAGLE-1/2 heads, row by row."""

import pytest

from eagle_convert.norms import NORMS, decide

BOTH = ("input_norm", "output_norm")
ALL = tuple(NORMS)


def verdict(present, ones=(), claims=None, choice="auto"):
    return decide({norm: NORMS[norm] for norm in present}, claims or {}, lambda norm: norm in ones, choice)


def outcome(result):
    """(applied norms, finding ids)"""
    return tuple(n for n in NORMS if result.applied[n]), [f.id for f in result.findings]


def test_without_norms_there_is_nothing_to_decide():
    assert outcome(verdict(())) == ((), [])


def test_a_both_of_ones_and_no_flag_are_dropped_with_both_readings_named():
    result = verdict(BOTH, ones=BOTH)
    assert outcome(result) == ((), ["EC401"])
    assert result.findings[0].severity == "warn"
    assert "Reading 1" in result.findings[0].message
    assert "Reading 2" in result.findings[0].message
    assert "--norms keep" in result.findings[0].fix


def test_b_flags_keep_norms_even_of_ones():
    result = verdict(BOTH, ones=BOTH, claims={"input_norm": True, "output_norm": True})
    assert outcome(result) == (BOTH, ["EC402"])


@pytest.mark.parametrize("present", [("input_norm",), ("output_norm",)])
@pytest.mark.parametrize("ones", [True, False])
def test_c_one_of_the_two_alone_is_undecided(present, ones):
    result = verdict(present, ones=present if ones else ())
    assert outcome(result) == ((), ["EC403"])
    assert result.findings[0].severity == "error"
    assert "--norms" in result.findings[0].fix


@pytest.mark.parametrize("ones", [("input_norm",), ("output_norm",)])
def test_c_one_of_ones_and_one_trained_is_undecided(ones):
    assert outcome(verdict(BOTH, ones=ones)) == ((), ["EC403"])


def test_d_both_trained_are_kept_and_the_variant_is_named():
    result = verdict(BOTH)
    assert outcome(result) == (BOTH, ["EC404"])
    assert "a norm before the first attention, a norm before the head" in result.findings[0].message


@pytest.mark.parametrize("ones", [True, False])
def test_a_flag_speaks_for_its_own_norm_only(ones):
    """The flagged one is kept; the other is then alone, and undecided whatever its weight."""
    result = verdict(BOTH, ones=("output_norm",) if ones else (), claims={"input_norm": True})
    assert outcome(result) == (("input_norm",), ["EC402", "EC403"])


def test_a_flag_that_says_skipped_drops_ones_and_doubts_a_trained_weight():
    assert outcome(verdict(BOTH, ones=BOTH, claims=dict.fromkeys(BOTH, False))) == ((), [])
    result = verdict(BOTH, ones=("input_norm",), claims=dict.fromkeys(BOTH, False))
    assert outcome(result) == ((), ["EC403"])
    assert "skip_output_norm says it is skipped" in result.findings[0].message


def test_all_four_trained_with_flags():
    assert outcome(verdict(ALL, claims=dict.fromkeys(ALL, True))) == (ALL, ["EC402"])


def test_all_four_trained_without_flags():
    assert outcome(verdict(ALL)) == (ALL, ["EC404", "EC404"])


def test_ones_beside_parallel_norms_are_no_plain_head():
    assert outcome(verdict(ALL, ones=BOTH)) == (("embed_norm", "hidden_norm"), ["EC404", "EC403"])


def test_parallel_norms_of_ones_are_undecided():
    result = verdict(("embed_norm", "hidden_norm"), ones=("embed_norm", "hidden_norm"))
    assert outcome(result) == ((), ["EC403"])


def test_a_flag_without_its_norm_is_an_error():
    result = verdict((), claims={"output_norm": True})
    assert outcome(result) == ((), ["EC406"])
    assert result.findings[0].where == "norm.weight"


@pytest.mark.parametrize("present", [BOTH, ("input_norm",), ALL])
def test_the_users_word_decides(present):
    assert outcome(verdict(present, choice="keep")) == (tuple(present), ["EC402"])
    result = verdict(present, ones=("input_norm",), choice="drop")
    assert outcome(result) == ((), ["EC405"])


def test_dropping_trained_norms_says_which():
    result = verdict(BOTH, ones=("input_norm",), choice="drop")
    assert "norm.weight" in result.findings[0].message
    assert "input_layernorm" not in result.findings[0].message
