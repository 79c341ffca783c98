"""Every bundled layout from end to end: what its compact folder says, that it reads back to itself, or the refusal.

That all spellings of one draft give the same compact bytes is ``test_layout_matrix``.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tests.run import config, convert, inspect, refused

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
TARGETS = {"e1": "tgt", "e1b": "tgt_offset", "e3": "tgt"}

# The PLANT drafts under other names.
SAME = ("e1-bin", "e1-legacy-vllm", "e1-legacy-vllm-prefixed", "e1-resaved", "e1-sglang", "e1-sharded",
        "e1-speculators-old", "e1-training-state/state_20", "e1b-bin", "e1b-legacy-vllm", "e1b-resaved",
        "e1b-speculators-old-bias", "e3-angelslim", "e3-automodel", "e3-bin", "e3-megatron", "e3-nvidia", "e3-sharded",
        "e3-specforge", "e3-speculators", "e3-torchspec", "e3-vllm")
# Drafts of another function: what their compact config says that the plain one's does not.
OTHERS = {
    "e1-automodel": {"skip_prenorm": False, "skip_output_norm": False, "norm_output": True},
    "e1-legacy-vllm-norms": {"skip_prenorm": False, "skip_output_norm": False, "add_para_norm": True,
                             "norm_output": True},
    "e1-legacy-vllm-token-map": {"draft_vocab_size": 160},
    "e1-megatron": {"skip_prenorm": False, "skip_output_norm": False, "add_para_norm": True, "norm_output": True},
    "e1-mistral": {"skip_prenorm": False, "skip_output_norm": False, "norm_output": True},
    "e1-qwen2": {"qkv_bias": True},
    "e1b-baldeagle": {"torch_dtype": "float32", "rope_theta": None},
    "e1b-layernorms": {"skip_prenorm": False, "skip_output_norm": False, "norm_output": False},
    "e1b-speculators-old-layernorms": {"skip_prenorm": False, "skip_output_norm": False, "norm_output": False},
    "e3-deep": {"num_hidden_layers": 2}, "e3-megatron-deep": {"num_hidden_layers": 2},
    "e3-fc-norm": {"fc_norm": True, "norm_output": True}, "e3-norm-before-fc": {"norm_before_fc": True},
    "e3-peagle": {"num_hidden_layers": 2, "mask_token_id": 0},
    "e3-qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
}
# Explained by inspect (0), refused by convert (1): a word of the reason.
EXPLAINED = {"e1-minicpm": "scale_emb", "e3-gguf": "llama.cpp", "e3-nvidia-parallel": "parallel heads",
             "medusa": "Medusa", "mtp-deepseek": "MTP module", "mtp-qwen3-next": "MTP module",
             "mtp-speculators": "MTP module"}
# Folders that a person has to point more closely.
ASKS = {"e1-training-state": "state_20", "e3-automodel-state": "no weights"}


def target(name: str) -> Path:
    return FIXTURES / "plant" / TARGETS.get(name.split("-")[0], "tgt")


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> dict[str, dict]:
    """The compact config of each PLANT draft in the official layout."""
    out = {}
    for name in TARGETS:
        dest = tmp_path_factory.mktemp("plain") / name
        convert(FIXTURES / "plant" / name, dest, "--target", target(name))
        out[name] = config(dest)
    return out


def test_every_layout_is_expected():
    names = {p.name for p in (FIXTURES / "layouts").iterdir()}
    assert {n.split("/")[0] for n in SAME} | set(OTHERS) | set(EXPLAINED) | set(ASKS) == names


@pytest.mark.parametrize("name", OTHERS)
def test_another_function_says_what_differs(name, tmp_path, plain):
    ran = convert(FIXTURES / "layouts" / name, tmp_path / "out", "--target", target(name))
    base, ours = plain[name.split("-")[0]], config(tmp_path / "out")
    differs = {key: ours.get(key) for key in {*base, *ours} if base.get(key) != ours.get(key)}
    assert differs == OTHERS[name]
    assert {row["action"] for row in ran.document["ledger"]} <= {"kept", "renamed", "dropped", "created"}


@pytest.mark.parametrize("name", [*SAME, *OTHERS])
def test_a_compact_folder_reads_back_to_itself(name, tmp_path):
    """Converted again, the folder gives the same bytes, the same config, and keeps what it knew of its target."""
    convert(FIXTURES / "layouts" / name, tmp_path / "once", "--target", target(name))
    again = convert(tmp_path / "once", tmp_path / "twice")
    assert again.document["dialect"] == "compact"
    assert digest(tmp_path / "twice") == digest(tmp_path / "once")
    assert config(tmp_path / "twice") == config(tmp_path / "once")
    first, second = (json.loads((tmp_path / n / "eagle_convert.json").read_text()) for n in ("once", "twice"))
    assert second["target"] == first["target"]
    assert {row["action"] for row in second["ledger"]} == {"kept"}


@pytest.mark.parametrize("name", EXPLAINED)
def test_drafts_of_another_kind_are_explained_and_refused(name, tmp_path):
    document = inspect(FIXTURES / "layouts" / name).document
    assert document["kind"] == "other draft"
    assert document["explanation"]
    assert EXPLAINED[name] in document["explanation"] + document["title"]
    assert EXPLAINED[name] in refused(FIXTURES / "layouts" / name, tmp_path / "out")["what"]


@pytest.mark.parametrize("name", ASKS)
def test_folders_that_hold_no_weights_themselves_say_where_to_look(name, tmp_path):
    assert ASKS[name] in str(refused(FIXTURES / "layouts" / name, tmp_path / "out"))
