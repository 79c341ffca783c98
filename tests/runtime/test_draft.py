"""The draft over a cache against the formula (``plain_draft.py``), for every flag that has a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from eagle_runtime import DraftSpec, EagleRuntimeError
from eagle_runtime.faults import STRUCTURAL, applicable, apply_faults
from eagle_runtime.kv_cache import KVCache
from eagle_runtime.loader import load_draft
from eagle_runtime.pairing import PairingError
from eagle_runtime.plain_draft import PlainDraft
from eagle_runtime.target import Target
from eagle_runtime.views import DraftView
from tests.runtime.tiny import EAGLE1, EAGLE3, TARGET, random_target, random_view

VARIANTS: dict[str, tuple[DraftSpec, dict[str, object]]] = {
    "eagle1": (EAGLE1, {}),
    "eagle1-biases": (EAGLE1, {"fc_bias": True, "qkv_bias": True, "o_bias": True, "mlp_bias": True}),
    "eagle1-norms": (EAGLE1, {"embed_norm": True, "hidden_norm": True, "input_norm": True, "output_norm": True}),
    "eagle1-recycles-normed": (EAGLE1, {"output_norm": True, "norm_output": True}),
    "eagle1-own-tables": (EAGLE1, {"own_embedding": True, "own_head": True}),
    "eagle1-tied": (EAGLE1, {"own_embedding": True, "tie_word_embeddings": True}),
    "eagle1-reduced": (EAGLE1, {"draft_vocab_size": 30}),
    "eagle1-reduced-own-head": (EAGLE1, {"draft_vocab_size": 30, "own_head": True}),
    "eagle1-three-layers": (EAGLE1, {"num_layers": 3}),
    "eagle1-window": (EAGLE1, {"sliding_window": 3}),
    "eagle1-scaled": (EAGLE1, {"logit_scale": 0.25, "rope_theta": 5e5,
                               "rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    "eagle3": (EAGLE3, {}),
    "eagle3-wide-heads": (EAGLE3, {"head_dim": 16}),
    "eagle3-whole-vocabulary": (EAGLE3, {"draft_vocab_size": 90}),
    "eagle3-target-head": (EAGLE3, {"own_head": False}),
    "eagle3-norm-before-residual": (EAGLE3, {"norm_before_residual": True}),
    "eagle3-norm-before-fc": (EAGLE3, {"norm_before_fc": True}),
    "eagle3-fc-norm": (EAGLE3, {"fc_norm": True, "norm_output": True}),
    "eagle3-qk-norm-biases": (EAGLE3, {"qk_norm": True, "qkv_bias": True, "o_bias": True, "fc_bias": True}),
    "eagle3-two-layers": (EAGLE3, {"num_layers": 2, "norm_output": True}),
    "eagle3-narrow": (EAGLE3, {"hidden_size": 32, "own_embedding": True, "num_attention_heads": 4}),
    "eagle3-two-taps": (EAGLE3, {"num_aux": 2, "aux_layers": (6, 0)}),
    "eagle3-no-fc": (EAGLE3, {"num_aux": 0, "has_fc": False, "aux_layers": ()}),
}
Load = Callable[[DraftView, Target], object]
IDS = torch.tensor([3, 80, 17, 17, 4, 55, 8, 23, 60, 11])


def compare(spec: DraftSpec, flags: dict[str, object], faults: tuple[str, ...] = ()) -> None:
    """Committed rows in two pieces, then a small tree, over a padded cache: x, recycled states, logits and ids."""
    near = 2e-3 if "overflow" in faults else 3e-5  # a value on float16's rounding edge may go either way
    target, view = random_target(), random_view(spec, **flags)
    plain = PlainDraft(target, view, frozenset(faults))
    draft = load_draft(view, target, faults=faults)
    full = target.forward_full(IDS, keep=range(7))
    rows = len(IDS) - 1
    at = torch.arange(rows)
    wanted, past = plain.rows(IDS[1:], plain.states(full)[:-1], at, [], plain.near(at, at, at[:, None] >= at))

    states = full.hidden if not draft.taps else torch.cat([full.boundaries[t] for t in draft.taps], -1)
    hidden = draft.fuse(states[None, :-1])
    s = draft.spec
    cache = KVCache(draft.num_layers, 1, s.num_key_value_heads, 20, s.head_dim)
    got = []
    for piece in (slice(0, 4), slice(4, rows)):
        where = at[None, piece]
        got.append(draft.forward(IDS[1:][None, piece], hidden[:, piece], where, cache, where,
                                 torch.arange(20) <= where[..., None]))
    x = torch.cat(got, 1)[0]
    close(x, wanted, near)
    close(draft.logits(x[None])[0], plain.logits(wanted), near)

    # two branches behind the last row: a - b and c, in one pass
    ids = draft.to_target_ids(draft.logits(x[-1:]).topk(3).indices[0])
    assert torch.equal(ids, plain.ids[plain.logits(wanted[-1:]).topk(3).indices[0]])
    own, among = plain.recycle(wanted[-1:]).expand(3, -1), torch.tensor([[1, 0, 0], [1, 1, 0], [0, 0, 1]]).bool()
    depth = torch.tensor([0, 1, 0]) + rows
    mask = torch.cat((plain.near(depth, at, torch.ones(3, rows).bool()), plain.near(depth, depth, among)), 1)
    tree, _ = plain.rows(ids, own, depth, past, mask)
    seen = torch.zeros(1, 3, 20, dtype=torch.bool)
    seen[..., :rows], seen[..., rows:rows + 3] = True, among
    drafted = draft.forward(ids[None], draft.recycle(x[None, -1:]).expand(1, 3, -1), depth[None], cache,
                            torch.arange(rows, rows + 3)[None], seen)
    close(drafted[0], tree, near)
    close(draft.recycle(drafted)[0], plain.recycle(tree), near)
    close(draft.logits(drafted)[0], plain.logits(tree), near)


def close(a: torch.Tensor, b: torch.Tensor, near: float) -> None:
    torch.testing.assert_close(a, b, atol=near * max(1.0, float(b.abs().max())), rtol=0)


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_every_variant_is_its_formula(name: str) -> None:
    compare(*VARIANTS[name])


@pytest.mark.parametrize("fault", ["residual-lost", "hidden-prenorm", "overflow", "input-norm", "rope-base",
                                   "foreign-embedding", "concat-swapped"])
@torch.no_grad()
def test_faults_are_the_same_fault_in_both(fault: str) -> None:
    compare(EAGLE1, {}, (fault,))


@pytest.mark.parametrize("fault", ["residual-lost", "aux-shift", "norm-before-residual", "recycled-norm", "d2t-as-ids"])
@torch.no_grad()
def test_eagle3_faults_are_the_same_fault_in_both(fault: str) -> None:
    compare(EAGLE3, {}, (fault,))


@torch.no_grad()
def test_every_flag_moves_the_numbers() -> None:
    """A flag that changed nothing would be checked by nobody: each variant's logits differ from every other's."""
    target = random_target()
    full, at = target.forward_full(IDS, keep=range(7)), torch.arange(9)
    seen: list[torch.Tensor] = []
    for spec, flags in VARIANTS.values():
        plain = PlainDraft(target, random_view(spec, **flags))
        x, _ = plain.rows(IDS[1:], plain.states(full)[:-1], at, [], plain.near(at, at, at[:, None] >= at))
        again, _ = plain.rows(IDS[1:], plain.recycle(x), at, [], plain.near(at, at, at[:, None] >= at))
        logits = plain.logits(again)
        assert not any(logits.shape == other.shape and torch.allclose(logits, other, atol=1e-3) for other in seen)
        seen.append(logits)


@pytest.mark.parametrize("load", [load_draft, lambda view, target: PlainDraft(target, view)],
                         ids=["bundled", "reference"])
@pytest.mark.parametrize(("spec", "flags", "named"), [
    (EAGLE3, {"parallel": True}, "parallel"), (EAGLE1, {"attention_sinks": True}, "attention_sinks"),
    (EAGLE1, {"hidden_act": "xielu"}, "hidden_act"), (EAGLE3, {"fc_norm": True, "norm_before_fc": True}, "fc_norm"),
    (EAGLE1, {"num_layers": 2, "layer_types": ("full_attention", "sliding_attention")}, "layer_types"),
    (EAGLE3, {"own_head": False, "own_embedding": True, "tie_word_embeddings": True}, "tie_word_embeddings"),
    (EAGLE1, {"has_fc": False}, "has_fc"), (EAGLE1, {"target_hidden_size": 64}, "target_hidden_size"),
])
def test_what_has_no_function_is_refused_by_name(spec: DraftSpec, flags: dict[str, object], named: str,
                                                 load: Load) -> None:
    with pytest.raises(EagleRuntimeError, match="does not run this draft") as caught:
        load(random_view(spec, **flags), random_target())
    assert named in caught.value.where
    assert caught.value.how


@pytest.mark.parametrize(("spec", "flags", "words"), [
    (EAGLE3, {"target_hidden_size": 64}, "width 64"), (EAGLE1, {"vocab_size": 91}, "91 entries"),
    (EAGLE3, {"hidden_size": 32}, "no embed_tokens"),
    (EAGLE3, {"hidden_size": 32, "own_head": False, "own_embedding": True}, "no lm_head"),
    (EAGLE3, {"aux_layers": (2, 3, 7)}, "boundary 7, the target has 0 .. 6"),
])
def test_a_draft_that_does_not_fit_is_refused(spec: DraftSpec, flags: dict[str, object], words: str) -> None:
    with pytest.raises(PairingError) as caught:
        load_draft(random_view(spec, **flags), random_target())
    assert words in caught.value.where


def test_d2t_out_of_range_is_refused() -> None:
    view = random_view(EAGLE3)
    bad = torch.zeros(40, dtype=torch.int64)
    bad[7] = 90
    with pytest.raises(EagleRuntimeError, match="outside the vocabulary") as caught:
        load_draft(replace(view, tensors={**view.tensors, "d2t": lambda: bad}), random_target())
    assert "draft id 7 -> target id 97" in caught.value.where


@torch.no_grad()
def test_a_window_does_not_hold_where_layers_see_everything() -> None:
    target, at = random_target(), torch.arange(9)
    full = target.forward_full(IDS)

    def x(**flags: object) -> torch.Tensor:
        plain = PlainDraft(target, random_view(EAGLE1, **flags))
        return plain.rows(IDS[1:], full.hidden[:-1], at, [], plain.near(at, at, at[:, None] >= at))[0]

    assert torch.equal(x(sliding_window=3, layer_types=("full_attention",)), x())
    assert not torch.allclose(x(sliding_window=3, layer_types=("sliding_attention",)), x(), atol=1e-3)
    assert load_draft(random_view(EAGLE1, sliding_window=3, layer_types=("full_attention",)), target).window is None


def test_default_aux_layers_are_the_official_ones() -> None:
    """2, L // 2, L - 3 of a target with 6 layers; ids given by the config win."""
    assert load_draft(random_view(EAGLE3), random_target()).taps == (2, 3, 3)
    assert load_draft(random_view(EAGLE3, aux_layers=(1, 2, 6)), random_target()).taps == (1, 2, 6)
    assert load_draft(random_view(EAGLE1), random_target()).taps == ()


def test_structural_faults_leave_the_view_alone() -> None:
    target = random_target()
    for spec in (EAGLE1, EAGLE3):
        view = random_view(spec)
        for fault in STRUCTURAL & set(applicable(view, target)):
            assert apply_faults([fault], view, target) is view
    assert TARGET.num_layers == 6
