"""Every layout of the field: told by evidence, read to the same draft as the official one where it holds the same."""

import json
from dataclasses import replace

import numpy as np
import pytest

from eagle_convert import dialects
from eagle_convert.errors import BrokenFileError, ConfigError, DialectError, EagleConvertError, SourceError
from eagle_convert.source import open_source
from tests.dialects.checkpoints import FIXTURES, found, ids, load, read, write

DIALECT_OF = {
    "e1-automodel": "automodel-eagle1", "e1-bin": "official-eagle1", "e1-legacy-vllm": "legacy-vllm",
    "e1-legacy-vllm-norms": "legacy-vllm", "e1-legacy-vllm-prefixed": "legacy-vllm",
    "e1-legacy-vllm-token-map": "legacy-vllm", "e1-megatron": "megatron-eagle1", "e1-minicpm": "minicpm-eagle1",
    "e1-mistral": "mistral-eagle1", "e1-qwen2": "official-eagle1", "e1-resaved": "official-eagle1",
    "e1-sglang": "official-eagle1", "e1-sharded": "official-eagle1", "e1-speculators-old": "speculators-eagle1",
    "e1-training-state/state_20": "official-eagle1", "e1b-baldeagle": "official-eagle1", "e1b-bin": "official-eagle1",
    "e1b-layernorms": "layernorms-eagle1", "e1b-legacy-vllm": "legacy-vllm", "e1b-resaved": "official-eagle1",
    "e1b-speculators-old-bias": "speculators-eagle1", "e1b-speculators-old-layernorms": "speculators-eagle1",
    "e3-angelslim": "official-eagle3", "e3-automodel": "automodel-eagle3",
    "e3-automodel-state/model": "automodel-eagle3", "e3-bin": "official-eagle3", "e3-deep": "vllm-eagle3",
    "e3-fc-norm": "speculators-eagle3", "e3-gguf": "gguf-eagle3", "e3-megatron": "official-eagle3",
    "e3-megatron-deep": "megatron-eagle3-deep", "e3-norm-before-fc": "vllm-eagle3", "e3-nvidia": "vllm-eagle3",
    "e3-nvidia-parallel": "eagle3-parallel-heads", "e3-peagle": "p-eagle", "e3-qwen3": "vllm-eagle3",
    "e3-sharded": "official-eagle3", "e3-specforge": "official-eagle3", "e3-speculators": "speculators-eagle3",
    "e3-torchspec": "official-eagle3", "e3-vllm": "vllm-eagle3", "medusa": "medusa", "mtp-deepseek": "mtp-deepseek",
    "mtp-qwen3-next": "mtp-qwen3-next", "mtp-speculators": "mtp-speculators"}

# Layouts of another function than the official heads'; with what differs.
VARIANTS = {
    "e1-automodel": {"input_norm": True, "output_norm": True, "norm_output": True},
    "e1-legacy-vllm-norms": {"input_norm": True, "output_norm": True, "norm_output": True, "embed_norm": True,
                             "hidden_norm": True},
    "e1-legacy-vllm-token-map": {"draft_vocab_size": 160},
    "e1-megatron": {"input_norm": True, "output_norm": True, "norm_output": True, "embed_norm": True,
                    "hidden_norm": True},
    "e1-mistral": {"input_norm": True, "output_norm": True, "norm_output": True},
    "e1-qwen2": {"qkv_bias": True},
    "e1-resaved": {"input_norm": True, "output_norm": True, "norm_output": True},  # the norms decision is compaction's
    "e1b-resaved": {"input_norm": True, "output_norm": True, "norm_output": True},
    "e1b-baldeagle": {"rope_theta": None},
    "e1b-layernorms": {"embed_norm": True, "input_norm": True, "output_norm": True},
    "e1b-speculators-old-layernorms": {"embed_norm": True, "input_norm": True, "output_norm": True},
    "e3-deep": {"num_layers": 2}, "e3-megatron-deep": {"num_layers": 2},
    "e3-fc-norm": {"fc_norm": True, "norm_output": True}, "e3-norm-before-fc": {"norm_before_fc": True},
    "e3-qwen3": {"qk_norm": True}, "e3-peagle": {"num_layers": 2, "parallel": True, "mask_token_id": 0}}


@pytest.mark.parametrize("name", sorted(DIALECT_OF))
def test_exactly_one_dialect_matches(name):
    reading = read(FIXTURES / "layouts" / name)
    assert reading.dialect == DIALECT_OF[name]
    assert sum(proof.matched for proof in reading.evidence) == 1


def test_the_list_above_is_complete():
    folders = {path.parent.relative_to(FIXTURES / "layouts").as_posix()
               for end in ("safetensors", "bin", "pt", "gguf") for path in (FIXTURES / "layouts").rglob(f"*.{end}")}
    assert folders - {"e3-automodel-state"} == DIALECT_OF.keys()


