"""The table of engine facts: every fact is reachable, and the cases that people met come out as they met them."""

from dataclasses import replace

import pytest

from eagle_convert.dialects.compact import to_config
from eagle_convert.engine_facts import ENGINES, FACTS, engines
from eagle_runtime.compact import tensor_shapes
from eagle_runtime.config import DraftSpec
from tests.dialects.checkpoints import FIXTURES, load, read

E1 = DraftSpec(
    algorithm="eagle", hidden_size=64, target_hidden_size=64, intermediate_size=128, num_layers=1,
    num_attention_heads=2, num_key_value_heads=1, head_dim=32, vocab_size=320, draft_vocab_size=320,
    rms_norm_eps=1e-6, max_position_embeddings=512, rope_theta=10000.0)
E3 = replace(E1, algorithm="eagle3", draft_vocab_size=160, own_head=True, num_aux=3)


def of(spec, drop=(), add=(), layers=None, files=(), **config):
    """The verdicts on a compact folder of ``spec``, with names and config changed; None removes a config key."""
    names = set(tensor_shapes(spec)) - set(drop) | set(add)
    merged = {key: value for key, value in {**to_config(spec), **config}.items() if value is not None}
    return engines(spec, names, merged, files, layers)


def as_found(name):
    config, tensors = load(name)
    return engines(read(FIXTURES / name).draft(), tensors, config)


def test_facts_are_well_formed():
    assert {fact.engine for fact in FACTS} == ENGINES.keys()
    assert len({(fact.engine, fact.algorithm, fact.why) for fact in FACTS}) == len(FACTS)
    for fact in FACTS:
        assert fact.why
        assert fact.source
        assert fact.why[0].islower() or fact.why.startswith('"')


def test_the_plain_heads_run_where_they_are_known_to():
    e1, e3 = of(E1), of(E3)
    for engine in ("official", "vllm"):
        for verdict in (e1[engine], e3[engine]):
            assert (verdict["loads"], verdict["faithful"], verdict["why"]) == (True, True, [])
            assert verdict["evidence"] == "loaded"
    assert e1["llama.cpp"] == {"version": "pull request 18039, mid-2026", "loads": False, "faithful": False,
                               "why": ["it has no EAGLE-1/2 (pull request 13908, closed)"], "evidence": "reported"}
    assert e3["llama.cpp"]["faithful"]
    assert e3["tensorrt-llm"]["faithful"]


