"""The engine against the oracle, tree by tree: every variant of a draft, every shape, the faults both can show.

Random pairs accept little, so what is compared is what is *proposed* at each root: tokens and parents of all nodes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from eagle_runtime.config import TreeShape
from eagle_runtime.engine import SpeculativeEngine
from eagle_runtime.loader import load_draft, load_target
from eagle_runtime.reference import Reference
from eagle_runtime.target import Target
from eagle_runtime.views import DraftView
from tests.runtime.rig import Rig
from tests.runtime.test_draft import VARIANTS
from tests.runtime.tiny import EAGLE1, EAGLE3, TARGET, passing, random_target, random_view

SHAPES = {"chain": TreeShape.chain(3), "tree": TreeShape.dynamic(12, 3, 3),
          "static": TreeShape.static([(0,), (1,), (2,), (0, 0), (0, 2), (2, 1), (0, 0, 0), (2, 1, 1)])}
PROMPTS = [[3, 17, 80, 17, 4, 55], [9, 8]]


@torch.no_grad()
def compare(target: Target, view: DraftView, shape: TreeShape, faults: tuple[str, ...] = (), steps: int = 5) -> int:
    """Drive both over the same text; -> drafts accepted."""
    rig = Rig(target, load_draft(view, target, faults=faults), shape, PROMPTS)
    trees: list[list[tuple[list[int], list[int]]]] = [[] for _ in PROMPTS]
    accepted: list[list[int]] = [[] for _ in PROMPTS]
    for _ in range(steps):
        rig.calls[0]()
        for lane, seen in enumerate(trees):
            tree = rig.buffers.tree
            seen.append((tree.tokens[lane, 1:].tolist(), (tree.parents[lane, 1:] - 1).tolist()))
        before = [len(tokens) for tokens in rig.committed]
        rig.step()  # drafts anew, to the same end: the draft stage only reads what it is given
        for lane, tokens in enumerate(rig.committed):
            accepted[lane].append(len(tokens) - before[lane] - 1)
    reference = Reference(target, view, faults)
    for lane, prompt in enumerate(PROMPTS):
        output = rig.committed[lane][len(prompt):]
        right = reference.trace(prompt, output, shape, len(output))
        assert [(step.drafts, step.parents) for step in right] == trees[lane][:len(right)]
        assert [step.accepted for step in right] == accepted[lane][:len(right)]
        assert len(right) >= steps - 1
    return sum(map(sum, accepted))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_proposes_what_the_reference_does(name: str, shape: str) -> None:
    spec, flags = VARIANTS[name]
    compare(random_target(), random_view(spec, **flags), SHAPES[shape])


@pytest.mark.parametrize("shape", SHAPES)
def test_a_draft_that_is_right_now_and_then(shape: str) -> None:
    assert compare(random_target(), passing(random_view(EAGLE1)), SHAPES[shape], steps=12) > 3


@pytest.mark.parametrize(("fault", "spec", "shape"), [
    ("token-shift", EAGLE1, "chain"), ("token-shift", EAGLE3, "tree"), ("token-shift", EAGLE1, "static"),
    ("stale-kv", EAGLE1, "chain"), ("stale-kv", EAGLE3, "chain"), ("residual-lost", EAGLE1, "tree"),
    ("hidden-prenorm", EAGLE1, "tree"), ("overflow", EAGLE3, "chain"), ("aux-shift", EAGLE3, "tree"),
    ("concat-swapped", EAGLE1, "static"), ("recycled-norm", EAGLE3, "tree")])
def test_faults_are_the_same_in_both(fault: str, spec: object, shape: str) -> None:
    view = passing(random_view(EAGLE1)) if spec is EAGLE1 else random_view(EAGLE3)
    compare(random_target(), view, SHAPES[shape], (fault,), steps=8)


@pytest.mark.parametrize("kind", ["gpt2", "gemma2"])
def test_a_target_through_transformers(kind: str, tmp_path: Path) -> None:
    sizes = {"vocab_size": TARGET.vocab_size, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 6,
             "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64,
             "initializer_range": 0.3}
    config = (transformers.Gemma2Config(**sizes, sliding_window=4) if kind == "gemma2" else
              transformers.GPT2Config(vocab_size=TARGET.vocab_size, n_embd=48, n_layer=6, n_head=6, n_positions=64,
                                      initializer_range=0.3))
    torch.manual_seed(1)  # with 0, GPT-2 has two scores 1e-5 apart
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    model.save_pretrained(tmp_path)
    target = load_target(tmp_path)
    for view in (random_view(EAGLE1), random_view(EAGLE3)):
        compare(target, view, SHAPES["tree"])
    engine = SpeculativeEngine(target, load_draft(random_view(EAGLE1), target), SHAPES["tree"], lanes=2)
    for output in engine.generate(PROMPTS, 12, ()):
        ids = torch.tensor([output.prompt_ids])
        right = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12,
                               eos_token_id=None, pad_token_id=0)[0, len(output.prompt_ids):].tolist()
        assert output.text_ids == right
    assert "through transformers" in engine.stats.notes[0]
