"""The step's state: every tensor that outlives a stage, allocated once, lanes first.

B lanes, N tree nodes (root included), W = deepest path + 1, F width of what the draft reads of the target.
A committed position t of a lane has its target KV at slot t; the draft's pair at position t is (target state of t,
token t + 1). ``length`` counts committed positions, so the root, the last token known, stands at position ``length``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from .tree import Grower, Tree


@dataclass
class Buffers:
    """All of it; ``narrow`` gives the first lanes as buffers of their own over the same storages.

    Attributes:
        length: [B] int64, committed positions (at least 1).
        count: [B] int64, how many of ``pending_*`` are real: the pairs at positions length - count .. length - 1,
            which the draft has not seen yet. 1 after a prefill, else what the last step accepted, plus 1.
        active: [B] int64, 1 where the lane works on a prompt; an idle one goes through the motions but does not
            advance.
        pending_ids: [B, W] int64, the tokens of those pairs; junk beyond ``count``.
        pending_states: [B, W, F], the target states of those pairs; finite junk beyond.
        tree: the drafts; ``tree.tokens[:, 0]`` is the root.
        states: [B, N, F], the target states of the tree's nodes.
        choice: [B, N] int64, the target's argmax behind each node (greedy).
        logits: [B, N, V] the target's logits behind each node; V is 0 when greedy.
        uniforms: [B, N + 1] float32 in [0, 1), the randomness of one step; N + 1 is 0 when greedy.
        bad: [B, 2] int64, 1 where a state was not finite: the target's, the draft's.
        result: [B, 4 + W + N] int64, what the host reads: root, accepted, bad target, bad draft, the W tokens behind
            the root (accepted drafts, bonus, junk), and for each node whether it agrees with the target.
    """

    length: Tensor
    count: Tensor
    active: Tensor
    pending_ids: Tensor
    pending_states: Tensor
    tree: Tree
    states: Tensor
    choice: Tensor
    logits: Tensor
    uniforms: Tensor
    bad: Tensor
    result: Tensor

    @classmethod
    def allocate(cls, lanes: int, plan: Grower, state_width: int, vocab: int, *, greedy: bool, dtype: torch.dtype,
                 device: torch.device) -> Buffers:
        n, w = plan.nodes, plan.deepest + 1

        def ints(*shape: int) -> Tensor:
            return torch.zeros(lanes, *shape, dtype=torch.int64, device=device)

        def floats(*shape: int) -> Tensor:
            return torch.zeros(lanes, *shape, dtype=dtype, device=device)

        return cls(ints() + 1, ints() + 1, ints(), ints(w), floats(w, state_width), plan.allocate(lanes, device),
                   floats(n, state_width), ints(n), floats(n, 0 if greedy else vocab),
                   torch.zeros(lanes, 0 if greedy else n + 1, device=device), ints(2), ints(4 + w + n))

    def narrow(self, lanes: int) -> Buffers:
        """The first ``lanes`` lanes."""
        parts: dict[str, Any] = {name: part.narrow(lanes) if isinstance(part, Tree) else part[:lanes]
                                 for name, part in self._parts()}
        return Buffers(**parts)

    def copy_lane(self, src: int, dst: int) -> None:
        """Make lane ``dst`` the same as lane ``src``."""
        for tensor in self.tensors().values():
            tensor[dst].copy_(tensor[src])

    def idle(self, lane: int) -> None:
        """Take a lane out of work; what it computes from now on stays inside its own rows."""
        self.active[lane].fill_(0)
        self.length[lane].fill_(1)
        self.count[lane].fill_(1)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by name, the tree's as ``tree.tokens`` and so on."""
        flat: dict[str, Tensor] = {}
        for name, part in self._parts():
            if isinstance(part, Tree):
                flat |= {f"{name}.{f.name}": getattr(part, f.name) for f in fields(part)}
            else:
                flat[name] = part
        return flat

    def _parts(self) -> list[tuple[str, Tensor | Tree]]:
        return [(f.name, getattr(self, f.name)) for f in fields(self)]
