"""Section J of the cases: layouts of one head, and files that are no draft."""

from __future__ import annotations

import hashlib

import pytest

from tests.builders import checkpoint, write
from tests.run import config, convert, inspect, refused, run

EQUAL_E1 = ("e1-bin", "e1-sharded", "e1-legacy-vllm", "e1-sglang", "e1-speculators-old")


@pytest.fixture
def tgt(fixtures_dir):
    return fixtures_dir / "plant" / "tgt"


def test_c81_one_head_in_every_layout_is_one_head(tmp_path, fixtures_dir, tgt):
    """Official, sharded, legacy-nested and SGLang's: one spec, the same tensor bytes."""
    reference = convert(fixtures_dir / "plant" / "e1", tmp_path / "official", "--target", tgt).document
    want = hashlib.sha256((tmp_path / "official" / "model.safetensors").read_bytes()).hexdigest()
    specs = [inspect(tmp_path / "official", "--target", tgt).document["draft"]]
    for name in EQUAL_E1:
        document = convert(fixtures_dir / "layouts" / name, tmp_path / name, "--target", tgt).document
        got = hashlib.sha256((tmp_path / name / "model.safetensors").read_bytes()).hexdigest()
        assert got == want, name
        assert document["algorithm"] == reference["algorithm"]
        specs.append(inspect(tmp_path / name, "--target", tgt).document["draft"])
    assert all(spec == specs[0] for spec in specs)


def test_c81_one_table_explains_each(fixtures_dir):
    for name in EQUAL_E1:
        ran = run("inspect", fixtures_dir / "layouts" / name)
        assert ran.code == 0
        assert "algorithm   EAGLE-1/2" in ran.stdout
        assert "fc" in ran.stdout


# -- C83: a full model as draft

def test_c83_a_complete_model_is_no_draft(tmp_path, tgt):
    ran = inspect(tgt, code=3)
    text = "complete causal LM, 8 layers, no fc: not an EAGLE draft"
    assert ran.finding("EC101")["message"] == text
    assert ran.document["explanation"] == text
    assert text in run("inspect", tgt).stdout
    error = refused(tgt, tmp_path / "out")
    assert text in error["what"]


def test_c83_swapped_arguments_are_recognised(tmp_path, tgt, fixtures_dir):
    head = fixtures_dir / "plant" / "e1"
    error = refused(tgt, tmp_path / "out", "--target", head)
    assert "swap" in error["how"]
    assert "e1" in error["what"]
    assert "swap" in inspect(tgt, "--target", head, code=3).finding("EC710")["fix"]


def test_c83_a_draft_as_target_of_a_draft(tmp_path, fixtures_dir):
    head = fixtures_dir / "plant" / "e1"
    error = refused(head, tmp_path / "out", "--target", head)
    assert "is a draft" in error["what"]
    inspect(head, "--target", head, code=3).finding("EC712")


# -- C03: nothing unmapped, nothing unfilled

def test_c03_a_misspelt_tensor_is_named_with_its_nearest(tmp_path):
    base, values = checkpoint("e3", "rand")
    values["mid_layer.mlp.up_proj.weight"] = values.pop("midlayer.mlp.up_proj.weight")
    folder = write(tmp_path / "head", base, values)
    error = refused(folder, tmp_path / "out")
    assert "mid_layer.mlp.up_proj.weight" in str(error)
    assert "midlayer.mlp.up_proj.weight" in str(error)
    document = inspect(folder, code=3).document
    assert document["dialect"] is None
    assert {t["name"] for t in document["tensors"]} == set(values)


def test_c03_a_missing_tensor_is_named(tmp_path):
    base, values = checkpoint("e3", "rand")
    del values["midlayer.mlp.down_proj.weight"]
    folder = write(tmp_path / "head", base, values)
    error = refused(folder, tmp_path / "out")
    assert "midlayer.mlp.down_proj.weight" in str(error)
    inspect(folder, code=3).finding("EC105")


# -- C86: quantised targets

def test_c86_a_quantisation_block_on_plain_tensors_goes_with_a_note(tmp_path):
    import numpy as np

    base, values = checkpoint("e3")
    block = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    folder = write(tmp_path / "head", base | {"quantization_config": block}, values)
    settings, target = checkpoint("tgt")
    for name in [n for n in target if "_proj" in n]:
        value = target.pop(name)
        target[name.replace(".weight", ".qweight")] = np.zeros((value.shape[1] // 8, value.shape[0]), np.int32)
    model = write(tmp_path / "model", settings | {"quantization_config": block}, target)
    ran = convert(folder, tmp_path / "out", "--target", model)
    assert "quantization_config" not in config(tmp_path / "out")
    assert [f for f in ran.document["findings"] if "quantization_config" in f["where"]]


def test_c86_a_packed_head_of_the_target_proves_nothing(tmp_path):
    import numpy as np

    settings, target = checkpoint("tgt")
    head = target.pop("lm_head.weight")
    target["lm_head.qweight"] = np.zeros((8, 320), np.int32)
    model = write(tmp_path / "model", settings, target)
    base, values = checkpoint("e1")
    folder = write(tmp_path / "head", base, values | {"lm_head.weight": head})
    ran = convert(folder, tmp_path / "out", "--target", model)
    assert "packed" in ran.finding("EC308")["message"]
    assert inspect(folder, "--target", model).document["draft"]["head"] == "unproved"
