"""The known faults, each a switch: what engines and converters have got wrong with EAGLE heads, reproduced on purpose.

A fault is either a change of the draft's description and tensors (:func:`apply_faults` makes it, so the reference, the
bundled runtime and any engine that takes a :class:`DraftView` can show it), or *structural*: a change of what is
computed, which ``reference.py``, ``Draft`` and the engine look for by name. Nothing here runs unless it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from .compact import layer_prefix
from .config import DraftSpec, EagleRuntimeError
from .target import Target
from .views import DraftView, Read


class FaultError(EagleRuntimeError):
    """A fault that this draft cannot have, or a name that is none."""


def _refuse(name: str, why: str) -> FaultError:
    return FaultError(f"the fault {name} cannot be shown on this draft: {why}", where=f"--fault {name}",
                      how="choose another fault; `eagle_runtime.faults.applicable` lists those a draft can have")


def input_norm(view: DraftView, target: Target) -> DraftView:
    """The first layer of an EAGLE-1 head gets an input norm of ones that it never had (vLLM 0.5.5 - 0.6.6)."""
    if view.spec.algorithm != "eagle" or view.spec.input_norm:
        raise _refuse("input-norm", "its first layer has an input norm by right")
    name = layer_prefix("eagle", view.spec.num_layers, 0) + "input_layernorm.weight"
    return _with(view, {name: _ones(view.spec.hidden_size)}, input_norm=True)


def output_norm(view: DraftView, target: Target) -> DraftView:
    """An EAGLE-1 head gets a final norm of ones; the normed state goes to the head and is recycled, as in an engine
    that leaves the Llama model's final norm in place."""
    if view.spec.algorithm != "eagle" or view.spec.output_norm:
        raise _refuse("output-norm", "it has a final norm by right")
    return _with(view, {"norm.weight": _ones(view.spec.hidden_size)}, output_norm=True, norm_output=True)


def residual_lost(view: DraftView, target: Target) -> DraftView:
    """The first layer's result is its MLP's output alone: the residual stream is not added (before vLLM PR 14464)."""
    return view


def stale_kv(view: DraftView, target: Target) -> DraftView:
    """Draft K/V of accepted positions stay as the draft's own guessed states left them, instead of being computed again
    from the target's states (vLLM issue 14649)."""
    return view


def fc_bias_dropped(view: DraftView, target: Target) -> DraftView:
    """``fc.bias`` is not added (stock vLLM 0.32 ignores it)."""
    if not view.spec.fc_bias:
        raise _refuse("fc-bias-dropped", "it has no fc.bias")
    return _without(view, ("fc.bias",), fc_bias=False)


def concat_swapped(view: DraftView, target: Target) -> DraftView:
    """State first, embedding second: EAGLE-1's [e ; h] before fc, EAGLE-3's [RMS(e) ; RMS(g)] before attention."""
    spec = view.spec
    if spec.algorithm == "eagle":
        if spec.target_hidden_size != spec.hidden_size:
            raise _refuse("concat-swapped", "the two halves differ in width")
        names = ["fc.weight"]
    else:
        at = layer_prefix("eagle3", spec.num_layers, 0)
        names = [f"{at}self_attn.{p}_proj.weight" for p in "qkv"]
    return _with(view, {n: partial(_halves_swapped, view.tensors[n]) for n in names})


def foreign_embedding(view: DraftView, target: Target) -> DraftView:
    """The embedding is another model's: every row is its neighbour's (rows rolled by one)."""
    read = view.tensors["embed_tokens.weight"] if view.spec.own_embedding else lambda: target.embedding
    return _with(view, {"embed_tokens.weight": lambda: read().roll(1, 0)}, own_embedding=True)


def token_shift(view: DraftView, target: Target) -> DraftView:
    """Ids one position late: the state of position t comes with token t instead of token t + 1 (vLLM issue 14647)."""
    return view


def hidden_prenorm(view: DraftView, target: Target) -> DraftView:
    """An EAGLE-1 head is given the target's state before the final norm."""
    if view.spec.num_aux:
        raise _refuse("hidden-prenorm", "it reads states before the final norm by right")
    return view


def rope_base(view: DraftView, target: Target) -> DraftView:
    """Rotary base 10000, or 500000 where it is 10000."""
    base = 10000.0 if view.spec.rope_theta is None else view.spec.rope_theta
    return DraftView(replace(view.spec, rope_theta=500000.0 if base == 10000.0 else 10000.0), view.tensors)


def aux_shift(view: DraftView, target: Target) -> DraftView:
    """Every boundary that an EAGLE-3 head reads is one too late (boundary + 1): ids of layer outputs read as boundaries
    or the reverse (vLLM PR 43671)."""
    layers = target.spec.num_layers
    taps = view.spec.boundaries(layers) if view.spec.num_aux else ()
    if not taps or max(taps) >= layers:
        raise _refuse("aux-shift", "it reads no boundary that has a next one")
    return DraftView(replace(view.spec, aux_layers=tuple(t + 1 for t in taps)), view.tensors)


