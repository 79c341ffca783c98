"""A prompt into one lane's caches: the target over all of it, the draft over every pair whose token is known."""

from __future__ import annotations

import torch
from torch import Tensor

from .draft import Draft
from .kv_cache import KVCache
from .target import Target

#: Prompt tokens a pass; bounds the mask and the activations of long prompts.
CHUNK = 512


def prefill(target: Target, draft: Draft, prompt: list[int], target_cache: KVCache, draft_cache: KVCache, *,
            token_shift: bool = False) -> tuple[Tensor, Tensor]:
    """Fill slots 0 .. L-1 of the target's cache and 0 .. L-2 of the draft's (caches of one lane).

    The draft's pair at position t is (target state of t, token t + 1); that of the last position waits for y0.

    Args:
        token_shift: the fault of that name: pairs carry token t.

    Returns:
        the draft's input state of the last position [1, F], and the target's logits behind it [1, V].
    """
    device, length = target.device, len(prompt)
    ids = torch.tensor([prompt], dtype=torch.int64, device=device)
    at = torch.arange(length, device=device).unsqueeze(0)
    for start in range(0, length, CHUNK):
        stop = min(start + CHUNK, length)
        here = at[:, start:stop]
        mask = torch.zeros(1, stop - start, stop, dtype=target.dtype, device=device)
        mask.masked_fill_(at[:, None, :stop] > here.unsqueeze(2), float("-inf"))
        hidden, taps = target.forward(ids[:, start:stop], here, target_cache, here, mask, draft.taps)
        states = hidden if taps is None else taps
        known = min(stop, length - 1) - start  # pairs whose token is in the prompt
        if known:
            first = start if token_shift else start + 1
            draft.forward(ids[:, first:first + known], draft.fuse(states[:, :known]), here[:, :known], draft_cache,
                          here[:, :known], mask[:, :known, :start + known])
    return states[:, -1], target.head(hidden[:, -1])
