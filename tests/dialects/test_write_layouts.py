"""``convert --for``: what is written reads back to the same function, or is refused by what has no place."""

from dataclasses import replace

import numpy as np
import pytest

from eagle_convert import dialects
from eagle_convert.dialects import compact
from eagle_convert.dialects.layouts import FORMATS, Layout, Request, layout
from eagle_convert.errors import UnfaithfulError
from eagle_convert.source import open_source
from eagle_convert.vocab import ids_of, mask_of
from eagle_runtime.compact import tensor_shapes
from tests.dialects.checkpoints import FIXTURES, load, read, write

TARGET = load("plant/tgt")[1]
TABLES = {"embedding": TARGET["model.embed_tokens.weight"], "head": TARGET["lm_head.weight"]}
BIASED = load("plant/tgt_offset")[1]


def plain(name):
    """(reading, canonical tensors, spec) of a bundled draft without tables that are the target's, and without t2d."""
    source = open_source(str(FIXTURES / name))
    with dialects.open_draft(source) as index:
        reading = dialects.read(index, source)
        values = {tensor: index.array(found) for tensor, found in reading.names.items()}
        values |= {tensor: value for tensor, (value, _) in reading.created.items()}
        values |= {tensor: values[tensor][rows] for tensor, rows in reading.gather.items()}
    spec = reading.draft()
    drop = {"embed_tokens.weight"} if spec.hidden_size == spec.target_hidden_size and not spec.parallel else set()
    drop |= {"lm_head.weight"} if spec.algorithm == "eagle" else set()
    spec = replace(spec, own_embedding="embed_tokens.weight" in values.keys() - drop,
                   own_head="lm_head.weight" in values.keys() - drop)
    return reading, {k: v for k, v in values.items() if k not in drop}, spec


def request(reading, spec, tables=("embedding", "head"), verifier="tgt"):
    config = compact.to_config(spec, source=reading.config, dtype="float16")
    return Request(spec, config, tables, verifier, ("LlamaForCausalLM",))


def tensors_of(made: Layout, values, dtype=np.float16):
    """The tensors of a folder in the layout ``made``."""
    out = {made.names[name]: value for name, value in values.items() if name not in made.drops}
    for name, what in made.made.items():
        out[name] = {"zeros": lambda shape=what.shape: np.zeros(shape, dtype),
                     "t2d": lambda shape=what.shape: mask_of(ids_of(values["d2t"]), shape[0]),
                     "ids": lambda: ids_of(values["d2t"]), "embedding": lambda: TABLES["embedding"],
                     "head": lambda: TABLES["head"]}[what.kind]()
        assert out[name].shape == what.shape
    return out


# What each draft is written as, and read back: format -> dialect.
WRITES = {
    "plant/e1": {"official": "official-eagle1", "vllm": "official-eagle1", "sglang": "official-eagle1",
                 "legacy-vllm": "legacy-vllm"},
    "plant/e1b": {"official": "official-eagle1", "sglang": "official-eagle1", "legacy-vllm": "legacy-vllm"},
    "layouts/e1-qwen2": {"official": "official-eagle1", "vllm": "official-eagle1", "sglang": "official-eagle1",
                         "legacy-vllm": "legacy-vllm"},
    "layouts/e1-legacy-vllm-token-map": {"legacy-vllm": "legacy-vllm"},
    "layouts/e1-legacy-vllm-norms": {"legacy-vllm": "legacy-vllm"},
    "layouts/e1-automodel": {"legacy-vllm": "legacy-vllm"},
    "plant/e3": {"official": "official-eagle3", "vllm": "vllm-eagle3", "sglang": "official-eagle3",
                 "speculators": "speculators-eagle3"},
    "rand/e3narrow": {"official": "official-eagle3", "vllm": "vllm-eagle3", "sglang": "official-eagle3",
                      "speculators": "speculators-eagle3"},
    "layouts/e3-deep": {"vllm": "vllm-eagle3", "sglang": "vllm-eagle3", "speculators": "speculators-eagle3"},
    "layouts/e3-fc-norm": {"vllm": "vllm-eagle3", "sglang": "official-eagle3", "speculators": "speculators-eagle3"},
    "layouts/e3-norm-before-fc": {"vllm": "vllm-eagle3", "sglang": "official-eagle3",
                                  "speculators": "speculators-eagle3"},
    "layouts/e3-qwen3": {"vllm": "vllm-eagle3", "speculators": "speculators-eagle3"},
    "layouts/e3-peagle": {"vllm": "p-eagle", "speculators": "p-eagle"}}

# What is refused, with a word of the reason.
REFUSED = {
    ("plant/e1", "speculators"): "removed in June 2026", ("plant/e1b", "vllm"): "fc.bias",
    ("plant/e1b", "speculators"): "removed", ("plant/e3", "legacy-vllm"): "--for legacy-vllm",
    ("layouts/e1-legacy-vllm-token-map", "official"): "d2t", ("layouts/e1-legacy-vllm-token-map", "vllm"): "d2t",
    ("layouts/e1-legacy-vllm-token-map", "sglang"): "--speculative-token-map",
    ("layouts/e1-automodel", "official"): "layers.0.input_layernorm", ("layouts/e1-automodel", "vllm"): "norm",
    ("layouts/e1-automodel", "sglang"): "norm", ("layouts/e1b-layernorms", "legacy-vllm"): "one of the two",
    ("layouts/e3-deep", "official"): "one layer", ("layouts/e3-fc-norm", "official"): "fc_norm",
    ("layouts/e3-qwen3", "official"): "q/k norms", ("layouts/e3-qwen3", "sglang"): "q/k norms",
    ("layouts/e3-peagle", "sglang"): "mask_hidden", ("layouts/e3-peagle", "official"): "mask_hidden"}


