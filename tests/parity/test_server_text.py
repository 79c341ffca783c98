"""Server metrics texts: vLLM's two generations and SGLang, told apart by their metric names."""

from __future__ import annotations

import pytest

from eagle_convert.errors import BrokenFileError
from eagle_convert.parity.metrics_file import metrics_of_file

LABELS = 'engine="0",model_name="a \\"quoted\\" name"'
V1 = f"""# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{{{LABELS}}} 100.0
vllm:spec_decode_num_drafts_created{{{LABELS}}} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{{{LABELS}}} 300.0
vllm:spec_decode_num_accepted_tokens_total{{{LABELS}}} 128.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{{LABELS},position="0"}} 70.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{{LABELS},position="1"}} 37.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{{LABELS},position="2"}} 21.0
vllm:num_requests_running{{{LABELS}}} 0.0
"""
V0 = """vllm:spec_decode_draft_acceptance_rate{model_name="m"} 0.5
vllm:spec_decode_efficiency{model_name="m"} 0.4
vllm:spec_decode_num_accepted_tokens_total{model_name="m"} 2.0
vllm:spec_decode_num_draft_tokens_total{model_name="m"} 4
vllm:spec_decode_num_emitted_tokens_total{model_name="m"} 2.0 1700000000000
"""
SGLANG = 'sglang:spec_accept_length{model_name="m",tp_rank="0"} 2.39\nsglang:spec_accept_rate{model_name="m"} 0.35\n'


@pytest.fixture
def sheet_of(tmp_path):
    def read(text, **options):
        (tmp_path / "metrics.txt").write_text(text)
        return metrics_of_file(tmp_path / "metrics.txt", **options)
    return read


def test_vllm_v1(sheet_of):
    found = sheet_of(V1)
    assert (found.source, found.counts_kind, found.warnings) == ("vllm-v1", "v1", ())
    assert found.sheet.acceptance_length == pytest.approx(2.28)
    assert found.sheet.per_position == (0.70, 0.37, 0.21)


def test_vllm_v1_sums_its_engines(sheet_of):
    found = sheet_of(V1 + V1.replace('engine="0"', 'engine="1"'))
    assert found.sheet.counts.document() == {"k": 3, "steps": 200, "drafted": 600, "accepted": 256, "emitted": 456,
                                             "per_position": [140, 74, 42]}


def test_vllm_v1_as_the_offline_api_names_it(sheet_of):
    assert sheet_of(V1.replace("_total", "")).sheet.acceptance_length == pytest.approx(2.28)


def test_c112_vllm_06_finds_k_in_its_efficiency(sheet_of):
    found = sheet_of(V0)
    assert (found.source, found.counts_kind, found.sheet.counts.k) == ("vllm-v0", "v0", 4)
    assert (found.sheet.acceptance_length, found.sheet.match_rate, found.sheet.system_efficiency) == (2.0, 0.5, 0.4)
    assert found.gauges["vllm:spec_decode_efficiency"] == 0.4


def test_vllm_06_without_the_gauge_needs_k(sheet_of):
    text = V0.replace("vllm:spec_decode_efficiency", "vllm:something_else")
    found = sheet_of(text)
    assert found.sheet.acceptance_length is None
    assert "--draft-tokens" in found.warnings[0]
    assert sheet_of(text, draft_tokens=4).sheet.acceptance_length == 2.0


def test_an_efficiency_of_another_moment_gives_no_k(sheet_of):
    assert sheet_of(V0.replace("} 0.4", "} 0.37")).sheet.counts.k is None


def test_the_kind_may_be_said(sheet_of):
    assert sheet_of(V1.replace("128.0", "129.0").replace("_per_pos", "_other"), counts_kind="v0").counts_kind == "v0"


def test_sglang(sheet_of):
    found = sheet_of(SGLANG)
    assert (found.source, found.sheet.acceptance_length, found.sheet.acceptance_rate) == ("sglang", 2.39, 0.35)
    assert "decode-log interval" in found.warnings[0]


@pytest.mark.parametrize(("text", "says"), [
    ("vllm:num_requests_running 0\n", "none of vllm:spec_decode_num_drafts"),
    ("hello\n", "none of"),
    (V1 + V1.replace("quoted", "other"), "other"),
    (V1.replace("} 128.0", "} NaN"), "line 6"),
    (V1.replace("} 128.0", "}"), "line 6"),
    (V1.replace("} 128.0", "} 1.5"), "1.5"),
    (V1.replace(',position="1"', ""), "position"),
    (V1.replace("} 128.0", "} 127.0"), "sums to 128, accepted is 127"),
    (SGLANG + 'sglang:spec_accept_length{tp_rank="1"} 2.4\n', "2.39 and 2.4"),
    (SGLANG + V0, "vLLM and SGLang"),
])
def test_texts_that_do_not_say_it(sheet_of, text, says):
    with pytest.raises(BrokenFileError) as caught:
        sheet_of(text)
    assert says in caught.value.where


def test_no_steps_yet_is_said(sheet_of):
    import re

    found = sheet_of(re.sub(r"\} \d+\.0", "} 0.0", V1))
    assert found.sheet.acceptance_length is None
    assert "not one step counts" in found.warnings[0]
