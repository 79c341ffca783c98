"""Our decoder against transformers: logits, boundaries, cached generation, one tiny random model a family."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import transformers

from eagle_runtime import EagleRuntimeError
from eagle_runtime.kv_cache import KVCache
from eagle_runtime.loader import load_target
from eagle_runtime.target import Target, check_finite
from eagle_runtime.target_spec import UnsupportedTarget, target_spec

SIZES = {"vocab_size": 96, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
         "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 64, "head_dim": 8,
         "tie_word_embeddings": False, "initializer_range": 0.3}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 32}


@dataclass(frozen=True)
class Family:
    name: str
    config: type
    extra: dict[str, object]


FAMILIES = [
    Family("llama2", transformers.LlamaConfig, {}),
    Family("llama3", transformers.LlamaConfig, {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
    Family("llama31", transformers.LlamaConfig, {"rope_parameters": LLAMA3}),
    Family("linear", transformers.LlamaConfig,
           {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}}),
    Family("tied-biased", transformers.LlamaConfig,
           {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    Family("mistral", transformers.MistralConfig, {"sliding_window": None}),
    Family("mistral-window", transformers.MistralConfig, {"sliding_window": 5}),
    Family("mixtral", transformers.MixtralConfig, {"num_local_experts": 4, "num_experts_per_tok": 2}),
    Family("qwen2", transformers.Qwen2Config, {}),
    Family("qwen3", transformers.Qwen3Config, {"head_dim": 16, "tie_word_embeddings": True}),
]


def model_of(family: Family) -> torch.nn.Module:
    torch.manual_seed(0)
    config = family.config(**(SIZES | family.extra), attn_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():  # biases and norms start as zeros and ones: give them values, or a lost one goes unseen
        for p in model.parameters():
            if p.dim() == 1:
                p.add_(torch.randn_like(p) * 0.2)
    return model


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda f: f.name)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[torch.nn.Module, Target]:
    model = model_of(request.param)
    folder = tmp_path_factory.mktemp(request.param.name)
    model.save_pretrained(folder, max_shard_size="60KB")
    assert (folder / "model.safetensors.index.json").exists()
    target = load_target(folder)
    assert target.notes == ()  # our own decoder, not the fallback
    return model, target


IDS = torch.tensor([3, 90, 17, 17, 4, 55, 8, 23, 60, 11, 2, 71])


@torch.no_grad()
def test_full_pass_equals_transformers(pair: tuple[torch.nn.Module, Target]) -> None:
    """Logits and every boundary within 1e-4 in fp32."""
    model, target = pair
    out = model(IDS[None], output_hidden_states=True)
    full = target.forward_full(IDS, keep=range(4))
    torch.testing.assert_close(target.head(full.hidden), out.logits[0], atol=1e-4, rtol=0)
    torch.testing.assert_close(full.hidden, out.hidden_states[3][0], atol=1e-4, rtol=0)
    for boundary in range(3):
        torch.testing.assert_close(full.boundaries[boundary], out.hidden_states[boundary][0], atol=1e-4, rtol=0)


@torch.no_grad()
def test_cached_generation_equals_transformers(pair: tuple[torch.nn.Module, Target]) -> None:
    """Prefill in two pieces, then token by token over a padded cache: transformers' greedy tokens, and its taps."""
    model, target = pair
    prompt = IDS[:7]
    wanted = model.generate(prompt[None], max_new_tokens=12, do_sample=False, pad_token_id=0, eos_token_id=None)[0, 7:]
    cache = KVCache(3, 1, target.spec.num_key_value_heads, 32, target.spec.head_dim)
    out: list[int] = []
    done, taps = 0, []
    pending = [prompt[:4], prompt[4:]]
    while len(out) < 12:
        ids = pending.pop(0)[None] if pending else torch.tensor([[out[-1]]])
        at = torch.arange(done, done + ids.shape[1])[None]
        mask = torch.arange(32) <= at[..., None]
        hidden, tapped = target.forward(ids, at, cache, at, mask, taps=(1, 3))
        assert tapped is not None
        taps.append(tapped)
        done += ids.shape[1]
        if not pending:
            out.append(int(target.head(hidden[0, -1]).argmax()))
    assert out == wanted.tolist()
    full = target.forward_full(torch.cat((prompt, torch.tensor(out[:-1]))), keep=(1, 3))
    torch.testing.assert_close(torch.cat(taps, 1)[0], torch.cat((full.boundaries[1], full.boundaries[3]), -1),
                               atol=1e-4, rtol=0)


