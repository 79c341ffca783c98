"""The compact format, version 1: DraftSpec -> config.json, and the reader of folders that this tool has written.

The config states the truth of the tensors in keys that both the official loader and vLLM understand as we mean them.
Its inverse is ``eagle_runtime.compact.spec_from_compact``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eagle_runtime.compact import layer_prefix
from eagle_runtime.config import DraftSpec

from . import eagle1, eagle3
from ._base import Dialect, Evidence, Facts, Reading, evidence
from ._fields import nested
from ._marks import ours
from ._names import Names

_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def to_config(spec: DraftSpec, *, source: Mapping[str, Any] | None = None, dtype: str | None = None,
              num_target_layers: int | None = None) -> dict[str, Any]:
    """``config.json`` of the compact folder (contract, section 2.6).

    Args:
        spec: the draft, with what is dropped already cleared.
        source: the source's flattened config, for token ids and for whether it spelt rope ``rope_parameters``.
        dtype: torch name of the tensors' dtype, written as ``torch_dtype``.
        num_target_layers: where known, ids of auxiliary layers that are the defaults are left out.
    """
    source = source or {}
    qwen3 = spec.algorithm == "eagle3" and spec.qk_norm
    out: dict[str, Any] = {
        "architectures": ["Qwen3ForCausalLM" if qwen3 else "LlamaForCausalLM"],
        "model_type": "qwen3" if qwen3 else "llama",
        "hidden_size": spec.hidden_size, "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers, "num_attention_heads": spec.num_attention_heads,
        "num_key_value_heads": spec.num_key_value_heads, "head_dim": spec.head_dim, "vocab_size": spec.vocab_size,
        "rms_norm_eps": spec.rms_norm_eps, "hidden_act": spec.hidden_act,
        "tie_word_embeddings": spec.tie_word_embeddings}
    if spec.max_position_embeddings is not None:
        out["max_position_embeddings"] = spec.max_position_embeddings
    if spec.target_hidden_size != spec.hidden_size:
        out["target_hidden_size"] = spec.target_hidden_size
    if spec.algorithm == "eagle3" or spec.reduced_vocabulary:
        out["draft_vocab_size"] = spec.draft_vocab_size
    out |= _biases(spec) | _rope(spec, source) | _variant(spec) | _aux(spec, num_target_layers)
    for key, value in (("sliding_window", spec.sliding_window), ("logit_scale", spec.logit_scale),
                       ("mask_token_id", spec.mask_token_id)):
        if value is not None:
            out[key] = value
    if spec.layer_types is not None:
        out["layer_types"] = list(spec.layer_types)
    if dtype is not None:
        out["torch_dtype"] = dtype
    return out | {key: source[key] for key in _TOKEN_IDS if _is_token_id(source.get(key), spec.vocab_size)}


def zeros(spec: DraftSpec) -> dict[str, tuple[int, ...]]:
    """Canonical name -> shape of zero tensors that the compact folder must create.

    EAGLE-3 heads with q/k/v biases say ``attention_bias``; vLLM then also builds an o_proj bias and leaves it
    uninitialised unless the file has one. ``spec.o_bias`` is true in the folder that is written.
    """
    if spec.algorithm != "eagle3" or not spec.qkv_bias or spec.o_bias:
        return {}
    return {layer_prefix("eagle3", spec.num_layers, i) + "self_attn.o_proj.bias": (spec.hidden_size,)
            for i in range(spec.num_layers)}


def _biases(spec: DraftSpec) -> dict[str, Any]:
    # "bias" absent means true to the official loader; true gives attention biases in vLLM. So never true.
    out: dict[str, Any] = {} if spec.fc_bias else {"bias": False}
    if spec.qkv_bias:
        out["qkv_bias" if spec.algorithm == "eagle" else "attention_bias"] = True
    if spec.mlp_bias:
        out["mlp_bias"] = True
    return out


def _rope(spec: DraftSpec, source: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if spec.rope_theta is not None:
        out["rope_theta"] = spec.rope_theta
    if spec.rope_scaling is not None:
        out["rope_scaling"] = _scaling(spec.rope_scaling)
    if isinstance(source.get("rope_parameters"), dict):
        scaling = dict(spec.rope_scaling or {})
        out["rope_parameters"] = {"rope_type": scaling.get("type", "default"), **scaling} | (
            {} if spec.rope_theta is None else {"rope_theta": spec.rope_theta})
    return out


def _scaling(block: Mapping[str, Any]) -> dict[str, Any]:
    """The block as stated; linear and dynamic scaling in the one spelling that the official code parses.

    It wants exactly ``type`` and ``factor``, the latter a float; every other engine reads that too.
    """
    kind = block.get("rope_type", block.get("type"))
    if kind in ("linear", "dynamic") and set(block) <= {"rope_type", "type", "factor"}:
        return {"type": kind, "factor": float(block["factor"])}
    return dict(block)


def _variant(spec: DraftSpec) -> dict[str, Any]:
    if spec.algorithm == "eagle3":
        return {"norm_before_residual": spec.norm_before_residual, "norm_before_fc": spec.norm_before_fc,
                "fc_norm": spec.fc_norm, "norm_output": spec.norm_output}
    out: dict[str, Any] = {}
    if spec.input_norm:
        out["skip_prenorm"] = False
    if spec.output_norm:
        out |= {"skip_output_norm": False, "norm_output": spec.norm_output}
    if spec.embed_norm and spec.hidden_norm:
        out["add_para_norm"] = True
    return out


def _aux(spec: DraftSpec, num_target_layers: int | None) -> dict[str, Any]:
    """Ids in both conventions: boundaries at top level (vLLM), layer outputs inside eagle_config (SGLang, NVIDIA)."""
    if spec.algorithm == "eagle":
        return {}
    if not spec.has_fc:
        return {"eagle_config": {"use_aux_hidden_state": False}}
    out: dict[str, Any] = {} if spec.num_aux == 3 else {"num_aux_hidden_states": spec.num_aux}
    defaults = num_target_layers and (2, num_target_layers // 2, num_target_layers - 3)
    if spec.aux_layers is not None and spec.aux_layers != defaults:
        out |= {"eagle_aux_hidden_state_layer_ids": list(spec.aux_layers), "num_aux_hidden_states": spec.num_aux,
                "eagle_config": {"eagle_aux_hidden_state_layer_ids": [i - 1 for i in spec.aux_layers]}}
    return out


def _is_token_id(value: Any, vocab: int) -> bool:
    """An id, or ids, of the vocabulary: the official code's embedding refuses a padding id beyond it."""
    ids = value if isinstance(value, list) else [value]
    return bool(ids) and all(type(i) is int and 0 <= i < vocab for i in ids)


def detect(facts: Facts) -> Evidence:
    return evidence(
        "compact", (ours(facts), "there is an eagle_convert.json beside it"),
        (facts.has("fc.weight") or facts.starts("midlayer.") or facts.has("layers.0.hidden_norm.weight"),
         "there is an fc.weight, a midlayer or a hidden_norm"))


def read(facts: Facts) -> Reading:
    fields, _ = nested(facts.config_file, facts.settings, "eagle_config")
    if facts.starts("midlayer.") or facts.contains("layers.0.hidden_norm."):
        prefix = "midlayer." if facts.starts("midlayer.") else "layers.{}."
        return eagle3.read_head(facts, fields, DIALECT, Names("eagle3", eagle3.NAMES.tops, layer=prefix))
    # One of enorm and hnorm alone has no flag of its own; in a compact folder a norm that is there is applied.
    claims = {norm: True for norm in ("embed_norm", "hidden_norm") if facts.has(eagle1.NORM_TENSORS[norm])}
    return eagle1.read_head(facts, fields, DIALECT, eagle1.NAMES, absent_bias=True, claims=claims)


DIALECT = Dialect("compact", "a compact head, written by eagle-convert", detect, read)
