"""Canonical shapes + config -> DraftSpec. Tensors are believed; where the config says otherwise, a finding says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle_convert.errors import ConfigError, DialectError
from eagle_convert.findings import Finding, finding
from eagle_runtime.compact import layer_prefix, tensor_shapes
from eagle_runtime.config import Algorithm, DraftSpec

from ._fields import Fields
from ._rope import RUNNABLE, read_rope

# Keys without influence on what the draft computes, or whose say the tensors have.
INERT = frozenset({
    "_attn_implementation", "_name_or_path", "add_cross_attention", "architectures", "attention_dropout", "auto_map",
    "bos_token_id", "chunk_size_feed_forward", "dtype", "eos_token_id", "finetuning_task", "hidden_dropout",
    "id2label", "initializer_range", "is_decoder", "is_encoder_decoder", "label2id", "max_window_layers",
    "model_type", "num_experts_per_tok", "num_local_experts", "output_attentions", "output_hidden_states",
    "output_router_logits", "pad_token_id", "pretraining_tp", "problem_type", "return_dict", "router_aux_loss_coef",
    "router_jitter_noise", "tokenizer_class", "torch_dtype", "torchscript", "transformers_version", "use_bfloat16",
    "use_cache", "use_sliding_window",
    # written beside drafts by their trainers
    "eagle_decoder_type", "embed_requires_grad", "enable_sp_ulysses", "parallel_draft_heads_num_layers",
    "speculators_config", "speculators_model_type", "speculators_version", "target_model_type",
    "transformer_layer_architecture", "has_lm_head"})

# Keys of other families that change the function; only the value that changes nothing has a place in DraftSpec.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "partial_rotary_factor": (None, 1), "scale_emb": (None, 1), "scale_depth": (None,), "dim_model_base": (None,),
    "embedding_multiplier": (None, 1), "residual_multiplier": (None, 1), "attention_multiplier": (None,),
    "logits_scaling": (None, 1), "final_logit_softcapping": (None,), "attn_logit_softcapping": (None,),
    "clip_qkv": (None,), "query_pre_attn_scalar": (None,), "use_qk_norm": (None, False, True),
    "use_input_layernorm_in_first_layer": (None, True), "parallel_draft_step": (None, 1),
    "use_last_layernorm": (None, True), "next_layer_regular": (None, True), "use_mtp_layernorm": (None, False)}

ATTENTION = ("full_attention", "sliding_attention")
EAGLE3_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


@dataclass
class Builder:
    """Collects what tensors and config say while a reader puts a DraftSpec together.

    Attributes:
        shapes: canonical name -> shape.
        full_head: rows of an EAGLE-1 head of which a vocabulary table picks some.
        absent_bias: what a config without ``bias`` says of fc; None where the layout says nothing by it.
    """

    algorithm: Algorithm
    fields: Fields
    shapes: Mapping[str, tuple[int, ...]]
    layers: int
    full_head: int | None = None
    absent_bias: bool | None = None
    findings: list[Finding] = field(default_factory=list)

    def where(self, key: str) -> str:
        return f"{self.fields.file}: {key}"

    def believe(self, key: str, value: int, *aliases: str, quiet: bool = False) -> int:
        """``value``, which the tensors say; a finding where the config says something else or nothing."""
        stated = self.fields.integer(key, *aliases)
        if stated is None and not quiet:
            self.findings.append(finding("EC202", self.where(key), key=key, value=value))
        elif stated is not None and stated != value:
            self.findings.append(finding("EC201", self.where(key), key=key, stated=stated, value=value))
        return value

    def part(self, name: str, layer: int = 0) -> tuple[int, ...]:
        """Shape of a tensor of a decoder layer, () where absent."""
        return self.shapes.get(layer_prefix(self.algorithm, self.layers, layer) + name, ())

    def any_part(self, name: str) -> bool:
        return any(self.part(name, i) for i in range(self.layers))

    def heads(self) -> tuple[int, int, int]:
        """(query heads, KV heads, head width) from the rows of q_proj and k_proj and what the config states."""
        q, k = self.part("self_attn.q_proj.weight")[0], self.part("self_attn.k_proj.weight")[0]
        nh, nkv, hd = (self.fields.integer(key) for key in ("num_attention_heads", "num_key_value_heads", "head_dim"))
        if nh is None and hd is None:
            raise self.fields.missing("num_attention_heads", f"q_proj has {q} rows, any divisor could be the heads")
        # head_dim first; the official code computes hidden / heads instead, which fails on heads of another width.
        choices = [hd] if hd else []
        choices += [q // nh] if nh and q % nh == 0 else []
        for width in choices:
            if q % width or k % width or (q // width) % (k // width):
                continue
            if len(set(choices)) > 1 and nkv is not None and nkv * width != k:
                continue  # heads and head_dim disagree: the KV heads decide
            return (self.believe("num_attention_heads", q // width),
                    self.believe("num_key_value_heads", k // width), self.believe("head_dim", width, quiet=True))
        raise ConfigError(
            "the attention sizes of the config fit no reading of the tensors",
            where=f"{self.fields.file}: num_attention_heads {nh}, num_key_value_heads {nkv}, head_dim {hd}; "
                  f"q_proj has {q} rows, k_proj {k}",
            how="heads x head_dim must be q_proj's rows, KV heads x head_dim k_proj's; correct the config")

    def vocab(self) -> int:
        """The target's vocabulary: rows of the embedding, else of t2d or of an EAGLE-1 head, else the config's."""
        rows = [self.shapes[name][0] for name in ("embed_tokens.weight", "t2d") if name in self.shapes]
        if self.algorithm == "eagle" and "d2t" not in self.shapes and "lm_head.weight" in self.shapes:
            rows.append(self.shapes["lm_head.weight"][0])
        rows += [self.full_head] if self.full_head else []
        if rows:
            return self.believe("vocab_size", rows[0])
        stated = self.fields.integer("vocab_size")
        if stated is None:
            raise self.fields.missing("vocab_size", "and the file holds neither an embedding nor t2d")
        return stated

    def draft_vocab(self, vocab: int) -> int:
        """Rows of the head that drafts."""
        for name in ("d2t", *(("lm_head.weight",) if self.algorithm == "eagle3" else ())):
            if self.shapes.get(name):
                rows = self.shapes[name][0]
                return self.believe("draft_vocab_size", rows, quiet=rows == vocab or self.algorithm == "eagle")
        stated = self.fields.integer("draft_vocab_size")
        if stated is not None and stated != vocab:
            self.findings.append(finding("EC201", self.where("draft_vocab_size"), key="draft_vocab_size",
                                         stated=stated, value=vocab))
        return vocab

    def epsilon(self) -> float:
        value = self.fields.number("rms_norm_eps")
        if value is None:
            self.findings.append(finding("EC203", self.where("rms_norm_eps"), key="rms_norm_eps", value="1e-06",
                                         rule="the default of transformers' LlamaConfig, which the official code uses"))
            return 1e-6
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.fields.flag(key)
        return default if value is None else value

    def tied(self, own_embedding: bool, own_head: bool, reduced: bool) -> bool:
        """Tied only where the config says so and the file's own embedding is all the head there is (EAGLE-3)."""
        stated = self.flag("tie_word_embeddings")
        tied = stated and self.algorithm == "eagle3" and own_embedding and not own_head and not reduced
        if stated and not tied:
            self.findings.append(finding(
                "EC205", self.where("tie_word_embeddings"),
                tensors=f"lm_head.weight {list(self.shapes['lm_head.weight'])}" if own_head else "no head of its own"))
        return tied

    def biases(self, fc: bool, qkv: bool, o: bool) -> None:
        """Report what ``bias`` and the attention keys claim where the tensors say otherwise."""
        stated = self.fields.flag("bias")
        if (self.absent_bias if stated is None else stated) not in (fc, None):
            self.findings.append(finding("EC204", self.where("bias"), key="bias",
                                         stated="absent, which means true" if stated is None else str(stated).lower(),
                                         tensors="fc.bias" if fc else "no fc.bias"))
        for key, found in (("eagle_fc_bias", fc), ("fc_bias", fc), ("qkv_bias", qkv), ("attention_bias", qkv or o)):
            value = self.fields.flag(key)
            if value is not None and value != found:
                self.findings.append(finding("EC204", self.where(key), key=key, stated=str(value).lower(),
                                             tensors="the biases" if found else "no such biases"))

    def window(self) -> int | None:
        """Sliding window, where the config switches it on (Qwen2's ``use_sliding_window`` false switches it off)."""
        value = self.fields.integer("sliding_window")
        return None if self.fields.flag("use_sliding_window") is False else value

    def layer_types(self) -> tuple[str, ...] | None:
        """One name for each layer of the draft. A longer list of one name was copied from the target and is cut."""
        stated = self.fields.texts("layer_types")
        if stated is None:
            return None
        for name in stated:
            if name not in ATTENTION:
                raise ConfigError("the config asks for an attention that a draft of this kind does not have",
                                  where=f"{self.where('layer_types')} = {name!r}, expected {' or '.join(ATTENTION)}",
                                  how="the compact format has no place for it; correct the config if it was copied")
        if len(stated) == self.layers:
            return stated
        if len(set(stated)) != 1:
            raise ConfigError("the config names the attention of other layers than the draft has",
                              where=f"{self.where('layer_types')} has {len(stated)} entries of {len(set(stated))} "
                                    f"kinds, the file {self.layers} decoder layers",
                              how="keep the entries of the draft's own layers, in their order")
        self.findings.append(finding("EC201", self.where("layer_types"), key="the number of layer_types",
                                     stated=len(stated), value=self.layers))
        return stated[:1] * self.layers

    def leftovers(self) -> None:
        """Every key is mapped, inert, of no effect by its value, or reported; a value with an effect stops."""
        unknown = []
        for path, key, value in self.fields.left():
            if key in INERT:
                continue
            if key in NEUTRAL:
                if not any(value is neutral or (value == neutral and isinstance(value, bool) == isinstance(
                        neutral, bool)) for neutral in NEUTRAL[key]):
                    raise ConfigError(f"the config asks for {key}, which a draft of this kind does not have",
                                      where=f"{self.fields.file}: {path} = {value!r}",
                                      how="the compact format has no place for it; remove the key only if the draft "
                                          "was trained without it")
                continue
            unknown.append(path)
        if "quantization_config" in unknown:
            unknown.remove("quantization_config")
            self.findings.append(finding("EC208", self.where("quantization_config")))
        if unknown:
            self.findings.append(finding("EC207", self.fields.file, keys=", ".join(sorted(unknown))))

    def build(self, own_embedding: bool, own_head: bool, **more: Any) -> DraftSpec:
        """The spec, from everything above and ``more`` fields that the dialect has decided."""
        shapes = self.shapes
        hidden = self.believe("hidden_size", (shapes.get("fc.weight") or shapes["norm.weight"])[0])
        heads, kv, width = self.heads()
        vocab = self.vocab()
        draft_vocab = self.draft_vocab(vocab)
        fc, qkv = "fc.bias" in shapes, self.any_part("self_attn.q_proj.bias")
        o = self.any_part("self_attn.o_proj.bias")
        self.biases(fc, qkv, o)
        rope = read_rope(self.fields)
        if rope.type not in RUNNABLE:
            self.findings.append(finding("EC214", self.where("rope_scaling"), type=rope.type))
        spec = DraftSpec(
            algorithm=self.algorithm, hidden_size=hidden, intermediate_size=self.believe(
                "intermediate_size", self.part("mlp.gate_proj.weight")[0]),
            num_layers=self.believe("num_hidden_layers", self.layers), num_attention_heads=heads,
            num_key_value_heads=kv, head_dim=width, vocab_size=vocab, draft_vocab_size=draft_vocab,
            rms_norm_eps=self.epsilon(), rope_theta=rope.theta, rope_scaling=rope.scaling,
            max_position_embeddings=self.fields.integer("max_position_embeddings", "max_sequence_length"),
            hidden_act=self.fields.text("hidden_act") or "silu", own_embedding=own_embedding, own_head=own_head,
            fc_bias=fc, qkv_bias=qkv, o_bias=o, mlp_bias=self.any_part("mlp.down_proj.bias"),
            qk_norm=self.any_part("self_attn.q_norm.weight"), attention_sinks=self.any_part("self_attn.sinks"),
            embed_norm="enorm.weight" in shapes, hidden_norm="hnorm.weight" in shapes,
            tie_word_embeddings=self.tied(own_embedding, own_head, draft_vocab != vocab),
            sliding_window=self.window(), layer_types=self.layer_types(),
            logit_scale=self.fields.number("logit_scale"), **more)
        mlp = self.fields.flag("mlp_bias")
        if mlp is not None and mlp != spec.mlp_bias:
            self.findings.append(finding("EC204", self.where("mlp_bias"), key="mlp_bias", stated=str(mlp).lower(),
                                         tensors="the biases" if spec.mlp_bias else "no such biases"))
        return spec


