"""The oracle: what a draft would propose at every root of a known text, and how much of it is right.

*Teacher-forced*: at temperature 0 the verified path is the target's own text y, so one target pass over prompt + y
gives every state that drafting ever reads. From a root r the committed positions 0 .. n+r-1 carry true states
(``forced.py``); guesses are appended behind them (``growth.py``) and computed without a cache that could go stale
(``plain_draft.py``).

n: tokens of the prompt; m: tokens of the output y; token y_j sits at position n + j.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .config import TreeShape
from .forced import Forced, Stale
from .growth import Drafted
from .kv_cache import KVCache
from .plain_draft import PlainDraft
from .records import Generation, Step, truncated
from .target import FullPass, Target, check_finite
from .views import DraftView


@dataclass(frozen=True)
class States:
    """One target pass over prompt + output.

    Attributes:
        ids: [n+m] prompt and output.
        prompt: n.
        full: the states of every position, and the boundaries any known draft or fault reads.
        says: [m+1] the target's choice for y_0 .. y_m, given what comes before.
        top: [m+1,2] its two best logits there, float32.
        given: [m] the logit of the y_j that stands there.
    """

    ids: Tensor
    prompt: int
    full: FullPass
    says: Tensor
    top: Tensor
    given: Tensor

    @property
    def margin(self) -> Tensor:
        """[m+1] top-2 margin of each choice."""
        return self.top[:, 0] - self.top[:, 1]


@dataclass(frozen=True)
class ReferenceStep(Step):
    """A step, with what it was decided by.

    Attributes:
        root: r.
        drafts: target ids of the proposed nodes, in the official order.
        parents: for each its parent's number among them, -1 for the root.
        margin: the smallest distance (logits, or sums of log-probabilities) by which a node of y's path was in or out.
            An implementation that differs in this step is excused by nothing but a margin near 0.
    """

    root: int
    drafts: list[int]
    parents: list[int]
    margin: float


class Reference:
    """The oracle for one draft on one target, at temperature 0.

    Args:
        target, view: the pair.
        faults: known faults to show (``faults.py``).
    """

    def __init__(self, target: Target, view: DraftView, faults: Iterable[str] = ()) -> None:
        self.target = target
        with torch.no_grad():
            self.draft = PlainDraft(target, view, frozenset(faults))
        layers = target.spec.num_layers
        taps = view.spec.boundaries(layers) if view.spec.num_aux else ()
        self.keep = {b for t in (*taps, layers) for b in (t, t + 1) if b <= layers}

    @torch.no_grad()
    def states(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> States:
        """One pass of the target over prompt and output. Raises for non-finite states, naming the layer."""
        n, ids = len(prompt_ids), torch.tensor([*prompt_ids, *output_ids], device=self.target.device)
        full = self.target.forward_full(ids, self.keep)
        logits = self.target.head(full.hidden[n - 1:]).float()
        if not bool(torch.isfinite(logits).all()):
            check_finite(self.target, ids)
        top = logits.topk(2, -1)
        given = logits[:-1].gather(1, ids[n:, None])[:, 0]
        return States(ids, n, full, top.indices[:, 0], top.values, given)

    @torch.no_grad()
    def greedy(self, prompt_ids: Sequence[int], max_new_tokens: int, stop_ids: Collection[int] = (),
               beyond: int = 0) -> list[int]:
        """The target's own text: ``max_new_tokens`` tokens, or up to a stop token, and ``beyond`` more."""
        target, n = self.target, len(prompt_ids)
        spec, room = target.spec, n + max_new_tokens + beyond
        cache = KVCache(spec.num_layers, 1, spec.num_key_value_heads, room, spec.head_dim, dtype=target.dtype,
                        device=target.device)
        ids, done, out = torch.tensor([list(prompt_ids)], device=target.device), 0, []
        left = max_new_tokens + beyond
        while left > 0:
            at = torch.arange(done, done + ids.shape[1], device=target.device)[None]
            mask = torch.arange(done + ids.shape[1], device=target.device) <= at[..., None]
            hidden, _ = target.forward(ids, at, cache, at, mask)
            done += ids.shape[1]
            ids = target.head(hidden[:, -1:]).argmax(-1)
            out.append(int(ids))
            left = min(left - 1, beyond) if out[-1] in stop_ids and left > beyond else left - 1
        return out

    def trace(self, prompt_ids: Sequence[int], output_ids: Sequence[int], shape: TreeShape, max_new_tokens: int,
              stop_ids: Collection[int] = ()) -> list[ReferenceStep]:
        """The steps this draft takes through ``output_ids``; see :meth:`steps`."""
        return self.steps(self.states(prompt_ids, output_ids), shape, max_new_tokens, stop_ids)

    def run(self, prompt_ids: Sequence[int], shape: TreeShape, max_new_tokens: int,
            stop_ids: Collection[int] = ()) -> Generation:
        """Generate with the target alone and count the steps that this draft would have taken."""
        text = self.greedy(prompt_ids, max_new_tokens, stop_ids, beyond=shape.deepest)
        steps = self.trace(prompt_ids, text, shape, max_new_tokens, stop_ids)
        return Generation(list(prompt_ids), text[:sum(step.emitted for step in steps)], list(steps))

    @torch.no_grad()
    def steps(self, states: States, shape: TreeShape, max_new_tokens: int,
              stop_ids: Collection[int] = ()) -> list[ReferenceStep]:
        """Walk from root to root through the output, drafting at each.

        The walk ends when the next root's index reaches ``max_new_tokens`` or the end of the output, or when a stop
        token is among the tokens out (contract, section 3). Behind the output's last token the target's own choice
        counts as known.
        """
        known = [*states.ids[states.prompt:].tolist(), int(states.says[-1])]
        end = min(max_new_tokens, len(known) - 1)
        walk = Stale if "stale-kv" in self.draft.faults else Forced
        walker = walk(self.draft, states.full, states.ids, states.prompt)
        out: list[ReferenceStep] = []
        root = 0
        drafted: dict[int, Drafted] = {}
        while root < end:
            if root not in drafted:
                drafted = walker.draft_from(range(root, min(root + walker.ahead(shape), end)), known, shape)
            here = drafted[root]
            accepted, margin, path = here.against(known[root + 1:])
            tokens, parents = here.nodes()
            late = truncated(root, accepted, shape.deepest, known, max_new_tokens, stop_ids)
            out.append(ReferenceStep(len(tokens), accepted, accepted + 1, None, late, root, tokens, parents, margin))
            if any(token in stop_ids for token in known[root:root + accepted + 1]):
                break
            walker.accept(root, accepted, path)
            root += accepted + 1
        return out
