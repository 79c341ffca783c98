"""``runtime.py``'s worker: transformers' plain greedy ``generate`` with the target alone; a step is a token."""

from __future__ import annotations

from worker import job, measure


def main() -> None:
    work = job()
    import torch
    import transformers

    torch.set_num_threads(work["threads"])
    model = transformers.AutoModelForCausalLM.from_pretrained(work["target"], dtype=torch.float32,
                                                              local_files_only=True).eval()

    @torch.no_grad()
    def generate(prompt: list[int]) -> tuple[int, int]:
        ids = torch.tensor([prompt])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=0,
                             max_new_tokens=work["max_new_tokens"], eos_token_id=work["stop_ids"])
        n = out.shape[1] - len(prompt)
        return n, n

    measure(work, generate, version=f"torch {torch.__version__}, transformers {transformers.__version__}")


main()