def not_run(spec: DraftSpec) -> str:
    """Why the bundled runtime does not draft with it, or ''; ``eagle_runtime.pairing`` has the last word."""
    scaling = spec.rope_scaling or {}
    kind = str(scaling.get("rope_type", scaling.get("type", "default")))
    reasons = ((spec.parallel, "parallel drafting (mask_hidden)"), (spec.attention_sinks, "attention sinks"),
               (len(set(spec.layer_types or ())) > 1, "layers with and without a window"),
               (kind not in RUNNABLE, f"rope scaling of type '{kind}'"))
    said = ", ".join(what for holds, what in reasons if holds)
    return f"the bundled runtime does not run it: {said}" if said else ""


def required(algorithm: Algorithm, layers: int, *, has_fc: bool = True) -> set[str]:
    """Canonical names that every draft of this algorithm has; the first thing to ask of a file."""
    names = {"fc.weight"} if has_fc else set()
    for i in range(layers):
        prefix = layer_prefix(algorithm, layers, i)
        names |= {prefix + part for part in (
            *(f"self_attn.{p}_proj.weight" for p in "qkvo"), *(f"mlp.{p}_proj.weight" for p in ("gate", "up", "down")),
            "post_attention_layernorm.weight")}
        if i or algorithm == "eagle3":
            names.add(prefix + "input_layernorm.weight")
        if algorithm == "eagle3" and i == 0:
            names.add(prefix + "hidden_norm.weight")
    return names | ({"norm.weight"} if algorithm == "eagle3" else set())


