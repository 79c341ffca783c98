"""Drafts of other kinds, recognised and explained: MTP modules, Medusa heads, other layer types, quantised ones.

``inspect`` says what they are and what can be done with them; ``convert`` refuses them with the same words. Sources are
named in the explanations; none of these functions is an EAGLE head's of plain Llama-type layers.
"""

from __future__ import annotations

from collections.abc import Callable

from eagle_convert.findings import finding

from ._base import Dialect, Evidence, Facts, Reading, evidence
from ._marks import experts, fuses, inputs, latent, ours, packed, parallel_heads, speculators
from .not_draft import layer_numbers


def _alone(facts: Facts) -> bool:
    """No ordinary decoder layers stand beside it: it is not a module inside a whole model."""
    return not layer_numbers(facts)


def _few_layers(facts: Facts) -> bool:
    """Not more decoder layers than a draft has."""
    return len(layer_numbers(facts)) <= 4


def _not_mtp(facts: Facts) -> bool:
    return not facts.contains("eh_proj", "shared_head.", "mtp.", "mtp_layers.")


def _plain_weights(facts: Facts) -> bool:
    return not packed(facts)


def _two_widths(facts: Facts) -> bool:
    return 2 in (inputs(facts), inputs(facts, "model.fc.weight"))


def _medusa_heads(facts: Facts) -> bool:
    return parallel_heads(facts) or facts.has("0.0.linear.weight", "0.1.weight")


def _count_heads(facts: Facts) -> str:
    heads = {name.split(".")[0] for name in facts.shapes if name[0].isdigit()}
    return f"{len(heads)} heads" if heads else ""


def _gguf_details(facts: Facts) -> str:
    values = facts.config or {}
    said = [f"{text} {values['eagle3.' + key]}" for key, text in (
        ("extract_layers", "auxiliary layers (boundaries)"), ("target_hidden_size", "target width"),
        ("embedding_length", "draft width"), ("block_count", "layers"),
        ("norm_before_residual", "norm_before_residual")) if "eagle3." + key in values]
    kinds = sorted(set(facts.dtypes.values()))
    return ", ".join([*said, f"stored as {', '.join(kinds)}"])


def _other(name: str, title: str, words: str, *checks: tuple[str, Callable[[Facts], bool]],
           details: Callable[[Facts], str] = lambda facts: "") -> Dialect:
    """A dialect that only explains.

    Args:
        words: what it is and what can be done with it.
        checks: (statement, predicate) pairs; all hold where the dialect matches.
        details: what is said of this file in particular.
    """
    def detect(facts: Facts) -> Evidence:
        return evidence(name, *((check(facts), text) for text, check in checks),
                        (not ours(facts), "no eagle_convert.json beside it"))

    def read(facts: Facts) -> Reading:
        explanation = "; ".join(filter(None, (details(facts), words)))
        return Reading(name, title, "other draft", config=facts.config or {}, explanation=explanation,
                       unused={facts.source_name(tensor): title for tensor in facts.shapes},
                       findings=(finding("EC102", "the weight files", what=f"{title}: {explanation}"),))

    return Dialect(name, title, detect, read)


_MTP = ("it fuses embedding and state as EAGLE-1 does, but normalises both first and the layer's input and output too, "
        "and is trained with its model; engines load it from the model's own checkpoint (vLLM: --speculative-config "
        "'{\"method\": \"mtp\"}'), so there is nothing to convert")

DEEPSEEK = _other(
    "mtp-deepseek", "an MTP module as in DeepSeek-V3", _MTP,
    ("there is an eh_proj or a shared_head", lambda f: f.contains("eh_proj", "shared_head.")),
    ("no ordinary decoder layers beside it", _alone))

QWEN3_NEXT = _other(
    "mtp-qwen3-next", "an MTP module as in Qwen3-Next", _MTP,
    ("there are mtp.fc and mtp.pre_fc_norm_*", lambda f: f.contains("mtp.fc.") and f.contains("mtp.pre_fc_norm_")),
    ("no ordinary decoder layers beside it", _alone))

MTP_SPECULATORS = _other(
    "mtp-speculators", "an MTP module in speculators' layout", _MTP,
    ("there are mtp_layers.*", lambda f: f.contains("mtp_layers.")),
    ("no ordinary decoder layers beside it", _alone))

MEDUSA = _other(
    "medusa", "Medusa heads",
    "each head guesses one position from the last state alone, without attention over the guesses; nothing of EAGLE's "
    "function is in it (vLLM: method medusa)",
    ("heads are numbered residual blocks with a table each", _medusa_heads),
    ("no fc, midlayer or hidden_norm beside them", lambda f: not fuses(f)), details=_count_heads)

PARALLEL = _other(
    "eagle3-parallel-heads", "an EAGLE-3 head with Medusa-like heads beside it (NVIDIA Model-Optimizer)",
    "the parallel heads draft further positions from one EAGLE pass; no engine but NVIDIA's runs them, and the compact "
    "format has no place for them. Without them the EAGLE head alone is complete: export again with "
    "parallel_draft_step 1, or remove the tensors parallel_draft_heads.* and convert that",
    ("there are parallel_draft_heads or medusa_layers", parallel_heads),
    ("an EAGLE head stands beside them", fuses),
    ("no packed or scaled weights", _plain_weights))