def norm_before_residual(view: DraftView, target: Target) -> DraftView:
    """``norm_before_residual`` flipped: the first EAGLE-3 layer's residual is the normed state, or is not."""
    if view.spec.algorithm != "eagle3":
        raise _refuse("norm-before-residual", "only EAGLE-3 heads have the choice")
    return DraftView(replace(view.spec, norm_before_residual=not view.spec.norm_before_residual), view.tensors)


def recycled_norm(view: DraftView, target: Target) -> DraftView:
    """``norm_output`` flipped: the recycled state is the normed one, or is not."""
    if view.spec.algorithm == "eagle" and not view.spec.output_norm:
        raise _refuse("recycled-norm", "it has no final norm (output-norm is the fault of that kind)")
    return DraftView(replace(view.spec, norm_output=not view.spec.norm_output), view.tensors)


def d2t_as_ids(view: DraftView, target: Target) -> DraftView:
    """d2t's offsets are taken for target ids (modulo the vocabulary, where one is negative)."""
    if not view.spec.reduced_vocabulary:
        raise _refuse("d2t-as-ids", "its vocabulary is the target's")
    return _with(view, {"d2t": partial(_ids_as_offsets, view.tensors["d2t"], view.spec.vocab_size)})


def qkv_bias_dropped(view: DraftView, target: Target) -> DraftView:
    """The biases of q, k and v are not added, as where the config has no key for them."""
    if not view.spec.qkv_bias:
        raise _refuse("qkv-bias-dropped", "its q, k and v have no bias")
    return _without(view, [n for n in view.tensors if n.endswith(("q_proj.bias", "k_proj.bias", "v_proj.bias"))],
                    qkv_bias=False)


def overflow(view: DraftView, target: Target) -> DraftView:
    """What fc and the layers put out passes through float16: beyond 65504 it is inf, and NaN from there on."""
    return view


@dataclass(frozen=True)
class Fault:
    """A known fault. ``structural``: :func:`apply_faults` leaves the view as it is, and the engine looks for ``id``."""

    id: str
    apply: Callable[[DraftView, Target], DraftView]
    structural: bool = False

    @property
    def doc(self) -> str:
        """Its direction, in one or two sentences."""
        return " ".join((self.apply.__doc__ or "").split())


FAULTS: tuple[Fault, ...] = (
    Fault("input-norm", input_norm), Fault("output-norm", output_norm), Fault("residual-lost", residual_lost, True),
    Fault("stale-kv", stale_kv, True), Fault("fc-bias-dropped", fc_bias_dropped),
    Fault("concat-swapped", concat_swapped), Fault("foreign-embedding", foreign_embedding),
    Fault("token-shift", token_shift, True), Fault("hidden-prenorm", hidden_prenorm, True),
    Fault("rope-base", rope_base), Fault("aux-shift", aux_shift), Fault("norm-before-residual", norm_before_residual),
    Fault("recycled-norm", recycled_norm), Fault("d2t-as-ids", d2t_as_ids),
    Fault("qkv-bias-dropped", qkv_bias_dropped), Fault("overflow", overflow, True),
)
BY_ID = {fault.id: fault for fault in FAULTS}
STRUCTURAL = frozenset(fault.id for fault in FAULTS if fault.structural)


def apply_faults(names: Iterable[str], view: DraftView, target: Target) -> DraftView:
    """The view with the named faults switched on (in :data:`FAULTS`' order; structural ones are only checked).

    Raises :class:`FaultError` for a name that is none and for a fault that this draft cannot have.
    """
    asked = set(names)
    unknown = sorted(asked - BY_ID.keys())
    if unknown:
        raise FaultError(f"no such fault: {', '.join(unknown)}", where=f"--fault {unknown[0]}",
                         how=f"known: {', '.join(BY_ID)}")
    for fault in FAULTS:
        if fault.id in asked:
            view = fault.apply(view, target)
    return view


def applicable(view: DraftView, target: Target) -> tuple[str, ...]:
    """Ids of the faults that this draft can have."""
    def fits(fault: Fault) -> bool:
        try:
            fault.apply(view, target)
        except FaultError:
            return False
        return True

    return tuple(fault.id for fault in FAULTS if fits(fault))


def _with(view: DraftView, tensors: dict[str, Read], **flags: bool) -> DraftView:
    return DraftView(replace(view.spec, **flags), {**view.tensors, **tensors})  # type: ignore[arg-type]


def _without(view: DraftView, names: Iterable[str], **flags: bool) -> DraftView:
    gone = frozenset(names)
    spec: DraftSpec = replace(view.spec, **flags)  # type: ignore[arg-type]
    return DraftView(spec, {n: read for n, read in view.tensors.items() if n not in gone})


def _ones(width: int) -> Read:
    return lambda: torch.ones(width)


def _halves_swapped(read: Read) -> Tensor:
    first, second = read().chunk(2, -1)
    return torch.cat((second, first), -1)


def _ids_as_offsets(read: Read, vocab: int) -> Tensor:
    offsets = read().to(torch.int64)
    return offsets % vocab - torch.arange(len(offsets))
