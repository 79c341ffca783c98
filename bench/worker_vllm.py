"""``runtime.py``'s worker: vLLM on a CPU. Steps come from its own per-request metrics. It ignores ``fc.bias``, so it
accepts fewer drafts of an EAGLE-1 head that has one: compare its steps, not its tokens."""

from __future__ import annotations

import os

from worker import job, measure

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ["HF_HUB_OFFLINE"] = "1"


def main() -> None:
    work = job()
    import vllm

    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{work['threads'] - 1}")
    engine = vllm.LLM(
        model=work["target"], dtype="float32", max_model_len=1024, max_num_seqs=1, enforce_eager=work["eager"],
        per_request_spec_decode_metrics="detailed", seed=0,
        speculative_config={"method": work["method"], "model": work["head"],
                            "num_speculative_tokens": work["total_token"] - 1})
    settings = vllm.SamplingParams(temperature=0, max_tokens=work["max_new_tokens"], stop_token_ids=work["stop_ids"],
                                   ignore_eos=True)

    def generate(prompt: list[int]) -> tuple[int, int]:
        (request,) = engine.generate({"prompt_token_ids": prompt}, settings, use_tqdm=False)
        (out,) = request.outputs
        return sum(out.spec_decode_metrics.histogram), len(out.token_ids)

    measure(work, generate, version=vllm.__version__)


if __name__ == "__main__":  # vLLM starts processes that import this file
    main()
