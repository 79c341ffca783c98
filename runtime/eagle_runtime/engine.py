"""``SpeculativeEngine``: prompts in, tokens and steps out. Lanes, buckets, stop rules and accounting; no arithmetic.

    target = load_target("SmolLM2-135M-Instruct")
    engine = SpeculativeEngine(target, load_draft("compact-head", target), TreeShape.chain(4))
    generation, = engine.generate([[1, 4093, 198]], max_new_tokens=64)

Counting is that of ``docs/metrics.md``: y0 belongs to no step; a step verifies its root and the drafts behind it,
accepts ``a`` of them and emits ``a + 1``; the next root is the bonus.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import torch

from . import verify
from .buffers import Buffers
from .config import EagleRuntimeError, RunnerStats, Sampling, TreeShape
from .draft import Draft
from .guard import Syncs
from .kv_cache import KVCache
from .pipeline import Pipeline, Ticket, Timings
from .prefill import prefill
from .records import Generation, Step, truncated
from .runners import Runner, make_runner
from .step import Stages, reach
from .target import Target, check_finite, short
from .tree import grower

#: KV buckets: the visible slots of a step are this times a power of two; eight sizes an octave where a stage needs no
#: preparation.
SMALLEST_BUCKET = 64


class Tokenizer(Protocol):
    """What :meth:`SpeculativeEngine.generate` needs to take text (a transformers tokenizer is one)."""

    def encode(self, text: str) -> list[int]: ...


@dataclass(frozen=True)
class EngineStep(Step):
    """A step with its tokens.

    ``matches`` is known for greedy chains: whether each draft equals the target's choice behind the drafts before it,
    also after the first refusal.

    Attributes:
        tokens: the root and the accepted drafts; put end to end they are the output.
    """

    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Output(Generation):
    """A prompt's run.

    Attributes:
        text_ids: ``output_ids`` cut at ``max_new_tokens`` and behind the first stop token; the run itself may reach
            beyond both by what its last step accepted.
    """

    text_ids: list[int]


@dataclass
class _Work:
    """A prompt in a lane."""

    number: int
    prompt: list[int]
    generator: torch.Generator | None
    output: list[int] = field(default_factory=list)
    steps: list[EngineStep] = field(default_factory=list)
    under_way: int = 0
    done: bool = False


class SpeculativeEngine:
    """Generates with a draft and its target.

    Args:
        target, draft: from ``load_target`` and ``load_draft``.
        shape: what a step drafts.
        sampling: greedy unless a temperature is given.
        runner: ``auto``, ``eager``, ``compiled`` or ``graph``; or a :class:`~eagle_runtime.runners.Runner`.
        lanes: prompts worked on at a time.
        debug: assert in every replay that no buffer has moved.
        faults: engine faults to show (``stale-kv``, chains only; ``token-shift``), beside those of the draft.
        pipelined: read a step's result while the next is under way. Default: on CUDA only, where it costs nothing.
        tokenizer: for prompts given as text.

    One call at a time: an engine owns one set of buffers.
    """

    def __init__(self, target: Target, draft: Draft, shape: TreeShape | None = None, *,
                 sampling: Sampling | None = None, runner: str | Runner = "auto", lanes: int = 1, debug: bool = False,
                 faults: frozenset[str] = frozenset(), pipelined: bool | None = None,
                 tokenizer: Tokenizer | None = None) -> None:
        self.target, self.draft, self.tokenizer = target, draft, tokenizer
        self.shape, self.sampling = shape or TreeShape.chain(4), sampling or Sampling()
        self.lanes = lanes
        if lanes < 1:
            raise EagleRuntimeError(f"{lanes} lanes hold no prompt", where=f"lanes {lanes}", how="give lanes >= 1")
        verify.check(self.sampling)
        if draft.target is not target:
            raise EagleRuntimeError(
                "the draft was loaded on another target", where=", ".join(
                    f"{whose} target: {t.spec.model_type}, width {t.spec.hidden_size}, {short(t.dtype)}"
                    for whose, t in (("the draft's", draft.target), ("the engine's", target))),
                how="give load_draft the same target object as the engine")
        self._faults = faults | draft.faults
        if "stale-kv" in self._faults and not self.shape.is_chain:
            raise EagleRuntimeError("the runtime shows stale-kv on chains only", where=f"shape {self.shape}",
                                    how="use a chain, or --engine reference, which shows it on trees too")
        device = target.device
        self.runner = make_runner(runner, device, debug=debug) if isinstance(runner, str) else runner
        self._plan = grower(self.shape, draft.spec.draft_vocab_size, target.dtype, device)
        self._verifier = target.for_rows(lanes * self._plan.nodes)
        self._drafter = draft.for_rows(lanes * max(self._plan.passes, default=1))
        self._width = self._plan.deepest + 1
        states = len(draft.taps) * target.spec.hidden_size or target.spec.hidden_size
        self._buffers = Buffers.allocate(lanes, self._plan, states, target.spec.vocab_size,
                                         greedy=self.sampling.greedy, dtype=target.dtype, device=device)
        self._pipeline = Pipeline((lanes, self._buffers.result.shape[1]), device,
                                  int(device.type == "cuda" if pipelined is None else pipelined))
        self._caches: tuple[KVCache, KVCache] | None = None
        self._ready: dict[tuple[int, int], tuple[Stages, list[Callable[[], None]]]] = {}
        self._audited: set[int] = set()
        self._warm: set[tuple[int, int]] = set()  # whose wrapped stages have run
        self._syncs: list[str] = []
        self._busy = False
        self.timings = Timings()

    @property
    def stats(self) -> RunnerStats:
        """Of the runner. ``host_syncs`` counts the synchronising operations of steps run eagerly and watched: the first
        of each number of lanes, before it is compiled or captured."""
        return self.runner.stats(len(self._syncs), self.target.notes)

    def generate(self, prompts: Sequence[str | Sequence[int]], max_new_tokens: int = 64,
                 stop_ids: Sequence[int] | None = None,
                 on_step: Callable[[int, EngineStep], None] | None = None) -> list[Output]:
        """Continue every prompt.

        Args:
            prompts: token ids, or text where the engine has a tokenizer.
            max_new_tokens: a prompt ends with the step whose next root would have this index (the first is y0, 0) ...
            stop_ids: ... or with the step that brings one of these out. None: the target's end tokens; (): none.
            on_step: called with the prompt's number and each step as it becomes known.

        Returns:
            one :class:`Output` a prompt, in the prompts' order.
        """
        if isinstance(prompts, str) or any(isinstance(p, int) for p in prompts):
            raise EagleRuntimeError("generate takes a list of prompts", where=f"prompts {str(prompts)[:40]!r}",
                                    how="wrap a single prompt in a list: generate([prompt])")
        works: dict[int, _Work] = {}
        for work, step in self._run([self._ids(p) for p in prompts], max_new_tokens, self._stops(stop_ids)):
            works[work.number] = work
            if on_step is not None:
                on_step(work.number, step)
        stops = self._stops(stop_ids)
        return [Output(w.prompt, w.output, list(w.steps), _cut(w.output, max_new_tokens, stops))
                for _, w in sorted(works.items())]

    def steps(self, prompt: str | Sequence[int], max_new_tokens: int = 64,
              stop_ids: Sequence[int] | None = None) -> Iterator[EngineStep]:
        """The steps of one prompt as they happen; ``step.tokens`` are its tokens."""
        for _, step in self._run([self._ids(prompt)], max_new_tokens, self._stops(stop_ids)):
            yield step

    def _run(self, prompts: list[list[int]], max_new: int, stops: frozenset[int]) -> Iterator[tuple[_Work, EngineStep]]:
        self._check(prompts, max_new)
        if self._busy:
            raise EagleRuntimeError("this engine is already generating", where="SpeculativeEngine",
                                    how="finish or close the other iterator, or make a second engine")
        self._busy = True
        lanes: list[_Work | None] = [None] * self.lanes
        under_way: deque[tuple[Ticket, list[_Work | None]]] = deque()
        queue = deque(enumerate(prompts))
        try:
            with torch.no_grad():  # the caches stay ordinary tensors: whoever holds them may write to them
                self._reserve(max(map(len, prompts), default=0) + max_new)
            while queue or under_way or any(lanes):
                with torch.inference_mode():
                    self._fill(lanes, queue)
                    if any(lanes):
                        under_way.append((self._launch(lanes), list(lanes)))
                while len(under_way) > (self._pipeline.depth if any(lanes) else 0):
                    ticket, crew = under_way.popleft()
                    rows = ticket.read(self.timings)
                    for work, row in zip(crew, rows, strict=False):
                        if work is not None and not work.done:
                            yield work, self._book(work, row, max_new, stops)
                    for i, work in enumerate(lanes):
                        if work is not None and work.done:
                            lanes[i] = None
                            self._buffers.idle(i)
        finally:
            self._busy = False
            for i in range(self.lanes):
                self._buffers.idle(i)

    def _fill(self, lanes: list[_Work | None], queue: deque[tuple[int, list[int]]]) -> None:
        """Prompts into free lanes; with none left, work moves down so that fewer lanes need to run."""
        for i in range(self.lanes):
            if lanes[i] is None and queue:
                number, prompt = queue.popleft()
                lanes[i] = self._start(i, number, prompt)
        if not queue:
            for i in range(self.lanes):
                last = max((j for j, work in enumerate(lanes) if work is not None), default=0)
                if lanes[i] is None and i < last and _bucket(last + 1, 1) > _bucket(sum(map(bool, lanes)), 1):
                    self._move(lanes, last, i)

    def _move(self, lanes: list[_Work | None], src: int, dst: int) -> None:
        assert self._caches is not None
        for cache in self._caches:
            cache.copy_lane(src, dst)
        self._buffers.copy_lane(src, dst)
        self._buffers.idle(src)
        lanes[dst], lanes[src] = lanes[src], None

    def _start(self, lane: int, number: int, prompt: list[int]) -> _Work:
        assert self._caches is not None
        target_cache, draft_cache = (cache.narrow(lane, 1) for cache in self._caches)
        shift = "token-shift" in self._faults
        state, logits = prefill(self.target, self.draft, prompt, target_cache, draft_cache, token_shift=shift)
        generator = None
        if not bool(torch.isfinite(logits.amax())):  # the prompt's own pass belongs to no step: it may be waited for
            check_finite(self.target, torch.tensor(prompt, device=self.target.device))
        if self.sampling.greedy:
            root = logits.argmax(-1)
        else:
            generator = torch.Generator(self.target.device).manual_seed(
                ((self.sampling.seed << 20) + number) % (1 << 63))
            uniform = torch.rand(1, generator=generator, device=self.target.device)
            root = verify.draw(verify.distribution(logits, self.sampling), uniform)
        b = self._buffers
        b.tree.tokens[lane, :1].copy_(root)
        b.pending_ids[lane, :1].copy_(torch.full_like(root, prompt[-1]) if shift else root)
        b.pending_states[lane, :1].copy_(state)
        b.length[lane].fill_(len(prompt))
        b.count[lane].fill_(1)
        b.active[lane].fill_(1)
        return _Work(number, prompt, generator)

    def _launch(self, lanes: list[_Work | None]) -> Ticket:
        works = [work for work in lanes if work is not None]
        used = min(_bucket(max(i for i, work in enumerate(lanes) if work is not None) + 1, 1), self.lanes)
        longest = max(len(w.prompt) + len(w.output) + w.under_way * self._width for w in works)
        for i, work in enumerate(lanes):
            if work is not None:
                work.under_way += 1
                if work.generator is not None:
                    self._buffers.uniforms[i].uniform_(generator=work.generator)
        slots = longest + reach(self._plan)
        key = used, _bucket(slots, SMALLEST_BUCKET) if self.runner.prepared else _fine_bucket(slots)
        stages, calls = self._stages(key)
        timed = not self.runner.prepared or self.runner.ahead or key in self._warm
        if used in self._audited:
            self._warm.add(key)
        else:
            calls, timed = [partial(self._audit, used, stages)], False
        return self._pipeline.launch(calls, stages.buffers.result, timed=timed)

    def _audit(self, used: int, stages: Stages) -> None:
        """A step by the stages as they are, watched for operations that make the host wait."""
        self._audited.add(used)
        with Syncs() as syncs:
            for call in (stages.draft, stages.verify, stages.accept):
                call()
        self._syncs += syncs.found

    def _book(self, work: _Work, row: list[int], max_new: int, stops: frozenset[int]) -> EngineStep:
        root, accepted, bad_target, bad_draft = row[:4]
        behind, agrees = row[4:4 + self._width], row[4 + self._width:]
        if bad_target or (bad_draft and "overflow" not in self._faults):
            self._not_finite(work, bool(bad_target))
        tokens = (root, *behind[:accepted])
        start = len(work.output)
        work.output += tokens
        matches = list(map(bool, agrees[1:])) if self.shape.is_chain and self.sampling.greedy else None
        step = EngineStep(self._plan.nodes - 1, accepted, accepted + 1, matches,
                          truncated(start, accepted, self.shape.deepest, work.output, max_new, stops), tokens)
        work.steps.append(step)
        work.under_way -= 1
        work.done = len(work.output) >= max_new or not stops.isdisjoint(tokens)
        return step

    def _not_finite(self, work: _Work, of_target: bool) -> None:
        ids = work.prompt + work.output
        if of_target:
            check_finite(self.target, torch.tensor(ids, device=self.target.device))
        who = "target" if of_target else "draft"
        raise EagleRuntimeError(
            f"the {who}'s states are not finite in {short(self.target.dtype)}",
            where=f"prompt {work.number}, step {len(work.steps)}, position {len(ids)}",
            how="run in float32 or bfloat16; if it stays, the weights hold NaN: `eagle-convert inspect --deep`")

    def _reserve(self, tokens: int) -> None:
        """Caches for lanes of ``tokens``; stages that saw smaller ones are built anew, and captured where needed."""
        slots = _bucket(tokens + (2 + self._pipeline.depth) * self._width + reach(self._plan), SMALLEST_BUCKET)
        if self._caches is None or self._caches[0].capacity < slots:
            self._ready.clear()
            self._warm.clear()
            self._caches = None  # the old ones go before the new ones come
            spec, draft = self.target.spec, self.draft.spec
            self._caches = tuple(  # type: ignore[assignment]
                KVCache(layers, self.lanes, s.num_key_value_heads, slots, s.head_dim, dtype=self.target.dtype,
                        device=self.target.device)
                for s, layers in ((spec, spec.num_layers), (draft, self.draft.num_layers)))
        if self.runner.ahead:
            lane_buckets = sorted({min(1 << i, self.lanes) for i in range(self.lanes.bit_length() + 1)}, reverse=True)
            while slots >= _bucket(1 + reach(self._plan), SMALLEST_BUCKET):
                for used in lane_buckets:
                    self._stages((used, slots))
                slots //= 2

    def _stages(self, key: tuple[int, int]) -> tuple[Stages, list[Callable[[], None]]]:
        if key not in self._ready:
            assert self._caches is not None
            used, slots = key
            buffers = self._buffers.narrow(used)
            target_cache, draft_cache = (cache.narrow(0, used, slots) for cache in self._caches)
            stages = Stages(self._verifier, self._drafter, self._plan, buffers, target_cache, draft_cache, slots,
                            self.sampling, stale_kv="stale-kv" in self._faults,
                            token_shift="token-shift" in self._faults)

            def addresses() -> dict[str, int]:
                return {name: tensor.data_ptr() for name, tensor in buffers.tensors().items()}

            if self.runner.ahead and used not in self._audited:
                self._audit(used, stages)
            calls = [self.runner.wrap((*key, call.__name__), call, addresses)
                     for call in (stages.draft, stages.verify, stages.accept)]
            self._ready[key] = stages, calls
        return self._ready[key]

    def _ids(self, prompt: str | Sequence[int]) -> list[int]:
        if not isinstance(prompt, str):
            return [int(i) for i in prompt]
        if self.tokenizer is None:
            raise EagleRuntimeError("a prompt is text, and the engine has no tokenizer", where=repr(prompt[:40]),
                                    how="give token ids, or SpeculativeEngine(..., tokenizer=...)")
        return list(self.tokenizer.encode(prompt))

    def _stops(self, stop_ids: Sequence[int] | None) -> frozenset[int]:
        return frozenset(self.target.spec.eos_token_ids if stop_ids is None else stop_ids)

    def _check(self, prompts: list[list[int]], max_new: int) -> None:
        vocab, limit = self.target.spec.vocab_size, self.target.spec.max_position_embeddings
        if max_new < 1:
            raise EagleRuntimeError(f"{max_new} new tokens are none", where=f"max_new_tokens {max_new}",
                                    how="give max_new_tokens >= 1")
        for i, ids in enumerate(prompts):
            if not ids:
                raise EagleRuntimeError("a prompt is empty", where=f"prompt {i}",
                                        how="give at least one token; models with a start token begin with that")
            wrong = next((n for n, t in enumerate(ids) if not 0 <= t < vocab), None)
            if wrong is not None:
                raise EagleRuntimeError("a prompt's id is not in the target's vocabulary",
                                        where=f"prompt {i}, token {wrong}: id {ids[wrong]}, vocabulary {vocab}",
                                        how="tokenize with the target's own tokenizer")
            if len(ids) + max_new > limit:
                raise EagleRuntimeError("a prompt and its new tokens are longer than the target's limit",
                                        where=f"prompt {i}: {len(ids)} + {max_new} tokens, the target ends at {limit}",
                                        how="shorten the prompt, or give a smaller max_new_tokens")


def _bucket(n: int, smallest: int) -> int:
    """The first of smallest, 2 * smallest, 4 * smallest, ... that holds n."""
    while smallest < n:
        smallest *= 2
    return smallest


def _fine_bucket(n: int) -> int:
    """The next multiple of an eighth of n's octave (of half the smallest bucket at least)."""
    unit = max(SMALLEST_BUCKET // 2, _bucket(n, SMALLEST_BUCKET) // 8)
    return -(-n // unit) * unit


def _cut(output: list[int], max_new: int, stops: frozenset[int]) -> list[int]:
    end = next((i + 1 for i, token in enumerate(output) if token in stops), len(output))
    return output[:min(end, max_new)]
