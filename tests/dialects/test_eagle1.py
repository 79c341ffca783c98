"""Official EAGLE-1/2 heads and the legacy vLLM wrapper: evidence, names, sizes, biases, norms, vocabulary."""

import numpy as np
import pytest

from eagle_convert.errors import ConfigError, DialectError
from tests.dialects.checkpoints import FIXTURES, found, ids, load, read, write

OFFICIAL = {"layouts/e1-bin", "layouts/e1-sharded", "layouts/e1-qwen2", "layouts/e1-sglang", "layouts/e1-resaved",
            "layouts/e1b-bin", "layouts/e1b-baldeagle", "layouts/e1b-resaved", "plant/e1", "plant/e1b"}
LEGACY = {"layouts/e1-legacy-vllm", "layouts/e1b-legacy-vllm", "layouts/e1-legacy-vllm-norms",
          "layouts/e1-legacy-vllm-prefixed", "layouts/e1-legacy-vllm-token-map"}


@pytest.mark.parametrize("name", sorted(OFFICIAL | LEGACY))
def test_each_layout_is_told_by_evidence(name):
    reading = read(FIXTURES / name)
    assert reading.dialect == ("legacy-vllm" if name in LEGACY else "official-eagle1")
    assert (reading.kind, reading.convertible, reading.runnable) == ("draft", True, True)
    assert reading.evidence[0].dialect == reading.dialect
    assert [proof.matched for proof in reading.evidence].count(True) == 1
    spec = reading.draft()
    assert (spec.algorithm, spec.hidden_size, spec.intermediate_size, spec.head_dim) == ("eagle", 64, 128, 32)
    assert (spec.num_attention_heads, spec.num_key_value_heads, spec.vocab_size) == (2, 1, 320)
    assert spec.fc_bias == ("e1b" in name)


def test_every_source_tensor_has_one_place():
    for name in sorted(OFFICIAL | LEGACY):
        reading, (_, tensors) = read(FIXTURES / name), load(name)
        assert sorted([*reading.names.values(), *reading.unused]) == sorted(tensors), name


