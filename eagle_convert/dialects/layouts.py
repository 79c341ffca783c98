"""The way out: a draft in the layout of another tool (``convert --for``). Names tables are inverted by code.

A layout says the config, the name of every tensor, and what must be made because the destination wants it in the file.
What the destination cannot express is refused with the facts of ``engine_facts``; ``allow_unfaithful`` writes what
loads but computes something else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from eagle_convert.engine_facts import engines
from eagle_convert.errors import UnfaithfulError
from eagle_convert.findings import Finding, finding
from eagle_runtime.compact import tensor_shapes
from eagle_runtime.config import DraftSpec

from . import compact, legacy_vllm, speculators, vllm_eagle3

FORMATS = ("compact", "official", "vllm", "sglang", "speculators", "legacy-vllm")

Shape = tuple[int, ...]
Kind = Literal["zeros", "t2d", "ids", "embedding", "head"]


@dataclass(frozen=True)
class Made:
    """A tensor that the source does not have.

    ``kind``: zeros in the draft's dtype; ``t2d`` (bool [V]) or ``ids`` (int64 [Vd], absolute) of the vocabulary table;
    ``embedding`` or ``head``: the target's table [V, H], cast to the draft's dtype.
    """

    kind: Kind
    shape: Shape
    reason: str


@dataclass(frozen=True)
class Layout:
    """A destination, decided.

    Attributes:
        config: its ``config.json``.
        names: canonical name -> name in the destination, for every tensor of ``tensor_shapes(spec)``.
        made: name in the destination -> what to make.
        drops: canonical names that the destination holds in another form (``d2t`` as ``token_map``).
        findings: what a user should know.
    """

    config: Mapping[str, Any]
    names: Mapping[str, str]
    made: Mapping[str, Made] = field(default_factory=dict)
    drops: frozenset[str] = frozenset()
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Request:
    """What a layout is made from.

    Attributes:
        spec: the draft as it will be written, compact.
        config: its compact config.
        tables: which tables of the target can be copied in (``embedding``, ``head``); empty without ``--target``.
        verifier: name of the target, for layouts that record it; never a path.
        verifier_architectures: the target's.
        unproved: canonical names of tables in the file of which nobody has shown whether they are the target's.
    """

    spec: DraftSpec
    config: Mapping[str, Any]
    tables: Collection[str] = ()
    verifier: str | None = None
    verifier_architectures: tuple[str, ...] = ()
    unproved: Collection[str] = ()

    def table(self, kind: Literal["embedding", "head"], name: str, reason: str) -> dict[str, Made]:
        """The target's table under ``name``. Raises UnfaithfulError where no target was given."""
        if kind not in self.tables:
            raise UnfaithfulError(f"this layout needs {name} in the file, and the draft does not have it",
                                  where=f"missing tensor {name}; {reason}",
                                  how="give --target, whose table is copied in")
        return {name: Made(kind, (self.spec.vocab_size, self.spec.hidden_size), reason)}


def layout(name: str, request: Request, *, num_target_layers: int | None = None,
           allow_unfaithful: bool = False) -> Layout:
    """The layout ``name`` (one of ``FORMATS``) of a draft.

    Raises:
        UnfaithfulError: a tensor or flag has no place in the destination, or a table or the target's name is needed.
    """
    made = _LAYOUTS[name](request)
    if name not in _JUDGES:
        return made
    written = {*made.names.values(), *made.made} - {made.names[gone] for gone in made.drops}
    verdict = engines(_as_written(request, made), written, made.config, num_target_layers=num_target_layers)[
        _JUDGES[name]]
    if verdict["faithful"]:
        return made
    why = "; ".join(verdict["why"])
    if not verdict["loads"] or not allow_unfaithful:
        how = "" if not verdict["loads"] else "; --allow-unfaithful writes what loads and computes something else"
        raise UnfaithfulError(f"the layout '{name}' cannot express this head", where=f"--for {name}: {why}",
                              how=f"convert without --for: the compact folder keeps everything{how}")
    return replace(made, findings=(*made.findings, finding("EC801", f"--for {name}", why=why)))


