"""The compact format, version 1, as a loader sees it: which tensors a draft has, and config + shapes -> DraftSpec.

The format states the truth of its tensors, so nothing here is forgiving: the config is read, the tensors that the
described draft must have are computed, and what the file holds has to be exactly that. The way back, DraftSpec ->
config, is ``eagle_convert.dialects.compact.to_config``. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

from .config import DraftSpec, EagleRuntimeError

Shape = tuple[int, ...]

# Flags whose presence alone a compact EAGLE-3 config guarantees (always explicit there).
EAGLE3_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


def layer_prefix(algorithm: str, num_layers: int, layer: int) -> str:
    """Canonical prefix of a decoder layer: ``midlayer.`` for one-layer EAGLE-3 heads, else ``layers.N.``."""
    return "midlayer." if algorithm == "eagle3" and num_layers == 1 else f"layers.{layer}."


def tensor_shapes(spec: DraftSpec) -> dict[str, Shape]:
    """Canonical name -> shape of every tensor the draft ``spec`` stores. Linear weights are [out, in].

    Borrowed tables (``own_embedding`` or ``own_head`` false) are not in it; ``d2t`` is there exactly where the draft
    vocabulary is a reduced one. Source of the shapes: SafeAILab/EAGLE ``cnets1.py`` and ``cnets.py``.
    """
    h, v, vd, taps = spec.hidden_size, spec.vocab_size, spec.draft_vocab_size, spec.num_aux * spec.target_hidden_size
    out: dict[str, Shape] = {}
    if spec.has_fc:
        out["fc.weight"] = (h, h + spec.target_hidden_size) if spec.algorithm == "eagle" else (h, taps)
    if spec.fc_bias:
        out["fc.bias"] = (h,)
    for i in range(spec.num_layers):
        prefix = layer_prefix(spec.algorithm, spec.num_layers, i)
        out |= {prefix + name: shape for name, shape in _layer(spec, i).items()}
    if spec.embed_norm:
        out["enorm.weight"] = (h,)
    if spec.hidden_norm:
        out["hnorm.weight"] = (h,)
    if spec.output_norm or spec.algorithm == "eagle3":
        out["norm.weight"] = (h,)
    if spec.norm_before_fc:
        out["input_norm.weight"] = (taps,)
    if spec.fc_norm:
        out |= {f"fc_norm.{i}.weight": (spec.target_hidden_size,) for i in range(spec.num_aux)}
    if spec.parallel:
        out["mask_hidden"] = (1, 1, taps or h)
    if spec.own_head:
        out["lm_head.weight"] = (vd, h)
    if spec.own_embedding:
        out["embed_tokens.weight"] = (v, h)
    if spec.reduced_vocabulary:
        out["d2t"] = (vd,)
    return out


def _layer(spec: DraftSpec, i: int) -> dict[str, Shape]:
    """Tensors of decoder layer ``i``, without prefix. Layer 0 of an EAGLE-3 head reads [embedding ; state], 2H wide."""
    h, inner, hd = spec.hidden_size, spec.intermediate_size, spec.head_dim
    q, kv = spec.num_attention_heads * hd, spec.num_key_value_heads * hd
    first3 = spec.algorithm == "eagle3" and i == 0
    wide = 2 * h if first3 else h
    out: dict[str, Shape] = {
        "self_attn.q_proj.weight": (q, wide), "self_attn.k_proj.weight": (kv, wide),
        "self_attn.v_proj.weight": (kv, wide), "self_attn.o_proj.weight": (h, q),
        "mlp.gate_proj.weight": (inner, h), "mlp.up_proj.weight": (inner, h), "mlp.down_proj.weight": (h, inner),
        "post_attention_layernorm.weight": (h,)}
    if i > 0 or spec.algorithm == "eagle3" or spec.input_norm:
        out["input_layernorm.weight"] = (h,)
    if first3:
        out["hidden_norm.weight"] = (h,)
    if spec.qkv_bias:
        out |= {"self_attn.q_proj.bias": (q,), "self_attn.k_proj.bias": (kv,), "self_attn.v_proj.bias": (kv,)}
    if spec.o_bias:
        out["self_attn.o_proj.bias"] = (h,)
    if spec.mlp_bias:
        out |= {"mlp.gate_proj.bias": (inner,), "mlp.up_proj.bias": (inner,), "mlp.down_proj.bias": (h,)}
    if spec.qk_norm:
        out |= {"self_attn.q_norm.weight": (hd,), "self_attn.k_norm.weight": (hd,)}
    if spec.attention_sinks:
        out["self_attn.sinks"] = (spec.num_attention_heads,)
    return out


def spec_from_compact(config: Mapping[str, Any], shapes: Mapping[str, Shape]) -> DraftSpec:
    """The draft that a compact folder holds.

    Args:
        config: the folder's ``config.json``.
        shapes: canonical tensor name -> shape, as in the file's header.

    Raises:
        EagleRuntimeError: a key is absent or of another type, or the tensors are not those of the described draft.
    """
    eagle3 = any(name.startswith("midlayer.") for name in shapes) or "layers.0.hidden_norm.weight" in shapes
    h, nh = _integer(config, "hidden_size"), _integer(config, "num_attention_heads")
    vocab = _integer(config, "vocab_size")
    qkv_bias = "q_proj.bias" in {name.rpartition("self_attn.")[2] for name in shapes}
    target = _integer(config, "target_hidden_size", h)
    aux = _aux(config)
    has_fc = "fc.weight" in shapes
    num_aux = 0
    if eagle3 and has_fc:
        num_aux = _integer(config, "num_aux_hidden_states", len(aux) if aux else shapes["fc.weight"][-1] // target)
    spec = DraftSpec(
        algorithm="eagle3" if eagle3 else "eagle", hidden_size=h, target_hidden_size=target,
        intermediate_size=_integer(config, "intermediate_size"), num_layers=_integer(config, "num_hidden_layers"),
        num_attention_heads=nh, num_key_value_heads=_integer(config, "num_key_value_heads", nh),
        head_dim=_integer(config, "head_dim", h // nh), vocab_size=vocab,
        draft_vocab_size=_integer(config, "draft_vocab_size", vocab), rms_norm_eps=_number(config, "rms_norm_eps"),
        max_position_embeddings=_integer(config, "max_position_embeddings") if "max_position_embeddings" in config
        else None,
        rope_theta=_number(config, "rope_theta") if "rope_theta" in config else None,
        rope_scaling=_object(config, "rope_scaling"), hidden_act=_text(config, "hidden_act", "silu"),
        own_embedding="embed_tokens.weight" in shapes, own_head="lm_head.weight" in shapes, has_fc=has_fc,
        fc_bias="fc.bias" in shapes, qkv_bias=qkv_bias,
        o_bias=any(name.endswith("self_attn.o_proj.bias") for name in shapes),
        mlp_bias=any(name.endswith("mlp.down_proj.bias") for name in shapes),
        qk_norm=any(name.endswith("self_attn.q_norm.weight") for name in shapes),
        embed_norm="enorm.weight" in shapes, hidden_norm="hnorm.weight" in shapes,
        input_norm=not eagle3 and not _flag(config, "skip_prenorm", True),
        output_norm=not eagle3 and not _flag(config, "skip_output_norm", True),
        **{flag: _flag(config, flag) for flag in EAGLE3_FLAGS}, num_aux=num_aux,
        aux_layers=() if eagle3 and not has_fc else aux if eagle3 else None,
        tie_word_embeddings=_flag(config, "tie_word_embeddings"), parallel="mask_hidden" in shapes,
        mask_token_id=_integer(config, "mask_token_id", least=0) if "mask_token_id" in config else None,
        sliding_window=_integer(config, "sliding_window") if "sliding_window" in config else None,
        layer_types=tuple(map(str, config["layer_types"])) if "layer_types" in config else None,
        logit_scale=_number(config, "logit_scale") if "logit_scale" in config else None,
        attention_sinks=any(name.endswith("self_attn.sinks") for name in shapes))
    _compare(tensor_shapes(spec), {name: tuple(shape) for name, shape in shapes.items()})
    return spec


def _compare(expected: Mapping[str, Shape], found: Mapping[str, Shape]) -> None:
    missing, unknown = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    if missing or unknown:
        raise EagleRuntimeError(
            "the file's tensors are not those its config describes",
            where="; ".join([*(["missing: " + ", ".join(missing)] if missing else []),
                             *(["not described: " + ", ".join(unknown)] if unknown else [])]),
            how="a compact folder is written by `eagle-convert convert`; convert the source again")
    for name, shape in expected.items():
        if found[name] != shape:
            raise EagleRuntimeError("a tensor has another shape than the config describes",
                                    where=f"{name}: found {list(found[name])}, expected {list(shape)}",
                                    how="convert the source again")


def _aux(config: Mapping[str, Any]) -> tuple[int, ...] | None:
    value = config.get("eagle_aux_hidden_state_layer_ids")
    if value is None:
        return None
    if not isinstance(value, list) or any(type(i) is not int or i < 0 for i in value):
        _refuse("eagle_aux_hidden_state_layer_ids", value, "a list of target boundaries >= 0")
    return tuple(value)


def _refuse(key: str, value: Any, expected: str) -> NoReturn:
    raise EagleRuntimeError("config.json has a value that is not of the key's type",
                            where=f"config.json: {key} = {value!r}, expected {expected}",
                            how="convert the source again")


def _integer(config: Mapping[str, Any], key: str, default: int | None = None, *, least: int = 1) -> int:
    value = config.get(key, default)
    if type(value) is not int or not least <= value < 2**31:
        _refuse(key, value, f"an integer >= {least}")
    return value


def _number(config: Mapping[str, Any], key: str) -> float:
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        _refuse(key, value, "a number > 0")
    return float(value)


def _flag(config: Mapping[str, Any], key: str, default: bool = False) -> bool:
    value = config.get(key, default)
    if not isinstance(value, bool):
        _refuse(key, value, "true or false")
    return value


def _text(config: Mapping[str, Any], key: str, default: str) -> str:
    value = config.get(key, default)
    if not isinstance(value, str):
        _refuse(key, value, "a string")
    return value


def _object(config: Mapping[str, Any], key: str) -> Mapping[str, Any] | None:
    value = config.get(key)
    if value is not None and not isinstance(value, dict):
        _refuse(key, value, "an object")
    return value
