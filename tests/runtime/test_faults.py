"""Each fault does what its docstring says, refuses where it cannot be, and moves what it should."""

from __future__ import annotations

import pytest
import torch

from eagle_runtime import DraftSpec, SpeculativeEngine, TreeShape
from eagle_runtime.faults import FAULTS, FaultError, applicable, apply_faults
from eagle_runtime.forced import Forced
from eagle_runtime.loader import load_draft
from eagle_runtime.plain_draft import PlainDraft
from eagle_runtime.reference import Reference
from eagle_runtime.views import DraftView
from tests.runtime.tiny import EAGLE1, EAGLE3, passing, random_target, random_view

# the contract's list, section 4
IDS = ["input-norm", "output-norm", "residual-lost", "stale-kv", "fc-bias-dropped", "concat-swapped",
       "foreign-embedding", "token-shift", "hidden-prenorm", "rope-base", "aux-shift", "norm-before-residual",
       "recycled-norm", "d2t-as-ids", "qkv-bias-dropped", "overflow"]
PROMPT = [3, 80, 17, 17, 4, 55]
TEXT = torch.tensor([3, 80, 17, 17, 4, 55, 8, 23, 60, 11])
BIASED1 = {"fc_bias": True, "qkv_bias": True}


def views(spec: DraftSpec) -> DraftView:
    return random_view(spec, **(BIASED1 if spec.algorithm == "eagle" else {"qkv_bias": True}))


def test_the_list_is_the_contracts_and_each_says_its_direction() -> None:
    assert [fault.id for fault in FAULTS] == IDS
    assert all(len(fault.doc) > 40 and fault.doc.endswith(".") for fault in FAULTS)


def test_unknown_names_and_impossible_faults() -> None:
    target = random_target()
    with pytest.raises(FaultError, match="no such fault: kv-stale") as caught:
        apply_faults(["kv-stale"], random_view(EAGLE1), target)
    assert "stale-kv" in caught.value.how
    for spec, flags, fault in ((EAGLE1, {}, "aux-shift"), (EAGLE1, {}, "d2t-as-ids"), (EAGLE1, {}, "fc-bias-dropped"),
                               (EAGLE1, {}, "norm-before-residual"), (EAGLE1, {}, "recycled-norm"),
                               (EAGLE1, {"input_norm": True}, "input-norm"), (EAGLE3, {}, "input-norm"),
                               (EAGLE3, {}, "hidden-prenorm"), (EAGLE3, {}, "qkv-bias-dropped"),
                               (EAGLE3, {"aux_layers": (1, 2, 6)}, "aux-shift")):
        view = random_view(spec, **flags)
        with pytest.raises(FaultError, match=f"the fault {fault} cannot be shown"):
            apply_faults([fault], view, target)
        assert fault not in applicable(view, target)


@pytest.mark.parametrize("algorithm", ["eagle", "eagle3"])
@torch.no_grad()
def test_every_applicable_fault_moves_the_third_guess(algorithm: str) -> None:
    """On a random pair each fault changes the logits of a guess behind two others (stale-kv and overflow have their own
    tests); faults never change the target."""
    target, view = random_target(), views(EAGLE1 if algorithm == "eagle" else EAGLE3)
    names = applicable(view, target)
    only = ({"aux-shift", "norm-before-residual", "recycled-norm", "d2t-as-ids"} if algorithm == "eagle" else
            {"input-norm", "output-norm", "hidden-prenorm", "fc-bias-dropped"})
    assert set(names) == set(IDS) - only
    right = third_guess(Reference(target, view))
    for fault in names:
        if fault in ("stale-kv", "overflow"):
            continue
        moved = (third_guess(Reference(target, view, [fault])) - right).abs().max()
        assert moved > 1e-3, fault


