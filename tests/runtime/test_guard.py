"""Each guard passes the real stages, and catches three seeded leaks in them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from eagle_runtime.config import EagleRuntimeError, Sampling, TreeShape
from eagle_runtime.guard import LeakError, Syncs, no_data, no_sync, replay_double
from eagle_runtime.runners import RecordedRunner
from eagle_runtime.step import Stages
from tests.runtime.pairs import pair, plant_prompts
from tests.runtime.rig import Rig

SHAPES = {"chain": (TreeShape.chain(4), Sampling()), "tree": (TreeShape.dynamic(12, 3, 3), Sampling()),
          "static": (TreeShape.static([(0,), (1,), (0, 0), (1, 1)]), Sampling()),
          "sampled": (TreeShape.dynamic(12, 3, 3), Sampling(1.0, top_p=0.9, top_k=40))}

# Leaks: each makes the accept stage do one thing that a captured step cannot do. In eager mode all three are right.


def item_in_acceptance(stages: Stages, accept: Callable[[], None]) -> None:
    """Advances by a number that Python read."""
    length, before = stages.buffers.length, stages.buffers.length.clone()
    accept()
    advance = (length - before).max().item()
    length.copy_(before).add_(stages.buffers.active * int(advance))


def branch_on_length(stages: Stages, accept: Callable[[], None]) -> None:
    """Stops all lanes at a limit."""
    accept()
    if stages.buffers.length.max() > LIMIT:
        stages.buffers.active.zero_()


def fresh_allocation(stages: Stages, accept: Callable[[], None]) -> None:
    """Puts a new tensor in a buffer's place instead of writing into it."""
    length, before = stages.buffers.length, stages.buffers.length.clone()
    accept()
    stages.buffers.length = length.clone()
    length.copy_(before)


LIMIT = 20
LEAKS = {f.__name__: f for f in (item_in_acceptance, branch_on_length, fresh_allocation)}


def leaking(rig: Rig, leak: str) -> Callable[[], None]:
    accept = rig.stages.accept
    return lambda: LEAKS[leak](rig.stages, accept)


def make(shape: str) -> Rig:
    target, draft = pair("plant", "e3")
    kind, sampling = SHAPES[shape]
    rig = Rig(target, draft, kind, plant_prompts(2), sampling)
    rig.buffers.idle(1)
    return rig


class State:
    """Sets a rig's buffers and caches up, back, and with junk where nothing should be read."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.tensors = {**rig.buffers.tensors(), "target": rig.target_cache.rows, "draft": rig.draft_cache.rows}
        self.kept = {name: t.clone() for name, t in self.tensors.items()}

    def live(self) -> None:
        for name, tensor in self.tensors.items():
            tensor.copy_(self.kept[name])

    def junk(self) -> None:
        """The idle lane, slots beyond every length, pending rows beyond ``count``: other (finite) values."""
        rig, b = self.rig, self.rig.buffers
        length, count = int(b.length[0]), int(b.count[0])
        for cache in (rig.target_cache, rig.draft_cache):
            cache.k[:, 0, :, length:].fill_(3.0)
            cache.v[:, 0, :, length:].fill_(-5.0)
            cache.k[:, 1].fill_(7.0)
            cache.v[:, 1].fill_(-7.0)
        b.pending_ids[0, count:].fill_(11)
        b.pending_states[0, count:].fill_(0.5)
        b.pending_ids[1].fill_(13)
        b.pending_states[1].fill_(-0.5)

    def other(self) -> None:
        """Another live state: the prompt two tokens shorter, and drafts of which other numbers hold."""
        b = self.rig.buffers
        self.live()
        b.length.sub_(torch.tensor([2, 0]))
        b.tree.tokens[0, 1:].add_(1).remainder_(320)
        b.choice[0].add_(1).remainder_(320)
        b.tree.tokens[0, :2].copy_(torch.tensor([40, 41]))
        b.choice[0, :2].copy_(torch.tensor([41, 42]))
        b.length.add_(torch.tensor([20, 0]))

    def read(self) -> dict[str, torch.Tensor]:
        rig, b = self.rig, self.rig.buffers
        n, c = int(b.length[0]), int(b.count[0])
        return {"result": b.result[0, :4], "length": b.length, "count": b.count, "root": b.tree.tokens[0, 0],
                "pending": b.pending_states[0, :c], "ids": b.pending_ids[0, :c],
                "target kv": rig.target_cache.k[:, 0, :, :n], "draft kv": rig.draft_cache.v[:, 0, :, :n - c]}


def double(rig: Rig, call: Callable[[], None]) -> None:
    state = State(rig)
    replay_double(call, rig.buffers, live=state.live, junk=state.junk, other=state.other, read=state.read)


@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_the_real_stages_pass(shape: str) -> None:
    rig = make(shape)
    for call in rig.calls:
        no_data(call, rig.buffers)
        no_sync(call, rig.buffers)
    rig.step()

    def whole() -> None:
        for call in rig.calls:
            call()

    double(rig, whole)


@pytest.mark.parametrize("leak", LEAKS)
@pytest.mark.parametrize("guard", [no_sync, no_data, double], ids=lambda g: g.__name__)
@torch.no_grad()
def test_each_guard_catches_each_leak(guard: Callable[..., None], leak: str) -> None:
    rig = make("chain")
    for call in rig.calls[:2]:
        call()
    call = leaking(rig, leak)
    with pytest.raises(LeakError) as caught:
        guard(rig, call) if guard is double else guard(call, rig.buffers)
    assert caught.value.where
    assert "tensors of fixed shape" in caught.value.how


@pytest.mark.parametrize("leak", [None, *LEAKS])
@torch.no_grad()
def test_the_recorded_graph_catches_each_leak(leak: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The frozen list of a leaking stage does other things than the stage itself; that of the real one the same."""
    plain = Stages.accept
    if leak is not None:
        monkeypatch.setattr(Stages, "accept", lambda self: LEAKS[leak](self, lambda: plain(self)))
    target, draft = pair("plant", "e3", on="tgt_tuned")
    runs = []
    for runner in ("eager", RecordedRunner(target.device)):
        rig = Rig(target, draft, TreeShape.chain(4), plant_prompts(1), runner=runner)
        runs.append([(rig.step()[0][1], rig.buffers.length.tolist(), rig.draft_cache.v.sum()) for _ in range(8)])
    assert len({accepted for accepted, _, _ in runs[0]}) > 1
    assert (runs[0] == runs[1]) == (leak is None)


def test_debug_replays_say_which_buffer_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Stages.accept
    monkeypatch.setattr(Stages, "accept", lambda self: fresh_allocation(self, lambda: plain(self)))
    target, draft = pair("plant", "e3")
    rig = Rig(target, draft, TreeShape.chain(4), plant_prompts(1), runner=RecordedRunner(target.device, debug=True))
    rig.step()
    with pytest.raises(EagleRuntimeError, match="moved after its stage was captured") as caught:
        rig.step()
    assert "length" in caught.value.where


def test_syncs_are_counted() -> None:
    with Syncs() as syncs:
        x = torch.ones(3)
        x.sum().item()
        x[x > 0]
        x.nonzero()
        bool(x.any())
    assert syncs.found == ["aten._local_scalar_dense.default", "aten.index.Tensor", "aten.nonzero.default",
                           "aten._local_scalar_dense.default"]