def test_inv_freq_is_known_and_unused(tmp_path):
    config, tensors = load("plant/e1")
    tensors["layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(16, np.float32)
    reading = read(write(tmp_path, config, tensors))
    assert list(reading.unused) == ["layers.0.self_attn.rotary_emb.inv_freq"]


def test_module_prefix_is_taken_off_where_every_key_has_it(tmp_path):
    config, tensors = load("plant/e1b")
    reading = read(write(tmp_path / "all", config, {f"module.{k}": v for k, v in tensors.items()}))
    assert found(reading, "EC103").message.count("'module.'") == 1
    assert reading.names["fc.bias"] == "module.fc.bias"
    some = {("module." + k if k == "fc.bias" else k): v for k, v in tensors.items()}
    with pytest.raises(DialectError, match="1 unknown tensor") as caught:
        read(write(tmp_path / "some", config, some))
    assert "unknown tensor module.fc.bias (nearest known name: fc.bias)" in caught.value.where


def test_unknown_and_missing_tensors_are_listed_with_the_nearest_name(tmp_path):
    config, tensors = load("plant/e1")
    tensors["layers.0.mlp.up_projection.weight"] = tensors.pop("layers.0.mlp.up_proj.weight")
    with pytest.raises(DialectError, match="1 unknown and 1 missing") as caught:
        read(write(tmp_path, config, tensors))
    assert ("unknown tensor layers.0.mlp.up_projection.weight (nearest known name: layers.0.mlp.up_proj.weight); "
            "missing tensor layers.0.mlp.up_proj.weight") in caught.value.where


@pytest.mark.parametrize(("name", "shape", "expected"), [
    ("layers.0.self_attn.o_proj.weight", (64, 32), "[64, 64]"),
    ("layers.0.mlp.down_proj.weight", (64, 64), "[64, 128]"),
    ("layers.0.self_attn.v_proj.weight", (64, 64), "[32, 64]"),
    ("embed_tokens.weight", (320, 32), "[320, 64]"),
    ("layers.0.post_attention_layernorm.weight", (32,), "[64]")])
def test_a_tensor_of_another_shape_names_both(tmp_path, name, shape, expected):
    config, tensors = load("plant/e1")
    tensors[name] = np.zeros(shape, np.float16)
    with pytest.raises(DialectError, match="does not fit the others") as caught:
        read(write(tmp_path, config, tensors))
    assert caught.value.where == f"{name}: found {list(shape)}, expected {expected}"


def test_nothing_that_fits_shows_the_evidence_and_the_nearest_names(tmp_path):
    config, tensors = load("plant/e1")
    tensors["fcc.weight"] = tensors.pop("fc.weight")
    with pytest.raises(DialectError, match="no layout of an EAGLE draft fits") as caught:
        read(write(tmp_path, config, tensors))
    assert "official-eagle1: no: fc.weight reads two hidden widths" in caught.value.where
    assert "tensor fcc.weight, nearest known name fc.weight" in caught.value.where


def test_two_layouts_in_one_file_are_refused(tmp_path):
    config, tensors = load("plant/e3")
    with pytest.raises(DialectError, match="more than one layout: official-eagle3, vllm-eagle3") as caught:
        read(write(tmp_path, config, tensors | load("layouts/e3-vllm")[1]))
    assert "vllm-eagle3: yes: layers.0 has a hidden_norm" in caught.value.where


@pytest.mark.parametrize(("bias", "fc_bias", "expected"), [
    (None, True, None), (False, False, None), (None, False, "absent, which means true"), (True, False, "true"),
    (False, True, "false")])
def test_c30_biases_come_from_tensors_and_the_claim_is_reported(tmp_path, bias, fc_bias, expected):
    config, tensors = load("plant/e1b" if fc_bias else "plant/e1")
    config.pop("bias", None)
    reading = read(write(tmp_path, config | ({} if bias is None else {"bias": bias}), tensors))
    assert reading.draft().fc_bias == fc_bias
    if expected is None:
        assert "EC204" not in ids(reading)
    else:
        assert f"bias says {expected}" in found(reading, "EC204").message


def test_c31_qkv_biases_are_kept(tmp_path):
    reading = read(FIXTURES / "layouts/e1-qwen2")
    assert reading.draft().qkv_bias
    assert {"layers.0.self_attn.q_proj.bias", "layers.0.self_attn.k_proj.bias",
            "layers.0.self_attn.v_proj.bias"} <= reading.names.keys()
    config, tensors = load("layouts/e1-qwen2")
    del tensors["layers.0.self_attn.k_proj.bias"]
    with pytest.raises(DialectError) as caught:
        read(write(tmp_path, config, tensors))
    assert caught.value.where == "layers.0.self_attn.k_proj.bias: found nothing, expected [32]"


def test_norms_are_read_and_flags_speak_for_their_own(tmp_path):
    config, tensors = load("layouts/e1-resaved")
    spec = read(write(tmp_path / "a", config, tensors)).draft()
    assert (spec.input_norm, spec.output_norm) == (True, True)
    reading = read(write(tmp_path / "b", config | {"skip_prenorm": False}, tensors))
    assert reading.claims == {"input_norm": True}
    reading = read(write(tmp_path / "c", config | {"skip_output_norm": True}, tensors))
    assert reading.claims == {"output_norm": False}
    del tensors["norm.weight"]
    with pytest.raises(DialectError, match="a norm is active and the file does not have it") as caught:
        read(write(tmp_path / "d", config | {"skip_output_norm": False}, tensors))
    assert "missing tensor norm.weight" in caught.value.where


def test_sizes_are_the_tensors_and_disagreement_is_reported(tmp_path):
    config, tensors = load("plant/e1")
    config |= {"num_hidden_layers": 40, "intermediate_size": 999, "vocab_size": 321}
    reading = read(write(tmp_path, config, tensors))
    spec = reading.draft()
    assert (spec.num_layers, spec.intermediate_size, spec.vocab_size) == (1, 128, 320)
    said = {f.where: f.message for f in reading.findings if f.id == "EC201"}
    assert said["config.json: num_hidden_layers"].startswith(
        "the config says num_hidden_layers = 40, the tensors say 1")
    assert set(said) == {f"config.json: {key}" for key in ("num_hidden_layers", "intermediate_size", "vocab_size")}


@pytest.mark.parametrize("absent", [True, False])
def test_kv_heads_without_the_key_come_from_k_proj(tmp_path, absent):
    config, tensors = load("plant/e1")
    config["num_key_value_heads"] = None  # as transformers reads it: not stated
    if absent:
        del config["num_key_value_heads"]
    reading = read(write(tmp_path, config, tensors))
    assert reading.draft().num_key_value_heads == 1
    assert found(reading, "EC202").where == "config.json: num_key_value_heads"


@pytest.mark.parametrize(("change", "head_dim", "heads"), [
    ({}, 32, 2), ({"head_dim": 32}, 32, 2), ({"head_dim": 16}, None, None),
    ({"head_dim": 16, "num_key_value_heads": 2}, 16, 4), ({"head_dim": 16, "num_attention_heads": 2}, 32, 2)])
def test_head_width_is_the_one_that_fits_the_tensors(tmp_path, change, head_dim, heads):
    config, tensors = load("plant/e1")
    config.pop("head_dim", None)
    if head_dim is None:
        config.pop("num_key_value_heads")
        spec = read(write(tmp_path, config | change, tensors)).draft()
        assert (spec.head_dim, spec.num_attention_heads, spec.num_key_value_heads) == (16, 4, 2)
        return
    spec = read(write(tmp_path, config | change, tensors)).draft()
    assert (spec.head_dim, spec.num_attention_heads) == (head_dim, heads)


def test_heads_that_fit_no_reading_stop(tmp_path):
    config, tensors = load("plant/e1")
    config.pop("head_dim", None)
    with pytest.raises(ConfigError, match="fit no reading") as caught:
        read(write(tmp_path, config | {"num_attention_heads": 3}, tensors))
    assert "num_attention_heads 3" in caught.value.where
    assert "q_proj has 64 rows, k_proj 32" in caught.value.where


def test_deeper_heads_have_input_norms_from_the_second_layer_on(tmp_path):
    config, tensors = load("plant/e1")
    second = {k.replace("layers.0.", "layers.1."): v for k, v in tensors.items() if k.startswith("layers.0.")}
    second["layers.1.input_layernorm.weight"] = np.ones(64, np.float16)
    assert read(write(tmp_path / "two", config, tensors | second)).draft().num_layers == 2
    del second["layers.1.input_layernorm.weight"]
    with pytest.raises(DialectError, match="1 missing") as caught:
        read(write(tmp_path / "lost", config, tensors | second))
    assert caught.value.where == "missing tensor layers.1.input_layernorm.weight"


def test_c58_an_eagle1_head_that_claims_eagle3_is_refused(tmp_path):
    config, tensors = load("plant/e1")
    with pytest.raises(DialectError, match="the tensors are an EAGLE-1/2 head, the claim is EAGLE-3") as caught:
        read(write(tmp_path, config | {"architectures": ["LlamaForCausalLMEagle3"]}, tensors))
    assert "fc.weight [64, 128]" in caught.value.where
    assert "q_proj.weight [64, 64]" in caught.value.where


def test_legacy_names_in_all_their_prefixes(tmp_path):
    reading = read(FIXTURES / "layouts/e1-legacy-vllm-prefixed")
    plain = read(FIXTURES / "layouts/e1-legacy-vllm")
    assert reading.draft() == plain.draft()
    assert set(reading.names) == set(plain.names)
    config, tensors = load("layouts/e1-legacy-vllm-prefixed")
    tensors["model.lm_head.weight" if "lm_head.weight" in tensors else "lm_head.weight"] = np.zeros((320, 64),
                                                                                                   np.float16)
    with pytest.raises(DialectError, match="two tensors claim the same place"):
        read(write(tmp_path, config, tensors))


def test_legacy_nested_and_top_level_keys_that_differ_stop_with_both(tmp_path):
    config, tensors = load("layouts/e1-legacy-vllm")
    with pytest.raises(ConfigError, match="contradicts itself about hidden_size") as caught:
        read(write(tmp_path, config | {"hidden_size": 65}, tensors))
    assert caught.value.where == "config.json: hidden_size = 65, model.hidden_size = 64"


def test_legacy_token_map_holds_ids_and_picks_rows_of_a_full_head(tmp_path):
    reading = read(FIXTURES / "layouts/e1-legacy-vllm-token-map")
    config, tensors = load("layouts/e1-legacy-vllm-token-map")
    table = tensors["token_map"].astype(np.int64)
    spec = reading.draft()
    assert (spec.vocab_size, spec.draft_vocab_size) == (320, len(table))
    np.testing.assert_array_equal(reading.d2t, table - np.arange(len(table)))
    np.testing.assert_array_equal(reading.created["d2t"][0], reading.d2t)
    np.testing.assert_array_equal(reading.gather["lm_head.weight"], table)
    tensors["lm_head.weight"] = tensors["lm_head.weight"][table]
    sliced = read(write(tmp_path / "sliced", config, tensors))
    assert sliced.draft() == spec
    assert not sliced.gather
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:100]
    with pytest.raises(DialectError, match="head and vocabulary table do not fit"):
        read(write(tmp_path / "broken", config, tensors))


def test_a_reduced_head_without_its_table_is_refused(tmp_path):
    config, tensors = load("layouts/e1-legacy-vllm")
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:160]
    with pytest.raises(DialectError) as caught:
        read(write(tmp_path, config, tensors))
    assert caught.value.where == "lm_head.weight: found [160, 64], expected [320, 64]"