@pytest.mark.parametrize(("engine", "spec", "change", "loads", "word"), [
    # official code
    ("official", E1, {"bias": None}, True, "stays random"),
    ("official", replace(E1, fc_bias=True), {"bias": False}, True, "skip fc.bias"),
    ("official", replace(E1, fc_bias=True), {}, True, None),
    ("official", replace(E1, qkv_bias=True), {}, True, None),
    ("official", replace(E1, qkv_bias=True), {"qkv_bias": None}, True, "q/k/v biases"),
    ("official", replace(E1, rope_theta=5e6), {"rope_theta": None}, True, "rope_parameters"),
    ("official", replace(E1, rope_scaling={"rope_type": "llama3", "factor": 8}), {}, False, "two fields"),
    ("official", replace(E1, rope_scaling={"type": "linear", "factor": 2.0}), {}, True, None),
    ("official", replace(E1, rope_scaling={"type": "linear", "factor": 2.0}, rope_theta=5e5), {}, True, "base 10000"),
    ("official", replace(E1, head_dim=64), {}, False, "head width"),
    ("official", E1, {"num_hidden_layers": 40}, True, "further layers"),
    ("official", E1, {"files": ("a", "b")}, False, "no shards"),
    ("official", replace(E1, own_head=True), {}, True, "target's head"),
    ("official", replace(E1, draft_vocab_size=160), {}, True, "reduced vocabulary"),
    ("official", replace(E1, input_norm=True), {}, True, "input_layernorm"),
    ("official", E3, {"draft_vocab_size": None}, False, "draft_vocab_size"),
    ("official", E3, {"drop": ["midlayer.hidden_norm.weight"], "add": ["layers.0.hidden_norm.weight"]}, True, "random"),
    ("official", replace(E3, norm_before_residual=True), {}, True, "norm_before_residual"),
    ("official", replace(E3, norm_output=True), {}, True, "norm_output"),
    ("official", replace(E3, num_layers=2), {}, True, "one layer"),
    ("official", E3, {"target_hidden_size": 64}, True, "skip the target's embedding"),
    ("official", replace(E3, target_hidden_size=96, own_embedding=True), {}, True, None),
    ("official", replace(E3, target_hidden_size=96, own_embedding=True), {"target_hidden_size": None}, False, "sizes"),
    ("official", replace(E3, aux_layers=(2, 5, 6)), {"layers": 8}, True, "2, L // 2, L - 3"),
    ("official", replace(E3, aux_layers=(2, 4, 5)), {"layers": 8}, True, None),
    # vLLM
    ("vllm", replace(E1, fc_bias=True), {}, True, "fc.bias"),
    ("vllm", E1, {"add": ["lm_head.weight"]}, False, "lm_head.weight"),
    ("vllm", replace(E1, qk_norm=True), {}, False, "q_norm"),
    ("vllm", E1, {"add": ["norm.weight"]}, False, "refuses layers.0.input_layernorm"),
    ("vllm", E1, {"add": ["token_map"]}, False, "token_map"),
    ("vllm", E1, {"architectures": ["Qwen2ForCausalLM"]}, False, "LlamaForCausalLM"),
    ("vllm", E1, {"architectures": ["LlamaForCausalLMEagle"]}, False, "LlamaForCausalLM"),
    ("vllm", E1, {"architectures": None}, False, "architectures"),
    ("vllm", E1, {"bias": True}, True, "uninitialised"),
    ("vllm", replace(E1, qkv_bias=True), {}, True, None),
    ("vllm", replace(E1, qkv_bias=True), {"qkv_bias": None}, True, "q/k/v biases"),
    ("vllm", E1, {"add": ["model.fc.weight"]}, False, "model."),
    ("vllm", E3, {"num_hidden_layers": 40}, True, "uninitialised"),
    ("vllm", E3, {"draft_vocab_size": None}, False, "draft_vocab_size"),
    ("vllm", replace(E3, draft_vocab_size=320), {"add": ["d2t"]}, False, "d2t"),
    ("vllm", E3, {"architectures": ["LlamaEagle3DraftModel"]}, False, "not registered"),
    ("vllm", E3, {"architectures": ["Eagle3LlamaForCausalLM"]}, True, None),
    ("vllm", replace(E3, qkv_bias=True), {}, True, "o_proj bias"),
    ("vllm", replace(E3, qkv_bias=True, o_bias=True), {}, True, None),
    ("vllm", replace(E3, qk_norm=True), {}, True, None),
    ("vllm", replace(E3, qk_norm=True), {"architectures": ["LlamaForCausalLM"]}, False, "Qwen3ForCausalLM"),
    ("vllm", replace(E3, norm_before_fc=True), {"norm_before_fc": None}, True, "input_norm.weight"),
    ("vllm", replace(E3, aux_layers=(2, 5, 6)), {"eagle_aux_hidden_state_layer_ids": None}, True, "eagle_config"),
    ("vllm", replace(E3, norm_output=True), {"norm_output": None, "eagle_config": {"norm_output": True}}, True, "top"),
    # SGLang
    ("sglang", E1, {}, False, "LlamaForCausalLMEagle"),
    ("sglang", E1, {"architectures": ["LlamaForCausalLMEagle"]}, True, "always has a bias"),
    ("sglang", replace(E1, fc_bias=True), {"architectures": ["LlamaForCausalLMEagle"]}, True, None),
    ("sglang", replace(E1, fc_bias=True, own_embedding=True), {"architectures": ["LlamaForCausalLMEagle"]}, True,
     "embed_tokens"),
    ("sglang", E3, {"architectures": ["LlamaForCausalLMEagle3"]}, True, None),
    ("sglang", replace(E3, norm_before_residual=True), {"architectures": ["LlamaForCausalLMEagle3"]}, True,
     "norm_before_residual"),
    ("sglang", replace(E3, own_embedding=True), {"architectures": ["LlamaForCausalLMEagle3"]}, True, "embed_tokens"),
    ("sglang", E3, {"architectures": ["LlamaForCausalLMEagle3"], "tie_word_embeddings": True}, True, "tie_word"),
    # the others
    ("speculators", E1, {}, False, "removed"), ("speculators", E3, {}, False, "its own config"),
    ("tensorrt-llm", E1, {}, False, "fc.bias"), ("tensorrt-llm", replace(E1, fc_bias=True), {}, True, None),
    ("tensorrt-llm", replace(E3, norm_before_residual=True), {}, True, "norm_before_residual"),
    ("llama.cpp", replace(E3, norm_output=True), {}, False, "recycled"),
    ("llama.cpp", E3, {"num_hidden_layers": 40}, False, "num_hidden_layers"),
    ("llama.cpp", replace(E3, norm_before_residual=True), {}, True, None)])
