"""The compact config: the contract's rules to the letter, and spec -> config -> spec for every bundled layout."""

from dataclasses import replace

import pytest

from eagle_convert.dialects.compact import to_config, zeros
from eagle_convert.errors import EagleConvertError
from eagle_runtime.compact import spec_from_compact, tensor_shapes
from eagle_runtime.config import DraftSpec, EagleRuntimeError
from tests.dialects.checkpoints import FIXTURES, read

E1 = DraftSpec(
    algorithm="eagle", hidden_size=64, target_hidden_size=64, intermediate_size=128, num_layers=1,
    num_attention_heads=2, num_key_value_heads=1, head_dim=32, vocab_size=320, draft_vocab_size=320,
    rms_norm_eps=1e-6, max_position_embeddings=512, rope_theta=10000.0)
E3 = replace(E1, algorithm="eagle3", draft_vocab_size=160, own_head=True, num_aux=3)

VARIANTS = {
    "e1": E1, "e1b": replace(E1, fc_bias=True), "e1 qkv": replace(E1, qkv_bias=True),
    "e1 norms": replace(E1, input_norm=True, output_norm=True, norm_output=True),
    "e1 all norms": replace(E1, input_norm=True, output_norm=True, norm_output=True, embed_norm=True,
                            hidden_norm=True),
    "e1 embed norm": replace(E1, embed_norm=True, output_norm=True), "e1 two layers": replace(E1, num_layers=2),
    "e1 reduced": replace(E1, draft_vocab_size=160), "e1 own tables": replace(E1, own_embedding=True, own_head=True),
    "e1 mlp bias": replace(E1, mlp_bias=True), "e1 no theta": replace(E1, rope_theta=None),
    "e1 no positions": replace(E1, max_position_embeddings=None),
    "e3": E3, "e3 deep": replace(E3, num_layers=3), "e3 qkv": replace(E3, qkv_bias=True, o_bias=True),
    "e3 narrow": replace(E3, target_hidden_size=96, own_embedding=True),
    "e3 whole vocabulary": replace(E3, draft_vocab_size=320), "e3 own embedding": replace(E3, own_embedding=True),
    "e3 flags": replace(E3, norm_before_residual=True, norm_before_fc=True, norm_output=True),
    "e3 fc_norm": replace(E3, fc_norm=True), "e3 qk_norm": replace(E3, qk_norm=True),
    "e3 aux": replace(E3, aux_layers=(2, 5, 6)), "e3 five taps": replace(E3, num_aux=5, aux_layers=(0, 1, 2, 3, 4)),
    "e3 no fc": replace(E3, has_fc=False, num_aux=0, aux_layers=()),
    "e3 window": replace(E3, sliding_window=128, layer_types=("sliding_attention",), logit_scale=0.5),
    "e3 sinks": replace(E3, attention_sinks=True),
    "e3 parallel": replace(E3, parallel=True, mask_token_id=0, own_embedding=True, num_layers=4),
    "e3 llama3 rope": replace(E3, rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                                "high_freq_factor": 4.0, "original_max_position_embeddings": 64}),
    "e3 tied": replace(E3, draft_vocab_size=320, own_head=False, own_embedding=True, tie_word_embeddings=True)}


@pytest.mark.parametrize("name", VARIANTS)
def test_spec_to_config_and_back(name):
    spec = VARIANTS[name]
    assert spec_from_compact(to_config(spec), tensor_shapes(spec)) == spec


@pytest.mark.parametrize("name", VARIANTS)
def test_the_config_follows_the_contract(name):
    spec = VARIANTS[name]
    config = to_config(spec, dtype="float16")
    qwen3 = spec.qk_norm
    assert config["architectures"] == ["Qwen3ForCausalLM" if qwen3 else "LlamaForCausalLM"]
    assert config["model_type"] == ("qwen3" if qwen3 else "llama")
    assert config.get("bias", "absent") == ("absent" if spec.fc_bias else False)
    assert config.get("qkv_bias", False) == (spec.qkv_bias and spec.algorithm == "eagle")
    assert config.get("attention_bias", False) == (spec.qkv_bias and spec.algorithm == "eagle3")
    assert ("target_hidden_size" in config) == (spec.target_hidden_size != spec.hidden_size)
    assert ("draft_vocab_size" in config) == (spec.algorithm == "eagle3" or spec.reduced_vocabulary)
    assert ("rope_theta" in config) == (spec.rope_theta is not None)
    assert "rope_parameters" not in config
    assert config["tie_word_embeddings"] == spec.tie_word_embeddings
    assert None not in config.values()
    flags = {"norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"}
    assert flags <= config.keys() or spec.algorithm == "eagle"


