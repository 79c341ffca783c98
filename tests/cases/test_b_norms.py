"""Section B of the cases: norms. The acceptance of each reading (5.00 and 1.01) is asserted where the runtime runs."""

from __future__ import annotations

import numpy as np
import pytest

from fixtures import plant
from tests.builders import checkpoint, write
from tests.run import config, convert, inspect, kept_bit_equal, refused, tensors

H = plant.H
INPUT, OUTPUT = "layers.0.input_layernorm.weight", "norm.weight"
ONES = np.ones(H, np.float16)


def trained(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(1, 0.1, H).astype(np.float16)


@pytest.fixture
def head(tmp_path):
    def make(added, **settings):
        base, values = checkpoint("e1")
        return write(tmp_path / "head", base | settings, values | added), values | added
    return make


@pytest.fixture
def tgt(fixtures_dir):
    return fixtures_dir / "plant" / "tgt"


# -- C19: norms of ones that an engine added

def test_c19_both_of_ones_go_with_a_warning_that_names_both_readings(head, tmp_path, tgt):
    folder, values = head({INPUT: ONES, OUTPUT: ONES})
    ran = convert(folder, tmp_path / "out", "--target", tgt)
    kept_bit_equal(ran, tmp_path / "out", values)
    assert {INPUT, OUTPUT} & set(tensors(tmp_path / "out")) == set()
    assert sum(v.size for v in tensors(tmp_path / "out").values()) == 45_120
    found = ran.finding("EC401")
    assert found["severity"] == "warn"
    assert INPUT in found["where"]
    assert OUTPUT in found["where"]
    assert "Reading 1" in found["message"]
    assert "Reading 2" in found["message"]
    assert "EC401" in ran.stderr
    assert inspect(folder).document["draft"]["norms"]["input_norm"] == "dropped"


def test_c19_the_other_reading_is_one_flag_away_and_reads_the_same_again(head, tmp_path, tgt):
    folder, values = head({INPUT: ONES, OUTPUT: ONES})
    ran = convert(folder, tmp_path / "out", "--target", tgt, "--norms", "keep")
    kept_bit_equal(ran, tmp_path / "out", values)
    assert {INPUT, OUTPUT} <= set(tensors(tmp_path / "out"))
    written = config(tmp_path / "out")
    assert (written["skip_prenorm"], written["skip_output_norm"]) == (False, False)
    again = inspect(tmp_path / "out").document["draft"]["norms"]
    assert (again["input_norm"], again["output_norm"]) == ("applied", "applied")
    second = convert(tmp_path / "out", tmp_path / "again", "--target", tgt)
    assert tensors(tmp_path / "again").keys() == tensors(tmp_path / "out").keys()
    assert not second.findings("EC401")


# -- C21: norms that were trained

FOUR = {INPUT: trained(1), OUTPUT: trained(2), "enorm.weight": trained(3), "hnorm.weight": trained(4)}
FLAGS = {"skip_prenorm": False, "skip_output_norm": False, "add_para_norm": True}


def test_c21_trained_norms_stay_and_the_flags_are_written(head, tmp_path, tgt):
    folder, values = head(FOUR, **FLAGS)
    ran = convert(folder, tmp_path / "out", "--target", tgt)
    kept_bit_equal(ran, tmp_path / "out", values)
    assert set(FOUR) <= set(tensors(tmp_path / "out"))
    assert {key: config(tmp_path / "out")[key] for key in FLAGS} == FLAGS
    assert "a norm before the first attention, a norm before the head" in ran.finding("EC402")["message"]


def test_c21_trained_norms_without_flags_stay_with_a_warning(head, tmp_path, tgt):
    folder, values = head({INPUT: trained(1), OUTPUT: trained(2)})
    ran = convert(folder, tmp_path / "out", "--target", tgt)
    kept_bit_equal(ran, tmp_path / "out", values)
    assert ran.finding("EC404")["severity"] == "warn"
    assert config(tmp_path / "out")["skip_prenorm"] is False


@pytest.mark.parametrize("added", [{INPUT: ONES, OUTPUT: trained(2)}, {INPUT: trained(1), OUTPUT: ONES},
                                   {INPUT: ONES}, {OUTPUT: trained(2)}],
                         ids=["ones+trained", "trained+ones", "only ones", "only trained"])
def test_c21_anything_between_asks(head, tmp_path, tgt, added):
    folder, values = head(added)
    error = refused(folder, tmp_path / "out", "--target", tgt)
    assert all(name in error["where"] for name in added)
    assert "--norms keep" in error["how"]
    assert "--norms drop" in error["how"]
    inspect(folder, code=3).finding("EC403")
    ran = convert(folder, tmp_path / "kept", "--target", tgt, "--norms", "keep")
    kept_bit_equal(ran, tmp_path / "kept", values)
    assert set(added) <= set(tensors(tmp_path / "kept"))
    convert(folder, tmp_path / "dropped", "--target", tgt, "--norms", "drop")
    assert set(added) & set(tensors(tmp_path / "dropped")) == set()


def test_c21_a_flag_speaks_for_its_own_norm_only(head, tmp_path, tgt):
    folder, _ = head({INPUT: ONES, OUTPUT: ONES}, skip_prenorm=False)
    error = refused(folder, tmp_path / "out", "--target", tgt)
    assert error["where"] == f"model.safetensors: {OUTPUT}"


def test_c21_a_flag_without_its_norm_is_refused(head, tmp_path, tgt):
    folder, _ = head({}, skip_output_norm=False)
    error = refused(folder, tmp_path / "out", "--target", tgt)
    assert "norm.weight" in error["where"]
    assert "config.json" in error["where"]


# -- C23: a norm before fc

@pytest.mark.parametrize("flag", [True, None])
def test_c23_the_norms_presence_is_enough(tmp_path, fixtures_dir, flag):
    base, values = checkpoint("e3", "rand")
    values["input_norm.weight"] = np.random.default_rng(5).normal(1, 0.3, 3 * H).astype(np.float16)
    settings = base if flag is None else base | {"norm_before_fc": flag}
    folder = write(tmp_path / "head", settings, values)
    ran = convert(folder, tmp_path / "out", "--target", fixtures_dir / "rand" / "tgt")
    kept_bit_equal(ran, tmp_path / "out", values)
    assert config(tmp_path / "out")["norm_before_fc"] is True
    assert inspect(tmp_path / "out").document["draft"]["norm_before_fc"] is True


def test_c23_a_flag_without_the_norm_is_refused(tmp_path):
    base, values = checkpoint("e3", "rand")
    folder = write(tmp_path / "head", base | {"norm_before_fc": True}, values)
    error = refused(folder, tmp_path / "out")
    assert "input_norm" in str(error)


# -- C25: which state is recycled

@pytest.mark.parametrize("flag", [False, True])
def test_c25_the_recycled_state_is_carried(tmp_path, flag):
    base, values = checkpoint("e3", "rand")
    folder = write(tmp_path / "head", base | {"norm_output": flag}, values)
    convert(folder, tmp_path / "out")
    assert config(tmp_path / "out")["norm_output"] is flag
    assert inspect(folder).document["draft"]["norm_output"] is flag
