"""The target of a check, loaded once for both sides."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from eagle_convert.errors import EngineError, UsageError
from eagle_convert.source import HubOptions, Source

from .runtime_errors import runtime_errors

if TYPE_CHECKING:
    import torch

    from eagle_runtime.target import Target


@dataclass
class Weights:
    """The target of a check. ``dtype`` None is the target's own (float32 on a CPU); ``device`` may be ``auto``."""

    source: Source
    hub: HubOptions
    dtype: str | None = None
    device: str = "auto"

    @cached_property
    def folder(self) -> Path:
        """The target's folder; a hub id is downloaded (or found in the cache) first."""
        from eagle_convert.hub.source import download

        local = download(self.source, self.hub).path
        assert local is not None, "what was downloaded is a folder"
        return local

    @cached_property
    def target(self) -> Target:
        """The target on its device. Raises EngineError where it cannot be loaded or does not fit."""
        from eagle_runtime.loader import load_target

        with runtime_errors():
            return load_target(self.folder, dtype=_dtype(self.dtype), device=pick_device(self.device))

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The target's stop tokens: those of its generation config, which knows a chat's end, else of its config."""
        file = self.folder / "generation_config.json"
        if file.is_file():
            try:
                eos = json.loads(file.read_text("utf-8")).get("eos_token_id")
            except (ValueError, AttributeError):
                eos = None
            ids = eos if isinstance(eos, list) else [eos]
            if ids and all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
                return tuple(sorted(set(ids)))
        return tuple(sorted(set(self.target.spec.eos_token_ids)))

    def check_ids(self, prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[int]], max_new_tokens: int) -> None:
        """Raises EngineError for ids that the target does not have, or a prompt too long for it; nothing is run."""
        spec = self.target.spec
        for number, prompt in enumerate(prompts):
            ids = (*prompt, *(texts[number] if texts else ()))
            wrong = next((i for i, token in enumerate(ids) if token >= spec.vocab_size), None)
            if wrong is not None:
                where = f"prompt {number}, token {wrong}: id {ids[wrong]}, vocabulary {spec.vocab_size}"
                raise EngineError("an id is not in the target's vocabulary", where=where,
                                  how="use the target that the ids were made for")
            if len(prompt) + max_new_tokens > spec.max_position_embeddings:
                raise EngineError("a prompt and its new tokens are longer than the target's limit",
                                  where=f"prompt {number}: {len(prompt)} + {max_new_tokens} tokens, the target ends at "
                                        f"{spec.max_position_embeddings}",
                                  how="shorten the prompt, or give a smaller --max-new-tokens")

    @property
    def dtype_name(self) -> str:
        return str(self.target.dtype).removeprefix("torch.")


def _dtype(name: str | None) -> torch.dtype | None:
    import torch

    return None if name is None else {"float32": torch.float32, "float16": torch.float16,
                                      "bfloat16": torch.bfloat16}[name]


def pick_device(word: str) -> str:
    """``auto`` is CUDA where torch sees a device. Raises UsageError for a device that is not there."""
    import torch

    if word == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if word.startswith("cuda"):
        count = torch.cuda.device_count()
        index = word.partition(":")[2] or "0"
        if not index.isdecimal() or int(index) >= count:
            raise UsageError("that device is not there", where=f"--device {word}: torch sees {count} CUDA devices",
                             how="see 'eagle-convert env'; or --device cpu")
    return word
