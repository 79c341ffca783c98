"""Section G of the cases: rotary embedding and context."""

from __future__ import annotations

import json

import pytest

from tests.builders import checkpoint, write
from tests.run import config, convert, inspect, refused

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}


def head(folder, name="e1", family="plant", without=(), **settings):
    base, values = checkpoint(name, family)
    base = {key: value for key, value in base.items() if key not in without}
    return write(folder, base | settings, values)


def test_c60_the_scaling_block_is_carried_whole(tmp_path):
    folder = head(tmp_path / "head", "e3", "rand", rope_scaling=LLAMA3)
    assert inspect(folder).document["draft"]["rope"]["scaling"] == LLAMA3
    convert(folder, tmp_path / "out")
    assert config(tmp_path / "out")["rope_scaling"] == LLAMA3
    assert inspect(tmp_path / "out").document["draft"]["rope"] == inspect(folder).document["draft"]["rope"]


def test_c61_a_base_other_than_10000_of_an_eagle3_head_is_doubted(tmp_path):
    folder = head(tmp_path / "head", "e3", "rand", rope_theta=500000.0)
    ran = inspect(folder)
    (found,) = [f for f in ran.document["findings"] if "rope_theta" in f["where"]]
    assert found["severity"] == "warn"
    assert "10000" in found["message"]
    assert "--rope-theta 10000" in found["fix"]
    convert(folder, tmp_path / "stated")
    assert config(tmp_path / "stated")["rope_theta"] == 500000.0
    convert(folder, tmp_path / "other", "--rope-theta", "10000")
    assert config(tmp_path / "other")["rope_theta"] == 10000.0
    assert "--rope-theta" in json.loads((tmp_path / "other" / "eagle_convert.json").read_text())["options"]


@pytest.mark.parametrize("name", ["e1", "e3"])
def test_c61_a_base_of_10000_or_of_an_eagle1_head_is_not(tmp_path, name):
    folder = head(tmp_path / "head", name, "rand", rope_theta=10000.0 if name == "e3" else 500000.0)
    assert [f for f in inspect(folder).document["findings"] if "rope_theta" in f["where"]] == []


def test_c63_rope_parameters_alone_are_read_and_written_in_both_places(tmp_path):
    block = {"rope_theta": 5000000.0, "rope_type": "default"}
    folder = head(tmp_path / "head", without=("rope_theta",), rope_parameters=block)
    convert(folder, tmp_path / "out")
    written = config(tmp_path / "out")
    assert written["rope_theta"] == 5000000.0
    assert written["rope_parameters"] == block


def test_c63_no_second_place_appears_unless_the_source_had_it(tmp_path):
    convert(head(tmp_path / "head"), tmp_path / "out")
    assert "rope_parameters" not in config(tmp_path / "out")
    convert(head(tmp_path / "none", without=("rope_theta",)), tmp_path / "absent")
    assert "rope_theta" not in config(tmp_path / "absent")  # absent means 10000 everywhere: it stays absent


def test_c63_two_places_that_disagree_stop_with_both_values(tmp_path):
    folder = head(tmp_path / "head", rope_theta=10000.0,
                  rope_parameters={"rope_theta": 5000000.0, "rope_type": "default"})
    error = refused(folder, tmp_path / "out")
    assert "10000" in error["where"]
    assert "5000000" in error["where"].replace("e+06", "000000")


def test_c65_the_position_limit_becomes_the_targets(tmp_path, fixtures_dir):
    folder = head(tmp_path / "head", max_position_embeddings=64)
    ran = convert(folder, tmp_path / "out", "--target", fixtures_dir / "plant" / "tgt")
    assert config(tmp_path / "out")["max_position_embeddings"] == 512
    manifest = json.loads((tmp_path / "out" / "eagle_convert.json").read_text())
    assert manifest["trained_window"] == 64
    assert ran.finding("EC707")["message"].startswith("raised from 64")
    again = convert(tmp_path / "out", tmp_path / "again", "--target", fixtures_dir / "plant" / "tgt")
    assert json.loads((tmp_path / "again" / "eagle_convert.json").read_text())["trained_window"] == 64
    assert not again.findings("EC707")


def test_c65_without_a_target_it_is_a_warning(tmp_path):
    folder = head(tmp_path / "head", max_position_embeddings=64)
    ran = convert(folder, tmp_path / "out")
    assert config(tmp_path / "out")["max_position_embeddings"] == 64
    found = ran.finding("EC708")
    assert found["severity"] == "warn"
    assert "--target" in found["fix"]
    assert json.loads((tmp_path / "out" / "eagle_convert.json").read_text())["trained_window"] is None


def test_c65_a_larger_limit_than_the_targets_stays(tmp_path, fixtures_dir):
    folder = head(tmp_path / "head", max_position_embeddings=4096)
    convert(folder, tmp_path / "out", "--target", fixtures_dir / "plant" / "tgt")
    assert config(tmp_path / "out")["max_position_embeddings"] == 4096


@pytest.mark.parametrize(("scaling", "raised"), [
    ({"type": "dynamic", "factor": 2.0}, False), ({"rope_type": "dynamic", "factor": 2.0}, False),
    ({"rope_type": "yarn", "factor": 2.0}, False), ({"type": "linear", "factor": 2.0}, True), (LLAMA3, True)])
def test_c65_a_limit_that_is_part_of_the_function_is_left_alone(tmp_path, fixtures_dir, scaling, raised):
    folder = head(tmp_path / "head", max_position_embeddings=64, rope_scaling=scaling)
    ran = convert(folder, tmp_path / "out", "--target", fixtures_dir / "plant" / "tgt")
    assert config(tmp_path / "out")["max_position_embeddings"] == (512 if raised else 64)
    assert len(ran.findings("EC711")) == (0 if raised else 1)
