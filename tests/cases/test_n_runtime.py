"""Section N of the cases: what the runtime itself must get right. (C102 is a matter of metrics.)"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from eagle_runtime.config import Sampling, TreeShape
from eagle_runtime.engine import SpeculativeEngine
from eagle_runtime.tree import Tree
from eagle_runtime.verify import sample
from tests.runtime.pairs import pair, plant_prompts
from tests.runtime.rig import Rig
from tests.runtime.test_runners import Capturing
from tests.runtime.test_step import true_rows


@torch.no_grad()
def kv_after_two_of_three(faults: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """RAND E1, K = 3, two drafts made to hold -> the draft's K/V of the accepted positions: the runtime's, the true."""
    target, draft = pair("rand", "e1", faults=faults)
    rig = Rig(target, draft, TreeShape.chain(3), plant_prompts(1))
    start = int(rig.buffers.length)
    for call in rig.calls[:2]:
        call()
    tokens = rig.buffers.tree.tokens
    rig.buffers.choice[0, :2].copy_(tokens[0, 1:3])
    rig.buffers.choice[0, 2:].copy_((tokens[0, 3] + 1) % 320)
    rig.calls[2]()
    assert int(rig.buffers.length) == start + 3
    committed = plant_prompts(1)[0] + rig.buffers.result[0, [0, 4, 5]].tolist()
    rig.calls[0]()  # the next refresh
    _, true, _ = true_rows(target, draft, [*committed, 0])
    span = slice(start, start + 2)  # the two pairs that were guessed and accepted
    return (torch.cat([c[:, 0, :, span] for c in (rig.draft_cache.k, rig.draft_cache.v)]),
            torch.cat([c[:, 0, :, span] for c in (true.k, true.v)]))


def test_c98_draft_kv_of_accepted_positions() -> None:
    mine, true = kv_after_two_of_three(())
    assert float((mine - true).abs().max()) < 1e-5
    kept, true = kv_after_two_of_three(("stale-kv",))
    assert float((kept - true).abs().max()) > 1e-3


def test_c99_ids_are_shifted_against_states() -> None:
    """A prompt of six tokens: the draft is given ids [1 .. 5, next] at positions 0 .. 5."""
    target, draft = pair("rand", "e1")
    prompt = plant_prompts(1)[0][:6]
    given: dict[int, int] = {}
    plain = draft.forward

    def forward(ids: Tensor, hidden: Tensor, positions: Tensor, *rest: object) -> Tensor:
        for token, at in zip(ids[0].tolist(), positions[0].tolist(), strict=True):
            given.setdefault(at, token)
        return plain(ids, hidden, positions, *rest)  # type: ignore[arg-type]

    draft.forward = forward  # type: ignore[method-assign, assignment]
    rig = Rig(target, draft, TreeShape.chain(1), [prompt])
    rig.calls[0]()
    assert [given[at] for at in range(6)] == [*prompt[1:], int(rig.buffers.tree.tokens[0, 0])]


def test_c104_any_number_of_lanes_accepts_the_same() -> None:
    target, draft = pair("plant", "e1")
    prompts = [p[n % 7:] for n, p in enumerate(plant_prompts(10))]
    for lanes in (1, 4, 8):
        outputs = SpeculativeEngine(target, draft, TreeShape.chain(4), lanes=lanes).generate(prompts, 32)
        counting = [s.accepted for o in outputs for s in o.steps if not s.truncated]
        assert 1 + sum(counting) / len(counting) == 5.0


@pytest.mark.parametrize(("live", "captured_at"), [(3, 4), (5, 8)])
def test_c106_padded_lanes_of_a_captured_step(live: int, captured_at: int) -> None:
    """Captured for 1, 2, 4 and 8 lanes: three live ones run at four, and what lies behind them stays as it was."""
    target, draft = pair("plant", "e3", on="tgt_tuned")
    prompts = [p + p[:n] for n, p in enumerate(plant_prompts(live))]
    right = [o.output_ids for o in SpeculativeEngine(target, draft, lanes=live, runner="eager").generate(prompts, 30)]
    runner = Capturing(target.device)
    engine = SpeculativeEngine(target, draft, lanes=8, runner=runner)
    engine.generate(prompts[:1], 30)
    assert sorted({key[0] for key in runner.keys}) == [1, 2, 4, 8]
    assert engine._caches is not None
    behind = [c for cache in engine._caches for c in (cache.k[:, captured_at:], cache.v[:, captured_at:])]
    behind += [t[captured_at:] for name, t in engine._buffers.tensors().items()
               if name not in ("active", "length", "count")]  # these the engine itself sets when it takes lanes out
    for tensor in behind:
        tensor.fill_(77 if tensor.dtype != torch.bool else 1)
    assert [o.output_ids for o in engine.generate(prompts, 30)] == right
    assert all(bool((tensor == (77 if tensor.dtype != torch.bool else 1)).all()) for tensor in behind)
    assert {used for used, _ in engine._ready} >= {captured_at}


def test_c116_a_certain_proposal_is_lossless() -> None:
    """Target (.51, .49, 0), a draft that always proposes token 0: total variation below 0.01 over 200k draws."""
    draws = 200_000
    zero = torch.zeros(draws, 2, dtype=torch.int64)
    seen = torch.eye(2, dtype=torch.bool)
    seen[1, 0] = True
    tree = Tree(zero, zero, torch.tensor([[0, 1]]).expand(draws, 2), seen.expand(draws, 2, 2), torch.empty(0))
    logits = torch.tensor([0.51, 0.49, 0.0]).log().expand(draws, 2, 3)
    uniforms = torch.rand(draws, 3, generator=torch.Generator().manual_seed(5))
    out = sample(logits, tree, 2, uniforms, Sampling(1.0))
    first = torch.where(out.count > 0, 0, out.bonus)
    share = torch.bincount(first, minlength=3).double() / draws
    assert float((share - torch.tensor([0.51, 0.49, 0.0])).abs().sum() / 2) < 0.01
    assert float(out.count.double().mean()) == pytest.approx(0.51, abs=0.01)