def test_auxiliary_ids_in_both_conventions_unless_they_are_the_defaults():
    config = to_config(replace(E3, aux_layers=(2, 5, 6)))
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 5, 6]
    assert config["num_aux_hidden_states"] == 3
    assert config["eagle_config"] == {"eagle_aux_hidden_state_layer_ids": [1, 4, 5]}
    defaults = replace(E3, aux_layers=(2, 4, 5))
    assert "eagle_aux_hidden_state_layer_ids" in to_config(defaults)
    assert "eagle_aux_hidden_state_layer_ids" not in to_config(defaults, num_target_layers=8)
    assert "eagle_aux_hidden_state_layer_ids" in to_config(defaults, num_target_layers=32)
    assert "eagle_aux_hidden_state_layer_ids" not in to_config(E3)


def test_rope_parameters_only_where_the_source_had_them():
    spec = VARIANTS["e3 llama3 rope"]
    config = to_config(spec, source={"rope_parameters": {"rope_theta": 10000, "rope_type": "llama3"}})
    assert config["rope_parameters"] == {**spec.rope_scaling, "rope_theta": 10000.0}
    plain = to_config(replace(E3, rope_theta=5e6), source={"rope_parameters": {"rope_theta": 5e6}})
    assert plain["rope_parameters"] == {"rope_type": "default", "rope_theta": 5e6}
    assert plain["rope_theta"] == 5e6


def test_token_ids_travel_where_they_are_ids():
    config = to_config(E1, source={"bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": None})
    assert (config["bos_token_id"], config["eos_token_id"]) == (1, [2, 3])
    assert "pad_token_id" not in config


def test_eagle3_attention_biases_come_with_a_zero_o_proj_bias():
    assert zeros(replace(E3, qkv_bias=True)) == {"midlayer.self_attn.o_proj.bias": (64,)}
    assert zeros(replace(E3, qkv_bias=True, num_layers=2)).keys() == {
        "layers.0.self_attn.o_proj.bias", "layers.1.self_attn.o_proj.bias"}
    assert zeros(replace(E1, qkv_bias=True)) == zeros(E3) == zeros(VARIANTS["e3 qkv"]) == {}


@pytest.mark.parametrize(("change", "where"), [
    ({"hidden_size": "64"}, "hidden_size = '64'"), ({"rms_norm_eps": None}, "rms_norm_eps = None"),
    ({"norm_output": 1}, "norm_output = 1"), ({"rope_scaling": []}, "rope_scaling = []"),
    ({"eagle_aux_hidden_state_layer_ids": [1, "2"]}, "eagle_aux_hidden_state_layer_ids = [1, '2']"),
    ({"hidden_act": 3}, "hidden_act = 3"), ({"num_hidden_layers": 2}, "missing: layers.0."),
    ({"fc_norm": True}, "missing: fc_norm.0.weight, fc_norm.1.weight, fc_norm.2.weight"),
    ({"intermediate_size": 64}, "midlayer.mlp.gate_proj.weight: found [128, 64], expected [64, 64]")])
def test_the_loader_is_not_forgiving(change, where):
    with pytest.raises(EagleRuntimeError) as caught:
        spec_from_compact(to_config(E3) | change, tensor_shapes(E3))
    assert where in caught.value.where


def test_every_bundled_draft_survives_the_round_trip():
    seen = 0
    for folder in sorted((FIXTURES / "layouts").iterdir()):
        try:
            reading = read(folder)
        except EagleConvertError:
            continue
        if reading.spec is not None:
            config = to_config(reading.spec, source=reading.config)
            assert spec_from_compact(config, tensor_shapes(reading.spec)) == reading.spec, folder.name
            seen += 1
    assert seen > 20
