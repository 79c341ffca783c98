"""The verdict's branches in their order, and the bootstrap's behaviour on known differences."""

from __future__ import annotations

import random

import pytest

from eagle_convert.parity.lossless import Judged, Lossless, judge, tie_margin
from eagle_convert.parity.metrics import prompts_sheet
from eagle_convert.parity.trace import Counts
from eagle_convert.parity.verdict import MIN_PROMPTS, Evidence, decide

GOOD = Lossless(True, "", prompts=1, tokens=1000)


def rows(*accepted, steps=40):
    return [Counts(4, steps, 4 * steps, a, a + steps) for a in accepted]


def evidence(reference, candidate, lossless=GOOD, identical=False, same=True, one_sided=False):
    return Evidence(reference, candidate, prompts_sheet(reference), prompts_sheet(candidate), lossless, identical,
                    same, one_sided)


def noisy(mean, spread=6, n=32, seed=1):
    draw = random.Random(seed)
    return [min(160, max(0, round(draw.gauss(mean, spread)))) for _ in range(n)]


def test_a_wrong_token_fails_whatever_the_speed():
    bad = judge([[Judged(5, 6, 9.0, 2.0)]], "float32")
    found = decide(evidence(rows(80), rows(80), bad, identical=True))
    assert found.answer == "fail"
    assert "the text is not the target's: 1 of 1 tokens" in found.reason
    assert found.exit_code == 3


def test_a_tie_is_excused_and_many_are_not():
    few = judge([[Judged(5, 6, 9.0, 9.0 - 5e-4)] + [Judged(1, 1, 9.0, 9.0)] * 99], "float32")
    assert (len(few.ties), len(few.mismatches)) == (1, 0)
    assert decide(evidence(rows(80), rows(80), few, identical=True)).answer == "pass"
    many = judge([[Judged(5, 6, 9.0, 9.0 - 5e-4)] * 3 + [Judged(1, 1, 9.0, 9.0)] * 97], "float32")
    found = decide(evidence(rows(80), rows(80), many, identical=True))
    assert (found.answer, found.exit_code) == ("inconclusive", 4)
    assert "--dtype float32" in found.reason


@pytest.mark.parametrize(("dtype", "top", "margin"), [
    ("float32", 20.0, 1e-3), ("bfloat16", 20.0, 4 * 2.0**-7 * 20), ("float16", -8.0, 4 * 2.0**-10 * 8)])
def test_tie_margins(dtype, top, margin):
    assert tie_margin(dtype, top) == margin
    assert tie_margin(dtype, top, 0.5) == 0.5


def test_a_gap_to_the_best_counts_not_the_gap_between_the_two_best():
    """A third-best token far below two that are nearly equal is a mismatch."""
    assert judge([[Judged(7, 6, 9.0, 3.0)]], "float32").mismatches[0].margin == 6.0


def test_identical_passes_however_few():
    found = decide(evidence(rows(80), rows(80), identical=True))
    assert found.answer == "pass"
    assert "identical accepted counts at each of 40 steps of 1 prompts" in found.reason


def test_few_prompts_that_differ_are_inconclusive_even_when_far_apart():
    found = decide(evidence(rows(*[80] * 15), rows(*[10] * 15)))
    assert (found.answer, found.more_prompts) == ("inconclusive", 1)
    assert str(MIN_PROMPTS) in found.reason


@pytest.mark.parametrize("factor", [0.5, 1.5])
def test_far_apart_fails_on_either_side(factor):
    reference = noisy(80)
    found = decide(evidence(rows(*reference), rows(*[round(a * factor) for a in reference])))
    assert found.answer == "fail"
    assert ("fell" if factor < 1 else "rose") in found.reason


def test_the_regression_gate_lets_a_gain_pass():
    reference = noisy(80)
    better = rows(*[round(a * 1.5) for a in reference])
    assert decide(evidence(rows(*reference), better, one_sided=True)).answer == "pass"
    assert decide(evidence(better, rows(*reference), one_sided=True)).answer == "fail"


def test_the_pairing_removes_the_prompts_own_spread():
    """Prompts differ by far more than the tolerance; the two sides differ by one accepted draft in 32 prompts."""
    reference = noisy(80, spread=40)
    candidate = [reference[0] + 1, *reference[1:]]
    assert decide(evidence(rows(*reference), rows(*candidate))).answer == "pass"


def test_a_straddling_interval_says_how_many_more_prompts():
    reference = [80] * 20
    candidate = [80 + (9 if i % 2 else -9) for i in range(20)]
    found = decide(evidence(rows(*reference), rows(*candidate)))
    assert found.answer == "inconclusive"
    assert found.more_prompts is not None
    assert f"about {found.more_prompts} more prompts would decide" in found.reason
    longer = 20 + found.more_prompts + found.more_prompts % 2
    again = decide(evidence(rows(*([80] * longer)), rows(*[80 + (9 if i % 2 else -9) for i in range(longer)])),
                   tolerance=0.0115)
    assert again.answer == "pass"


def test_the_tolerance_depends_on_the_trajectory():
    """1.5 % lower on every prompt: outside 1 % on the same text, inside 2 % on another."""
    reference, candidate = rows(*[80] * 16, steps=80), rows(*[78] * 8, *[77] * 8, steps=80)
    assert decide(evidence(reference, candidate, same=True)).answer == "fail"
    assert decide(evidence(reference, candidate, same=False)).answer == "pass"
    assert decide(evidence(reference, candidate, same=False), tolerance=0.005).answer == "fail"


def test_reproducible_and_seeded():
    reference, candidate = rows(*noisy(80)), rows(*noisy(80, seed=2))
    first, again = (decide(evidence(reference, candidate), seed=3).spread for _ in range(2))
    assert first == again
    assert decide(evidence(reference, candidate), seed=4).spread != first


def test_the_interval_covers_the_true_difference_about_19_times_in_20():
    """100 experiments on prompts drawn from one distribution; fewer than 85 hits has odds below 1 in 10,000."""
    hits = 0
    for seed in range(100):
        draw = random.Random(seed)
        reference = [draw.randint(40, 120) for _ in range(24)]
        candidate = [max(0, a + draw.randint(-10, 10)) for a in reference]
        spread = decide(evidence(rows(*reference), rows(*candidate)), seed=seed).spread
        assert spread is not None
        hits += spread.ci95[0] <= 0 <= spread.ci95[1]
    assert 85 <= hits <= 100


def test_c114_a_low_but_equal_number_passes_with_a_warning():
    low = [Counts(4, 40, 160, 28, 68, (20, 6, 2, 0))] * 20
    found = decide(evidence(low, low, identical=True))
    assert found.answer == "pass"
    assert "the head itself is weak" in found.warnings[0]
    assert "50%" in found.warnings[0]


def test_c01_nothing_accepted_is_said():
    none = [Counts(4, 40, 160, 0, 40, (0, 0, 0, 0))] * 20
    found = decide(evidence(none, none, identical=True))
    assert "not one draft was accepted" in found.warnings[0]


def test_no_counting_step_is_no_answer():
    empty = [Counts(4, 0, 0, 0, 0)]
    found = decide(evidence(empty, empty))
    assert (found.answer, found.spread) == ("inconclusive", None)