# Whose loader a layout is for.
_JUDGES = {"official": "official", "vllm": "vllm", "sglang": "sglang", "speculators": "speculators"}


def _as_written(request: Request, made: Layout) -> DraftSpec:
    """The spec as an engine finds it: with the zero biases that were made; an unproved table is not held against it."""
    spec = request.spec
    own_head = spec.own_head and (spec.algorithm == "eagle3" or "lm_head.weight" not in request.unproved)
    own_embedding = spec.own_embedding and "embed_tokens.weight" not in request.unproved
    o_bias = spec.o_bias or any(name.endswith("o_proj.bias") for name in made.made)
    return replace(spec, own_embedding=own_embedding, own_head=own_head, o_bias=o_bias,
                   fc_bias=spec.fc_bias or "fc.bias" in made.made)


def _same(spec: DraftSpec) -> dict[str, str]:
    return {name: name for name in tensor_shapes(spec)}


def _renamed(spec: DraftSpec, table: Mapping[str, str]) -> dict[str, str]:
    return {name: table[name] for name in tensor_shapes(spec)}


def _compact(request: Request) -> Layout:
    spec = request.spec
    reason = "vLLM builds this bias wherever attention_bias is true and would leave it uninitialised"
    return Layout(dict(request.config), _same(spec), {name: Made("zeros", shape, reason)
                                                      for name, shape in compact.zeros(spec).items()})


def _official(request: Request) -> Layout:
    spec = request.spec
    made: dict[str, Made] = {}
    if spec.algorithm == "eagle" and not spec.own_embedding and "embedding" in request.tables:
        made |= request.table("embedding", "embed_tokens.weight",
                              "official folders hold the target's embedding; loaders before March 2025 need it")
    if spec.algorithm == "eagle3":
        if not spec.own_head:
            made |= request.table("head", "lm_head.weight", "the official EAGLE-3 code has a head of its own")
        made |= _t2d(spec)
    return Layout(dict(request.config), _same(spec), made)


def _vllm(request: Request) -> Layout:
    spec, config = request.spec, dict(request.config)
    base = _compact(request)
    if spec.algorithm == "eagle":
        return base
    if not spec.qk_norm:
        config["architectures"] = ["LlamaForCausalLMEagle3"]
    if spec.parallel and spec.mask_token_id is not None:
        config["pard_token"] = spec.mask_token_id
    table = vllm_eagle3.NAMES.inverse(spec.num_layers)
    return Layout(config, _renamed(spec, table), {table[name]: made for name, made in base.made.items()})


def _sglang(request: Request) -> Layout:
    spec, config = request.spec, dict(request.config)
    if spec.algorithm == "eagle3":
        config["architectures"] = ["LlamaForCausalLMEagle3"]
        if spec.aux_layers and "eagle_config" not in config:
            config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [i - 1 for i in spec.aux_layers]}
        names = {name: (name.replace("input_layernorm", "hidden_norm") if name.startswith("layers.")
                        and not name.startswith("layers.0.") else name) for name in tensor_shapes(spec)}
        return Layout(config, names)
    config["architectures"] = ["Qwen2ForCausalLMEagle" if spec.qkv_bias else "LlamaForCausalLMEagle"]
    if spec.qkv_bias:
        config["model_type"] = "qwen2"
    if spec.fc_bias:
        return Layout(config, _same(spec))
    config.pop("bias", None)  # the file has an fc.bias now
    return Layout(config, _same(spec), {"fc.bias": Made(
        "zeros", (spec.hidden_size,), "SGLang's fc always has a bias and leaves it random where the file has none")})


