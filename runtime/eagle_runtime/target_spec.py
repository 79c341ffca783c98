"""A target's ``config.json`` -> :class:`TargetSpec`, and the tensors that such a target has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .config import EagleRuntimeError, TargetSpec
from .layers import ACTIVATIONS, Rope

FAMILIES = ("llama", "mistral", "mixtral", "qwen2", "qwen3")


class UnsupportedTarget(EagleRuntimeError):
    """A target that our own decoder does not run; ``load_target`` then goes through transformers."""


def target_spec(config: Mapping[str, Any]) -> TargetSpec:
    """``config.json`` of a target -> :class:`TargetSpec`.

    Sizes may stand under ``text_config`` (multimodal models); rope as ``rope_theta``/``rope_scaling`` or
    ``rope_parameters``. Raises :class:`UnsupportedTarget` naming the key where the model is none of :data:`FAMILIES`
    or uses something our decoder does not compute.
    """
    c = dict(config.get("text_config") or config)
    kind = str(c.get("model_type", "")).removesuffix("_text")

    def refuse(key: str, value: object, why: str) -> UnsupportedTarget:
        return UnsupportedTarget(f"our decoder does not run this target: {why}",
                                 where=f"config.json: {key} = {value!r}",
                                 how="it runs through transformers (pip install transformers), slower but right")

    if kind not in FAMILIES:
        raise refuse("model_type", c.get("model_type"), f"it runs {', '.join(FAMILIES)}")
    if c.get("quantization_config") or config.get("quantization_config"):
        raise refuse("quantization_config", "…", "the weights are quantised")
    absent = [k for k in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
              if not isinstance(c.get(k), int)]
    if absent:
        raise EagleRuntimeError("the target's config.json is incomplete", where=f"no whole number under {absent}",
                                how="copy config.json from the model's own folder")
    rope = dict(c.get("rope_parameters") or c.get("rope_scaling") or {})
    theta = float(rope.pop("rope_theta", None) or c.get("rope_theta") or 10000.0)
    rope_kind = rope.get("rope_type", rope.get("type", "default"))
    if rope_kind not in Rope.KINDS:
        raise refuse("rope_scaling", rope, "that rope scaling is not ours")
    if float(rope.get("partial_rotary_factor", c.get("partial_rotary_factor", 1.0)) or 1.0) != 1.0:
        raise refuse("partial_rotary_factor", rope.get("partial_rotary_factor"), "only part of a head is turned")
    act = str(c.get("hidden_act", "silu"))
    if act not in ACTIVATIONS:
        raise refuse("hidden_act", act, "that activation is not ours")
    heads = c["num_attention_heads"]
    bias = bool(c.get("attention_bias", False)) and kind in ("llama", "qwen3")
    eos = c.get("eos_token_id", config.get("eos_token_id"))
    return TargetSpec(
        model_type=kind, hidden_size=c["hidden_size"], intermediate_size=c["intermediate_size"],
        num_layers=c["num_hidden_layers"], num_attention_heads=heads,
        num_key_value_heads=c.get("num_key_value_heads") or (8 if kind in ("mistral", "mixtral") else heads),
        head_dim=c.get("head_dim") or (128 if kind == "qwen3" else c["hidden_size"] // heads),
        vocab_size=c["vocab_size"],
        rms_norm_eps=float(c.get("rms_norm_eps", 1e-5 if kind == "mixtral" else 1e-6)),
        max_position_embeddings=c.get("max_position_embeddings") or c.get("max_sequence_length") or 2048,
        rope_theta=theta, rope_scaling=rope if rope_kind != "default" else None, hidden_act=act,
        tie_word_embeddings=bool(config.get("tie_word_embeddings", c.get("tie_word_embeddings", False))),
        qkv_bias=bias or kind == "qwen2", o_bias=bias, mlp_bias=bool(c.get("mlp_bias", False)) and kind == "llama",
        qk_norm=kind == "qwen3", sliding_window=_window(c, kind, refuse),
        num_experts=int(c["num_local_experts"]) if kind == "mixtral" else 0,
        experts_per_token=int(c["num_experts_per_tok"]) if kind == "mixtral" else 0,
        dtype=str(c.get("dtype") or c.get("torch_dtype") or config.get("torch_dtype") or "float32"),
        eos_token_ids=tuple(eos) if isinstance(eos, (list, tuple)) else () if eos is None else (int(eos),))


def _window(c: Mapping[str, Any], kind: str, refuse: Callable[[str, object, str], UnsupportedTarget]) -> int | None:
    """The attention window that every layer has; layers of two kinds are refused."""
    window = c.get("sliding_window")
    if window is None or kind == "llama" or (kind.startswith("qwen") and not c.get("use_sliding_window")):
        return None
    types = c.get("layer_types")
    full = int(c.get("max_window_layers") or 0) if kind.startswith("qwen") and types is None else 0
    if types is not None and set(types) == {"full_attention"}:
        return None
    if full or (types is not None and set(types) != {"sliding_attention"}):
        raise refuse("sliding_window", window, "some layers have a window and others have none")
    return int(window)


def target_tensors(spec: TargetSpec) -> dict[str, tuple[int, ...]]:
    """Every tensor our decoder reads, by its usual name without ``model.``, with its shape."""
    h, i, hd = spec.hidden_size, spec.intermediate_size, spec.head_dim
    q, kv = spec.num_attention_heads * hd, spec.num_key_value_heads * hd
    want: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (spec.vocab_size, h), "norm.weight": (h,)}
    if not spec.tie_word_embeddings:
        want["lm_head.weight"] = (spec.vocab_size, h)
    for n in range(spec.num_layers):
        at = f"layers.{n}."
        linears = {"self_attn.q_proj": (q, h, spec.qkv_bias), "self_attn.k_proj": (kv, h, spec.qkv_bias),
                   "self_attn.v_proj": (kv, h, spec.qkv_bias), "self_attn.o_proj": (h, q, spec.o_bias)}
        if spec.num_experts:
            linears["block_sparse_moe.gate"] = (spec.num_experts, h, False)
            for e in range(spec.num_experts):
                part = f"block_sparse_moe.experts.{e}."
                linears |= {part + "w1": (i, h, False), part + "w3": (i, h, False), part + "w2": (h, i, False)}
        else:
            linears |= {"mlp.gate_proj": (i, h, spec.mlp_bias), "mlp.up_proj": (i, h, spec.mlp_bias),
                        "mlp.down_proj": (h, i, spec.mlp_bias)}
        for name, (rows, cols, bias) in linears.items():
            want[f"{at}{name}.weight"] = (rows, cols)
            if bias:
                want[f"{at}{name}.bias"] = (rows,)
        want |= {at + "input_layernorm.weight": (h,), at + "post_attention_layernorm.weight": (h,)}
        if spec.qk_norm:
            want |= {at + "self_attn.q_norm.weight": (hd,), at + "self_attn.k_norm.weight": (hd,)}
    return want
