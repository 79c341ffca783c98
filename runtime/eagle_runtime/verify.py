"""Which drafts the target accepts: greedily, or by lossless sampling. Fixed shapes, no value seen by Python.

Sampling is the rule for *deterministic* proposals (SafeAILab/EAGLE ``utils.py: evaluate_posterior``): at an accepted
node with the target's distribution p, its children are tried in draft order; child x is accepted with probability p(x),
else p(x) is set to 0 and p renormalised. When no child is left, the bonus is drawn from what remains of p. The tokens
that come out are distributed as plain sampling from p would give them, whatever was drafted.

Shapes: B lanes, N nodes, V vocabulary, W = deepest path + 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .config import EagleRuntimeError, Sampling
from .tree import Tree


@dataclass
class Accepted:
    """What a verification decided.

    Attributes:
        count: [B] int64, accepted drafts.
        path: [B, W] int64, the accepted nodes by depth, the root first; beyond ``count`` the entries are valid node
            numbers and mean nothing.
        bonus: [B] int64, the token that the target says behind the last accepted node.
        agrees: [B, N] bool, whether a node's token is what the target says after the node's parent (greedy; the root
            counts as agreeing).
    """

    count: Tensor
    path: Tensor
    bonus: Tensor
    agrees: Tensor


def greedy(choice: Tensor, tree: Tree, width: int) -> Accepted:
    """Accept every node whose token, and whose ancestors' tokens, are the target's argmax.

    Args:
        choice: [B, N] int64, the target's argmax behind each node.
        tree: the drafts; siblings carry different tokens, so one path at most is accepted.
        width: W.
    """
    agrees = choice.gather(1, tree.parents) == tree.tokens
    agrees[:, 0] = True
    accepted = (tree.ancestors & ~agrees.unsqueeze(1)).any(2).logical_not_()
    count = accepted.sum(1) - 1
    # accepted nodes go to the place of their depth, all others to a place that is cut off
    place = tree.depths.masked_fill(~accepted, width)
    numbers = torch.arange(choice.shape[1], device=choice.device).expand_as(place)
    path = torch.zeros(choice.shape[0], width + 1, dtype=torch.int64, device=choice.device)
    path = path.scatter_(1, place, numbers)[:, :width]
    bonus = choice.gather(1, path.gather(1, count.unsqueeze(1))).squeeze(1)
    return Accepted(count, path, bonus, agrees)


def distribution(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits [B, V] -> float32 probabilities: temperature, then top-p, then top-k (the official order).

    Top-p keeps the most probable tokens until their sum reaches ``top_p``, always at least one.
    """
    logits = logits.float() / sampling.temperature
    if sampling.top_p < 1:
        ordered, order = logits.sort(-1, descending=True)
        p = ordered.softmax(-1)
        beyond = p.cumsum(-1) - p >= sampling.top_p
        beyond[:, 0] = False
        logits = logits.scatter(-1, order, ordered.masked_fill(beyond, float("-inf")))
    if 0 < sampling.top_k < logits.shape[-1]:
        values, ids = logits.topk(sampling.top_k, -1)
        logits = torch.full_like(logits, float("-inf")).scatter_(-1, ids, values)
    return logits.softmax(-1)


def draw(p: Tensor, uniform: Tensor) -> Tensor:
    """Draw from unnormalised p [B, V] by inverting its sum: ``uniform`` [B] in [0, 1) -> tokens [B] int64.

    Only tokens with p > 0 come out; where p is all zero, token V - 1 does.
    """
    total = p.double().cumsum(1)
    at = (uniform.double() * total[:, -1]).unsqueeze(1)
    # rounding may put `at` on the very end; the largest value below the end keeps the draw inside
    at = torch.minimum(at, torch.nextafter(total[:, -1:], torch.zeros_like(at)))
    return torch.searchsorted(total, at, right=True).clamp_(max=p.shape[1] - 1).squeeze(1)


def sample(logits: Tensor, tree: Tree, width: int, uniforms: Tensor, sampling: Sampling) -> Accepted:
    """Walk down the tree by the rule above.

    Args:
        logits: [B, N, V] the target's, behind each node.
        tree: the drafts; siblings carry different tokens.
        width: W.
        uniforms: [B, N + 1] in [0, 1): one for each node, and the last for the bonus.
    """
    lanes, nodes, vocab = logits.shape
    device = logits.device
    numbers = torch.arange(nodes, device=device).expand(lanes, nodes)
    current = torch.zeros(lanes, dtype=torch.int64, device=device)
    alive = torch.ones(lanes, dtype=torch.bool, device=device)
    count = torch.zeros(lanes, dtype=torch.int64, device=device)
    path = [current]
    for depth in range(width):
        at = current.view(lanes, 1, 1).expand(lanes, 1, vocab)
        p = distribution(logits.gather(1, at).squeeze(1), sampling)
        children = (tree.parents == current.unsqueeze(1)) & (numbers > 0)
        chance = p.gather(1, tree.tokens) * children
        if depth + 1 == width:
            break  # nodes this deep have no children; p and chance are theirs
        # what is left of p when a child's turn comes
        left = 1 - (chance.cumsum(1) - chance)
        taken = children & (uniforms[:, :nodes] * left < chance)
        alive = alive & taken.any(1)
        first = taken.to(torch.int8).argmax(1)  # the first of equal maxima
        current = torch.where(alive, first, current)
        count = count + alive
        path.append(current)
    # after its last turn a lane keeps its node, so p and chance of the last round are those of the node it stopped at
    rest = p.scatter_add(1, tree.tokens, -chance)
    rest = torch.where(rest.sum(1, keepdim=True) > 0, rest, p)  # all of p was refused by rounding alone
    bonus = draw(rest, uniforms[:, nodes])
    return Accepted(count, torch.stack(path, 1), bonus, torch.ones_like(children))


def check(sampling: Sampling) -> None:
    """Refuse settings that mean nothing."""
    for name, good, found in (("temperature", sampling.temperature >= 0, sampling.temperature),
                              ("top_p", 0 < sampling.top_p <= 1, sampling.top_p),
                              ("top_k", sampling.top_k >= 0, sampling.top_k)):
        if not good:
            raise EagleRuntimeError(f"{name} {found} means nothing", where=f"sampling {sampling}",
                                    how="temperature >= 0 (0 is greedy), 0 < top_p <= 1, top_k >= 0 (0 is off)")
