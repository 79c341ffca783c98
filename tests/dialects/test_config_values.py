"""Config values: wrong types stop with key and value; rope in both spellings; absent stays absent; all is reported."""

import numpy as np
import pytest

from eagle_convert.errors import ConfigError
from tests.dialects.checkpoints import found, ids, load, read, write

WRONG = ["64", None, True, -1, 0, 2**31, 1.5, 1e300, [], {}]
SIZES = ["hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers",
         "vocab_size", "max_position_embeddings"]


@pytest.mark.parametrize(("key", "value"), [(key, value) for key in SIZES for value in WRONG
                                            if (key, value) != ("num_key_value_heads", None)], ids=repr)
def test_a_size_of_another_type_names_key_and_value(tmp_path, key, value):
    config, tensors = load("plant/e1")
    with pytest.raises(ConfigError) as caught:
        read(write(tmp_path, config | {key: value}, tensors))
    assert f"{key} = {value!r}, expected" in caught.value.where


@pytest.mark.parametrize(("key", "value"), [
    *((key, value) for key in ("rms_norm_eps", "rope_theta") for value in ("1e-6", True, 0, -1e-6, 10**400)),
    ("rms_norm_eps", None)], ids=repr)
def test_a_number_of_another_type_names_the_key(tmp_path, key, value):
    config, tensors = load("plant/e1")
    with pytest.raises(ConfigError) as caught:
        read(write(tmp_path, config | {key: value}, tensors))
    assert f"{key} = " in caught.value.where


@pytest.mark.parametrize("key", ["tie_word_embeddings", "bias", "skip_prenorm", "qkv_bias"])
def test_a_flag_is_true_or_false(tmp_path, key):
    config, tensors = load("plant/e1")
    with pytest.raises(ConfigError) as caught:
        read(write(tmp_path, config | {key: "false"}, tensors))
    assert caught.value.where == f"config.json: {key} = 'false', expected true or false"


def test_no_config_says_so(tmp_path):
    with pytest.raises(ConfigError, match=r"no config\.json"):
        read(write(tmp_path, None, load("plant/e1")[1]))


def test_absent_values_get_the_stated_rule(tmp_path):
    config, tensors = load("plant/e1")
    for key in ("rms_norm_eps", "rope_theta", "hidden_act", "max_position_embeddings"):
        config.pop(key)
    reading = read(write(tmp_path, config, tensors))
    spec = reading.draft()
    assert (spec.rms_norm_eps, spec.rope_theta, spec.hidden_act) == (1e-6, None, "silu")
    assert spec.max_position_embeddings is None
    assert "LlamaConfig" in found(reading, "EC203").message


def test_no_vocabulary_anywhere_is_asked_for(tmp_path):
    config, tensors = load("plant/e1")
    del config["vocab_size"], tensors["embed_tokens.weight"]
    with pytest.raises(ConfigError, match="does not say vocab_size"):
        read(write(tmp_path, config, tensors))


def test_vicuna_33b_spells_the_position_limit_otherwise(tmp_path):
    config, tensors = load("plant/e1")
    config["max_sequence_length"] = config.pop("max_position_embeddings")
    reading = read(write(tmp_path / "a", config, tensors))
    assert reading.draft().max_position_embeddings == 512
    with pytest.raises(ConfigError, match="contradicts itself about max_position_embeddings") as caught:
        read(write(tmp_path / "b", config | {"max_position_embeddings": 2048}, tensors))
    assert "max_position_embeddings = 2048, max_sequence_length = 512" in caught.value.where


def test_model_type_is_no_evidence(tmp_path):
    config, tensors = load("plant/e1")
    plain = read(write(tmp_path / "a", config, tensors)).draft()
    mixtral = config | {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 8}
    reading = read(write(tmp_path / "b", mixtral, tensors))
    assert reading.draft() == plain
    assert "EC207" not in ids(reading)


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}


@pytest.mark.parametrize(("keys", "theta", "scaling"), [
    ({}, None, None),
    ({"rope_theta": 500000}, 500000.0, None),
    ({"rope_theta": 10000, "rope_scaling": None}, 10000.0, None),
    ({"rope_parameters": {"rope_theta": 5000000, "rope_type": "default"}}, 5e6, None),
    ({"rope_theta": 5e6, "rope_parameters": {"rope_theta": 5000000, "rope_type": "default"}}, 5e6, None),
    ({"rope_theta": 5e5, "rope_scaling": LLAMA3}, 5e5, LLAMA3),
    ({"rope_parameters": LLAMA3 | {"rope_theta": 5e5}}, 5e5, LLAMA3),
    ({"rope_scaling": {"type": "linear", "factor": 2.0}}, None, {"type": "linear", "factor": 2.0}),
    ({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "linear", "factor": 2}},
     None, {"type": "linear", "factor": 2.0})])
