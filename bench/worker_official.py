"""``runtime.py``'s worker: the official implementation, from the checkout that ``repo`` names. Steps are counted by
wrapping its verification; nothing else of it is touched."""

from __future__ import annotations

import os
import sys

from worker import job, measure

os.environ["HF_HUB_OFFLINE"] = "1"


def main() -> None:
    work = job()
    sys.path.insert(0, work["repo"])
    import torch
    import transformers
    from eagle.model import ea_model

    torch.set_num_threads(work["threads"])
    plain, steps = ea_model.evaluate_posterior, []

    def counted(*args: object, **kwargs: object) -> object:
        steps.append(1)
        return plain(*args, **kwargs)

    ea_model.evaluate_posterior = counted
    model = ea_model.EaModel.from_pretrained(
        use_eagle3=work["method"] == "eagle3", base_model_path=work["target"], ea_model_path=work["head"],
        total_token=work["total_token"], depth=work["depth"], top_k=work["top_k"], torch_dtype=torch.float32,
        low_cpu_mem_usage=True)
    model.eval()

    def generate(prompt: list[int]) -> tuple[int, int]:
        steps.clear()
        out = model.eagenerate(torch.tensor([prompt]), temperature=0, max_new_tokens=work["max_new_tokens"],
                               max_length=1024)
        return len(steps), out.shape[1] - len(prompt)

    measure(work, generate, version=f"torch {torch.__version__}, transformers {transformers.__version__}")


main()
