"""Drafts of other kinds, recognised and explained: MTP modules, Medusa and parallel heads, other layer types, quantised.

``inspect`` says what they are and what can be done with them; ``convert`` refuses them with the same words. Sources are
named in the explanations; none of these functions is an EAGLE head's of plain Llama-type layers.
"""

from __future__ import annotations

from eagle_convert.findings import finding

from ._base import Dialect, Evidence, Facts, Reading, evidence
from ._marks import Check, experts, fuses, inputs, latent, ours, packed, parallel_heads, speculators
from .not_draft import layer_numbers


def _inside_model(facts: Facts) -> bool:
    """Ordinary decoder layers stand beside it: a whole model that contains a module."""
    return bool(layer_numbers(facts))


def _other(name: str, title: str, explanation: str, *checks: tuple[str, object]) -> Dialect:
    """A dialect that only explains. ``checks`` are (statement, predicate of Facts) pairs."""
    def detect(facts: Facts) -> Evidence:
        made: list[Check] = [(bool(check(facts)), text) for text, check in checks if callable(check)]
        return evidence(name, *made, (not ours(facts), "no eagle_convert.json beside it"))

    def read(facts: Facts) -> Reading:
        return Reading(name, title, "other draft", config=facts.config or {}, explanation=explanation,
                       unused={facts.source_name(tensor): explanation for tensor in facts.shapes},
                       findings=(finding("EC102", "the weight files", what=f"{title}: {explanation}"),))

    return Dialect(name, title, detect, read)


_MTP = ("it fuses embedding and state as EAGLE-1 does, but normalises both first and the layer's input and output too, "
        "and is trained with its model; engines load it from the model's own checkpoint (vLLM: --speculative-config "
        "'{\"method\": \"mtp\"}'), so there is nothing to convert")

DEEPSEEK = _other(
    "mtp-deepseek", "an MTP module as in DeepSeek-V3", _MTP,
    ("there is an eh_proj or a shared_head", lambda f: f.contains("eh_proj", "shared_head.")),
    ("no ordinary decoder layers beside it", lambda f: not _inside_model(f)))

QWEN3_NEXT = _other(
    "mtp-qwen3-next", "an MTP module as in Qwen3-Next", _MTP,
    ("there are mtp.fc and mtp.pre_fc_norm_*", lambda f: f.contains("mtp.fc.") and f.contains("mtp.pre_fc_norm_")),
    ("no ordinary decoder layers beside it", lambda f: not _inside_model(f)))

MTP_SPECULATORS = _other(
    "mtp-speculators", "an MTP module in speculators' layout", _MTP,
    ("there are mtp_layers.*", lambda f: f.contains("mtp_layers.")),
    ("no ordinary decoder layers beside it", lambda f: not _inside_model(f)))

MEDUSA = _other(
    "medusa", "Medusa heads",
    "each head guesses one position from the last state alone, without attention over the guesses; nothing of EAGLE's "
    "function is in it (vLLM: method medusa)",
    ("heads are numbered residual blocks with a table each",
     lambda f: parallel_heads(f) or all(f.has(f"0.{part}") for part in ("0.linear.weight", "1.weight"))),
    ("no fc, midlayer or hidden_norm beside them", lambda f: not fuses(f)))

PARALLEL = _other(
    "eagle3-parallel-heads", "an EAGLE-3 head with Medusa-like heads beside it (NVIDIA Model-Optimizer)",
    "the parallel heads draft further positions from one EAGLE pass; no engine but NVIDIA's runs them, and the compact "
    "format has no place for them. Without them the EAGLE head alone is complete: export again with "
    "parallel_draft_step 1, or remove the tensors parallel_draft_heads.* and convert that",
    ("there are parallel_draft_heads or medusa_layers", parallel_heads),
    ("an EAGLE head stands beside them", fuses),
    ("no packed or scaled weights", lambda f: not packed(f)))

