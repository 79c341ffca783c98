"""What a step leaves in the caches: K/V of accepted positions are those of true states, and nothing is left out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from eagle_runtime.choices import CHOICES
from eagle_runtime.config import Sampling, TreeShape
from eagle_runtime.draft import Draft
from eagle_runtime.kv_cache import KVCache
from eagle_runtime.prefill import prefill
from eagle_runtime.target import Target
from tests.runtime.pairs import pair, plant_prompts
from tests.runtime.rig import Rig

SHAPES = {"chain": TreeShape.chain(3), "tree": TreeShape.dynamic(12, 3, 3),
          "static": TreeShape.static(CHOICES["mc_sim_7b_63"])}
PAIRS = [("plant", "e1"), ("plant", "e3"), ("rand", "e1b"), ("rand", "e3narrow")]


@torch.no_grad()
def true_rows(target: Target, draft: Draft, tokens: list[int]) -> tuple[KVCache, KVCache, Tensor]:
    """Both caches over ``tokens`` in one pass without drafting: target slots 0 .. L-1, draft slots 0 .. L-2."""
    caches = [KVCache(layers, 1, spec.num_key_value_heads, 128, spec.head_dim, dtype=target.dtype)
              for spec, layers in ((target.spec, target.spec.num_layers), (draft.spec, draft.num_layers))]
    state, _ = prefill(target, draft, tokens, caches[0], caches[1])
    return caches[0], caches[1], state


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("kind", "head"), PAIRS)
def test_kv_of_accepted_positions_come_from_true_states(kind: str, head: str, shape: str) -> None:
    target, draft = pair(kind, head)
    prompts = plant_prompts(2)
    rig = Rig(target, draft, SHAPES[shape], [prompts[0], prompts[1][:4]])
    for _ in range(5):
        rig.step()
    for lane, tokens in enumerate(rig.committed):
        target_cache, draft_cache, state = true_rows(target, draft, tokens)
        n = len(tokens)
        assert int(rig.buffers.length[lane]) == n
        for mine, true, length in ((rig.target_cache, target_cache, n), (rig.draft_cache, draft_cache, n)):
            # the draft's last pairs are pending: they are what the next refresh writes
            length -= 0 if mine is rig.target_cache else int(rig.buffers.count[lane])
            for part, expected in ((mine.k, true.k), (mine.v, true.v)):
                assert torch.allclose(part[:, lane, :, :length], expected[:, 0, :, :length], atol=1e-5)
        last = rig.buffers.pending_states[lane, int(rig.buffers.count[lane]) - 1]
        assert torch.allclose(last, state[0], atol=1e-5)


@pytest.mark.parametrize("head", ["e1", "e3"])
def test_full_acceptance_leaves_no_hole(head: str) -> None:
    """Twice in a row all drafts hold; what the draft says next equals what it says after a fresh prefill."""
    target, draft = pair("plant", head)
    rig = Rig(target, draft, TreeShape.chain(4), plant_prompts(1))
    assert [rig.step()[0][1] for _ in range(2)] == [4, 4]
    fresh = Rig(target, draft, TreeShape.chain(4), [rig.committed[0]])
    said = [r.logits_of_draft() for r in (rig, fresh)]
    assert len(said[0]) == 4
    for mine, other in zip(*said, strict=True):
        assert torch.allclose(mine, other, atol=1e-5)
    n = int(rig.buffers.length)
    assert torch.allclose(rig.draft_cache.k[:, :, :, :n], fresh.draft_cache.k[:, :, :, :n], atol=1e-5)
    assert torch.allclose(rig.draft_cache.v[:, :, :, :n], fresh.draft_cache.v[:, :, :, :n], atol=1e-5)


def test_stale_kv_is_visible_where_it_should_be() -> None:
    """The fault keeps guessed K/V: values differ from the true ones where guesses were accepted, and only there."""
    target, draft = pair("plant", "e3", faults=("stale-kv",))
    rig = Rig(target, draft, TreeShape.chain(4), plant_prompts(1))
    start = int(rig.buffers.length)
    rig.step()
    rig.calls[0]()  # the refresh that should have overwritten the guesses
    _, true, _ = true_rows(target, draft, rig.committed[0] + [0])
    n = int(rig.buffers.length)
    off = (rig.draft_cache.v[0, 0, :, :n] - true.v[0, 0, :, :n]).abs().amax((0, 2)) > 1e-4
    assert n == start + 5
    # pairs start .. start + 2 were guessed (three passes after the refresh); the last two never were
    assert [i for i in range(n - 1) if off[i]] == [start, start + 1, start + 2]


def test_an_idle_lane_stays_inside_its_own_rows() -> None:
    target, draft = pair("plant", "e1")
    prompts = plant_prompts(3)
    rig, alone = Rig(target, draft, TreeShape.chain(4), prompts), Rig(target, draft, TreeShape.chain(4), prompts[:1])
    rig.buffers.idle(1)
    for _ in range(4):
        assert rig.step()[0] == alone.step()[0]
    assert rig.buffers.length.tolist() == [9 + 20, 1, 9 + 20]
    assert rig.committed[0] == alone.committed[0]


def test_sampling_reads_its_randomness_from_the_buffer() -> None:
    target, draft = pair("plant", "e1")
    rigs = [Rig(target, draft, TreeShape.chain(4), plant_prompts(1), Sampling(30.0)) for _ in range(3)]
    for rig, uniform in zip(rigs, (0.25, 0.25, 0.9), strict=True):
        rig.buffers.tree.tokens[:, 0] = rig.buffers.pending_ids[:, 0] = 50
        rig.buffers.uniforms.fill_(uniform)
    results = [rig.step() for rig in rigs]
    assert results[0] == results[1]
    assert results[0] != results[2]
