"""What must hold before a draft drafts: it is one that we run, it is whole, and it fits the target."""

from __future__ import annotations

from .compact import tensor_shapes
from .config import DraftSpec, EagleRuntimeError, TargetSpec
from .layers import ACTIVATIONS
from .views import DraftView


class PairingError(EagleRuntimeError):
    """Draft and target do not fit each other."""


def check_runnable(spec: DraftSpec) -> None:
    """Refuse by name what has no defined function here. Raises :class:`EagleRuntimeError`."""
    refused = {
        "parallel": spec.parallel and "parallel drafting (mask_hidden) has no step-by-step function",
        "attention_sinks": spec.attention_sinks and "attention sinks are not computed",
        "hidden_act": spec.hidden_act not in ACTIVATIONS and f"activation {spec.hidden_act!r} is not known",
        "has_fc": not spec.has_fc and (spec.algorithm == "eagle" or spec.num_aux > 1
                                       or spec.target_hidden_size != spec.hidden_size)
        and "without fc the target's one state must be as wide as the draft",
        "target_hidden_size": spec.algorithm == "eagle" and spec.target_hidden_size != spec.hidden_size
        and "an EAGLE-1 draft of its own width cannot take its own state in place of the target's",
        "layer_types": spec.layer_types is not None and len(set(spec.layer_types)) > 1
        and "layers with and without a window",
        "tie_word_embeddings": tied(spec) and spec.reduced_vocabulary
        and "its own embedding as the head has more rows than the draft vocabulary",
        "norm_before_fc, fc_norm": spec.norm_before_fc and spec.fc_norm
        and "one norm over the concatenation and one a tap exclude each other",
    }
    for flag, why in refused.items():
        if why:
            raise EagleRuntimeError(f"the runtime does not run this draft: {why}", where=f"DraftSpec.{flag}",
                                    how="`eagle-convert inspect` says which engines run it; "
                                        "parity-check --engine vllm may")


def check_pairing(spec: DraftSpec, target: TargetSpec) -> None:
    """Raise :class:`PairingError` where the draft cannot sit on the target."""
    how = "give the model that this draft was trained for as the target"
    if spec.target_hidden_size != target.hidden_size:
        raise PairingError("draft and target differ in width", where="the draft reads states of width "
                           f"{spec.target_hidden_size}, the target's are {target.hidden_size} wide", how=how)
    if spec.vocab_size != target.vocab_size and not (spec.own_embedding and spec.vocab_size > target.vocab_size):
        raise PairingError("draft and target differ in vocabulary",
                           where=f"the draft's has {spec.vocab_size} entries, the target's {target.vocab_size}",
                           how=how)
    if not spec.own_embedding and spec.hidden_size != target.hidden_size:
        raise PairingError("a draft of its own width needs its own embedding",
                           where=f"draft width {spec.hidden_size}, target width {target.hidden_size}, no embed_tokens",
                           how="convert it from a source that has embed_tokens.weight")
    if not (spec.own_head or tied(spec)) and spec.hidden_size != target.hidden_size:
        raise PairingError("a draft of its own width needs its own head",
                           where=f"draft width {spec.hidden_size}, target width {target.hidden_size}, no lm_head",
                           how="convert it from a source that has lm_head.weight")
    for tap in tap_boundaries(spec, target.num_layers):
        if not 0 <= tap <= target.num_layers:
            raise PairingError("an aux layer of the draft does not exist in the target",
                               where=f"boundary {tap}, the target has 0 .. {target.num_layers}", how=how)


def window_of(spec: DraftSpec) -> int | None:
    """The attention window of every layer; a stated one does not hold where the layers are said to see everything."""
    return None if spec.layer_types and set(spec.layer_types) == {"full_attention"} else spec.sliding_window


def tied(spec: DraftSpec) -> bool:
    """Whether the draft's own embedding is its head."""
    return spec.tie_word_embeddings and spec.own_embedding and not spec.own_head


def tap_boundaries(spec: DraftSpec, num_target_layers: int) -> tuple[int, ...]:
    """The target boundaries that a draft reads; () for the state after the final norm."""
    return spec.boundaries(num_target_layers) if spec.num_aux else ()


def check_names(view: DraftView) -> None:
    """Raise where a view's tensors are not exactly those of its spec, naming the missing and the unknown."""
    want = tensor_shapes(view.spec)
    missing, unknown = sorted(want.keys() - view.tensors.keys()), sorted(view.tensors.keys() - want.keys())
    if missing or unknown:
        parts = (missing and f"missing {', '.join(missing)}", unknown and f"unknown {', '.join(unknown)}")
        raise EagleRuntimeError("the draft's tensors are not those of its description",
                                where="; ".join(p for p in parts if p),
                                how="convert the source again with `eagle-convert convert`")