LATENT = _other(
    "eagle-latent-attention", "an EAGLE head with latent attention (MLA)",
    "its layer is DeepSeek's (q_a_proj, kv_a_proj_with_mqa), trained for DeepSeek or Kimi targets; vLLM runs it as "
    "Eagle3DeepseekV2 or EagleDeepSeekMTP from the folder as it is; the compact format describes Llama-type layers only",
    ("it has latent attention", latent),
    ("something fuses a target's state", fuses),
    ("it is no MTP module", lambda f: not f.contains("eh_proj", "shared_head.", "mtp.", "mtp_layers.")),
    ("no packed or scaled weights", lambda f: not packed(f)),
    ("no ordinary decoder layers of a model", lambda f: len(layer_numbers(f)) <= 4))

EXPERTS = _other(
    "eagle-experts", "an EAGLE head with a mixture of experts",
    "its MLP is routed; only the trainer's engine (SpecForge, SGLang) runs it, from the folder as it is; the compact "
    "format describes dense MLPs only",
    ("its MLP has experts", experts),
    ("something fuses a target's state", fuses),
    ("no latent attention", lambda f: not latent(f)),
    ("it is no MTP module", lambda f: not f.contains("eh_proj", "shared_head.", "mtp.", "mtp_layers.")),
    ("no packed or scaled weights", lambda f: not packed(f)),
    ("no ordinary decoder layers of a model", lambda f: len(layer_numbers(f)) <= 4))

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
    ("fc reads two hidden widths", lambda f: 2 in (inputs(f), inputs(f, "model.fc.weight"))),
    ("the layer has one norm only", lambda f: f.contains("layers.0.input_layernorm.")
     and not f.contains("post_attention_layernorm.", "hidden_norm.", "eh_proj")))

LLAMA4 = _other(
    "llama4-eagle1", "an EAGLE-1 head for Llama 4",
    "its layer is Llama 4's, with q and k rows in the order of its rotary layout; vLLM runs it as EagleLlama4 from the "
    "folder as it is",
    ("there is a feed_forward", lambda f: f.contains("feed_forward.") and not f.contains("attention.wq.")),
    ("fc reads two hidden widths", lambda f: 2 in (inputs(f), inputs(f, "model.fc.weight"))))

MISTRAL_NATIVE = _other(
    "mistral-native-eagle1", "an EAGLE-1 head in Mistral's own layer names",
    "its q and k rows are in the order of Mistral's rotary layout (wq, wk); vLLM reads it as it is (EagleMistral); "
    "convert the layer's names and rows to the Hugging Face order first",
    ("there are eagle_linear and attention.wq",
     lambda f: f.contains("eagle_linear.") and f.contains("attention.wq.")),
    ("no packed or scaled weights", lambda f: not packed(f)))

QUANTISED = _other(
    "quantised-eagle", "a quantised EAGLE head",
    "its weights are packed or scaled (FP8, compressed-tensors, GPTQ or the like); the compact format keeps values as "
    "they are and describes plain ones only, and no loader but the quantiser's computes with these. Convert the head "
    "before it is quantised, and quantise the result",
    ("there are packed or scaled weights", packed),
    ("something fuses a target's state", lambda f: fuses(f) and not f.contains("eh_proj", "mtp_layers.")),
    ("no ordinary decoder layers of a model", lambda f: len(layer_numbers(f)) <= 4))

GGUF = _other(
    "gguf-eagle3", "an EAGLE-3 head in GGUF (llama.cpp)",
    "written for llama.cpp, which runs it as it is: q and k rows are in the order of its rotary layout, d2t holds "
    "absolute ids, and the target's tokenizer is inside. Convert the folder that it was made from",
    ("the file is a GGUF of architecture eagle3", lambda f: (f.config or {}).get("general.architecture") == "eagle3"))

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
    ("no EAGLE-3 layer, no fusion_fc", lambda f: not f.contains("hidden_norm.", "fusion_fc.", "midlayer.", "mtp_layers.",
                                                              "mask_hidden")))

DIALECTS = (DEEPSEEK, QWEN3_NEXT, MTP_SPECULATORS, MEDUSA, PARALLEL, LATENT, EXPERTS, MINICPM, COHERE, LLAMA4,
            MISTRAL_NATIVE, QUANTISED, GGUF, GGUF_OTHER, OTHER_SPECULATORS)
