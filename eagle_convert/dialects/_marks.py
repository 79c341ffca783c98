"""Marks that tell layouts apart: predicates over names, shapes and config, used by several dialects."""

from __future__ import annotations

from ._base import MANIFEST, Facts

Check = tuple[bool, str]

# Name endings that weights have once they are quantised: compressed-tensors, GPTQ, AWQ, FP8 exports, Mistral's.
_PACKED = (".weight_packed", ".weight_scale", ".weight_scale_inv", ".weight_zero_point", ".weight_g_idx",
           ".weight_shape", ".qweight", ".qzeros", ".scales", ".g_idx", ".input_scale", ".weight_scale_2",
           ".qscale_weight", ".qscale_act")
_LATENT = ("kv_a_proj_with_mqa", "q_a_proj", "kv_b_proj")
_EXPERTS = (".experts.", ".mlp.gate.weight", ".block_sparse_moe.", ".shared_expert")
_FUSES = ("\nfc.", ".fc.", "midlayer.", "fusion_fc.", "eagle_linear.", "eagle_layers.", "hidden_norm.",
          "mask_hidden", "input_norm1.")
_PARALLEL = ("medusa_layers", "medusa_heads", "parallel_draft_heads", "medusa_head.")


def takes(facts: Facts, linear: str, width: int) -> bool:
    """The linear reads ``width`` columns, or is not there (then the reader says so)."""
    shape = facts.shape(linear)
    return not shape or (len(shape) == 2 and shape[1] == width)


def inputs(facts: Facts, fc: str = "fc.weight") -> int:
    """How many hidden widths fc reads; 0 where it is no such matrix."""
    shape = facts.shape(fc)
    return shape[1] // shape[0] if len(shape) == 2 and shape[0] and shape[1] % shape[0] == 0 else 0


def one_state(facts: Facts, fc: str, layer: str) -> bool:
    """The attention of the layer reads as many columns as fc has rows."""
    rows = facts.shape(fc)[:1]
    return bool(rows) and all(takes(facts, f"{layer}self_attn.{p}_proj.weight", rows[0]) for p in "qkv")


def ours(facts: Facts) -> bool:
    """The folder was written by this tool."""
    return MANIFEST in facts.files


def wrapped(facts: Facts) -> bool:
    """The config is the legacy vLLM wrapper: the head's own config under ``model``."""
    config = facts.config or {}
    return isinstance(config.get("model"), dict) or config.get("model_type") == "eagle"


def architectures(facts: Facts) -> str:
    """The config's architecture names, joined; '' where there are none. Provenance, never evidence of the function."""
    names = (facts.config or {}).get("architectures")
    return " ".join(map(str, names)) if isinstance(names, list) else ""


def speculators(facts: Facts, *kinds: str) -> bool:
    """The config is of the speculators library, of one of the kinds (any kind where none is given)."""
    config = facts.config or {}
    kind = config.get("speculators_model_type")
    return kind in kinds if kinds else kind is not None or "speculators_config" in config


def packed(facts: Facts) -> bool:
    """Some weight is quantised."""
    return any(name.endswith(_PACKED) for name in facts.shapes) or any(
        dtype.startswith("F8") or dtype.startswith("F4") for dtype in facts.dtypes.values())


def latent(facts: Facts) -> bool:
    """The attention is a latent one (MLA)."""
    return facts.contains(*_LATENT)


def experts(facts: Facts) -> bool:
    """The MLP is a mixture of experts."""
    return facts.contains(*_EXPERTS)


def parallel_heads(facts: Facts) -> bool:
    """Medusa-like heads stand beside the draft, or alone."""
    return facts.contains(*_PARALLEL)


def fuses(facts: Facts) -> bool:
    """Something fuses a target's state: what every EAGLE draft has and no language model has (MTP modules aside)."""
    text = facts.text.replace("mtp.fc.", "")
    return any(mark in text for mark in _FUSES)


def plain(facts: Facts) -> tuple[Check, ...]:
    """What every draft has to be for a reader to take it: not ours, not quantised, a plain Llama-type layer."""
    return ((not ours(facts), "no eagle_convert.json beside it"),
            (not packed(facts), "no packed or scaled weights"),
            (not latent(facts) and not experts(facts) and not facts.contains("feed_forward."),
             "no latent attention, no experts, no feed_forward"),
            (not parallel_heads(facts), "no parallel heads"))
