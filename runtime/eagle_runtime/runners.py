"""How a stage is run: as it is, compiled, as a CUDA graph, or as a recorded list of operations.

A runner wraps any callable that takes nothing, returns nothing and works on tensors that stay where they are. It knows
no model. ``key`` tells the callables apart (lanes, slots, stage).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .config import EagleRuntimeError, RunnerStats

Call = Callable[[], None]
NAMES = ("auto", "eager", "compiled", "graph")


class Runner:
    """Runs a stage as it is; the base of the others.

    Attributes:
        prepared: whether ``wrap`` does work that the first call pays (compiling, recording, capturing).
        ahead: whether that must happen before live state is in the buffers (``wrap`` runs the callables).
    """

    name = "eager"
    prepared = ahead = False

    def __init__(self, device: torch.device, *, debug: bool = False) -> None:
        self.device, self.debug = device, debug
        self.captured = self.replays = 0

    def wrap(self, key: Hashable, call: Call, addresses: Callable[[], Mapping[str, int]]) -> Call:
        """The callable to run in ``call``'s place.

        Args:
            key: names the callable.
            call: the stage.
            addresses: name -> data pointer of every buffer the stage works on, for the check in debug mode.
        """
        return call

    def stats(self, host_syncs: int = 0, notes: tuple[str, ...] = ()) -> RunnerStats:
        return RunnerStats(self.name, self.captured, self.replays, host_syncs, str(self.device), notes)


class CompiledRunner(Runner):
    """``torch.compile`` in its default mode; a stage that does not compile as one piece is an error."""

    name = "compiled"
    prepared = True

    def wrap(self, key: Hashable, call: Call, addresses: Callable[[], Mapping[str, int]]) -> Call:
        compiled: Call = torch.compile(_own_code(call), fullgraph=True, dynamic=False)
        return compiled


def _own_code(call: Call) -> Call:
    """The same callable with a code object of its own: a compiler keeps a few results for each code object, no more."""
    function = getattr(call, "__func__", call)
    copy = FunctionType(function.__code__.replace(), function.__globals__, function.__name__, function.__defaults__,
                        function.__closure__)
    return MethodType(copy, call.__self__) if isinstance(call, MethodType) else copy


class GraphRunner(Runner):
    """CUDA graphs over another runner's callables, all in one memory pool.

    ``wrap`` runs the callable twice to warm up and captures it the third time, so the buffers must not hold live state
    then: the engine wraps all its stages over idle lanes, the largest first, so that smaller graphs fit into the pool's
    memory. In debug mode every replay checks that no buffer has moved since the capture.
    """

    name = "graph"
    prepared = ahead = True

    def __init__(self, device: torch.device, *, debug: bool = False, inner: Runner | None = None) -> None:
        if device.type != "cuda" or not torch.cuda.is_available():
            raise EagleRuntimeError(
                "the graph runner needs a CUDA device",
                where=f"device {device}, CUDA {'available' if torch.cuda.is_available() else 'not available'}, "
                      f"torch {torch.__version__}",
                how="give --device cuda, or --runner eager or compiled")
        super().__init__(device, debug=debug)
        self.inner = inner or Runner(device)
        self._pool = torch.cuda.graph_pool_handle()

    def wrap(self, key: Hashable, call: Call, addresses: Callable[[], Mapping[str, int]]) -> Call:
        call = self.inner.wrap(key, call, addresses)
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(2):
                call()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=stream):
            call()
        self.captured += 1
        where = addresses()

        def replay() -> None:
            if self.debug:
                check_addresses(key, where, addresses())
            graph.replay()
            self.replays += 1

        return replay


class RecordedRunner(Runner):
    """What a CUDA graph does, on any device: the first call is recorded, every later one replays the list.

    A decision that Python took while recording (a branch on a length, a number read with ``.item()``, a buffer replaced
    by a fresh tensor) is frozen, so a generation driven by recordings differs from the eager one just where one driven
    by a CUDA graph would. For tests: every temporary stays alive.
    """

    name = "recorded"
    prepared = True

    def wrap(self, key: Hashable, call: Call, addresses: Callable[[], Mapping[str, int]]) -> Call:
        tape: list[_Operation] = []
        where: dict[str, int] = {}

        def run() -> None:
            if tape:
                if self.debug:
                    check_addresses(key, where, addresses())
                for operation in tape:
                    operation.replay()
                self.replays += 1
                return
            with _Recorder() as recorder:
                call()
            tape.extend(recorder.tape)
            where.update(addresses())
            self.captured += 1

        return run


class _Operation:
    """One recorded operation: its exact arguments, and the tensors its results must land in again."""

    def __init__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        self.func, self.args, self.kwargs = func, args, kwargs
        given = {storage(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        self.fresh = [t if isinstance(t, Tensor) and storage(t) not in given else None for t in tree_leaves(out)]

    def replay(self) -> None:
        out = self.func(*self.args, **self.kwargs)
        for new, old in zip(tree_leaves(out), self.fresh, strict=True):
            if old is not None:
                old.copy_(new)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tape: list[_Operation] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self.tape.append(_Operation(func, args, kwargs, out))
        return out


def storage(tensor: Tensor) -> int:
    """The identity of a tensor's memory; layouts without a storage (oneDNN's) by object."""
    if tensor.layout != torch.strided:
        return id(tensor)
    return int(tensor.untyped_storage()._cdata)


def check_addresses(key: Hashable, before: Mapping[str, int], now: Mapping[str, int]) -> None:
    """Raise where a buffer has moved since its stage was captured: a replay would work on the old memory."""
    moved = sorted(name for name in before if now.get(name) != before[name])
    if moved:
        raise EagleRuntimeError("a buffer moved after its stage was captured",
                                where=f"stage {key}: {', '.join(moved)}",
                                how="this is a fault of the runtime: write into buffers, never replace them")


def make_runner(name: str, device: torch.device, *, debug: bool = False) -> Runner:
    """``auto``: graph on CUDA; on a CPU eager, whose products already run at memory speed (bench/results)."""
    if name not in NAMES:
        raise EagleRuntimeError(f"no runner is called {name!r}", where=f"runner {name!r}",
                                how=f"choose from {', '.join(NAMES)}")
    if name == "auto":
        name = "graph" if device.type == "cuda" else "eager"
    kind: type[Runner] = {"eager": Runner, "compiled": CompiledRunner, "graph": GraphRunner}[name]
    return kind(device, debug=debug)
