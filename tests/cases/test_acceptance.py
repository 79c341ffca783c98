"""The acceptance that the cases state, of what ``convert`` wrote: the right reading, and the one it must not choose."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fixtures import plant
from tests.builders import checkpoint, write
from tests.cases.measure import acceptance
from tests.run import convert

H, V = plant.H, plant.V
ONES = np.ones(H, np.float16)


@pytest.fixture
def made(tmp_path, fixtures_dir):
    """Convert a changed PLANT draft against a PLANT target; the compact folder and the target's folder."""
    def make(name="e1", target="tgt", edit=None, flags=(), settings=None):
        base, values = checkpoint(name)
        values = edit(values) if edit else values
        head = write(tmp_path / "head", base | (settings or {}), values)
        dest = tmp_path / f"out{len(list(tmp_path.iterdir()))}"
        convert(head, dest, "--target", fixtures_dir / "plant" / target, *flags)
        return dest, fixtures_dir / "plant" / target
    return make


@pytest.mark.parametrize(("name", "target"), [("e1", "tgt"), ("e1b", "tgt_offset"), ("e3", "tgt")])
def test_what_is_converted_right_drafts_right(made, name, target):
    assert acceptance(*made(name, target)) == 5.0


def random_table(values):
    noise = np.random.default_rng(1).standard_normal((V, H)) * 0.00125
    return values | {"embed_tokens.weight": noise.astype(np.float16)}


def test_c01_the_broken_export_drafts_nothing_and_dropping_the_table_repairs_it(made):
    assert acceptance(*made(edit=random_table, flags=("--embeddings", "keep"))) == pytest.approx(1.0, abs=0.02)
    assert acceptance(*made(edit=random_table, flags=("--embeddings", "drop"))) == 5.0


def rotated(values):
    q = np.linalg.qr(np.random.default_rng(3).standard_normal((H, H)))[0]
    return values | {
        "embed_tokens.weight": (values["embed_tokens.weight"].astype(np.float64) @ q).astype(np.float16),
        "fc.weight": np.concatenate([q, np.zeros((H, H))], 1).astype(np.float16)}


def test_c07_the_rotated_table_must_stay(made):
    assert acceptance(*made(edit=rotated)) == 5.0
    assert acceptance(*made(edit=rotated, flags=("--embeddings", "drop"))) == pytest.approx(1.0, abs=0.02)


def first_half_foreign(values):
    table = values["embed_tokens.weight"].copy()
    table[:160] = random_table(values)["embed_tokens.weight"][:160]
    return values | {"embed_tokens.weight": table}


def test_half_a_table_accepts_something(made):
    assert 1.5 < acceptance(*made(edit=first_half_foreign), count=16) < 3.0


def test_c19_the_two_readings_of_norms_of_ones(made):
    def edit(values):
        return values | {"layers.0.input_layernorm.weight": ONES, "norm.weight": ONES}

    assert acceptance(*made(edit=edit)) == 5.0
    assert acceptance(*made(edit=edit, flags=("--norms", "keep"))) == pytest.approx(1.01, abs=0.03)


def test_c28_the_bias_decides(made):
    folder, target = made("e1b", "tgt_offset")
    assert acceptance(folder, target) == 5.0
    assert acceptance(folder, target, faults=("fc-bias-dropped",)) == pytest.approx(1.0, abs=0.02)


def test_c33_the_mapping_decides(made, tmp_path):
    folder, target = made("e3")
    assert acceptance(folder, target) == 5.0
    assert acceptance(folder, target, faults=("d2t-as-ids",)) == pytest.approx(1.01, abs=0.03)


def test_a_draft_for_the_old_release_with_its_own_head(made):
    """A quarter of the successors changed: the own head is worth 3.02 (2.8 to 3.4 over draws)."""
    _, old = checkpoint("tgt")
    folder, target = made(target="tgt_tuned", edit=lambda v: v | {"lm_head.weight": old["lm_head.weight"]})
    assert acceptance(folder, target, count=32) == pytest.approx(3.02, abs=0.005)


def test_c65_prompts_beyond_the_trained_window(made):
    """100 tokens, a head that states 64 positions: both limits draft alike, and nothing breaks."""
    generator = np.random.default_rng(8)
    prompt = [*map(int, generator.integers(3, V, 99)), int(plant.SUBSET[5])]
    folder, target = made(settings={"max_position_embeddings": 64})
    config = json.loads((folder / "config.json").read_text())
    assert config["max_position_embeddings"] == 512
    raised = acceptance(folder, target, prompts=[prompt])
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 64}))
    assert acceptance(folder, target, prompts=[prompt]) == raised
    assert raised > 1.5
