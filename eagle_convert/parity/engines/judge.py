"""Tokens under the target: one pass over prompt and output, without a cache, says what it would have put at each place.

The logits of the last place tell whether a text that is shorter than asked for was right to end there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from eagle_convert.parity.lossless import Judged
from eagle_convert.parity.trace import Trace

from .runtime_errors import runtime_errors

if TYPE_CHECKING:
    from torch import Tensor

    from eagle_runtime.target import Target


def judged_rows(target: Target, trace: Trace, progress: Callable[[str], None]) -> list[list[Judged]]:
    """Every output token of a trace, judged. Raises EngineError where the target's states are not finite."""
    import torch

    from eagle_runtime.target import check_finite

    settings, rows = trace.settings, []
    for number, row in enumerate(trace.prompts):
        progress(f"target: prompt {number + 1} of {len(trace.prompts)}")
        ids = torch.tensor([*row.prompt_ids, *row.output_ids], device=target.device)
        with torch.no_grad(), runtime_errors():
            hidden = target.forward_full(ids).hidden[len(row.prompt_ids) - 1:]
            logits = target.head(hidden).float()
            if not bool(torch.isfinite(logits).all()):
                check_finite(target, ids)
        top, says = logits.max(-1)
        given = logits[:-1].gather(1, ids[len(row.prompt_ids):, None])[:, 0]
        rows.append(judged(row.output_ids, says, top, given, logits[-1], settings.max_new_tokens,
                           settings.eos_token_ids))
    return rows


def judged(output: Sequence[int], says: Tensor, top: Tensor, given: Tensor, last: Tensor, max_new_tokens: int,
           stop_ids: Sequence[int]) -> list[Judged]:
    """One text.

    Args:
        output: y, m tokens.
        says, top: [m+1] the target's choice and its logit before y_0 .. y_m.
        given: [m] the logit of each y_j.
        last: [V] all logits behind the text: a text that ends before ``max_new_tokens`` without a stop token is right
            only if the target says one there.
    """
    columns = (says.tolist(), top.tolist(), given.tolist())
    row = [Judged(token, argmax, best, chosen) for token, argmax, best, chosen in zip(output, *columns, strict=False)]
    if len(output) < max_new_tokens and not set(stop_ids) & set(output) and columns[0][-1] not in stop_ids:
        end = float(last[list(stop_ids)].max()) if stop_ids else float("-inf")
        row.append(Judged(-1, columns[0][-1], columns[1][-1], end))
    return row
