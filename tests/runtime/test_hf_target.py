"""Targets that our decoder does not run: through transformers, the same interface, and said so."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file

from eagle_runtime import EagleRuntimeError
from eagle_runtime.kv_cache import KVCache
from eagle_runtime.loader import load_target
from eagle_runtime.reference import Reference
from eagle_runtime.target import Target, check_finite
from tests.runtime.tiny import EAGLE1, EAGLE3, random_view

SIZES = {"vocab_size": 90, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 6, "num_attention_heads": 6,
         "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "initializer_range": 0.3}
FAMILIES = {
    "gpt2": transformers.GPT2Config(vocab_size=90, n_embd=48, n_layer=6, n_head=6, n_positions=64,
                                    initializer_range=0.3),
    "gpt-neox": transformers.GPTNeoXConfig(**SIZES),
    "gemma2": transformers.Gemma2Config(**SIZES, sliding_window=4, final_logit_softcapping=5.0),
    "cohere": transformers.CohereConfig(**SIZES, logit_scale=0.25),
    "granite": transformers.GraniteConfig(**SIZES, logits_scaling=4.0),
    "yarn": transformers.LlamaConfig(**SIZES, rope_parameters={
        "rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4, "original_max_position_embeddings": 32}),
    "qwen2-mixed": transformers.Qwen2Config(**{**SIZES, "sliding_window": 3, "use_sliding_window": True,
                                               "max_window_layers": 2}),
}
IDS = torch.tensor([3, 80, 17, 17, 4, 55, 8, 23, 60, 11])


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[torch.nn.Module, Target]:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(FAMILIES[request.param], attn_implementation="eager").eval()
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    return model, load_target(folder)


@torch.no_grad()
def test_logits_and_boundaries(pair: tuple[torch.nn.Module, Target]) -> None:
    model, target = pair
    assert "through transformers" in target.notes[0]
    out = model(IDS[None], output_hidden_states=True, use_cache=False)
    full = target.forward_full(IDS, keep=range(7))
    torch.testing.assert_close(target.head(full.hidden), out.logits[0], atol=1e-4, rtol=0)
    for boundary in range(6):
        torch.testing.assert_close(full.boundaries[boundary], out.hidden_states[boundary][0], atol=1e-4, rtol=0)
    torch.testing.assert_close(full.hidden, out.hidden_states[6][0], atol=1e-4, rtol=0)
    assert full.boundaries[6].shape == (10, 48)
    assert check_finite(target, IDS) is None


@torch.no_grad()
def test_cached_generation_and_a_tree(pair: tuple[torch.nn.Module, Target]) -> None:
    """Greedy over our cache gives transformers' own tokens; two branches in one pass are two continuations."""
    model, target = pair
    text = Reference(target, random_view(EAGLE1)).greedy(IDS[:6].tolist(), 8)
    wanted = model.generate(IDS[None, :6], max_new_tokens=8, do_sample=False, pad_token_id=0, eos_token_id=None)
    assert text == wanted[0, 6:].tolist()

    spec, at = target.spec, torch.arange(6)[None]
    cache = KVCache(6, 1, spec.num_key_value_heads, 16, spec.head_dim)
    target.forward(IDS[None, :6], at, cache, at, torch.arange(16) <= at[..., None])
    mask = torch.zeros((1, 4, 16), dtype=torch.bool)
    mask[..., :6] = True
    for row, seen in enumerate(([0], [0, 1], [2], [2, 3])):
        mask[0, row, [6 + s for s in seen]] = True
    hidden, taps = target.forward(torch.tensor([[5, 9, 44, 12]]), torch.tensor([[6, 7, 6, 7]]), cache,
                                  torch.arange(6, 10)[None], mask, taps=(4, 0))
    assert taps is not None
    for rows, branch in ((slice(0, 2), [5, 9]), (slice(2, 4), [44, 12])):
        alone = target.forward_full(torch.cat((IDS[:6], torch.tensor(branch))), keep=(0, 4))
        torch.testing.assert_close(hidden[0, rows], alone.hidden[-2:], atol=1e-4, rtol=0)
        torch.testing.assert_close(taps[0, rows], torch.cat((alone.boundaries[4], alone.boundaries[0]), -1)[-2:],
                                   atol=1e-4, rtol=0)


@torch.no_grad()
def test_drafts_sit_on_it(pair: tuple[torch.nn.Module, Target]) -> None:
    """The reference runs an EAGLE-1 and an EAGLE-3 head on any of them."""
    _, target = pair
    for spec in (EAGLE1, EAGLE3):
        reference = Reference(target, random_view(spec))
        states = reference.states(IDS[:6].tolist(), IDS[6:].tolist())
        assert torch.isfinite(reference.draft.states(states.full)).all()


def test_it_is_said_on_loading(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    transformers.AutoModelForCausalLM.from_config(FAMILIES["gpt2"]).save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING, "eagle_runtime"):
        load_target(tmp_path)
    assert "model_type = 'gpt2'" in caplog.text


def test_a_model_without_rows_for_trees_is_refused(tmp_path: Path) -> None:
    """A state space has no K/V to verify branches with."""
    config = transformers.MambaConfig(vocab_size=90, hidden_size=48, num_hidden_layers=2, state_size=4)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(EagleRuntimeError) as caught:
        load_target(tmp_path)
    assert "mamba" in caught.value.where
    assert "--engine vllm" in caught.value.how


def test_a_folder_transformers_cannot_read_either(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no-such-model"}')
    save_file({"weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(EagleRuntimeError, match="transformers cannot load this target either"):
        load_target(tmp_path)