def third_guess(reference: Reference) -> torch.Tensor:
    """Logits (spread over target ids) behind the guesses 20 and 21 that follow TEXT."""
    states = reference.states(TEXT[:6].tolist(), TEXT[6:].tolist())
    draft = reference.draft
    walker = Forced(draft, states.full, states.ids, states.prompt)
    shift = "token-shift" in draft.faults
    ids = torch.tensor([11, 20] if shift else [20, 21])
    at, rows = torch.tensor([9, 10]), 9
    x = walker.x[-1:]
    first, new = draft.rows(ids[:1], draft.recycle(x), at[:1], walker.past, torch.ones(1, rows + 1).bool())
    past = [(torch.cat((k, a)), torch.cat((v, b))) for (k, v), (a, b) in zip(walker.past, new, strict=True)]
    second, _ = draft.rows(ids[1:], draft.recycle(first), at[1:], past, torch.ones(1, rows + 2).bool())
    spread = torch.full((draft.spec.vocab_size,), -100.0)
    spread[draft.ids] = draft.logits(second[0])
    return spread


@torch.no_grad()
def test_directions() -> None:
    """The directions that the contract fixes: rows rolled by one, boundary + 1, base 10000 or 500000."""
    target = random_target()
    e1, e3 = random_view(EAGLE1), random_view(EAGLE3)
    rolled = apply_faults(["foreign-embedding"], e1, target).tensors["embed_tokens.weight"]()
    assert torch.equal(rolled[1:], target.embedding[:-1])
    assert torch.equal(rolled[0], target.embedding[-1])
    assert apply_faults(["aux-shift"], e3, target).spec.aux_layers == (3, 4, 4)
    assert apply_faults(["rope-base"], e1, target).spec.rope_theta == 500000.0
    assert apply_faults(["rope-base"], random_view(EAGLE1, rope_theta=1e6), target).spec.rope_theta == 10000.0
    offsets = e3.tensors["d2t"]()
    assert torch.equal(PlainDraft(target, e3, frozenset(["d2t-as-ids"])).ids, offsets % 90)
    swapped = apply_faults(["concat-swapped"], e1, target).tensors["fc.weight"]()
    assert torch.equal(swapped, e1.tensors["fc.weight"]().roll(48, 1))


@torch.no_grad()
def test_overflow_is_what_float16_would_do() -> None:
    """A draft whose states stay below 65504 loses digits only; one that passes it says inf or NaN."""
    target, view = random_target(), random_view(EAGLE1)
    full, at = target.forward_full(TEXT), torch.arange(9)
    mask = at[:, None] >= at

    def states(view: DraftView, faults: tuple[str, ...]) -> torch.Tensor:
        return PlainDraft(target, view, frozenset(faults)).rows(TEXT[1:], full.hidden[:-1], at, [], mask)[0]

    assert 0 < (states(view, ("overflow",)) - states(view, ())).abs().max() < 0.1
    big = DraftView(view.spec, {**view.tensors, "fc.weight": lambda: 1e5 * view.tensors["fc.weight"]()})
    assert torch.isfinite(states(big, ())).all()
    assert not torch.isfinite(states(big, ("overflow",))).all()


@pytest.mark.parametrize("algorithm", ["eagle", "eagle3"])
@pytest.mark.parametrize("shape", [TreeShape.chain(3), TreeShape.dynamic(40, 2, 8)], ids=["chain", "tree"])
def test_the_engine_shows_the_same_faults(algorithm: str, shape: TreeShape) -> None:
    """Two implementations that share no forward code accept the same drafts, step by step, under every fault."""
    target = random_target(pack=False)
    view = passing(random_view(EAGLE1, **BIASED1)) if algorithm == "eagle" else random_view(EAGLE3, qkv_bias=True)
    shown = [f for f in applicable(view, target) if shape.is_chain or f != "stale-kv"]
    accepted = {}
    for fault in ((), *((f,) for f in shown)):
        draft = load_draft(view, target, faults=fault, pack=False)
        runs = SpeculativeEngine(target, draft, shape, runner="eager").generate([PROMPT, PROMPT[::-1]],
                                                                                max_new_tokens=20)
        for run in runs:
            oracle = Reference(target, view, fault).trace(run.prompt_ids, run.output_ids, shape, 20)
            assert [s.accepted for s in oracle] == [s.accepted for s in run.steps], fault
        accepted[fault] = [s.accepted for run in runs for s in run.steps]
    assert len(set(map(tuple, accepted.values()))) > 1  # some are seen, not only agreed upon