def test_what_people_met(engine, spec, change, loads, word):
    verdict = of(spec, **change)[engine]
    assert verdict["loads"] == loads
    assert verdict["faithful"] == (word is None)
    if word is not None:
        assert any(word in why for why in verdict["why"]), verdict["why"]


def test_official_folders_as_people_hold_them():
    e1b, e3 = as_found("layouts/e1b-bin"), as_found("layouts/e3-bin")
    assert (e1b["official"]["faithful"], e1b["vllm"]["loads"], e1b["vllm"]["faithful"]) == (True, True, False)
    assert (e3["official"]["faithful"], e3["vllm"]["faithful"]) == (True, True)
    legacy = as_found("layouts/e1-legacy-vllm")
    assert not legacy["official"]["loads"]
    assert any("lm_head.weight" in why for why in legacy["vllm"]["why"])
    automodel = as_found("layouts/e3-automodel")
    assert not automodel["vllm"]["loads"]
    speculators = as_found("layouts/e3-speculators")
    assert (speculators["speculators"]["faithful"], speculators["vllm"]["faithful"]) == (True, True)
    assert not speculators["official"]["faithful"]
    nvidia = as_found("layouts/e3-nvidia")
    assert any("inside eagle_config" in why for why in nvidia["vllm"]["why"])


def test_the_evidence_is_the_weakest_that_decided():
    assert of(replace(E1, fc_bias=True))["vllm"]["evidence"] == "loaded"
    assert of(E1, architectures=["LlamaForCausalLMEagle"])["sglang"]["evidence"] == "reported"
    both = of(E1, add=["lm_head.weight"], bias=True)["vllm"]  # a stop that was loaded, a wrong that was read
    assert both["evidence"] == "loaded"


MORE = [
    *((replace(E3, **flags), change) for flags, change in (
        ({"has_fc": False, "num_aux": 0, "aux_layers": ()}, {}), ({"parallel": True}, {}), ({"num_aux": 5}, {}),
        ({"fc_bias": True}, {}), ({"attention_sinks": True}, {}), ({"qkv_bias": True}, {"attention_bias": None}),
        ({"own_head": False}, {}), ({"aux_layers": (2, 5, 6)}, {}), ({"aux_layers": (2, 5, 6)}, {"eagle_config": None}),
        ({"aux_layers": (2, 5, 6)}, {"layers": 8, "eagle_config": None}), ({"own_embedding": True}, {}),
        ({"num_layers": 2}, {"add": ["layers.1.hidden_norm.weight"]}), ({}, {"drop": ["d2t"]}),
        ({}, {"add": ["midlayer.0.hidden_norm.weight", "model.fc.weight"]}),
        ({"target_hidden_size": 96}, {"target_hidden_size": None}))),
    (E1, {"pad_token_id": 5000}),
    *((replace(E1, **flags), {}) for flags in (
        {"o_bias": True}, {"qk_norm": True}, {"draft_vocab_size": 160}, {"own_head": True}, {"output_norm": True},
        {"qkv_bias": True}))]


def test_every_fact_is_reachable():
    """The cases of this page and the bundled layouts together reach every fact of the table."""
    said = set()
    met = next(mark.args[1] for mark in test_what_people_met.pytestmark if mark.name == "parametrize")
    for spec, change in [*((row[1], row[2]) for row in met), *MORE]:
        said |= {(engine, why) for engine, verdict in of(spec, **change).items() for why in verdict["why"]}
    for folder in sorted((FIXTURES / "layouts").iterdir()):
        if (folder / "config.json").is_file() and "state" not in folder.name and read(folder).kind == "draft":
            verdicts = as_found(f"layouts/{folder.name}")
            said |= {(engine, why) for engine, verdict in verdicts.items() for why in verdict["why"]}
    table = {(fact.engine, f"{fact.why} ({fact.source})") for fact in FACTS}
    assert said == table
