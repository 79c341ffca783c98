"""EAGLE-3 heads in official and vLLM names: sizes, flags, taps, vocabulary, side files."""

import json

import numpy as np
import pytest

from eagle_convert.errors import BrokenFileError, ConfigError, DialectError, SourceError
from fixtures.formats import torch_bytes
from tests.dialects.checkpoints import FIXTURES, found, ids, load, read, write


def test_official_and_vllm_names_give_the_same_draft():
    official, vllm = read(FIXTURES / "plant/e3"), read(FIXTURES / "layouts/e3-vllm")
    assert (official.dialect, vllm.dialect) == ("official-eagle3", "vllm-eagle3")
    assert official.names.keys() == vllm.names.keys()
    assert vllm.names["midlayer.hidden_norm.weight"] == "layers.0.hidden_norm.weight"
    spec = official.draft()
    assert (spec.algorithm, spec.hidden_size, spec.draft_vocab_size, spec.num_aux) == ("eagle3", 64, 160, 3)
    assert (spec.own_head, spec.own_embedding, spec.aux_layers) == (True, False, None)
    assert official.unused == {"t2d": "derivable from d2t"}


def test_c03_renamed_and_lost_tensors_are_named(tmp_path):
    config, tensors = load("rand/e3")
    renamed = {("mid_layer.mlp.up_proj.weight" if k == "midlayer.mlp.up_proj.weight" else k): v
               for k, v in tensors.items()}
    with pytest.raises(DialectError, match="1 unknown and 1 missing tensors") as caught:
        read(write(tmp_path / "a", config, renamed))
    assert caught.value.where == (
        "unknown tensor mid_layer.mlp.up_proj.weight (nearest known name: midlayer.mlp.up_proj.weight); "
        "missing tensor midlayer.mlp.up_proj.weight")
    del tensors["midlayer.mlp.down_proj.weight"]
    with pytest.raises(DialectError) as caught:
        read(write(tmp_path / "b", config, tensors))
    assert caught.value.where == "missing tensor midlayer.mlp.down_proj.weight"


def test_c40_the_draft_vocabulary_is_the_heads_rows(tmp_path):
    config, tensors = load("plant/e3")
    del config["draft_vocab_size"]
    reading = read(write(tmp_path, config, tensors))
    assert reading.draft().draft_vocab_size == 160
    assert found(reading, "EC202").message == "draft_vocab_size is absent from the config, the tensors say 160"


def test_c46_own_narrower_width(tmp_path):
    reading = read(FIXTURES / "rand/e3narrow")
    spec = reading.draft()
    assert (spec.hidden_size, spec.target_hidden_size, spec.own_embedding) == (64, 96, True)
    assert "64 wide, the target 96" in found(reading, "EC213").message
    config, tensors = load("rand/e3narrow")
    config.pop("target_hidden_size", None)
    assert read(write(tmp_path / "undeclared", config, tensors)).draft() == spec
    del tensors["embed_tokens.weight"]
    with pytest.raises(DialectError, match="needs its own embedding"):
        read(write(tmp_path / "lost", config, tensors))


def test_c48_head_width_from_the_rows(tmp_path):
    config, tensors = load("plant/e3")
    for name, shape in (("q", (128, 128)), ("k", (64, 128)), ("v", (64, 128)), ("o", (64, 128))):
        tensors[f"midlayer.self_attn.{name}_proj.weight"] = np.zeros(shape, np.float16)
    for change in ({"head_dim": 64}, {}):
        spec = read(write(tmp_path / str(len(change)), config | change, tensors)).draft()
        assert (spec.head_dim, spec.num_attention_heads, spec.num_key_value_heads) == (64, 2, 1)


def test_c51_layers_are_those_of_the_file(tmp_path):
    config, tensors = load("plant/e3")
    reading = read(write(tmp_path, config | {"num_hidden_layers": 40}, tensors))
    assert reading.draft().num_layers == 1
    assert "num_hidden_layers = 40" in found(reading, "EC201").message


def test_c52_all_layers_are_kept_and_only_the_first_is_wide(tmp_path):
    reading = read(FIXTURES / "layouts/e3-deep")
    assert reading.draft().num_layers == 2
    assert {"layers.0.hidden_norm.weight", "layers.1.input_layernorm.weight"} <= reading.names.keys()
    config, tensors = load("layouts/e3-deep")
    tensors["layers.1.self_attn.q_proj.weight"] = np.zeros((64, 128), np.float16)
    with pytest.raises(DialectError) as caught:
        read(write(tmp_path, config, tensors))
    assert caught.value.where == "layers.1.self_attn.q_proj.weight: found [64, 128], expected [64, 64]"