def test_c60_c63_rope_in_both_spellings(tmp_path, keys, theta, scaling):
    config, tensors = load("plant/e1")
    del config["rope_theta"]
    spec = read(write(tmp_path, config | keys, tensors)).draft()
    assert (spec.rope_theta, spec.rope_scaling) == (theta, scaling)


@pytest.mark.parametrize(("keys", "both"), [
    ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5000000, "rope_type": "default"}}, ("10000.0", "5000000.0")),
    ({"rope_scaling": LLAMA3, "rope_parameters": LLAMA3 | {"factor": 4.0}}, ("8.0", "4.0")),
    ({"rope_scaling": {"type": "linear", "rope_type": "dynamic", "factor": 2.0}}, ("'linear'", "'dynamic'"))])
def test_c63_rope_that_contradicts_itself_stops_with_both_values(tmp_path, keys, both):
    config, tensors = load("plant/e1")
    del config["rope_theta"]
    with pytest.raises(ConfigError) as caught:
        read(write(tmp_path, config | keys, tensors))
    assert all(value in caught.value.where for value in both)


@pytest.mark.parametrize("block", [{"factor": 2.0}, {"type": 3}, {"type": "linear"}, {"type": "linear", "factor": -1},
                                   LLAMA3 | {"low_freq_factor": "1"}, "linear",
                                   {"type": "yarn", "factors": [1.0, 10**400]},
                                   {"full_attention": {"rope_type": "default"}, "other": {"rope_type": "default"}}])
def test_rope_blocks_that_are_none_stop(tmp_path, block):
    config, tensors = load("plant/e1")
    with pytest.raises(ConfigError):
        read(write(tmp_path, config | {"rope_scaling": block}, tensors))


def test_unrunnable_scaling_is_carried_and_said(tmp_path):
    config, tensors = load("plant/e1")
    reading = read(write(tmp_path, config | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, tensors))
    assert reading.draft().rope_scaling == {"rope_type": "yarn", "factor": 4.0}
    assert "'yarn'" in found(reading, "EC214").message


def test_every_key_is_mapped_inert_or_reported(tmp_path):
    config, tensors = load("plant/e1")
    reading = read(write(tmp_path / "a", config | {"my_key": 1, "use_cache": False, "torch_dtype": "float16"}, tensors))
    assert found(reading, "EC207").message.endswith("left out: my_key")
    with pytest.raises(ConfigError, match="asks for partial_rotary_factor"):
        read(write(tmp_path / "b", config | {"partial_rotary_factor": 0.5}, tensors))
    assert "EC207" not in ids(read(write(tmp_path / "c", config | {"partial_rotary_factor": 1.0}, tensors)))


def test_c86_a_quantisation_block_over_plain_tensors_is_left_out(tmp_path):
    config, tensors = load("plant/e3")
    reading = read(write(tmp_path, config | {"quantization_config": {"bits": 4}}, tensors))
    assert found(reading, "EC208").severity == "info"


def test_sliding_window_counts_where_it_is_switched_on(tmp_path):
    config, tensors = load("plant/e1")
    config["sliding_window"] = 32
    assert read(write(tmp_path / "on", config, tensors)).draft().sliding_window == 32
    off = read(write(tmp_path / "off", config | {"use_sliding_window": False}, tensors))
    assert off.draft().sliding_window is None


@pytest.mark.parametrize("stated", [True, False])
def test_c15_tying_is_corrected(tmp_path, stated):
    config, tensors = load("plant/e3")
    reading = read(write(tmp_path, config | {"tie_word_embeddings": stated}, tensors))
    assert reading.draft().tie_word_embeddings is False
    assert ("EC205" in ids(reading)) is stated


def test_tied_where_the_files_embedding_is_all_the_head_there_is(tmp_path):
    config, tensors = load("plant/e3")
    for name in ("d2t", "t2d", "lm_head.weight"):
        del tensors[name]
    tensors["embed_tokens.weight"] = np.zeros((320, 64), np.float16)
    config |= {"tie_word_embeddings": True, "draft_vocab_size": 320}
    assert read(write(tmp_path, config, tensors)).draft().tie_word_embeddings is True