@torch.no_grad()
def test_a_tree_sees_its_ancestors_only(tmp_path: Path) -> None:
    """Two branches behind one prefix, verified in one pass, give what each gives as a plain continuation."""
    model_of(FAMILIES[6]).save_pretrained(tmp_path)  # the sliding window counts positions, not slots
    target = load_target(tmp_path)
    prefix, a, b = IDS[:6], [5, 9], [44, 12]
    cache = KVCache(3, 1, 2, 16, 8)
    at = torch.arange(6)[None]
    target.forward(prefix[None], at, cache, at, torch.arange(16) <= at[..., None])
    mask = torch.zeros((1, 4, 16), dtype=torch.bool)
    mask[..., :6] = True
    for row, seen in enumerate(([0], [0, 1], [2], [2, 3])):
        mask[0, row, [6 + s for s in seen]] = True
    hidden, _ = target.forward(torch.tensor([[*a, *b]]), torch.tensor([[6, 7, 6, 7]]), cache,
                               torch.arange(6, 10)[None], mask)
    for rows, branch in ((slice(0, 2), a), (slice(2, 4), b)):
        alone = target.forward_full(torch.cat((prefix, torch.tensor(branch))))
        torch.testing.assert_close(hidden[0, rows], alone.hidden[-2:], atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@torch.no_grad()
def test_sixteen_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    """In 16 bit the logits are as near to fp32 as transformers' own 16-bit run (within twice its error)."""
    model = model_of(Family("llama", transformers.LlamaConfig, {"initializer_range": 0.1}))
    model.save_pretrained(tmp_path)
    exact = model(IDS[None]).logits[0]
    theirs = model.to(dtype)(IDS[None]).logits[0].float()
    target = load_target(tmp_path, dtype=dtype)
    ours = target.head(target.forward_full(IDS).hidden).float()
    assert ours.dtype == torch.float32
    assert target.embedding.dtype == dtype
    assert (ours - exact).abs().max() <= 2 * (theirs - exact).abs().max()


@torch.no_grad()
def test_dynamic_scaling_turns_each_token_as_its_own_length_says(tmp_path: Path) -> None:
    """Beyond the window: token by token as transformers generates; inside it, no scaling at all."""
    family = Family("dynamic", transformers.LlamaConfig, {
        "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}, "max_position_embeddings": 8})
    model = model_of(family)
    model.save_pretrained(tmp_path)
    target = load_target(tmp_path)
    past, logits = None, []
    for token in IDS:
        out = model(token.view(1, 1), past_key_values=past, use_cache=True)
        past, logits = out.past_key_values, [*logits, out.logits[0, -1]]
    torch.testing.assert_close(target.head(target.forward_full(IDS).hidden), torch.stack(logits), atol=1e-4, rtol=0)


def test_nested_text_config_is_found() -> None:
    """Sizes under text_config, the tying flag outside it."""
    inner = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
             "num_attention_heads": 4, "vocab_size": 100, "rope_theta": 7.0}
    spec = target_spec({"model_type": "llava", "text_config": inner, "tie_word_embeddings": True,
                        "eos_token_id": [1, 2]})
    assert (spec.hidden_size, spec.rope_theta, spec.tie_word_embeddings, spec.eos_token_ids) == (64, 7.0, True, (1, 2))
    assert spec.num_key_value_heads == 4
    assert spec.head_dim == 16


@pytest.mark.parametrize(("change", "named"), [
    ({"model_type": "gpt_neox"}, "model_type"), ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling"), ({"hidden_act": "xielu"}, "hidden_act"),
    ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
     "sliding_window"),
])
def test_what_we_do_not_run_is_named(change: dict[str, object], named: str) -> None:
    base = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
            "num_attention_heads": 4, "vocab_size": 100}
    with pytest.raises(UnsupportedTarget) as caught:
        target_spec(base | change)
    assert named in caught.value.where
    assert caught.value.how


@torch.no_grad()
def test_overflow_names_layer_and_dtype(tmp_path: Path) -> None:
    """C-case "Qwen2 gives only NaN": activations reach 1e5 in layer 1, fp16 ends at 65504."""
    model = model_of(FAMILIES[0])
    model.model.layers[1].mlp.down_proj.weight.mul_(1e5)
    model.save_pretrained(tmp_path)
    target = load_target(tmp_path, dtype=torch.float16)
    with pytest.raises(EagleRuntimeError, match=r"target layer 1 output (inf|nan) in fp16") as caught:
        check_finite(target, IDS)
    assert "--dtype bfloat16" in caught.value.how
    assert check_finite(load_target(tmp_path, dtype=torch.bfloat16), IDS) is None


def test_config_json_written_by_transformers_is_read(tmp_path: Path) -> None:
    """rope_parameters, as transformers 5 writes them, and rope_theta / rope_scaling, as before, read alike."""
    model_of(FAMILIES[2]).save_pretrained(tmp_path)
    new = json.loads((tmp_path / "config.json").read_text())
    assert "rope_parameters" in new
    rope = new.pop("rope_parameters")
    old = new | {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}
    assert target_spec(new | {"rope_parameters": LLAMA3}) == target_spec(old)