def same_function(name):
    """The draft of a layout without what may differ between layouts of one function: tables, declared ids."""
    spec = read(FIXTURES / "layouts" / name).draft()
    ids_are_defaults = spec.aux_layers == (2, 4, 5)  # of the fixtures' target with 8 layers
    return replace(spec, own_embedding=False, own_head=spec.own_head and spec.algorithm == "eagle3",
                   aux_layers=None if ids_are_defaults else spec.aux_layers)


@pytest.mark.parametrize("name", sorted(name for name in DIALECT_OF if name[:2] in ("e1", "e3")))
def test_all_layouts_of_a_draft_read_to_one_function(name):
    reading = read(FIXTURES / "layouts" / name)
    if reading.kind != "draft":
        assert reading.spec is None
        with pytest.raises(DialectError, match=reading.title.split("(")[0][:20]):
            reading.draft()
        return
    base = read(FIXTURES / "plant" / name.split("-")[0]).draft()
    expected = replace(base, own_embedding=False, **VARIANTS.get(name, {}))
    assert same_function(name) == expected
    assert reading.runnable == (not expected.parallel)


@pytest.mark.parametrize("name", sorted(DIALECT_OF))
def test_every_source_tensor_has_one_place(name):
    source = open_source(str(FIXTURES / "layouts" / name))
    with dialects.open_draft(source) as index:
        reading = dialects.read(index, source)
        assert sorted([*reading.names.values(), *reading.unused]) == sorted(index)


@pytest.mark.parametrize(("name", "words"), [
    ("mtp-deepseek", "trained with its model"), ("mtp-qwen3-next", "method"), ("medusa", "2 heads; each head guesses"),
    ("e3-nvidia-parallel", "parallel_draft_step 1"), ("e1-minicpm", "scale_depth"),
    ("e3-gguf", "auxiliary layers (boundaries) [2, 4, 5], target width 64, draft width 64, layers 1")])
def test_drafts_of_other_kinds_are_explained(name, words):
    reading = read(FIXTURES / "layouts" / name)
    assert (reading.kind, reading.convertible, reading.runnable) == ("other draft", False, False)
    assert words in reading.explanation
    assert found(reading, "EC102").severity == "info"


def test_a_model_with_a_module_inside_is_no_draft(tmp_path):
    config, tensors = load("plant/tgt")
    tensors |= {f"model.layers.8.{k}": np.zeros(s, np.float16) for k, s in {
        "eh_proj.weight": (64, 128), "enorm.weight": (64,), "self_attn.q_proj.weight": (64, 64)}.items()}
    reading = read(write(tmp_path, config, tensors))
    assert reading.kind == "not a draft"
    assert found(reading, "EC101").message == (
        "complete causal LM, 8 layers, an MTP module inside, no fc: not an EAGLE draft")


def test_c83_models_and_pieces_are_no_drafts(tmp_path):
    reading = read(FIXTURES / "plant/tgt")
    assert found(reading, "EC101").message == "complete causal LM, 8 layers, no fc: not an EAGLE draft"
    assert found(reading, "EC101").severity == "error"
    with pytest.raises(DialectError, match="complete causal LM, 8 layers"):
        reading.draft()
    head = {"weight": np.zeros((320, 64), np.float16)}
    assert "weight [320, 64] alone" in read(write(tmp_path / "head", {}, head)).explanation
    lora = {"base_model.model.layers.0.self_attn.q_proj.lora_A.weight": np.zeros((4, 64), np.float16)}
    assert "LoRA" in read(write(tmp_path / "lora", {}, lora)).explanation
    names = ("transformer.wte.weight", "transformer.h.0.ln_1.weight", "transformer.h.0.mlp.c_fc.weight",
             "transformer.h.1.ln_1.weight")
    gpt2 = {name: np.zeros((4, 4), np.float16) for name in names}
    assert "2 layers" in read(write(tmp_path / "gpt2", {}, gpt2)).explanation


def test_latent_attention_experts_and_packed_weights_are_explained(tmp_path):
    config, tensors = load("layouts/e3-vllm")
    half = np.zeros((4, 4), np.float16)
    for folder, name, dialect in (("mla", "layers.0.self_attn.kv_a_proj_with_mqa.weight", "eagle-latent-attention"),
                                  ("moe", "layers.0.mlp.experts.0.up_proj.weight", "eagle-experts"),
                                  ("fp8", "layers.0.mlp.up_proj.weight_scale", "quantised-eagle"),
                                  ("gptq", "layers.0.mlp.up_proj.qweight", "quantised-eagle")):
        reading = read(write(tmp_path / folder, config, tensors | {name: half}))
        assert (reading.dialect, reading.kind) == (dialect, "other draft")


