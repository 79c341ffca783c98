"""Section E of the cases: sizes, heads, layers."""

from __future__ import annotations

import numpy as np
import pytest

from fixtures import plant
from tests.builders import checkpoint, write
from tests.run import config, convert, inspect, kept_bit_equal, refused, tensors

H, I, V = plant.H, plant.I, plant.V


def normal(*shape: int, seed: int = 1) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * 0.02).astype(np.float16)


# -- C46: a draft narrower than its target

def narrow(folder, embedding=True):
    base, values = checkpoint("e3", "rand")
    values["fc.weight"] = normal(H, 3 * 96)
    if embedding:
        values["embed_tokens.weight"] = normal(V, H)
    return write(folder, base | {"target_hidden_size": 96}, values), values


@pytest.fixture
def wide_target(tmp_path):
    """96 wide: 3 heads of 32."""
    base, _values = checkpoint("tgt", "rand")
    settings = base | {"hidden_size": 96, "num_attention_heads": 3}
    return write(tmp_path / "wide", settings, {"model.embed_tokens.weight": normal(V, 96), "lm_head.weight":
                                               normal(V, 96, seed=2), "model.norm.weight": np.ones(96, np.float16)})


def test_c46_the_narrow_drafts_embedding_stays(tmp_path, wide_target):
    folder, values = narrow(tmp_path / "head")
    document = inspect(folder, "--target", wide_target).document["draft"]
    assert (document["hidden_size"], document["target_hidden_size"]) == (64, 96)
    assert document["embeddings"] == "own"
    ran = convert(folder, tmp_path / "out", "--target", wide_target)
    kept_bit_equal(ran, tmp_path / "out", values)
    assert "embed_tokens.weight" in tensors(tmp_path / "out")
    assert config(tmp_path / "out")["target_hidden_size"] == 96


def test_c46_dropping_it_is_refused(tmp_path, wide_target):
    folder, _ = narrow(tmp_path / "head")
    error = refused(folder, tmp_path / "out", "--target", wide_target, "--embeddings", "drop")
    assert "64 wide, the target 96" in error["what"]


def test_c46_without_its_embedding_it_cannot_run(tmp_path, wide_target):
    folder, _ = narrow(tmp_path / "head", embedding=False)
    refused(folder, tmp_path / "out", "--target", wide_target)


def test_a_draft_of_another_width_is_refused_with_both(tmp_path, wide_target):
    base, values = checkpoint("e1")
    folder = write(tmp_path / "head", base, values)
    error = refused(folder, tmp_path / "out", "--target", wide_target)
    assert "64 wide" in error["what"]
    assert "96 wide" in error["what"]
    inspect(folder, "--target", wide_target, code=3).finding("EC701")


# -- C48: heads wider than hidden / heads

@pytest.mark.parametrize("stated", [{"head_dim": 64}, {}], ids=["stated", "from q_proj"])
def test_c48_head_dim_comes_from_config_or_tensors(tmp_path, stated):
    base, values = checkpoint("e3", "rand")
    values |= {"midlayer.self_attn.q_proj.weight": normal(128, 2 * H), "midlayer.self_attn.k_proj.weight":
               normal(64, 2 * H), "midlayer.self_attn.v_proj.weight": normal(64, 2 * H),
               "midlayer.self_attn.o_proj.weight": normal(H, 128)}
    folder = write(tmp_path / "head", base | stated, values)
    ran = convert(folder, tmp_path / "out")
    kept_bit_equal(ran, tmp_path / "out", values)
    assert config(tmp_path / "out")["head_dim"] == 64
    assert inspect(folder).document["draft"]["head_dim"] == 64


# -- C51: the config of the target

def test_c51_the_layer_count_is_that_of_the_tensors(tmp_path, fixtures_dir):
    base, values = checkpoint("e3")
    folder = write(tmp_path / "head", base | {"num_hidden_layers": 40}, values)
    (found,) = [f for f in inspect(folder).document["findings"] if f["where"].endswith("num_hidden_layers")]
    assert found["severity"] == "warn"
    assert "40" in found["message"]
    ran = convert(folder, tmp_path / "out", "--target", fixtures_dir / "plant" / "tgt")
    kept_bit_equal(ran, tmp_path / "out", values)
    assert config(tmp_path / "out")["num_hidden_layers"] == 1


# -- C52: more than one layer

def two_layers(columns=H):
    base, values = checkpoint("e3", "rand")
    values = {name.replace("midlayer.", "layers.0."): value for name, value in values.items()}
    second = {f"layers.1.self_attn.{p}_proj.weight": normal(n, columns) for p, n in (("q", 64), ("k", 32), ("v", 32))}
    second |= {"layers.1.self_attn.o_proj.weight": normal(H, 64), "layers.1.mlp.gate_proj.weight": normal(I, H),
               "layers.1.mlp.up_proj.weight": normal(I, H), "layers.1.mlp.down_proj.weight": normal(H, I),
               "layers.1.input_layernorm.weight": np.ones(H, np.float16),
               "layers.1.post_attention_layernorm.weight": np.ones(H, np.float16)}
    return base, values | second


def test_c52_every_layer_is_kept(tmp_path):
    base, values = two_layers()
    folder = write(tmp_path / "head", base | {"num_hidden_layers": 2, "norm_before_residual": False}, values)
    ran = convert(folder, tmp_path / "out")
    kept_bit_equal(ran, tmp_path / "out", values)
    assert {n for n in tensors(tmp_path / "out") if n.startswith("layers.1.")} == {
        n for n in values if n.startswith("layers.1.")}
    assert config(tmp_path / "out")["num_hidden_layers"] == 2


def test_c52_a_second_layer_of_other_columns_is_refused(tmp_path):
    base, values = two_layers(columns=2 * H)
    folder = write(tmp_path / "head", base | {"num_hidden_layers": 2, "norm_before_residual": False}, values)
    error = refused(folder, tmp_path / "out")
    assert "layers.1.self_attn" in error["where"]
