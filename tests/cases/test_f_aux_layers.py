"""Section F of the cases: auxiliary layers, and which algorithm a file is. Logits of the readings are the runtime's."""

from __future__ import annotations

import json

import pytest

from tests.builders import checkpoint, write
from tests.run import config, convert, inspect, kept_bit_equal, refused


def e3(folder, **settings):
    base, values = checkpoint("e3", "rand")
    return write(folder, base | settings, values), values


def test_c54_ids_are_shown_in_both_readings_and_written_in_both(tmp_path, fixtures_dir):
    folder, values = e3(tmp_path / "head", eagle_aux_hidden_state_layer_ids=[1, 4, 6])
    ran = inspect(folder)
    assert ran.document["draft"]["aux_hidden_state_layers"] == [1, 4, 6]
    ran = convert(folder, tmp_path / "out", "--target", fixtures_dir / "rand" / "tgt")
    kept_bit_equal(ran, tmp_path / "out", values)
    written = config(tmp_path / "out")
    assert written["eagle_aux_hidden_state_layer_ids"] == [1, 4, 6]  # boundaries, as vLLM reads them
    assert written["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 3, 5]  # layer outputs: SGLang, NVIDIA
    assert written["num_aux_hidden_states"] == 3


def test_c55_nested_ids_are_honoured(tmp_path, fixtures_dir):
    """Outputs of layers 1, 4, 5 are boundaries 2, 5, 6; the heuristic for 8 layers would be 2, 4, 5."""
    folder, _ = e3(tmp_path / "head", eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 4, 5]})
    assert inspect(folder).document["draft"]["aux_hidden_state_layers"] == [2, 5, 6]
    convert(folder, tmp_path / "out", "--target", fixtures_dir / "rand" / "tgt")
    assert config(tmp_path / "out")["eagle_aux_hidden_state_layer_ids"] == [2, 5, 6]


def test_c55_the_heuristic_is_used_only_when_nothing_is_declared_and_then_named(tmp_path):
    folder, _ = e3(tmp_path / "head")
    ran = inspect(folder)
    assert ran.document["draft"]["aux_hidden_state_layers"] is None
    assert "2, L // 2, L - 3" in ran.finding("EC210")["message"]


def test_c55_two_places_that_disagree_stop(tmp_path):
    folder, _ = e3(tmp_path / "head", eagle_aux_hidden_state_layer_ids=[2, 4, 5],
                   eagle_config={"eagle_aux_hidden_state_layer_ids": [2, 4, 5]})
    error = refused(folder, tmp_path / "out")
    assert "eagle_aux_hidden_state_layer_ids" in error["where"]


def test_ids_beyond_the_target_are_refused(tmp_path, fixtures_dir):
    folder, _ = e3(tmp_path / "head", eagle_aux_hidden_state_layer_ids=[2, 16, 29])
    error = refused(folder, tmp_path / "out", "--target", fixtures_dir / "rand" / "tgt")
    assert "[16, 29]" in error["what"]
    assert "8 layers" in error["what"]


@pytest.mark.parametrize(("name", "claimed"), [("e3", "eagle"), ("e1", "eagle3")])
def test_c58_a_manifest_that_claims_the_other_algorithm_is_refused(tmp_path, fixtures_dir, name, claimed):
    base, values = checkpoint(name)
    folder = write(tmp_path / "head", base, values)
    convert(folder, tmp_path / "compact", "--target", fixtures_dir / "plant" / "tgt")
    path = tmp_path / "compact" / "eagle_convert.json"
    document = json.loads(path.read_text())
    assert document["algorithm"] == {"e1": "eagle", "e3": "eagle3"}[name]
    path.write_text(json.dumps(document | {"algorithm": claimed}))
    error = refused(tmp_path / "compact", tmp_path / "out")
    assert "fc.weight" in error["where"]


@pytest.mark.parametrize(("name", "claimed"), [("e3", "eagle"), ("e1", "eagle3")])
def test_c58_a_config_that_claims_the_other_algorithm_is_refused(tmp_path, name, claimed):
    base, values = checkpoint(name)
    folder = write(tmp_path / "head", base | {"speculative_algorithm": claimed}, values)
    config_says = {"eagle": {"architectures": ["EagleLlamaForCausalLM"]},
                   "eagle3": {"architectures": ["LlamaForCausalLMEagle3"]}}[claimed]
    folder = write(tmp_path / "other", base | config_says, values)
    error = refused(folder, tmp_path / "out")
    assert "fc.weight" in error["where"]