@pytest.mark.parametrize(("name", "form", "dialect"), [
    (name, form, dialect) for name, forms in WRITES.items() for form, dialect in forms.items()])
def test_what_is_written_reads_back_to_the_same_function(tmp_path, name, form, dialect):
    reading, values, spec = plain(name)
    made = layout(form, request(reading, spec), num_target_layers=8)
    assert made.names.keys() == tensor_shapes(spec).keys() == values.keys()
    back = read(write(tmp_path, made.config, tensors_of(made, values)), num_target_layers=8)
    assert back.dialect == dialect
    assert not {f.id for f in back.findings} & {"EC201", "EC204", "EC207"}
    bias_made = any(name.endswith("fc.bias") for name in made.made)
    default = back.draft().aux_layers in (None, (2, 4, 5))
    assert replace(back.draft(), own_embedding=spec.own_embedding, own_head=spec.own_head,
                   fc_bias=back.draft().fc_bias and not bias_made, aux_layers=spec.aux_layers if default else None,
                   ) == spec
    for tensor, value in values.items():
        if tensor in back.created or tensor not in back.names:
            continue
        np.testing.assert_array_equal(tensors_of(made, values)[back.names[tensor]], value)
    if "d2t" in values:
        np.testing.assert_array_equal(back.d2t, values["d2t"])


@pytest.mark.parametrize(("name", "form"), sorted(REFUSED))
def test_what_has_no_place_is_refused_by_name(name, form):
    reading, _, spec = plain(name)
    with pytest.raises(UnfaithfulError) as caught:
        layout(form, request(reading, spec), num_target_layers=8)
    assert REFUSED[name, form] in f"{caught.value.what} {caught.value.where}"


def test_every_pair_is_written_or_refused_with_a_reason():
    refused = written = 0
    for folder in sorted((FIXTURES / "layouts").iterdir()):
        if folder.name in ("e1-training-state", "e3-automodel-state") or read(folder).kind != "draft":
            continue
        reading, _, spec = plain(f"layouts/{folder.name}")
        for form in FORMATS:
            try:
                made = layout(form, request(reading, spec), num_target_layers=8)
            except UnfaithfulError as error:
                refused += bool(error.where and error.how)
                continue
            written += 1
            clash = set(made.names.values()) & made.made.keys()
            assert clash == {made.names[gone] for gone in made.drops}
    assert refused + written == 36 * len(FORMATS)
    assert min(refused, written) > 70


def test_an_unfaithful_layout_that_loads_is_written_when_asked():
    reading, _, spec = plain("plant/e1b")
    with pytest.raises(UnfaithfulError, match="cannot express this head") as caught:
        layout("vllm", request(reading, spec))
    assert "--allow-unfaithful" in caught.value.how
    made = layout("vllm", request(reading, spec), allow_unfaithful=True)
    assert "fc.bias" in made.findings[0].message
    norms, _, normed = plain("layouts/e1-automodel")
    with pytest.raises(UnfaithfulError) as caught:  # vLLM does not even load these
        layout("vllm", request(norms, normed), allow_unfaithful=True)
    assert "--allow-unfaithful" not in caught.value.how


def test_c04_a_layout_that_needs_the_targets_head_asks_for_it():
    reading, _, spec = plain("plant/e1")
    with pytest.raises(UnfaithfulError, match=r"needs lm_head\.weight") as caught:
        layout("legacy-vllm", request(reading, spec, tables=()))
    assert "--target" in caught.value.how
    made = layout("legacy-vllm", request(reading, spec))
    assert {name: what.kind for name, what in made.made.items()} == {"lm_head.weight": "head",
                                                                     "embed_tokens.weight": "embedding"}
    assert made.config["model_type"] == "eagle"
    e3, _, spec3 = plain("plant/e3")
    with pytest.raises(UnfaithfulError, match="records the target"):
        layout("speculators", request(e3, spec3, verifier=None))


def test_sglang_gets_a_zero_bias_and_its_own_architecture():
    reading, _, spec = plain("plant/e1")
    made = layout("sglang", request(reading, spec))
    assert made.made["fc.bias"].kind == "zeros"
    assert (made.config["architectures"], "bias" in made.config) == (["LlamaForCausalLMEagle"], False)
    qwen, _, spec2 = plain("layouts/e1-qwen2")
    assert layout("sglang", request(qwen, spec2)).config["architectures"] == ["Qwen2ForCausalLMEagle"]


def test_declared_ids_are_written_in_the_convention_of_the_engine():
    reading, _, spec = plain("layouts/e3-nvidia")
    spec = replace(spec, aux_layers=(2, 5, 6))
    for form in ("vllm", "sglang"):
        config = layout(form, request(reading, spec), num_target_layers=8).config
        assert config["eagle_aux_hidden_state_layer_ids"] == [2, 5, 6]
        assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 4, 5]
        assert config["num_aux_hidden_states"] == 3
    with pytest.raises(UnfaithfulError) as caught:
        layout("official", request(reading, spec), num_target_layers=8)
    assert "2, L // 2, L - 3" in caught.value.where


def test_eagle3_attention_biases_bring_a_zero_o_proj_bias_for_vllm():
    reading, _, spec = plain("plant/e3")
    made = layout("vllm", request(reading, replace(spec, qkv_bias=True)))
    assert made.made["layers.0.self_attn.o_proj.bias"].shape == (64,)
    assert made.config["attention_bias"] is True
