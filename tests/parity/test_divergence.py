"""Two traces side by side: the same text, the same counting steps, or the first place where they part."""

from __future__ import annotations

from eagle_convert.parity.divergence import compare
from eagle_convert.parity.settings import Settings
from eagle_convert.parity.trace import PromptTrace, StepRecord, Trace
from eagle_runtime.config import TreeShape


def trace(output, *accepted, limit=20, proposed=4, counts_from=0):
    steps = tuple(StepRecord(proposed, a, a + 1, None, bool(counts_from) and i >= counts_from)
                  for i, a in enumerate(accepted))
    return Trace("e", "1", Settings("eagle", TreeShape.chain(4), limit, eos_token_ids=(2,)),
                 (PromptTrace((1,), tuple(output), steps),))


def only(reference, candidate):
    found = compare(reference, candidate)
    assert len(found.divergences) == 1
    return found.divergences[0]


def test_identical():
    found = compare(trace(range(10, 15), 2, 1), trace(range(10, 15), 2, 1))
    assert (found.identical, found.same_text, found.compared_steps) == (True, True, 2)


def test_another_accepted_count_on_the_same_text():
    d = only(trace(range(10, 16), 2, 2), trace(range(10, 16), 2, 1, 0))
    assert (d.what, d.step, d.position, d.reference, d.candidate) == ("accepted", 1, 3, 2, 1)


def test_another_token_comes_before_the_steps_behind_it():
    d = only(trace([10, 11, 12, 13], 0, 2), trace([10, 11, 99, 13], 0, 2))
    assert (d.what, d.step, d.position, d.reference, d.candidate) == ("output", 1, 2, 12, 99)


def test_a_draft_wrongly_accepted_is_a_different_text():
    d = only(trace([10, 11, 12], 1, 0), trace([10, 11, 99], 2))
    assert (d.what, d.position) == ("output", 2)


def test_steps_that_do_not_count_may_differ():
    reference = trace(range(10, 15), 1, 2, counts_from=1)
    candidate = trace(range(10, 15), 1, 0, 1, counts_from=1)
    assert compare(reference, candidate).identical


def test_an_engine_may_or_may_not_take_the_step_whose_root_is_a_stop_token():
    assert compare(trace([10, 11, 2], 1, 0, counts_from=1), trace([10, 11], 1)).identical


def test_a_text_cut_short_is_not_the_same_text():
    """Comparing what two lists have in common would call them equal."""
    d = only(trace(range(10, 16), 2, 2), trace(range(10, 13), 2))
    assert (d.what, d.position, d.reference, d.candidate) == ("output", 3, 13, None)


def test_tokens_beyond_the_limit_are_not_compared():
    one, two = trace(range(10, 16), 2, 2, limit=5, counts_from=1), trace(range(10, 15), 2, 1, limit=5, counts_from=1)
    assert compare(one, two).identical


def test_fewer_drafts_are_a_divergence():
    assert only(trace(range(10, 13), 2), trace(range(10, 13), 2, proposed=3)).what == "proposed"


def test_nothing_to_compare_is_not_identical():
    assert not compare(trace([2]), trace([2])).identical