def _speculators(request: Request) -> Layout:
    spec = request.spec
    if spec.algorithm == "eagle":
        raise UnfaithfulError("speculators has no EAGLE-1/2 any more", where="--for speculators: its \"eagle\" was "
                              "removed in June 2026 (pull request 672)", how="convert without --for")
    if request.verifier is None:
        raise UnfaithfulError("a speculators config records the target", where="--for speculators: "
                              "speculators_config.verifier.name_or_path", how="give --target")
    layer = {key: value for key, value in request.config.items() if key not in _OUTSIDE}
    kind, architecture = ("peagle", "PEagleDraftModel") if spec.parallel else ("eagle3", "Eagle3DraftModel")
    method = {"proposal_type": "greedy", "speculative_tokens": 4, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    config: dict[str, Any] = {
        "architectures": [architecture], "speculators_model_type": kind, "transformer_layer_config": layer,
        "draft_vocab_size": spec.draft_vocab_size,
        **{key: request.config[key] for key in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")},
        "embed_requires_grad": False, "tie_word_embeddings": False,
        "speculators_config": {
            "algorithm": kind, "default_proposal_method": "greedy", "proposal_methods": [method],
            "verifier": {"name_or_path": request.verifier, "architectures": list(request.verifier_architectures)}}}
    for key in ("target_hidden_size", "eagle_aux_hidden_state_layer_ids", "mask_token_id", "torch_dtype"):
        if key in request.config:
            config[key] = request.config[key]
    table = speculators.EAGLE3_NAMES.inverse(spec.num_layers)
    made = _t2d(spec) | {table[name]: zeros for name, zeros in _compact(request).made.items()}
    return Layout(config, _renamed(spec, table), made)


# Keys that a speculators config keeps outside the layer's block.
_OUTSIDE = frozenset({
    "architectures", "draft_vocab_size", "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output",
    "target_hidden_size", "eagle_aux_hidden_state_layer_ids", "num_aux_hidden_states", "eagle_config", "mask_token_id",
    "torch_dtype", "bias"})


def _legacy_vllm(request: Request) -> Layout:
    spec = request.spec
    if spec.algorithm == "eagle3":
        raise UnfaithfulError("the legacy vLLM wrapper is for EAGLE-1/2 heads", where="--for legacy-vllm",
                              how="use --for vllm")
    if spec.embed_norm != spec.hidden_norm:
        raise UnfaithfulError("the legacy vLLM wrapper switches enorm and hnorm together", where="enorm.weight, "
                              "hnorm.weight: the head has one of the two", how="convert without --for")
    if spec.output_norm and not spec.norm_output:
        raise UnfaithfulError("legacy vLLM feeds the state back after the final norm", where="norm.weight, "
                              "norm_output = false", how="convert without --for")
    inner = {key: value for key, value in request.config.items() if key not in ("bias", "draft_vocab_size")}
    if spec.fc_bias:
        inner["eagle_fc_bias"] = True  # "bias" would also switch attention biases on
    config: dict[str, Any] = {"model_type": "eagle", "architectures": ["EAGLEModel"], "model": inner}
    made: dict[str, Made] = {}
    if not spec.own_head:
        made |= request.table("head", "lm_head.weight", "legacy vLLM does not share the target's head")
    if not spec.own_embedding:
        made |= request.table("embedding", "embed_tokens.weight", "legacy vLLM does not share the target's embedding")
    if not spec.reduced_vocabulary:
        return Layout(config, _same(spec), made)
    config["truncated_vocab_size"] = spec.draft_vocab_size
    table = legacy_vllm.NAMES.inverse(spec.num_layers)
    made[table["d2t"]] = Made("ids", (spec.draft_vocab_size,), "the table as absolute ids")
    return Layout(config, _renamed(spec, table), made, frozenset({"d2t"}))


def _t2d(spec: DraftSpec) -> dict[str, Made]:
    return {"t2d": Made("t2d", (spec.vocab_size,), "derived from d2t")} if spec.reduced_vocabulary else {}


_LAYOUTS: Mapping[str, Callable[[Request], Layout]] = {
    "compact": _compact, "official": _official, "vllm": _vllm, "sglang": _sglang, "speculators": _speculators,
    "legacy-vllm": _legacy_vllm}
