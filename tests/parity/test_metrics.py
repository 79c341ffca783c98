"""The metrics, by hand-countable cases and by the identities that must hold for every trace."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_convert.errors import BrokenFileError
from eagle_convert.parity.metrics import complete, count_steps, pool, prompts_sheet, sheet
from eagle_convert.parity.trace import Counts, StepRecord


def test_c102_pooled_length_and_what_was_drafted():
    found = sheet(complete(Counts(k=7, drafted=33712, accepted=12208)))
    assert found.counts.steps == 4816
    assert found.acceptance_length == 1 + 12208 / 4816
    assert f"{found.acceptance_length:.3f}" == "3.535"


def test_c108_with_and_without_the_bonus():
    found = sheet(complete(Counts(steps=100, accepted=200)))
    assert (found.accepted_per_step, found.acceptance_length) == (2.0, 3.0)
    assert found.acceptance_rate is None  # nothing said how many were drafted
    assert found.system_efficiency is None


def test_c110_unconditional_and_conditional_rates():
    found = sheet(complete(Counts(steps=100, per_position=(70, 37, 21))))
    assert found.per_position == (0.70, 0.37, 0.21)
    assert found.conditional is not None
    assert [round(c or 0, 3) for c in found.conditional] == [0.700, 0.529, 0.568]
    assert found.acceptance_length == pytest.approx(2.28)
    assert found.counts.drafted == 300


def test_c112_one_vector_four_numbers():
    """Matches 1,0,1,0: the old rate counts the third, the accepted prefix ends at the second."""
    found = sheet(count_steps([StepRecord(4, 1, 2, (True, False, True, False))], k=4))
    assert (found.match_rate, found.counts.accepted) == (0.50, 1)
    assert (found.system_efficiency, found.acceptance_length) == (0.40, 2.0)


def test_c112_the_same_step_as_counters_of_vllm_06():
    found = sheet(complete(Counts(k=4, drafted=4, accepted=2, emitted=2), "v0"))
    assert (found.match_rate, found.acceptance_length, found.system_efficiency) == (0.50, 2.0, 0.40)
    assert found.acceptance_rate == 0.25  # the accepted prefix, not the matches


def test_v0_counters_without_emitted_give_no_length():
    found = sheet(complete(Counts(k=4, steps=1, accepted=2), "v0"))
    assert found.acceptance_length is None
    assert found.match_rate == 0.5


def test_steps_that_do_not_count_enter_no_ratio():
    steps = [StepRecord(4, 4, 5), StepRecord(4, 0, 1, truncated=True)]
    assert sheet(count_steps(steps, 4)).acceptance_length == 5.0


def test_a_tree_has_no_match_rate_and_its_efficiency_uses_the_deepest_path():
    counts = count_steps([StepRecord(59, 3, 4)], k=8)
    found = sheet(complete(counts, chain=False), tree=True)
    assert found.match_rate is None
    assert found.system_efficiency == 4 / 9
    assert found.acceptance_rate == 3 / 59


def test_the_macro_mean_weighs_prompts_alike():
    rows = [complete(Counts(k=4, steps=1, accepted=4)), complete(Counts(k=4, steps=3, accepted=0)),
            complete(Counts(k=4, steps=0, accepted=0))]
    found = prompts_sheet(rows)
    assert found.acceptance_length == 2.0
    assert found.macro_acceptance_length == (5 + 1) / 2  # the prompt without a counting step has no length of its own


def test_a_counter_one_prompt_does_not_know_is_unknown_for_all():
    assert pool([Counts(4, 2, 8, 3, 5, matches=4), Counts(4, 2, 8, 3, 5)]).matches is None


def test_no_steps_no_ratios():
    found = sheet(count_steps([], 4))
    assert (found.acceptance_length, found.acceptance_rate, found.per_position) == (None, None, None)


@pytest.mark.parametrize(("counts", "where"), [
    (Counts(drafted=4, accepted=5), "accepted 5 of 4 drafted"),
    (Counts(steps=3, emitted=2), "less than one token a step"),
    (Counts(k=3, steps=9, per_position=(3, 4, 0)), "rises"),
    (Counts(k=3, per_position=(3, 2)), "2 entries, k is 3"),
    (Counts(steps=2, per_position=(3, 0)), "3 times in 2 steps"),
    (Counts(steps=9, accepted=4, per_position=(3, 2)), "sums to 5, accepted is 4"),
    (Counts(drafted=4, matches=5), "5 matches of 4"),
    (Counts(k=2, steps=2, drafted=9, accepted=5), "2 steps of at most 2"),
])
def test_impossible_counters_are_refused(counts, where):
    with pytest.raises(BrokenFileError) as caught:
        complete(counts)
    assert where in caught.value.where


@st.composite
def chains(draw):
    k = draw(st.integers(1, 7))
    steps = []
    for _ in range(draw(st.integers(1, 30))):
        matches = draw(st.lists(st.booleans(), min_size=k, max_size=k))
        accepted = (*matches, False).index(False)
        steps.append(StepRecord(k, accepted, accepted + 1, tuple(matches), draw(st.booleans())))
    return k, steps


@given(chains())
def test_the_identities_hold_for_every_chain(case):
    k, steps = case
    found = sheet(count_steps(steps, k))
    c = found.counts
    assert c.emitted == c.accepted + c.steps
    assert c.drafted == k * c.steps
    assert sum(c.per_position) == c.accepted
    if c.steps:
        assert found.acceptance_length == pytest.approx(1 + sum(found.per_position))
        assert found.acceptance_length == pytest.approx(1 + found.acceptance_rate * k)
        assert found.acceptance_length == pytest.approx(found.system_efficiency * (k + 1))
        assert found.match_rate >= found.acceptance_rate
        product = 1.0
        for rate, step in zip(found.per_position, found.conditional, strict=True):
            product *= step or 0.0
            assert rate == pytest.approx(product)


@given(chains())
def test_counters_alone_give_the_sheet_of_the_steps(case):
    """The counters that a server would publish lose nothing: v1 by positions, v0 by matches and emitted tokens."""
    k, steps = case
    counts = count_steps(steps, k)
    whole = sheet(counts)
    assert sheet(complete(Counts(steps=counts.steps, per_position=counts.per_position))).document() | {
        "match_rate": whole.match_rate} == whole.document()
    if counts.steps:
        old = sheet(complete(Counts(k=k, drafted=counts.drafted, accepted=counts.matches, emitted=counts.emitted),
                             "v0"))
        assert (old.acceptance_length, old.match_rate) == (whole.acceptance_length, whole.match_rate)


@given(st.lists(chains(), min_size=1, max_size=5))
def test_pooling_prompts_equals_counting_all_steps(cases):
    k = cases[0][0]
    rows = [[s for s in steps if s.proposed == k] for _, steps in cases]
    flat = [step for row in rows for step in row]
    pooled = pool([count_steps(row, k) for row in rows])
    whole = count_steps(flat, k)
    assert pooled.per_position == whole.per_position
    assert (pooled.steps, pooled.accepted, pooled.emitted) == (whole.steps, whole.accepted, whole.emitted)
