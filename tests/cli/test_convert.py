# ruff: noqa: E501 - printed tables are compared as they are
"""The convert command: what is printed, the document's keys, the function."""

from __future__ import annotations

import pytest

import eagle_convert
from eagle_convert import conversion
from eagle_convert.cli import convert as command
from eagle_convert.errors import CompactionError, UnfaithfulError
from tests.run import convert, run, tensors

HUMAN = """\
eagle (official-eagle1) -> DEST

tensor                                    dtype  shape    before   after  action   why
----------------------------------------  -----  ------  -------  ------  -------  ---
embed_tokens.weight                       F16    320x64   40,960       -  dropped  equal to the target's model.embed_tokens.weight
fc.weight                                 F16    64x128   16,384  16,384  kept
layers.0.mlp.down_proj.weight             F16    64x128   16,384  16,384  kept
layers.0.mlp.gate_proj.weight             F16    128x64   16,384  16,384  kept
layers.0.mlp.up_proj.weight               F16    128x64   16,384  16,384  kept
layers.0.post_attention_layernorm.weight  F16    64          128     128  kept
layers.0.self_attn.k_proj.weight          F16    32x64     4,096   4,096  kept
layers.0.self_attn.o_proj.weight          F16    64x64     8,192   8,192  kept
layers.0.self_attn.q_proj.weight          F16    64x64     8,192   8,192  kept
layers.0.self_attn.v_proj.weight          F16    32x64     4,096   4,096  kept
total                                                    131,200  90,240           131.2 kB -> 90.2 kB
"""


@pytest.fixture
def e1(fixtures_dir):
    return fixtures_dir / "plant" / "e1"


@pytest.fixture
def tgt(fixtures_dir):
    return fixtures_dir / "plant" / "tgt"


def test_what_people_read(e1, tgt, tmp_path):
    ran = run("convert", e1, tmp_path / "out", "--target", tgt)
    assert (ran.code, ran.stderr) == (0, "")
    shown = ran.stdout.replace(str(tmp_path / "out"), "DEST")
    assert shown.replace("-" * 47, "---") == HUMAN


def test_the_one_line_answer(e1, tgt, tmp_path):
    assert run("convert", e1, tmp_path / "out", "--target", tgt, "-q").stdout == f"{tmp_path / 'out'}\n"


def test_the_keys_of_the_document(e1, tgt, tmp_path):
    document = convert(e1, tmp_path / "out", "--target", tgt).document
    assert {"schema", "source", "destination", "algorithm", "dialect", "ledger", "bytes", "findings",
            "dry_run"} <= set(document)
    assert all({"source", "destination", "action", "reason", "sha256", "bytes"} <= set(r) for r in document["ledger"])
    assert all(len(row["sha256"]) == 64 for row in document["ledger"])
    assert (document["destination"], document["dry_run"]) == (str(tmp_path / "out"), False)


def test_the_choices_are_the_functions(e1):
    assert command._LAYOUTS == conversion.LAYOUTS


def test_a_layout_that_we_do_not_know_is_a_usage_error(e1, tmp_path):
    assert run("convert", e1, tmp_path / "out", "--for", "onnx").code == 2


@pytest.mark.parametrize("args", [("--embeddings", "maybe"), ("--dtype", "int8"), ("--rope-theta", "0"),
                                  ("--json", "--quiet")])
def test_words_that_do_not_fit_are_usage_errors(e1, tmp_path, args):
    assert run("convert", e1, tmp_path / "out", *args).code == 2
    assert not (tmp_path / "out").exists()


def test_the_function_has_the_same_semantics(e1, tgt, tmp_path):
    document = eagle_convert.convert(str(e1), tmp_path / "a", target=str(tgt), embeddings="keep")
    other = convert(e1, tmp_path / "b", "--target", tgt, "--embeddings", "keep").document
    assert document | {"destination": ""} == other | {"destination": ""}
    assert "embed_tokens.weight" in tensors(tmp_path / "a")
    with pytest.raises(UnfaithfulError):
        eagle_convert.convert(str(e1), tmp_path / "c", layout="speculators")
    with pytest.raises(CompactionError):
        eagle_convert.convert(str(e1), tmp_path / "c", prune_vocab="160")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(("text", "size"), [("1", 1), ("5GB", 5 * 10**9), ("1.5mb", 1_500_000), (" 2 KB", 2000),
                                            ("7b", 7)])
def test_sizes(text, size):
    assert command.size(None, None, text) == size


def test_warnings_reach_stderr_and_quiet_silences_them(e1, tmp_path):
    assert "EC708" in run("convert", e1, tmp_path / "a").stderr
    assert run("convert", e1, tmp_path / "b", "--quiet").stderr == ""