LATENT = _other(
    "eagle-latent-attention", "an EAGLE head with latent attention (MLA)",
    "its layer is DeepSeek's (q_a_proj, kv_a_proj_with_mqa), trained for DeepSeek or Kimi targets; vLLM runs it as "
    "Eagle3DeepseekV2 or EagleDeepSeekMTP from the folder as it is; the compact format describes Llama-type ones only",
    ("it has latent attention", latent),
    ("something fuses a target's state", fuses),
    ("it is no MTP module", _not_mtp),
    ("no packed or scaled weights", _plain_weights),
    ("no ordinary decoder layers of a model", _few_layers))

EXPERTS = _other(
    "eagle-experts", "an EAGLE head with a mixture of experts",
    "its MLP is routed; only the trainer's engine (SpecForge, SGLang) runs it, from the folder as it is; the compact "
    "format describes dense MLPs only",
    ("its MLP has experts", experts),
    ("something fuses a target's state", fuses),
    ("no latent attention", lambda f: not latent(f)),
    ("it is no MTP module", _not_mtp),
    ("no packed or scaled weights", _plain_weights),
    ("no ordinary decoder layers of a model", _few_layers))

MINICPM = _other(
    "minicpm-eagle1", "an EAGLE-1 head for MiniCPM",
    "it scales the embedding (scale_emb) and every residual branch (scale_depth), which no other EAGLE head does; vLLM "
    "runs it as EagleMiniCPM from the folder as it is; the compact format has no place for the scales",
    ("there are eagle_layers, input_norm1 or input_norm2",
     lambda f: f.contains("eagle_layers.", "input_norm1.", "input_norm2.")))

COHERE = _other(
    "cohere-eagle1", "an EAGLE-1 head for Cohere models",
    "its layer runs attention and MLP side by side behind one LayerNorm with mean subtraction; vLLM runs it as "
    "EagleCohere from the folder as it is; the compact format describes RMSNorm layers only",
    ("fc reads two hidden widths", _two_widths),
    ("the layer has one norm only", lambda f: f.contains("layers.0.input_layernorm.")
     and not f.contains("post_attention_layernorm.", "hidden_norm.", "eh_proj")))

LLAMA4 = _other(
    "llama4-eagle1", "an EAGLE-1 head for Llama 4",
    "its layer is Llama 4's, with q and k rows in the order of its rotary layout; vLLM runs it as EagleLlama4 from the "
    "folder as it is",
    ("there is a feed_forward", lambda f: f.contains("feed_forward.") and not f.contains("attention.wq.")),
    ("fc reads two hidden widths", _two_widths))

MISTRAL_NATIVE = _other(
    "mistral-native-eagle1", "an EAGLE-1 head in Mistral's own layer names",
    "its q and k rows are in the order of Mistral's rotary layout (wq, wk); vLLM reads it as it is (EagleMistral); "
    "convert the layer's names and rows to the Hugging Face order first",
    ("there are eagle_linear and attention.wq",
     lambda f: f.contains("eagle_linear.") and f.contains("attention.wq.")),
    ("no packed or scaled weights", _plain_weights))

QUANTISED = _other(
    "quantised-eagle", "a quantised EAGLE head",
    "its weights are packed or scaled (FP8, compressed-tensors, GPTQ or the like); the compact format keeps values as "
    "they are and describes plain ones only, and no loader but the quantiser's computes with these. Convert the head "
    "before it is quantised, and quantise the result",
    ("there are packed or scaled weights", packed),
    ("something fuses a target's state", lambda f: fuses(f) and not f.contains("eh_proj", "mtp_layers.")),
    ("no ordinary decoder layers of a model", _few_layers))

GGUF = _other(
    "gguf-eagle3", "an EAGLE-3 head in GGUF (llama.cpp)",
    "written for llama.cpp, which runs it as it is: q and k rows are in the order of its rotary layout, d2t holds "
    "absolute ids, and the target's tokenizer is inside. Convert the folder that it was made from",
    ("the file is a GGUF of architecture eagle3", lambda f: (f.config or {}).get("general.architecture") == "eagle3"),
    details=_gguf_details)

GGUF_OTHER = _other(
    "gguf-other", "a GGUF file that is no EAGLE draft",
    "llama.cpp's format, of another architecture than eagle3",
    ("the file is a GGUF", lambda f: "general.architecture" in (f.config or {})),
    ("its architecture is another than eagle3", lambda f: (f.config or {}).get("general.architecture") != "eagle3"))

OTHER_SPECULATORS = _other(
    "speculators-other", "a draft of another kind in speculators' layout",
    "speculators writes several kinds of drafts (dflash, dspark, mlp, ...); this is not an eagle, eagle3 or peagle one",
    ("the config names another kind of draft",
     lambda f: speculators(f) and not speculators(f, "eagle", "eagle3", "peagle", "mtp")),
    ("no EAGLE-3 layer, no fusion_fc",
     lambda f: not f.contains("hidden_norm.", "fusion_fc.", "midlayer.", "mtp_layers.", "mask_hidden")))

DIALECTS = (DEEPSEEK, QWEN3_NEXT, MTP_SPECULATORS, MEDUSA, PARALLEL, LATENT, EXPERTS, MINICPM, COHERE, LLAMA4,
            MISTRAL_NATIVE, QUANTISED, GGUF, GGUF_OTHER, OTHER_SPECULATORS)
