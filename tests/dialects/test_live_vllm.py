"""Stock vLLM loads what is written for it, and accepts every draft of PLANT, as its construction says it must."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from eagle_convert.conversion import convert
from tests.dialects.checkpoints import FIXTURES

# Run by vLLM's interpreter: target, speculative config, prompts -> accepted drafts over steps, as its counters say.
WORKER = """
import json, sys
from vllm import LLM, SamplingParams
target, speculative, prompts = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
llm = LLM(model=target, skip_tokenizer_init=True, dtype="float32", enforce_eager=True, max_model_len=128,
          max_num_seqs=4, speculative_config=speculative, disable_log_stats=False)
llm.generate([{"prompt_token_ids": ids} for ids in prompts],
             SamplingParams(temperature=0, max_tokens=24, detokenize=False))
counters = {metric.name: getattr(metric, "value", None) for metric in llm.get_metrics()}
print("ANSWER", json.dumps([counters["vllm:spec_decode_num_accepted_tokens"], counters["vllm:spec_decode_num_drafts"]]))
"""


@pytest.mark.live
@pytest.mark.parametrize(("source", "layout", "method"), [
    ("plant/e1", "vllm", "eagle"), ("plant/e1", "compact", "eagle"), ("plant/e3", "vllm", "eagle3"),
    ("plant/e3", "compact", "eagle3"), ("plant/e3", "speculators", "eagle3"), ("layouts/e3-deep", "vllm", "eagle3"),
    ("layouts/e3-nvidia", "vllm", "eagle3"), ("layouts/e3-automodel", "vllm", "eagle3")])
def test_vllm_accepts_every_draft(tmp_path: Path, engine_python, source, layout, method):
    """Chain K = 4 on PLANT: every draft is accepted, whichever layout the head came from and went to."""
    target = FIXTURES / "plant/tgt"
    convert(str(FIXTURES / source), tmp_path / "draft", target=str(target), layout=layout)
    prompts = [json.loads(line)["prompt_ids"] for line in (FIXTURES / "plant/prompts.jsonl").read_text().splitlines()]
    speculative = {"method": method, "model": str(tmp_path / "draft"), "num_speculative_tokens": 4}
    ran = subprocess.run(
        [engine_python("vllm"), "-c", WORKER, target, json.dumps(speculative), json.dumps(prompts[:8])],
        capture_output=True, text=True, timeout=600, check=False,
        env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"})
    assert ran.returncode == 0, ran.stderr[-3000:]
    accepted, steps = json.loads(ran.stdout.split("ANSWER ")[1].splitlines()[0])
    assert steps > 0
    assert accepted == 4 * steps