def check_ranks(shapes: Mapping[str, tuple[int, ...]], names: Mapping[str, str]) -> None:
    """Weights of linears are [out, in] and not empty, everything else but mask_hidden is a vector."""
    for name, shape in shapes.items():
        norm = "norm" in name.rpartition(".weight")[0].rpartition(".")[2] or name.startswith("fc_norm.")
        rank = 3 if name == "mask_hidden" else 2 if name.endswith(".weight") and not norm else 1
        if len(shape) != rank or 0 in shape:
            raise DialectError("a tensor is not of the rank it must have",
                               where=f"{names.get(name, name)}: found {list(shape)}, expected {rank} dimensions > 0",
                               how="fetch the file again, or correct the tool that wrote it")


def check_shapes(spec: DraftSpec, shapes: Mapping[str, tuple[int, ...]], names: Mapping[str, str],
                 ignore: Iterable[str] = ()) -> None:
    """Every tensor that ``spec`` has is there with its shape, and no other. Raises DialectError."""
    expected, passed = tensor_shapes(spec), set(ignore)
    for name in sorted((expected.keys() | shapes.keys()) - passed):
        found, wanted = shapes.get(name), expected.get(name)
        if found == wanted:
            continue
        if wanted is None:
            raise DialectError("a tensor has no place in the draft that the others describe",
                               where=f"{names.get(name, name)} {list(found or ())}",
                               how="the layers and projections of a draft have biases and norms all alike; "
                                   "correct the tool that wrote the file")
        raise DialectError("a tensor does not fit the others" if found else "a tensor is missing",
                           where=f"{names.get(name, name)}: found {list(found) if found else 'nothing'}, "
                                 f"expected {list(wanted)}",
                           how="fetch the complete file again, or correct the tool that wrote it")