@pytest.mark.parametrize(("change", "dialect"), [
    ({"eagle_linear.weight": (64, 128), "layers.0.attention.wq.weight": (64, 64)}, "mistral-native-eagle1"),
    ({"model.fc.weight": (64, 128), "model.layers.0.input_layernorm.weight": (64,),
      "model.layers.0.self_attn.q_proj.weight": (64, 64)}, "cohere-eagle1"),
    ({"fc.weight": (64, 128), "layers.0.feed_forward.up_proj.weight": (64, 64),
      "layers.0.post_attention_layernorm.weight": (64,)}, "llama4-eagle1")])
def test_heads_of_other_families_are_explained(tmp_path, change, dialect):
    tensors = {name: np.zeros(shape, np.float16) for name, shape in change.items()}
    assert read(write(tmp_path, {}, tensors)).dialect == dialect


def test_speculators_never_infers_norm_before_residual(tmp_path):
    config, tensors = load("layouts/e3-speculators")
    for stated in (True, False):
        spec = read(write(tmp_path / str(stated), config | {"norm_before_residual": stated}, tensors)).draft()
        assert spec.norm_before_residual is stated
    del config["norm_before_residual"]
    with pytest.raises(ConfigError, match="does not say norm_before_residual"):
        read(write(tmp_path / "absent", config, tensors))


def test_speculators_saves_differences_from_its_defaults(tmp_path):
    config, tensors = load("layouts/e3-speculators")
    layer = config["transformer_layer_config"]
    for key in ("num_attention_heads", "max_position_embeddings"):
        del layer[key]
    tensors["layers.0.self_attn.q_proj.weight"] = np.zeros((1024, 128), np.float16)
    tensors["layers.0.self_attn.o_proj.weight"] = np.zeros((64, 1024), np.float16)
    reading = read(write(tmp_path, config, tensors))
    spec = reading.draft()
    assert (spec.num_attention_heads, spec.head_dim, spec.max_position_embeddings) == (32, 32, 2048)
    assert [f.where.rpartition(".")[2] for f in reading.findings if f.id == "EC203"] == [
        "num_attention_heads", "max_position_embeddings"]


def test_old_speculators_norms_and_their_flag(tmp_path):
    reading = read(FIXTURES / "layouts/e1b-speculators-old-layernorms")
    assert "the one before it" in found(reading, "EC215").message
    assert reading.draft().norm_output is False
    config, tensors = load("layouts/e1b-speculators-old-layernorms")
    with pytest.raises(ConfigError, match="contradict each other about the extra norms"):
        read(write(tmp_path / "off", config | {"layernorms": False}, tensors))
    del tensors["embedding_layernorm.weight"]
    with pytest.raises(DialectError, match="a norm is active and the file does not have it"):
        read(write(tmp_path / "lost", config, tensors))


def test_the_layernorms_layout_spells_one_norm_in_two_ways(tmp_path):
    config, tensors = load("layouts/e1b-layernorms")
    tensors["post_embedding_layernorm.weight"] = tensors.pop("embed_layernorm.weight")
    reading = read(write(tmp_path, config, tensors))
    assert reading.names["enorm.weight"] == "post_embedding_layernorm.weight"
    assert reading.draft() == read(FIXTURES / "layouts/e1b-layernorms").draft()


def test_provenance_decides_between_active_norms_and_a_resaved_file(tmp_path):
    config, tensors = load("layouts/e1-automodel")
    assert read(write(tmp_path / "a", config, tensors)).claims == {"input_norm": True, "output_norm": True}
    del config["architectures"]
    assert read(write(tmp_path / "b", config, tensors)).dialect == "automodel-eagle1"
    del config["draft_num_hidden_layers"]
    reading = read(write(tmp_path / "c", config, tensors))
    assert (reading.dialect, reading.claims) == ("official-eagle1", {})


def test_nvidia_flags_speak_of_norms(tmp_path):
    config, tensors = load("layouts/e1-megatron")
    flags = {"use_input_layernorm_in_first_layer": False, "use_last_layernorm": True, "use_mtp_layernorm": True}
    reading = read(write(tmp_path, config | {"eagle_config": flags}, tensors))
    assert reading.claims == {"input_norm": False, "output_norm": True, "embed_norm": True, "hidden_norm": True}
    with pytest.raises(ConfigError, match="two flags contradict"):
        read(write(tmp_path / "b", config | flags | {"skip_prenorm": False}, tensors))


