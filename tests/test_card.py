"""The model card's text and metadata; what the hub does with it is in ``tests/hub``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from eagle_convert.hub.card import BEGIN, END, compose, license_of, pruned
from eagle_convert.hub.card_text import CardFacts, megabytes, section
from eagle_convert.hub.errors import CardError
from eagle_convert.manifest import Borrowed, Manifest, Origin, TargetOrigin

LEDGER: tuple[dict[str, Any], ...] = (
    {"source": "fc.weight", "destination": "fc.weight", "action": "kept", "reason": "", "bytes": 67_108_864},
    {"source": "layers.0.hidden_norm.weight", "destination": "midlayer.hidden_norm.weight", "action": "renamed",
     "reason": "", "bytes": 8192},
    {"source": "norm.weight", "destination": "norm.weight", "action": "cast", "reason": "", "bytes": 16384,
     "dtype": "F32", "destination_dtype": "F16"},
    {"source": "embed_tokens.weight", "destination": None, "action": "dropped",
     "reason": "equal to the target's model.embed_tokens.weight", "bytes": 1_050_673_152})
MANIFEST = Manifest(
    Origin("yuhuili/EAGLE-LLaMA3", "a" * 40),
    TargetOrigin("meta-llama/Llama-3", "b" * 40, {
        "embed_tokens.weight": Borrowed("model.embed_tokens.weight", "c" * 64, "BF16", (128256, 4096))}),
    "eagle3", "official-eagle3", LEDGER, options=("--dtype", "float16"), version="0.1.0")
SIDE = {"engine": "reference", "acceptance_length": 3.41234, "acceptance_rate": 0.603, "per_position": [0.8, 0.7],
        "tokens_per_second": None}
PARITY: dict[str, Any] = {
    "schema": "eagle-convert/parity/1", "verdict": "pass", "reason": "identical traces", "settings_digest": "ab" * 32,
    "settings": {"draft_tokens": 4, "tree": None, "temperature": 0.0, "max_new_tokens": 64, "dtype": "float32",
                 "prompts": {"count": 48, "source": "bundled"}},
    "reference": SIDE, "candidate": {**SIDE, "engine": "bundled", "acceptance_length": 3.4}, "speedup": None}
FACTS = CardFacts("me/head", "meta-llama/Llama-3", "b" * 40, {"license": "llama3"}, "eagle3", 503_300_000, MANIFEST,
                  PARITY)


def metadata(card: str) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(card.split("---\n")[1])
    return data


def test_metadata() -> None:
    data = metadata(compose(FACTS))
    assert data["base_model"] == "meta-llama/Llama-3"
    assert data["library_name"] == "eagle-convert"
    assert data["license"] == "llama3"
    assert {"speculative-decoding", "eagle3"} <= set(data["tags"])
    (model,) = data["model-index"]
    (result,) = model["results"]
    assert result["dataset"]["name"] == "48 prompts (bundled)"
    assert {m["type"]: m["value"] for m in result["metrics"]} == {"acceptance_length": 3.4, "acceptance_rate": 0.603}
    assert result["metrics"][0]["name"] == "Acceptance length (K = 4, greedy)"


def test_nothing_is_null_or_empty_anywhere() -> None:
    def walk(value: Any) -> None:
        assert value not in (None, "", [], {})
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            walk(inner)

    walk(metadata(compose(FACTS)))
    walk(metadata(compose(replace(FACTS, license={}, parity=None, manifest=None))))


@pytest.mark.parametrize("text", [
    "at revision `" + "b" * 40 + "`",
    "Converted from `yuhuili/EAGLE-LLaMA3` (revision `" + "a" * 40 + "`) with eagle-convert 0.1.0",
    "1 tensor kept, bit for bit",
    "`layers.0.hidden_norm.weight` → `midlayer.hidden_norm.weight` renamed",
    "`norm.weight` cast from F32 to F16",
    "`embed_tokens.weight` left out: equal to the target's model.embed_tokens.weight",
    "503.3 MB of tensor data, 1.1 GB before the conversion",
    "| acceptance length | 3.412 | 3.400 |",
    "**pass** (identical traces)",
    '--speculative-config \'{"method": "eagle3", "model": "me/head", "num_speculative_tokens": 4}\'',
    "--speculative-algorithm EAGLE3 --speculative-draft-model-path me/head",
    "--speculative-num-steps 4 --speculative-eagle-topk 1 --speculative-num-draft-tokens 5",
    "eagle-convert convert yuhuili/EAGLE-LLaMA3@" + "a" * 40 + " head --target meta-llama/Llama-3@" + "b" * 40
    + " --dtype float16"])
def test_the_section_says(text: str) -> None:
    assert text in section(FACTS)


def test_an_engine_that_is_not_faithful_is_named_above_its_command() -> None:
    said = section(replace(FACTS, caveats={"vllm": "it has no slot for fc.bias"}))
    assert "vLLM: **does not run these files as the head was trained**: it has no slot for fc.bias." in said
    assert "`eagle-convert convert --for vllm`" in said
    assert "SGLang\n" in said


@pytest.mark.parametrize(("tree", "words"), [
    ({"total_token": 60, "depth": 7, "top_k": 10}, "tree 60/7/10, greedy"),
    ({"choices": [[0], [1], [0, 0]]}, "static tree of 3 drafts, greedy")])
def test_trees_are_named(tree: dict[str, Any], words: str) -> None:
    settings = {**PARITY["settings"], "draft_tokens": None, "tree": tree}
    assert words in section(replace(FACTS, parity={**PARITY, "settings": settings}))


# what was there before

def test_composing_again_changes_nothing() -> None:
    card = compose(FACTS)
    assert compose(FACTS, card) == card


def test_only_our_section_changes() -> None:
    card = compose(FACTS).replace("# head\n", "# head\n\nMine, before.\n") + "\nMine, after.\n"
    again = compose(replace(FACTS, draft_bytes=1_000_000), card)
    assert "1.0 MB of tensor data" in again
    assert again.split(BEGIN)[0] == card.split(BEGIN)[0]
    assert again.split(END)[1] == card.split(END)[1]


@pytest.mark.parametrize("card", [
    "", "\n", "# Mine\n", "---\n---\n# Mine\n", "---\r\nlicense: mit\r\n---\r\n# Mine\r\n"])
def test_any_card_can_be_completed(card: str) -> None:
    made = compose(replace(FACTS, license={}), card)
    assert made.count(BEGIN) == made.count(END) == 1
    assert metadata(made.replace("\r\n", "\n"))["base_model"] == "meta-llama/Llama-3"
    assert ("# Mine" in made) == ("# Mine" in card)


def test_other_results_and_keys_of_a_card_stay() -> None:
    card = compose(FACTS)
    data = metadata(card)
    data["co2_eq_emissions"] = 3
    data["model-index"][0]["results"].append({
        "task": {"type": "text-generation"}, "dataset": {"name": "MT-Bench", "type": "mt_bench"},
        "metrics": [{"type": "acceptance_length", "value": 3.9}]})
    data["base_model"] = ["meta-llama/Llama-3", "meta-llama/Llama-3-variant"]
    card = f"---\n{yaml.safe_dump(data)}---\n# Mine\n"
    again = metadata(compose(replace(FACTS, parity=None), card))
    assert again["co2_eq_emissions"] == 3
    assert again["base_model"] == data["base_model"]
    assert [r["dataset"]["type"] for r in again["model-index"][0]["results"]] == ["mt_bench"]


def test_a_license_replaces_name_and_link_of_another() -> None:
    card = "---\nlicense: other\nlicense_name: x\nlicense_link: y\n---\n"
    data = metadata(compose(replace(FACTS, license={"license": "mit"}), card))
    assert data["license"] == "mit"
    assert {"license_name", "license_link"}.isdisjoint(data)


@pytest.mark.parametrize("card", ["---\nlicense: [mit\n---\n", "---\n- a\n- b\n---\n", "---\nmodel-index: 3\n---\n"])
def test_metadata_that_cannot_be_read_is_named(card: str) -> None:
    with pytest.raises(CardError) as caught:
        compose(FACTS, card)
    assert "README.md" in caught.value.where


def test_license_of() -> None:
    assert license_of("---\nlicense: other\nlicense_name: x\n---\n") == {"license": "other", "license_name": "x"}
    assert license_of("---\nlicense: null\n---\n") == license_of("# none") == license_of("---\n[\n---\n") == {}


def test_pruned_at_every_depth() -> None:
    assert pruned({"a": [None], "b": {"c": ""}, "d": [1, None, {"e": []}], "f": 0, "g": False}) == {
        "d": [1], "f": 0, "g": False}


def test_megabytes() -> None:
    assert [megabytes(n) for n in (12, 12_400, 503_316_480, 1_980_000_000)] == [
        "12 bytes", "12.4 kB", "503.3 MB", "2.0 GB"]
