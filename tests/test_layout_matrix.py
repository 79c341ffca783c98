"""N x N: every layout of the same draft gives the same compact bytes, and so does every layout that we write of it."""

import json
from pathlib import Path

import pytest

from eagle_convert.conversion import convert
from eagle_convert.dialects.layouts import FORMATS
from eagle_convert.errors import UnfaithfulError

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"

# Layouts that hold exactly the draft, by draft; its target; and the formats that can express it.
SAME = {
    "e1": ("e1-bin", "e1-sharded", "e1-legacy-vllm", "e1-legacy-vllm-prefixed", "e1-resaved", "e1-sglang",
           "e1-speculators-old", "e1-training-state/state_20"),
    "e1b": ("e1b-bin", "e1b-legacy-vllm", "e1b-resaved", "e1b-speculators-old-bias"),
    "e3": ("e3-bin", "e3-sharded", "e3-angelslim", "e3-automodel", "e3-automodel-state/model", "e3-megatron",
           "e3-nvidia", "e3-specforge", "e3-speculators", "e3-torchspec", "e3-vllm")}
TARGET = {"e1": "tgt", "e1b": "tgt_offset", "e3": "tgt"}
WRITES = {"e1": {"compact", "official", "vllm", "sglang", "legacy-vllm"},
          "e1b": {"compact", "official", "sglang", "legacy-vllm"},
          "e3": {"compact", "official", "vllm", "sglang", "speculators"}}


def compacted(source, dest, draft, layout="compact"):
    convert(str(source), dest, target=str(FIXTURES / "plant" / TARGET[draft]), layout=layout)
    return (dest / "model.safetensors").read_bytes(), json.loads((dest / "config.json").read_text())


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Compact bytes and config of each draft's official folder."""
    folder = tmp_path_factory.mktemp("official")
    return {draft: compacted(FIXTURES / "plant" / draft, folder / draft, draft) for draft in SAME}


@pytest.mark.parametrize(("draft", "name"), [(draft, name) for draft, names in SAME.items() for name in names])
def test_every_layout_gives_the_same_compact_bytes(tmp_path, expected, draft, name):
    weights, config = compacted(FIXTURES / "layouts" / name, tmp_path / "out", draft)
    assert weights == expected[draft][0]
    assert config == expected[draft][1]


@pytest.mark.parametrize(("draft", "name"), [(draft, name) for draft, names in SAME.items() for name in names])
def test_every_layout_goes_to_every_other_and_back_or_is_refused(tmp_path, expected, draft, name):
    written = set()
    for form in FORMATS:
        try:
            compacted(FIXTURES / "layouts" / name, tmp_path / form, draft, form)
        except UnfaithfulError:
            assert not (tmp_path / form).exists()
            continue
        written.add(form)
        assert (tmp_path / form / "eagle_convert.json").exists() == (form == "compact")
        weights, config = compacted(tmp_path / form, tmp_path / f"{form}-back", draft)
        assert weights == expected[draft][0]
        assert config == expected[draft][1]
    assert written == WRITES[draft]
