"""``runtime_gpu.py``'s worker: the official implementation on the same PLANT weights, made in memory on the device.

Its classes are built as ``EaModel.from_pretrained`` builds them, but for the files: no tokenizer, and the embedding
from the weights at hand. Steps are counted by wrapping its verification.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from worker import job, measure

os.environ["HF_HUB_OFFLINE"] = "1"
ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    work = job()
    sys.path[:0] = [work["repo"], str(ROOT / "runtime")]
    import torch
    import transformers
    from eagle.model import ea_model
    from plant_weights import Plant, specs

    device, dtype = torch.device(work["device"]), getattr(torch, work["dtype"])
    spec, _ = specs(work["tiny"])
    weights = Plant(spec, device, dtype)
    sizes: dict[str, Any] = {
        "vocab_size": spec.vocab_size, "hidden_size": spec.hidden_size, "intermediate_size": spec.intermediate_size,
        "num_attention_heads": spec.num_attention_heads, "num_key_value_heads": spec.num_key_value_heads,
        "rms_norm_eps": spec.rms_norm_eps, "max_position_embeddings": spec.max_position_embeddings,
        "rope_theta": spec.rope_theta, "hidden_act": "silu", "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    torch.set_default_dtype(dtype)
    with torch.device(device), torch.no_grad():
        base = ea_model.KVLlamaForCausalLM(
            transformers.LlamaConfig(num_hidden_layers=spec.num_layers, attn_implementation="eager", **sizes))
        for name, parameter in base.named_parameters():
            parameter.copy_(weights.target(name.removeprefix("model.")))
        head = {name: weights.draft(name) for name in
                ("fc.weight", "layers.0.post_attention_layernorm.weight",
                 *(f"layers.0.{part}_proj.weight" for part in (
                     "self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down")))}
        head["embed_tokens.weight"] = weights.target("embed_tokens.weight")
    plain_model, plain_posterior, steps = ea_model.Model1, ea_model.evaluate_posterior, []

    def without_files(*args: Any, **kwargs: Any) -> Any:
        return plain_model(*args, **{**kwargs, "load_emb": False})

    def counted(*args: Any, **kwargs: Any) -> Any:
        steps.append(1)
        return plain_posterior(*args, **kwargs)

    ea_model.Model1, ea_model.evaluate_posterior = without_files, counted
    ea_model.AutoTokenizer = SimpleNamespace(
        from_pretrained=lambda *args, **kwargs: SimpleNamespace(eos_token_id=2))
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps({**sizes, "num_hidden_layers": 1, "bias": False}))
        with torch.device(device):
            model = ea_model.EaModel(False, base, "", str(config), work["total_token"], work["depth"], work["top_k"],
                                     1.0, head)
    torch.set_default_dtype(torch.float32)
    model.eval()

    def generate(prompt: list[int]) -> tuple[int, int]:
        steps.clear()
        out = model.eagenerate(torch.tensor([prompt], device=device), temperature=0,
                               max_new_tokens=work["max_new_tokens"], max_length=2048)
        return len(steps), out.shape[1] - len(prompt)

    measure(work, generate, version=f"torch {torch.__version__}, transformers {transformers.__version__}")


main()