def test_c23_a_norm_before_fc_announces_itself(tmp_path):
    config, tensors = load("plant/e3")
    norm = {"input_norm.weight": np.full(192, 1.5, np.float16)}
    for name, flag in (("absent", {}), ("true", {"norm_before_fc": True}),
                       ("nested", {"eagle_config": {"norm_before_fc": True}})):
        assert read(write(tmp_path / name, config | flag, tensors | norm)).draft().norm_before_fc is True
    with pytest.raises(DialectError, match="norm_before_fc needs a norm") as caught:
        read(write(tmp_path / "lost", config | {"norm_before_fc": True}, tensors))
    assert "missing input_norm.weight" in caught.value.where
    with pytest.raises(ConfigError, match="switches off by norm_before_fc"):
        read(write(tmp_path / "off", config | {"norm_before_fc": False}, tensors | norm))
    two = {f"fc_norm.{i}.weight": np.ones(64, np.float16) for i in range(3)}
    assert read(write(tmp_path / "fc_norm", config, tensors | two)).draft().fc_norm is True
    with pytest.raises(ConfigError, match="exclude each other"):
        read(write(tmp_path / "both", config, tensors | norm | two))
    del two["fc_norm.1.weight"]
    with pytest.raises(DialectError, match="fc_norm needs a norm"):
        read(write(tmp_path / "part", config, tensors | two))


def test_flags_at_two_places_that_differ_stop(tmp_path):
    config, tensors = load("plant/e3")
    config |= {"norm_output": True, "eagle_config": {"norm_output": False}}
    with pytest.raises(ConfigError, match="contradicts itself about norm_output") as caught:
        read(write(tmp_path, config, tensors))
    assert caught.value.where == "config.json: norm_output = True, eagle_config.norm_output = False"


def test_c25_the_recycled_state_is_said_in_words(tmp_path):
    config, tensors = load("rand/e3")
    assert read(write(tmp_path / "a", config | {"norm_output": False}, tensors)).draft().norm_output is False
    reading = read(write(tmp_path / "b", config | {"norm_output": True}, tensors))
    assert reading.draft().norm_output is True
    assert "the state fed to the next draft step is the normalised one" in found(reading, "EC212").message


def test_c61_a_rope_base_is_carried_and_doubted(tmp_path):
    config, tensors = load("rand/e3")
    assert "EC211" not in ids(read(write(tmp_path / "a", config | {"rope_theta": 10000}, tensors)))
    reading = read(write(tmp_path / "b", config | {"rope_theta": 500000}, tensors))
    assert reading.draft().rope_theta == 500000.0
    assert "--rope-theta 10000" in found(reading, "EC211").fix


