"""Section C of the cases: biases. fc.bias kept 5.00, dropped 1.00 is asserted where the runtime runs."""

from __future__ import annotations

import numpy as np
import pytest

from fixtures import plant
from tests.builders import checkpoint, write
from tests.run import config, convert, inspect, kept_bit_equal, tensors

H = plant.H
QKV = {f"layers.0.self_attn.{p}_proj.bias": np.random.default_rng(i).normal(0, 0.02, n).astype(np.float16)
       for i, (p, n) in enumerate((("q", 64), ("k", 32), ("v", 32)))}


def test_c28_fc_bias_is_kept_and_the_config_leaves_bias_out(tmp_path, fixtures_dir):
    base, values = checkpoint("e1b")
    folder = write(tmp_path / "head", base, values, "pytorch_model.bin")
    ran = convert(folder, tmp_path / "out", "--target", fixtures_dir / "plant" / "tgt_offset")
    kept_bit_equal(ran, tmp_path / "out", values)
    assert "fc.bias" in tensors(tmp_path / "out")
    assert "bias" not in config(tmp_path / "out")  # absent means true to the official loader; true misleads vLLM
    assert inspect(tmp_path / "out").document["draft"]["fc_bias"] is True


def test_c28_a_bias_of_zeros_goes(tmp_path, fixtures_dir):
    base, values = checkpoint("e1")
    folder = write(tmp_path / "head", base, values | {"fc.bias": np.zeros(H, np.float16)})
    ran = convert(folder, tmp_path / "out", "--target", fixtures_dir / "plant" / "tgt")
    assert "fc.bias" not in tensors(tmp_path / "out")
    assert config(tmp_path / "out")["bias"] is False
    (row,) = [r for r in ran.document["ledger"] if r["source"] == "fc.bias"]
    assert (row["action"], row["reason"]) == ("dropped", "every element is exactly zero")


@pytest.mark.parametrize("fc", [True, False], ids=["fc.bias", "no fc.bias"])
@pytest.mark.parametrize("qkv", [True, False], ids=["qkv biases", "no qkv biases"])
def test_c30_flags_follow_the_tensors(tmp_path, fc, qkv):
    base, values = checkpoint("e1", "rand")
    if fc:
        values["fc.bias"] = np.random.default_rng(9).normal(0, 0.02, H).astype(np.float16)
    if qkv:
        values |= QKV
    folder = write(tmp_path / "head", base | {"bias": True}, values)
    ran = convert(folder, tmp_path / "out")
    kept_bit_equal(ran, tmp_path / "out", values)
    written = config(tmp_path / "out")
    assert written.get("bias", "absent") == ("absent" if fc else False)
    assert written.get("qkv_bias", "absent") == (True if qkv else "absent")
    assert "attention_bias" not in written
    claims = [f for f in ran.findings("EC204") if f["where"] == "config.json: bias"]
    assert len(claims) == (0 if fc else 1)
    assert not claims or "true" in claims[0]["message"]


def test_c31_a_qwen2_head_keeps_its_three_biases(tmp_path):
    base, values = checkpoint("e1", "rand")
    values |= QKV
    folder = write(tmp_path / "head", base | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}, values)
    assert inspect(folder).document["draft"]["attention_bias"] is True
    ran = convert(folder, tmp_path / "out")
    kept_bit_equal(ran, tmp_path / "out", values)
    assert set(QKV) <= set(tensors(tmp_path / "out"))
    written = config(tmp_path / "out")
    assert (written["architectures"], written["model_type"]) == (["LlamaForCausalLM"], "llama")
    assert written["qkv_bias"] is True
