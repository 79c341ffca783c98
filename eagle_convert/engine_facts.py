"""Which engine loads a head, whether it then computes the head's function, and how we know: one table.

A fact is about a *file as it is found*: its tensor names, its config, and the function that they mean. ``stops``: the
engine refuses it or dies; ``wrong``: it loads and computes something else, mostly without a word. Grades say how a fact
is known: ``loaded`` (we ran that loader), ``read`` (in its source), ``reported`` (in an issue or pull request).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from eagle_runtime.config import DraftSpec

from .engine_case import (
    Case,
    Fact,
    Grade,
    biases,
    eagle1_norms,
    extras,
    flag_only_nested,
    flags31,
    foreign_padding,
    nested_ids_only,
    odd_width,
    official_scaling,
)

# Engine -> version, and the grade of "nothing speaks against it".
ENGINES: Mapping[str, tuple[str, Grade]] = {
    "official": ("SafeAILab/EAGLE cb7e084", "loaded"),
    "vllm": ("0.32.0", "loaded"),
    "sglang": ("0.5.23", "read"),
    "speculators": ("c05b95b3", "read"),
    "tensorrt-llm": ("PyTorch backend, mid-2026", "read"),
    "llama.cpp": ("pull request 18039, mid-2026", "read")}

_GRADES: tuple[Grade, ...] = ("loaded", "read", "reported")

# Architectures that vLLM 0.32.0 has under its eagle and eagle3 methods for heads of Llama-type layers.
_VLLM_LLAMA = ("LlamaForCausalLM", "EagleLlamaForCausalLM")
_VLLM_LLAMA3 = ("LlamaForCausalLM", "LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
_VLLM_QWEN3 = ("Qwen3ForCausalLM", "Eagle3Qwen3ForCausalLM")
_SGLANG = ("LlamaForCausalLMEagle", "Qwen2ForCausalLMEagle", "MistralForCausalLMEagle")


_CNETS1, _CNETS = "eagle/model/cnets1.py", "eagle/model/cnets.py"
_LOADER = "eagle/model/ea_model.py"
_V1, _V3 = "llama_eagle.py", "llama_eagle3.py"
_S1, _S3 = "models/llama_eagle.py", "models/llama_eagle3.py"

FACTS: tuple[Fact, ...] = (
    # -- SafeAILab/EAGLE ----------------------------------------------------------------------------------------------
    Fact("official", None, "stops", lambda c: len(c.weight_files) > 1,
         "it opens pytorch_model.bin or model.safetensors only, no shards",
         _LOADER, "loaded"),
    Fact("official", None, "stops", lambda c: isinstance(c.config.get("model"), dict) or c.speculators,
         "the sizes are nested in the config, where it does not look",
         "eagle/model/configs.py", "read"),
    Fact("official", None, "wrong", lambda c: c.misnamed,
         "it loads by exact name and skips what it does not know: tensors under other names stay random",
         _LOADER, "loaded"),
    Fact("official", None, "stops", foreign_padding,
         "its embedding refuses a pad_token_id beyond the vocabulary",
         _CNETS1, "loaded"),
    Fact("official", None, "stops", odd_width,
         "it takes hidden / heads for the head width",
         _CNETS1, "read"),
    Fact("official", None, "stops", official_scaling,
         "it reads rope_scaling of two fields, type linear or dynamic and a factor above 1 as a float, only",
         _CNETS1, "loaded"),
    Fact("official", None, "wrong", lambda c: c.spec.rope_scaling is not None and c.theta != 10000.0,
         "with rope_scaling it ignores rope_theta and uses base 10000",
         _CNETS1, "read"),
    Fact("official", None, "wrong", lambda c: (c.spec.rope_theta not in (None, 10000.0)
         and "rope_theta" not in c.config) or (c.spec.rope_scaling is not None
                                               and c.config.get("rope_scaling") is None),
         "it ignores rope_parameters: it uses base 10000 and no scaling",
         _CNETS1, "loaded"),
    Fact("official", None, "wrong", extras,
         "it has no MLP biases, q/k norms, sinks, logit scale or sliding window",
         _CNETS1, "read"),
    Fact("official", "eagle", "wrong", eagle1_norms,
         "it skips layers.0.input_layernorm, norm, enorm and hnorm: its function has none of them",
         _CNETS1, "loaded"),
    Fact("official", "eagle", "wrong", lambda c: c.spec.own_head,
         "it always uses the target's head, never lm_head.weight of the draft",
         _LOADER, "read"),
    Fact("official", "eagle", "wrong", lambda c: c.spec.reduced_vocabulary,
         "it has no reduced vocabulary (d2t) for EAGLE-1/2",
         _CNETS1, "read"),
    Fact("official", "eagle", "wrong", lambda c: not c.spec.fc_bias and c.config.get("bias", True) is not False,
         "without \"bias\": false it builds an fc bias that stays random",
         _LOADER, "loaded"),
    Fact("official", "eagle", "wrong", lambda c: c.spec.fc_bias and c.config.get("bias") is False,
         "\"bias\": false makes it skip fc.bias",
         _LOADER, "loaded"),
    Fact("official", "eagle", "wrong", lambda c: c.spec.qkv_bias and c.config.get("qkv_bias") is not True,
         "without qkv_bias it skips the q/k/v biases",
         _CNETS1, "read"),
    Fact("official", "eagle", "wrong", lambda c: c.spec.o_bias,
         "it has no o_proj bias",
         _CNETS1, "read"),
    Fact("official", "eagle", "wrong", lambda c: c.extra_layers,
         "num_hidden_layers is larger than the file: the further layers stay random",
         _CNETS1, "read"),
    Fact("official", "eagle3", "stops", lambda c: not isinstance(c.config.get("draft_vocab_size"), int),
         "it needs draft_vocab_size",
         _CNETS, "loaded"),
    Fact("official", "eagle3", "stops", lambda c: c.spec.has_fc and c.spec.num_aux != 3,
         "it reads three auxiliary states",
         _CNETS, "read"),
    Fact("official", "eagle3", "stops", lambda c: c.spec.target_hidden_size != c.spec.hidden_size
         and "target_hidden_size" not in c.config,
         "without target_hidden_size it sizes fc by the draft's width",
         _CNETS, "read"),
    Fact("official", "eagle3", "wrong", lambda c: "target_hidden_size" in c.config and not c.spec.own_embedding,
         "target_hidden_size makes it skip the target's embedding, and the file has none",
         _CNETS, "loaded"),
    Fact("official", "eagle3", "wrong", lambda c: c.spec.num_layers > 1,
         "it has one layer, so layers.1 and later are skipped",
         _CNETS, "read"),
    Fact("official", "eagle3", "wrong", lambda c: c.spec.norm_before_residual,
         "it has no norm_before_residual",
         _CNETS, "read"),
    Fact("official", "eagle3", "wrong", flags31,
         "it has none of norm_before_fc, fc_norm, norm_output",
         _CNETS, "read"),
    Fact("official", "eagle3", "wrong", lambda c: biases(c) or c.spec.fc_bias,
         "it has no biases (fc.bias, q/k/v/o_proj.bias)",
         _CNETS, "read"),
    Fact("official", "eagle3", "wrong", lambda c: not c.spec.has_fc,
         "it always reads three auxiliary states",
         _CNETS, "read"),
    Fact("official", "eagle3", "wrong", lambda c: not c.spec.own_head,
         "its head stays random without lm_head.weight",
         _CNETS, "read"),
    Fact("official", "eagle3", "wrong", lambda c: c.spec.parallel,
         "it does not draft in parallel (mask_hidden)",
         _CNETS, "read"),
    Fact("official", "eagle3", "wrong", lambda c: c.aux == "other",
         "it taps boundaries 2, L // 2, L - 3 whatever the config declares",
         _CNETS, "read"),
    Fact("official", "eagle3", "note", lambda c: c.aux == "unknown",
         "it taps boundaries 2, L // 2, L - 3: wrong unless the declared ids are these",
         _CNETS, "read"),
    # -- vLLM ---------------------------------------------------------------------------------------------------------
    Fact("vllm", None, "stops", lambda c: not c.architecture,
         "it needs architectures in the config",
         "config/speculative.py", "loaded"),
    Fact("vllm", "eagle", "stops", lambda c: c.speculators,
         "speculators' \"eagle\" is refused",
         "transformers_utils/configs/speculators; pull request 20436", "loaded"),
    Fact("vllm", "eagle", "stops", lambda c: not c.speculators and c.architecture not in _VLLM_LLAMA,
         "the architecture is not registered for this kind of layer: it needs LlamaForCausalLM",
         "issue 24967", "loaded"),
    Fact("vllm", "eagle", "stops", lambda c: any(name.startswith("model.") for name in c.names),
         "it puts model. before every name, so names that have it are unknown",
         _V1, "loaded"),
    Fact("vllm", "eagle", "stops", lambda c: c.has("lm_head."),
         "it refuses lm_head.weight (the target's is used)",
         _V1, "loaded"),
    Fact("vllm", "eagle", "stops", lambda c: bool(c.names & {"layers.0.input_layernorm.weight", "norm.weight"})
         or (c.has("enorm.", "hnorm.", "layernorm.weight") and eagle1_norms(c)),
         "it refuses layers.0.input_layernorm, norm, enorm and hnorm: its function has none of them",
         _V1, "loaded"),
    Fact("vllm", "eagle", "stops", lambda c: c.has("token_map", "d2t", "t2d"),
         "it refuses the vocabulary tables (token_map, d2t, t2d) of EAGLE-1/2 heads",
         _V1, "loaded"),
    Fact("vllm", "eagle", "stops", lambda c: c.has("fusion_fc.", "eagle_linear.", "transformer."),
         "it does not know the tensor names",
         _V1, "read"),
    Fact("vllm", "eagle", "stops", lambda c: c.spec.qk_norm or c.spec.attention_sinks,
         "it refuses q_norm, k_norm and sinks: its layer has none of them",
         _V1, "read"),
    Fact("vllm", "eagle", "wrong", lambda c: c.spec.fc_bias,
         "it has no fc bias and skips fc.bias without a word",
         f"{_V1}; pull requests 22323, 22558", "loaded"),
    Fact("vllm", "eagle", "wrong", lambda c: c.spec.own_head,
         "it always uses the target's head, never lm_head.weight of the draft",
         _V1, "read"),
    Fact("vllm", "eagle", "wrong", lambda c: c.spec.reduced_vocabulary,
         "it has no reduced vocabulary (d2t) for EAGLE-1/2",
         _V1, "read"),
    Fact("vllm", "eagle", "wrong", lambda c: c.spec.qkv_bias and not (c.get("qkv_bias") or c.get("attention_bias")
         or c.get("bias")),
         "without qkv_bias it skips the q/k/v biases without a word",
         _V1, "read"),
    Fact("vllm", "eagle", "wrong", lambda c: c.spec.o_bias and not (c.get("attention_bias") or c.get("bias")),
         "without attention_bias it has no o_proj bias and skips the tensor without a word",
         _V1, "read"),
    Fact("vllm", "eagle", "wrong", lambda c: bool(c.get("bias") or c.get("attention_bias")) and not c.spec.o_bias,
         "bias or attention_bias true gives the attention biases, of which o_proj's stays uninitialised",
         _V1, "read"),
    Fact("vllm", "eagle3", "stops", lambda c: not c.speculators and c.architecture not in (*_VLLM_LLAMA3, *_VLLM_QWEN3),
         "the architecture is not registered: it needs LlamaForCausalLM (Qwen3ForCausalLM with q/k norms)",
         "models/registry.py", "loaded"),
    Fact("vllm", "eagle3", "stops", lambda c: c.spec.qk_norm and not c.speculators
         and c.architecture not in _VLLM_QWEN3,
         "q/k norms need Qwen3ForCausalLM",
         "qwen3_eagle3.py", "read"),
    Fact("vllm", "eagle3", "stops", lambda c: any(name.startswith("model.") for name in c.names),
         "it puts model. before every name, so names that have it are unknown",
         _V3, "read"),
    Fact("vllm", "eagle3", "stops", lambda c: c.has("midlayer.0."),
         "it does not know midlayer.N",
         _V3, "read"),
    Fact("vllm", "eagle3", "stops", lambda c: c.has("d2t") and not c.spec.reduced_vocabulary,
         "it refuses d2t where the draft vocabulary is the whole one (or draft_vocab_size is absent)",
         _V3, "loaded"),
    Fact("vllm", "eagle3", "stops", lambda c: c.spec.reduced_vocabulary and c.config.get("draft_vocab_size") is None,
         "without draft_vocab_size it builds no table and refuses d2t",
         _V3, "loaded"),
    Fact("vllm", "eagle3", "stops", lambda c: c.spec.target_hidden_size != c.spec.hidden_size
         and c.config.get("target_hidden_size") is None,
         "without target_hidden_size it sizes fc by the draft's width",
         _V3, "read"),
    Fact("vllm", "eagle3", "stops", lambda c: c.spec.attention_sinks,
         "it has no sinks in this layer",
         _V3, "read"),
    Fact("vllm", None, "wrong", lambda c: c.extra_layers,
         "num_hidden_layers is larger than the file: the further layers stay uninitialised",
         "model_loader", "read"),
    Fact("vllm", "eagle3", "wrong", lambda c: c.spec.fc_bias,
         "it skips fc.bias without a word",
         _V3, "read"),
    Fact("vllm", "eagle3", "wrong", lambda c: c.spec.reduced_vocabulary and "d2t" not in c.names,
         "without d2t it takes the first ids",
         _V3, "read"),
    Fact("vllm", "eagle3", "wrong", lambda c: biases(c) and not c.config.get("attention_bias") and not c.speculators,
         "without attention_bias it skips the attention biases",
         _V3, "read"),
    Fact("vllm", "eagle3", "wrong", lambda c: c.spec.qkv_bias and not c.spec.o_bias,
         "attention_bias builds an o_proj bias that stays uninitialised unless the file has one",
         _V3, "read"),
    Fact("vllm", "eagle3", "wrong", flag_only_nested,
         "it reads norm_before_residual, fc_norm and norm_output at top level only",
         _V3, "read"),
    Fact("vllm", "eagle3", "wrong", lambda c: c.spec.norm_before_fc and not (c.config.get("norm_before_fc")
         or c.nested("norm_before_fc")),
         "without norm_before_fc it drops input_norm.weight",
         f"{_V3}; pull request 38111", "read"),
    Fact("vllm", "eagle3", "wrong", nested_ids_only,
         "ids inside eagle_config: its first runner takes them for boundaries, its second does not see them",
         "v1/worker/gpu_model_runner.py, v1/worker/gpu/spec_decode/eagle/eagle3_utils.py", "read"),
    Fact("vllm", "eagle3", "wrong", lambda c: c.spec.num_layers > 1 and c.has("layers.1.hidden_norm."),
         "later layers use input_layernorm; their hidden_norm is loaded and not used",
         _V3, "read"),
    Fact("vllm", "eagle3", "note", lambda c: not c.spec.has_fc,
         "its second runner asks for auxiliary states anyway: set VLLM_USE_V2_MODEL_RUNNER=0",
         "pull request 27688", "reported"),
    Fact("vllm", "eagle3", "note", lambda c: c.spec.parallel,
         "needs parallel_drafting in the speculative config",
         _V3, "read"),
    # -- SGLang -------------------------------------------------------------------------------------------------------
    Fact("sglang", "eagle", "stops", lambda c: c.architecture not in _SGLANG,
         "it needs the architecture LlamaForCausalLMEagle (Qwen2ForCausalLMEagle with q/k/v biases)",
         _S1, "read"),
    Fact("sglang", "eagle", "wrong", lambda c: "fc.bias" not in c.names,
         "its fc always has a bias, random where the file has none",
         f"{_S1}; issue 5773", "reported"),
    Fact("sglang", "eagle", "wrong", lambda c: c.spec.own_embedding or c.spec.own_head,
         "it replaces embed_tokens and lm_head by the target's",
         _S1, "read"),
    Fact("sglang", "eagle", "wrong", eagle1_norms,
         "it skips layers.0.input_layernorm, norm, enorm and hnorm with a warning",
         _S1, "read"),
    Fact("sglang", "eagle", "wrong", lambda c: c.spec.qkv_bias and c.architecture != "Qwen2ForCausalLMEagle",
         "q/k/v biases need the architecture Qwen2ForCausalLMEagle",
         "models/qwen2_eagle.py", "read"),
    Fact("sglang", "eagle", "wrong", lambda c: c.spec.o_bias,
         "it has no o_proj bias",
         _S1, "read"),
    Fact("sglang", "eagle", "wrong", lambda c: c.spec.reduced_vocabulary,
         "it takes a reduced vocabulary from --speculative-token-map only",
         _S1, "read"),
    Fact("sglang", "eagle3", "stops", lambda c: c.architecture != "LlamaForCausalLMEagle3",
         "it needs the architecture LlamaForCausalLMEagle3",
         _S3, "read"),
    Fact("sglang", "eagle3", "stops", lambda c: "draft_vocab_size" not in c.config,
         "it needs draft_vocab_size",
         _S3, "read"),
    Fact("sglang", "eagle3", "wrong", lambda c: c.spec.norm_before_residual,
         "it has no norm_before_residual",
         _S3, "read"),
    Fact("sglang", "eagle3", "wrong", lambda c: c.spec.own_embedding
         and c.spec.hidden_size == c.spec.target_hidden_size,
         "it replaces embed_tokens by the target's where the widths are equal",
         _S3, "read"),
    Fact("sglang", "eagle3", "wrong", lambda c: biases(c) or c.spec.qk_norm or c.spec.mlp_bias,
         "its layer has no biases and no q/k norms",
         _S3, "read"),
    Fact("sglang", "eagle3", "wrong", lambda c: c.spec.num_layers > 1 and c.has("layers.1.input_layernorm."),
         "later layers use hidden_norm, not input_layernorm",
         _S3, "read"),
    Fact("sglang", "eagle3", "wrong", lambda c: c.aux == "other" and not c.nested("eagle_aux_hidden_state_layer_ids"),
         "it reads eagle_aux_hidden_state_layer_ids inside eagle_config only (as layer outputs)",
         _S3, "read"),
    Fact("sglang", "eagle3", "note", lambda c: c.aux == "unknown" and not c.nested("eagle_aux_hidden_state_layer_ids"),
         "it reads eagle_aux_hidden_state_layer_ids inside eagle_config only: wrong unless these are the defaults",
         _S3, "read"),
    Fact("sglang", "eagle3", "wrong", lambda c: c.config.get("tie_word_embeddings") is True and c.spec.own_head,
         "tie_word_embeddings makes it use the embedding for the head",
         _S3, "read"),
    Fact("sglang", "eagle3", "wrong", lambda c: c.spec.parallel,
         "it does not draft in parallel (mask_hidden)",
         "issue 23171", "reported"),
    Fact("sglang", "eagle3", "wrong", lambda c: c.spec.reduced_vocabulary and not c.spec.own_head,
         "a reduced head that is not in the file stays random",
         "issue 27829", "reported"),
    # -- speculators --------------------------------------------------------------------------------------------------
    Fact("speculators", "eagle", "stops", lambda c: True,
         "its \"eagle\" was removed in June 2026",
         "commit bcdc38af, pull request 672", "read"),
    Fact("speculators", "eagle3", "stops", lambda c: not c.speculators,
         "it loads its own config only (its converter takes official folders)",
         "models/eagle3/config.py", "read"),
    Fact("speculators", "eagle3", "stops", lambda c: c.has("midlayer."),
         "its layers are called layers.N",
         "models/eagle3/core.py", "read"),
    Fact("speculators", "eagle3", "wrong", lambda c: c.spec.fc_bias,
         "its fc has no bias (fc.bias)",
         "models/eagle3/core.py", "read"),
    # -- TensorRT-LLM -------------------------------------------------------------------------------------------------
    Fact("tensorrt-llm", "eagle", "stops", lambda c: "fc.bias" not in c.names,
         "the engine build for EAGLE-1 demands fc.bias",
         "examples/eagle; issue 2588", "reported"),
    Fact("tensorrt-llm", "eagle", "wrong", lambda c: eagle1_norms(c) or c.spec.own_head or c.spec.reduced_vocabulary,
         "the engine build for EAGLE-1 knows the official head only",
         "examples/eagle", "read"),
    Fact("tensorrt-llm", "eagle3", "wrong", lambda c: c.spec.norm_before_residual,
         "it has no norm_before_residual",
         "_torch/models/modeling_speculative.py", "read"),
    Fact("tensorrt-llm", "eagle3", "wrong", lambda c: c.spec.own_embedding
         and c.spec.hidden_size == c.spec.target_hidden_size,
         "it replaces embed_tokens by the target's where the widths are equal",
         "_torch/models/modeling_speculative.py", "read"),
    Fact("tensorrt-llm", "eagle3", "wrong", lambda c: c.spec.num_layers > 1 and c.has("layers.1.input_layernorm."),
         "later layers use hidden_norm, not input_layernorm",
         "_torch/models/modeling_speculative.py", "read"),
    Fact("tensorrt-llm", "eagle3", "wrong", lambda c: c.spec.parallel,
         "it does not draft in parallel (mask_hidden)",
         "_torch/models/modeling_speculative.py", "read"),
    Fact("tensorrt-llm", "eagle3", "note", lambda c: c.aux != "default",
         "captured layers are an argument of its API (layer outputs), not read from the config",
         "_torch/models/modeling_speculative.py", "read"),
    # -- llama.cpp (after its own conversion to GGUF) -----------------------------------------------------------------
    Fact("llama.cpp", "eagle", "stops", lambda c: True,
         "it has no EAGLE-1/2",
         "pull request 13908, closed", "reported"),
    Fact("llama.cpp", "eagle3", "stops", lambda c: c.spec.num_layers > 1 or c.extra_layers,
         "its converter recognises EAGLE-3 by num_hidden_layers = 1",
         "conversion/llama.py", "read"),
    Fact("llama.cpp", "eagle3", "stops", lambda c: flags31(c) or biases(c) or c.spec.fc_bias or c.spec.qk_norm
         or c.spec.parallel or not c.spec.has_fc,
         "its converter has no place for norms before fc, recycled norms, biases, q/k norms or mask_hidden",
         "conversion/llama.py", "read"),
    Fact("llama.cpp", "eagle3", "note", lambda c: c.aux != "default",
         "auxiliary layers are 2, L // 2, L - 3 in the snapshot; declared ids since pull request 25794",
         "pull requests 18039, 25794", "reported"),
)


def engines(spec: DraftSpec, names: Iterable[str], config: Mapping[str, Any], weight_files: Iterable[str] = (),
            num_target_layers: int | None = None) -> dict[str, dict[str, Any]]:
    """For each engine: ``version, loads, faithful, why[], evidence`` (the ``engines`` block of ``inspect/1``).

    Args:
        spec: the function of the head.
        names: tensor names as the file has them.
        config: the config as found, nested as it is.
        weight_files: the files that hold the weights.
        num_target_layers: of the target, where it is known.

    ``evidence`` is the weakest grade among the facts that decided, or that of the engine where none spoke.
    """
    case = Case(spec, frozenset(names), config, tuple(weight_files), num_target_layers)
    out: dict[str, dict[str, Any]] = {}
    for engine, (version, grade) in ENGINES.items():
        hits = [fact for fact in FACTS if fact.engine == engine and fact.algorithm in (None, spec.algorithm)
                and fact.when(case)]
        stops = [fact for fact in hits if fact.effect == "stops"]
        wrong = [fact for fact in hits if fact.effect == "wrong"]
        deciding = stops or wrong or hits
        out[engine] = {
            "version": version, "loads": not stops, "faithful": not stops and not wrong,
            "why": [f"{fact.why} ({fact.source})" for fact in hits],
            "evidence": max((fact.grade for fact in deciding), key=_GRADES.index, default=grade)}
    return out