def test_later_layers_of_deep_heads_spell_their_norm_in_two_ways(tmp_path):
    deep, megatron = read(FIXTURES / "layouts/e3-deep"), read(FIXTURES / "layouts/e3-megatron-deep")
    assert deep.names.keys() == megatron.names.keys()
    assert megatron.names["layers.1.input_layernorm.weight"] == "midlayer.1.hidden_norm.weight"
    config, tensors = load("layouts/e3-deep")
    tensors["layers.1.hidden_norm.weight"] = np.ones(64, np.float16)
    with pytest.raises(DialectError, match="layer 1 has two norms") as caught:
        read(write(tmp_path, config, tensors))
    assert "vLLM and speculators apply the first, SGLang and TensorRT-LLM the second" in caught.value.where


def test_sglang_names_of_the_tap_norms(tmp_path):
    config, tensors = load("layouts/e3-fc-norm")
    for i, name in enumerate(("low", "mid", "high")):
        tensors[f"aux_norm_{name}.weight"] = tensors.pop(f"fc_norm.{i}.weight")
    assert read(write(tmp_path, config, tensors)).draft() == read(FIXTURES / "layouts/e3-fc-norm").draft()


def test_peagle_keeps_everything(tmp_path):
    reading = read(FIXTURES / "layouts/e3-peagle")
    assert {"mask_hidden", "embed_tokens.weight"} <= reading.names.keys()
    assert "kept whole" in reading.explanation
    config, tensors = load("layouts/e3-peagle")
    prefixed = {(k if k in ("lm_head.weight", "d2t", "t2d") else f"model.{k}"): v for k, v in tensors.items()}
    assert read(write(tmp_path, config, prefixed)).draft() == reading.draft()


def test_what_the_runtime_does_not_run_is_said(tmp_path):
    config, tensors = load("rand/e3")
    for folder, keys, extra, why in (
            ("sinks", {}, {"midlayer.self_attn.sinks": np.zeros(2, np.float16)}, "attention sinks"),
            ("yarn", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, {}, "rope scaling of type 'yarn'"),
            ("types", {"layer_types": ["sliding_attention", "full_attention"]}, None, "with and without a window")):
        parts = tensors | extra if extra is not None else load("layouts/e3-deep")[1]  # two layers
        reading = read(write(tmp_path / folder, config | keys, parts))
        assert (reading.runnable, reading.convertible) == (False, True)
        assert why in reading.explanation
    assert read(write(tmp_path / "plain", config, tensors)).explanation == ""


def test_nested_ids_beyond_the_targets_layers_are_boundaries(tmp_path):
    config, tensors = load("rand/e3")
    config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [4, 6, 8]}
    folder = write(tmp_path, config, tensors)
    assert read(folder).draft().aux_layers == (5, 7, 9)
    reading = read(folder, num_target_layers=8)
    assert reading.draft().aux_layers == (4, 6, 8)
    assert "boundaries" in found(reading, "EC209").message


def test_a_gguf_that_is_broken_or_of_another_kind(tmp_path):
    gguf = (FIXTURES / "layouts/e3-gguf/model.gguf").read_bytes()
    for name, data in (("short", gguf[:200]), ("empty", b"GGUF"), ("version", gguf[:4] + b"\xff" * 4 + gguf[8:])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.gguf").write_bytes(data)
        with pytest.raises(BrokenFileError):
            read(tmp_path / name)
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama/model.gguf").write_bytes(gguf.replace(b"eagle3", b"llamaX"))
    assert read(tmp_path / "llama").dialect == "gguf-other"


def test_a_compact_folder_reads_as_compact(tmp_path):
    config, tensors = load("plant/e1")
    manifest = {"schema": "eagle-convert/manifest/1", "tool_version": "0", "algorithm": "eagle",
                "dialect": "official-eagle1", "source": {"id": "x", "revision": None, "digests": {}}, "target": None,
                "options": [], "trained_window": None, "ledger": [], "findings": []}
    folder = write(tmp_path / "a", config, tensors, eagle_convert__json=json.dumps(manifest).encode())
    assert read(folder).dialect == "compact"
    manifest["algorithm"] = "eagle3"
    folder = write(tmp_path / "b", config, tensors, eagle_convert__json=json.dumps(manifest).encode())
    with pytest.raises(DialectError, match="the claim is EAGLE-3") as caught:
        read(folder)
    assert "eagle_convert.json: algorithm = 'eagle3'" in caught.value.where


def test_findings_are_said_once():
    for name in DIALECT_OF:
        try:
            reading = read(FIXTURES / "layouts" / name)
        except EagleConvertError:
            continue
        said = [(finding.id, finding.where) for finding in reading.findings]
        assert len(said) == len(set(said)), name
        assert "EC207" not in ids(reading), name


def test_the_folder_above_a_draft_names_it():
    """A training run's folder is not the draft; the message says where it lies."""
    for name, where in (("e3-automodel-state", "e3-automodel-state/model"),
                        ("e1-training-state", "e1-training-state/state_20")):
        with pytest.raises(SourceError) as caught:
            read(FIXTURES / "layouts" / name)
        assert where in caught.value.how
