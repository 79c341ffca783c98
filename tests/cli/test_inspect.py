# ruff: noqa: E501 - printed tables are compared as they are
"""The inspect command: what is printed, the document's keys, exit codes, and what an inspection costs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import eagle_convert
from eagle_convert.errors import PairingError, SourceError
from tests.builders import checkpoint, write
from tests.run import inspect, run

ROOT = Path(__file__).resolve().parents[2]

HUMAN = """\
an EAGLE-1/2 head in the official layout (SafeAILab/EAGLE)

algorithm   EAGLE-1/2
width       64
layers      1, 2 heads x 32, 1 KV heads, MLP 128
vocabulary  320
rope        theta 10000
positions   512
biases      none
norms       none but the layer's own
parallel    tensor parallel sizes 1
embedding   the target's
head        the target's

tensor                                    dtype  shape    bytes  compact  why
----------------------------------------  -----  ------  ------  -------  ---------------------------------------------
embed_tokens.weight                       F16    320x64  40,960  dropped  equal to the target's model.embed_tokens.weight
fc.weight                                 F16    64x128  16,384  kept
layers.0.mlp.down_proj.weight             F16    64x128  16,384  kept
layers.0.mlp.gate_proj.weight             F16    128x64  16,384  kept
layers.0.mlp.up_proj.weight               F16    128x64  16,384  kept
layers.0.post_attention_layernorm.weight  F16    64         128  kept
layers.0.self_attn.k_proj.weight          F16    32x64    4,096  kept
layers.0.self_attn.o_proj.weight          F16    64x64    8,192  kept
layers.0.self_attn.q_proj.weight          F16    64x64    8,192  kept
layers.0.self_attn.v_proj.weight          F16    32x64    4,096  kept

131,200 bytes (131.2 kB), compact 90,240 bytes (90.2 kB)
""".replace("  ---------------------------------------------\n", f"  {'-' * 47}\n")


@pytest.fixture
def e1(fixtures_dir):
    return fixtures_dir / "plant" / "e1"


@pytest.fixture
def tgt(fixtures_dir):
    return fixtures_dir / "plant" / "tgt"


def test_what_people_read(e1, tgt):
    ran = run("inspect", e1, "--target", tgt)
    assert ran.code == 0
    assert ran.stdout.startswith(HUMAN)
    assert ran.stderr == ""


def test_the_one_line_answer(e1, tgt):
    assert run("inspect", e1, "--quiet").stdout == "official-eagle1 eagle\n"
    ran = run("inspect", tgt, "--quiet")
    assert (ran.code, ran.stderr) == (3, "")
    assert ran.stdout == "whole-model: complete causal LM, 8 layers, no fc: not an EAGLE draft\n"


def test_the_keys_of_the_document(e1, tgt):
    document = inspect(e1, "--target", tgt).document
    assert {"schema", "source", "dialect", "evidence", "algorithm", "draft", "tensors", "bytes", "findings",
            "engines"} <= set(document)
    assert {"hidden_size", "target_hidden_size", "intermediate_size", "num_layers", "num_attention_heads",
            "num_key_value_heads", "head_dim", "vocab_size", "draft_vocab_size", "rms_norm_eps", "rope", "fc_bias",
            "attention_bias", "norms", "aux_hidden_state_layers", "embeddings", "head"} <= set(document["draft"])
    assert all({"name", "dtype", "shape", "bytes", "action"} <= set(t) for t in document["tensors"])
    assert document["bytes"] == {"source": 131_200, "compact": 90_240}
    assert document["evidence"][0]["matched"]
    assert document["algorithm"] == "eagle"


@pytest.mark.parametrize(("target", "embeddings", "head"), [(True, "target", "target"), (False, "unproved", "absent")])
def test_whose_tables(e1, tgt, target, embeddings, head):
    draft = inspect(e1, *(("--target", tgt) if target else ())).document["draft"]
    assert (draft["embeddings"], draft["head"]) == (embeddings, head)


def test_a_file_that_is_no_draft_still_gets_a_document(tgt):
    document = inspect(tgt, code=3).document
    assert document["draft"] is None
    assert len(document["tensors"]) == 75
    assert document["bytes"]["compact"] is None


def test_a_long_list_of_a_file_that_is_no_draft_is_cut_for_people_only(tgt):
    ran = run("inspect", tgt)
    assert "… and 63 more (--json has all)" in ran.stdout


def test_a_target_that_cannot_be_read_is_an_error(e1, tmp_path):
    ran = run("inspect", e1, "--json", "--target", tmp_path / "gone")
    assert ran.code == 1
    assert ran.error["type"] == "SourceError"


def test_infos_are_shown_with_v(fixtures_dir, tgt):
    e3 = fixtures_dir / "plant" / "e3"
    assert "EC502" not in run("inspect", e3, "--target", tgt).stderr
    assert "EC502" in run("inspect", e3, "--target", tgt, "-v").stderr


def test_a_single_file_is_enough(e1):
    assert inspect(e1 / "model.safetensors").document["draft"] == inspect(e1).document["draft"]


def test_the_function_has_the_same_semantics(e1, tgt, tmp_path):
    document = eagle_convert.inspect(str(e1), target=str(tgt))
    assert document == inspect(e1, "--target", tgt).document
    with pytest.raises(SourceError) as raised:
        eagle_convert.inspect(str(tmp_path / "gone"))
    assert raised.value.exit_code == 1
    assert raised.value.how
    assert issubclass(PairingError, eagle_convert.EagleConvertError)


def loaded(*args: str) -> set[str]:
    """Which of the heavy packages a command imports, in an interpreter of its own."""
    code = ("import sys\nfrom eagle_convert.cli import main\n"
            f"try: main({list(args)!r})\nexcept SystemExit as e: assert e.code == 0, e.code\n"
            "print('LOADED', *sorted({'torch', 'numpy', 'huggingface_hub', 'transformers'} & set(sys.modules)))")
    path = os.pathsep.join([str(ROOT), str(ROOT / "runtime")])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("LOADED")[2].split())


def test_inspecting_safetensors_needs_no_torch(e1, tgt, fixtures_dir):
    assert "torch" not in loaded("inspect", str(e1), "--target", str(tgt), "--deep")
    assert "torch" not in loaded("inspect", str(fixtures_dir / "plant" / "e3"), "--json")


def test_describing_an_eagle1_head_needs_no_numpy(e1, fixtures_dir):
    """Its import alone costs more than twice that of click, and the header says all there is to say."""
    for folder in (e1, fixtures_dir / "layouts" / "e1-resaved", fixtures_dir / "plant" / "e1b"):
        assert loaded("inspect", str(folder)) == set()


def test_converting_safetensors_needs_no_torch(e1, tgt, tmp_path):
    assert "torch" not in loaded("convert", str(e1), str(tmp_path / "out"), "--target", str(tgt), "--dtype", "bfloat16")


def test_reading_a_bin_file_needs_no_torch(fixtures_dir):
    assert "torch" not in loaded("inspect", str(fixtures_dir / "layouts" / "e1-bin"), "--deep")


def test_a_layout_that_no_tensor_fits_shows_why(tmp_path):
    base, values = checkpoint("e1")
    del values["fc.weight"]
    folder = write(tmp_path / "head", base, values)
    ran = run("inspect", folder)
    assert ran.code == 3
    assert "EC105" in ran.stderr or "EC101" in ran.stderr