@pytest.mark.parametrize(("keys", "boundaries"), [
    ({}, None),
    ({"eagle_aux_hidden_state_layer_ids": [2, 5, 6]}, (2, 5, 6)),
    ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 4, 5]}}, (2, 5, 6)),
    ({"eagle_aux_hidden_state_layer_ids": [2, 5, 6], "num_aux_hidden_states": 3,
      "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 4, 5]}}, (2, 5, 6))])
def test_c54_c55_auxiliary_ids_in_both_conventions(tmp_path, keys, boundaries):
    config, tensors = load("rand/e3")
    reading = read(write(tmp_path, config | keys, tensors))
    assert reading.draft().aux_layers == boundaries
    if boundaries is None:
        assert "2, L // 2, L - 3" in found(reading, "EC210").message
    else:
        assert "boundaries [2, 5, 6]" in found(reading, "EC209").message


def test_auxiliary_ids_that_differ_in_one_convention_stop(tmp_path):
    config, tensors = load("rand/e3")
    config |= {"eagle_aux_hidden_state_layer_ids": [1, 4, 5],
               "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 4, 5]}}
    with pytest.raises(ConfigError, match="auxiliary layer ids of two places differ") as caught:
        read(write(tmp_path, config, tensors))
    assert "[1, 4, 5] (boundaries [1, 4, 5])" in caught.value.where
    assert "[1, 4, 5] (boundaries [2, 5, 6])" in caught.value.where


@pytest.mark.parametrize("value", [[1, 2], [3, 2, 1], [1, 1, 2], [1, 2, "3"], [-1, 2, 3], [], "1,2,3", [1, 2, True]])
def test_auxiliary_ids_that_are_none(tmp_path, value):
    config, tensors = load("rand/e3")
    with pytest.raises(ConfigError):
        read(write(tmp_path, config | {"eagle_aux_hidden_state_layer_ids": value}, tensors))


@pytest.mark.parametrize(("columns", "keys", "hint", "expected"), [
    (192, {}, None, (3, 64)), (288, {}, None, (3, 96)), (320, {"num_aux_hidden_states": 5}, None, (5, 64)),
    (320, {}, 64, (5, 64)), (384, {"target_hidden_size": 128}, None, (3, 128)),
    (384, {"eagle_aux_hidden_state_layer_ids": [1, 2, 3, 4, 5, 6]}, None, (6, 64))])
def test_number_and_width_of_the_states(tmp_path, columns, keys, hint, expected):
    config, tensors = load("rand/e3")
    tensors["fc.weight"] = np.zeros((64, columns), np.float16)
    tensors["embed_tokens.weight"] = np.zeros((320, 64), np.float16)
    spec = read(write(tmp_path, config | keys, tensors), target_hidden_size=hint).draft()
    assert (spec.num_aux, spec.target_hidden_size) == expected


@pytest.mark.parametrize(("columns", "keys"), [(384, {}), (320, {}), (200, {}), (192, {"target_hidden_size": 100}),
                                               (192, {"target_hidden_size": 96, "num_aux_hidden_states": 3})])
def test_states_that_are_not_decided_stop(tmp_path, columns, keys):
    config, tensors = load("rand/e3")
    tensors["fc.weight"] = np.zeros((64, columns), np.float16)
    with pytest.raises(ConfigError) as caught:
        read(write(tmp_path, config | keys, tensors))
    assert f"fc.weight [64, {columns}]" in caught.value.where


def test_c38_identity_vocabulary(tmp_path):
    config, tensors = load("plant/e3")
    tensors |= {"lm_head.weight": np.zeros((320, 64), np.float16), "d2t": np.zeros(320, np.int64),
                "t2d": np.ones(320, bool)}
    reading = read(write(tmp_path, config | {"draft_vocab_size": 320}, tensors))
    assert reading.draft().reduced_vocabulary is False
    assert reading.unused.keys() == {"d2t", "t2d"}
    assert found(reading, "EC501").severity == "info"
    tensors["d2t"][[0, 1]] = [1, -1]
    with pytest.raises(DialectError, match="whole vocabulary in another order"):
        read(write(tmp_path / "b", config | {"draft_vocab_size": 320}, tensors))


@pytest.mark.parametrize("table", ["ids", "zeros", "range", "reversed"])
def test_tables_that_the_mask_contradicts(tmp_path, table):
    config, tensors = load("plant/e3")
    d2t = tensors["d2t"]
    tensors["d2t"] = {"ids": d2t + np.arange(160), "zeros": d2t * 0, "range": np.arange(160), "reversed": d2t[::-1]}[
        table].astype(np.int64)
    with pytest.raises(DialectError):
        read(write(tmp_path, config, tensors))


def test_an_unfilled_table_without_a_mask_is_said(tmp_path):
    config, tensors = load("plant/e3")
    del tensors["t2d"]
    tensors["d2t"] = np.zeros(160, np.int64)
    assert "0 to 159 in steps of 1" in found(read(write(tmp_path, config, tensors)), "EC504").message


def test_c34_the_table_in_a_side_file(tmp_path):
    config, tensors = load("plant/e3")
    d2t = tensors.pop("d2t")
    del tensors["t2d"]
    with pytest.raises(DialectError, match="its table is missing") as caught:
        read(write(tmp_path / "none", config, tensors))
    assert "lm_head.weight has 160 rows, the vocabulary 320" in caught.value.where
    assert "--token-map" in caught.value.how
    meta = torch_bytes({"selected_token_ids": d2t + np.arange(160)})
    reading = read(write(tmp_path / "beside", config, tensors, eagle_meta__pt=meta))
    value, where = reading.created["d2t"]
    np.testing.assert_array_equal(value, d2t)
    assert where == "eagle_meta.pt: selected_token_ids"
    assert reading.draft() == read(FIXTURES / "plant/e3").draft()
    write(tmp_path / "state/model", config, tensors)
    (tmp_path / "state/eagle_meta.pt").write_bytes(meta)
    assert read(tmp_path / "state/model").created["d2t"][1] == "../eagle_meta.pt: selected_token_ids"


def test_a_given_token_map_takes_the_tables_place(tmp_path):
    config, tensors = load("plant/e3")
    right = tensors["d2t"] + np.arange(160)
    folder = write(tmp_path / "draft", config, tensors | {"d2t": np.zeros(160, np.int64)})
    for name, data in (("ids.json", json.dumps(right.tolist()).encode()), ("ids.pt", torch_bytes({"x": right})),
                       ("ids.txt", "\n".join(map(str, right)).encode()),
                       ("map.pt", torch_bytes({"d2t": tensors["d2t"], "t2d": tensors["t2d"]}))):
        (tmp_path / name).write_bytes(data)
        reading = read(folder, token_map=tmp_path / name)
        np.testing.assert_array_equal(reading.d2t, tensors["d2t"])
        assert reading.unused == {"d2t": "replaced by --token-map", "t2d": "replaced by --token-map"}
    np.save(tmp_path / "ids.npy", right)
    np.testing.assert_array_equal(read(folder, token_map=str(tmp_path / "ids.npy")).d2t, tensors["d2t"])


@pytest.mark.parametrize(("name", "data", "error"), [
    ("a.json", b"{}", BrokenFileError), ("a.json", b"[1, 2.5]", BrokenFileError), ("a.json", b"[" * 9, BrokenFileError),
    ("a.json", b"[true]", BrokenFileError), ("a.json", b"[%d]" % 2**70, BrokenFileError),
    ("a.txt", b"1 two", BrokenFileError), ("a.csv", b"1", SourceError), ("a.npy", b"junk", BrokenFileError),
    ("a.pt", b"junk", BrokenFileError), ("a.json", None, SourceError), ("a.json", b"[1, 400]", DialectError)])
def test_token_maps_that_are_none(tmp_path, name, data, error):
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(error):
        read(FIXTURES / "plant/e3", token_map=tmp_path / name)


def test_a_token_map_reduces_an_eagle1_head(tmp_path):
    (tmp_path / "ids.json").write_text(json.dumps([5, 3, 9]))
    reading = read(FIXTURES / "plant/e1", token_map=tmp_path / "ids.json")
    assert reading.draft().draft_vocab_size == 3
    assert "EC503" in ids(reading)
    np.testing.assert_array_equal(reading.d2t, [5, 2, 7])
    resaved = read(FIXTURES / "layouts/e1-resaved", token_map=tmp_path / "ids.json")
    np.testing.assert_array_equal(resaved.gather["lm_head.weight"], [5, 3, 9])


def test_c58_an_eagle3_head_that_claims_eagle_is_refused(tmp_path):
    config, tensors = load("plant/e3")
    with pytest.raises(DialectError, match="the tensors are an EAGLE-3 head, the claim is EAGLE-1/2") as caught:
        read(write(tmp_path, config | {"architectures": ["EagleLlamaForCausalLM"]}, tensors))
    assert "fc.weight [64, 192], midlayer.self_attn.q_proj.weight [64, 128]" in caught.value.where


def test_a_reduced_head_that_is_missing(tmp_path):
    config, tensors = load("plant/e3")
    del tensors["lm_head.weight"]
    with pytest.raises(DialectError, match="head of the reduced vocabulary is missing"):
        read(write(tmp_path, config, tensors))


def test_a_head_that_reads_the_final_state(tmp_path):
    config, tensors = load("plant/e3")
    fc = tensors.pop("fc.weight")
    config["eagle_config"] = {"use_aux_hidden_state": False}
    spec = read(write(tmp_path / "a", config, tensors)).draft()
    assert (spec.has_fc, spec.num_aux, spec.aux_layers) == (False, 0, ())
    assert spec.boundaries(8) == ()
    reading = read(write(tmp_path / "b", config, tensors | {"fc.weight": fc}))
    assert reading.draft() == spec
    assert "use_aux_hidden_state is false" in reading.unused["fc.weight"]
