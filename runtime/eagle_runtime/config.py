"""The records that cross every layer: what a draft is, what a target is, what shape is drafted. Standard library only.

:class:`DraftSpec` is the one description of a draft, used by both packages. It states the *function*: every flag
changes the numbers that come out, and nothing in it is a guess.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Algorithm = Literal["eagle", "eagle3"]


class EagleRuntimeError(Exception):
    """An error a user can meet: what happened, where (found against expected), how to go on.

    ``eagle_convert`` turns it into its own error type; the fields are the same.
    """

    def __init__(self, what: str, *, where: str = "", how: str = "") -> None:
        super().__init__(what)
        self.what, self.where, self.how = what, where, how

    def __str__(self) -> str:
        return "\n".join(part for part in (self.what, self.where and f"where: {self.where}",
                                           self.how and f"how: {self.how}") if part)


@dataclass(frozen=True)
class DraftSpec:
    """One EAGLE draft, completely. Sizes are counts of elements; aux layers are *boundaries*.

    "Boundary i" is the residual stream after i decoder layers (0 = embedding output). An EAGLE-1/2 draft
    (``algorithm="eagle"``) reads the target's state after its final norm; an EAGLE-3 draft reads ``aux_layers``.
    """

    algorithm: Algorithm
    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int  # the target's, rows of the embedding
    draft_vocab_size: int  # rows of the head that drafts
    rms_norm_eps: float
    max_position_embeddings: int | None = None
    rope_theta: float | None = None  # as stated; None means the source states none, and consumers use 10000
    rope_scaling: Mapping[str, Any] | None = None  # the block as stated, keys untouched
    hidden_act: str = "silu"
    # which optional tensors the function has
    own_embedding: bool = False  # else the target's table
    own_head: bool = False  # else the target's head (rows picked by d2t where the vocabulary is reduced)
    has_fc: bool = True
    fc_bias: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    # EAGLE-1/2 variants; plain official heads have none of them
    embed_norm: bool = False  # enorm on e before fc
    hidden_norm: bool = False  # hnorm on h before fc
    input_norm: bool = False  # layer-0 input norm applied
    output_norm: bool = False  # final norm applied before the head
    # EAGLE-3 variants
    norm_before_residual: bool = False  # residual is RMS_hidden(g) instead of g
    norm_before_fc: bool = False  # one norm over the concatenated taps
    fc_norm: bool = False  # one norm a tap
    norm_output: bool = False  # the recycled state is the normed one (both algorithms)
    num_aux: int = 0  # 0 for EAGLE-1/2
    aux_layers: tuple[int, ...] | None = None  # boundaries; None: the defaults (2, L // 2, L - 3)
    # described, refused by name where an engine does not run them
    tie_word_embeddings: bool = False
    parallel: bool = False  # mask_hidden present (P-EAGLE)
    mask_token_id: int | None = None
    sliding_window: int | None = None
    layer_types: tuple[str, ...] | None = None
    logit_scale: float | None = None
    attention_sinks: bool = False

    @property
    def reduced_vocabulary(self) -> bool:
        return self.draft_vocab_size != self.vocab_size

    def boundaries(self, num_target_layers: int) -> tuple[int, ...]:
        """The target boundaries this draft reads; empty for EAGLE-1/2. Default: SafeAILab/EAGLE (2, L//2, L-3)."""
        if self.algorithm == "eagle":
            return ()
        if self.aux_layers is not None:
            return self.aux_layers
        return (2, num_target_layers // 2, num_target_layers - 3)


@dataclass(frozen=True)
class TargetSpec:
    """A decoder-only target as its config states it; families that ``target.py`` runs itself."""

    model_type: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    max_position_embeddings: int
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, Any] | None = None
    hidden_act: str = "silu"
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    num_experts: int = 0
    experts_per_token: int = 0
    dtype: str = "float32"
    eos_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class TreeShape:
    """What one step drafts: a dynamic tree (EAGLE-2), a chain (top-k 1), or a static list of paths (EAGLE-1).

    ``total_token, depth, top_k`` are the official names (SafeAILab/EAGLE ``ea_model.py``): ``total_token`` counts the
    root, paths reach ``depth + 1`` drafts. ``choices`` is a static tree in EAGLE-1's notation: each path is a tuple of
    candidate ranks, prefix-closed.
    """

    total_token: int = 0
    depth: int = 0
    top_k: int = 0
    choices: tuple[tuple[int, ...], ...] | None = None

    @classmethod
    def chain(cls, k: int) -> TreeShape:
        """A chain of ``k`` drafts: the tree (k+1, k-1, 1)."""
        if k < 1:
            raise EagleRuntimeError(f"a chain of {k} drafts drafts nothing", where=f"K = {k}, expected at least 1",
                                    how="give K >= 1 (--draft-tokens 4)")
        return cls(k + 1, k - 1, 1)

    @classmethod
    def dynamic(cls, total_token: int = 60, depth: int = 7, top_k: int = 10) -> TreeShape:
        """The dynamic tree of EAGLE-2 with the official defaults 60, 7, 10."""
        room = top_k + depth * top_k * top_k
        if total_token < 2 or depth < 0 or top_k < 1 or total_token - 1 > room:
            raise EagleRuntimeError(
                "this tree cannot be grown", where=f"nodes {total_token}, depth {depth}, top-k {top_k}: "
                f"{total_token - 1} drafts wanted, {max(room, 0)} candidates exist",
                how="nodes counts the root; the official default is 60,7,10")
        return cls(total_token, depth, top_k)

    @classmethod
    def static(cls, choices: Sequence[Sequence[int]]) -> TreeShape:
        """A static tree. Every prefix of a path must be a path, ranks are >= 0, no path twice."""
        if not all(isinstance(p, (list, tuple)) and all(type(r) is int for r in p) for p in choices):
            raise EagleRuntimeError(
                "a tree list is a list of lists of ranks", where=f"tree list {str(choices)[:60]}",
                how="such as [[0], [1], [0, 0]]; eagle_runtime.choices.CHOICES holds those with a name")
        paths = tuple(sorted((tuple(p) for p in choices), key=lambda p: (len(p), p)))
        known = set(paths)
        if not paths:
            raise EagleRuntimeError("the tree list is empty", how="give at least one path, such as [[0]]")
        if len(known) != len(paths):
            twice = next(p for p in paths if paths.count(p) > 1)
            raise EagleRuntimeError("a path stands twice in the tree list", where=f"path {list(twice)}",
                                    how="remove the second one")
        for p in paths:
            if not p or min(p) < 0:
                raise EagleRuntimeError("a path of the tree list is not one", where=f"path {list(p)}",
                                        how="a path is a non-empty list of candidate ranks >= 0")
            if len(p) > 1 and p[:-1] not in known:
                raise EagleRuntimeError("the tree list is not prefix-closed",
                                        where=f"path {list(p)} is there, its parent {list(p[:-1])} is not",
                                        how="add the parent path")
        return cls(len(paths) + 1, max(map(len, paths)) - 1, max(r for p in paths for r in p) + 1, paths)

    @property
    def is_chain(self) -> bool:
        return self.choices is None and self.top_k == 1

    @property
    def drafts(self) -> int:
        """Draft nodes a step: K for a chain."""
        return self.total_token - 1

    @property
    def deepest(self) -> int:
        """k: the deepest path in drafts."""
        return self.drafts if self.is_chain else self.depth + 1


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. Temperature 0 is greedy; ``top_k`` 0 and ``top_p`` 1 are off."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


@dataclass(frozen=True)
class RunnerStats:
    """What a run says of its runner (contract: parity/1 ``candidate.runner``)."""

    name: str
    graphs_captured: int = 0
    replays: int = 0
    host_syncs: int = 0
    device: str = "cpu"
    notes: tuple[str, ...] = field(default=())
