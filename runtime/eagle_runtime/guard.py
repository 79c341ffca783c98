"""What a captured step must not do, found without capturing it.

Three guards run a stage and raise :class:`LeakError`; the fourth, the recorded graph, is a runner (``runners.py``):

:func:`no_sync`        refuses operations that make the host wait for the device or whose result shape is data;
:func:`no_data`        runs on fake tensors, which have no values: whatever asks for one fails;
:func:`replay_double`  runs twice over the same buffers, with other junk in the padding and with another live state, and
                       wants the same operations with the same constants, and the same results where they are defined.

Each of them also wants every buffer to be where it was: a buffer replaced by a fresh tensor is a leak.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .buffers import Buffers
from .config import EagleRuntimeError

Call = Callable[[], None]

SYNCHRONISING = frozenset((
    "_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select", "_unique", "_unique2",
    "unique_dim", "unique_consecutive", "bincount", "repeat_interleave", "allclose"))


class LeakError(EagleRuntimeError):
    """A stage did what a captured step cannot do."""


def _leak(what: str, where: str) -> LeakError:
    return LeakError(what, where=where, how="keep the decision in tensors of fixed shape, and write into the buffers")


class Syncs(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects the synchronising operations that run under it.

    Attributes:
        found: their names, in order.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        if _synchronises(func, args, kwargs or {}):
            self.on_sync(str(func))
        return func(*args, **(kwargs or {}))

    def on_sync(self, name: str) -> None:
        self.found.append(name)


class _Refuse(Syncs):  # type: ignore[no-untyped-call]
    def on_sync(self, name: str) -> None:
        raise _leak("a stage makes the host wait for the device", f"operation {name}")


def _synchronises(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    name = func.overloadpacket.__name__
    if name in SYNCHRONISING:
        return True
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    if name in ("index", "index_put", "index_put_", "_unsafe_index"):  # a mask as index counts its true entries
        return any(t.dtype in (torch.bool, torch.uint8) for t in tree_leaves(args[1]) if isinstance(t, Tensor))
    if name == "copy_":
        return len({t.device for t in tensors}) > 1
    if name == "_to_copy" and kwargs.get("device") is not None:
        return torch.device(kwargs["device"]).type != tensors[0].device.type
    return False


def no_sync(call: Call, buffers: Buffers) -> None:
    """Run ``call`` and raise :class:`LeakError` at the first synchronising operation, or if a buffer was replaced."""
    with _kept(buffers), _Refuse():
        call()


def no_data(call: Call, buffers: Buffers) -> None:
    """Run ``call`` on fake tensors; no buffer and no cache changes. Raises :class:`LeakError`."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    real = {(id(h), n): getattr(h, n) for h, n in _places(buffers)}
    for holder, name in _places(buffers):
        setattr(holder, name, mode.from_tensor(getattr(holder, name)))
    try:
        with mode, _kept(buffers):
            call()
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise _leak("a stage asks for a tensor's value or for a shape that depends on one", str(error)) from error
    finally:
        for holder, name in _places(buffers):
            setattr(holder, name, real[id(holder), name])


def replay_double(call: Call, buffers: Buffers, *, live: Call, junk: Call, other: Call,
                  read: Callable[[], Mapping[str, Tensor]]) -> None:
    """Run ``call`` three times: from the state ``live`` sets up, from the same with ``junk`` in the padding, and from
    ``other``. All three must issue the same operations with the same constants; the first two must agree in ``read()``.

    Raises :class:`LeakError` naming the first operation or value that differs.
    """
    traces, results = [], []
    for prepare in ((live,), (live, junk), (other,)):
        for set_up in prepare:
            set_up()
        with _kept(buffers), _Tracer() as tracer:
            call()
        traces.append(tracer.trace)
        results.append({name: tensor.clone() for name, tensor in read().items()})
    for trace in traces[1:]:
        for i, (before, now) in enumerate(zip(traces[0], trace, strict=False)):
            if before != now:
                raise _leak("a stage runs other operations when its tensors hold other values",
                            f"operation {i}: {before} against {now}")
        if len(traces[0]) != len(trace):
            raise _leak("a stage runs more or fewer operations when its tensors hold other values",
                        f"{len(traces[0])} operations against {len(trace)}")
    for name, value in results[0].items():
        if not torch.equal(value, results[1][name]):
            raise _leak("junk in the padding changes a stage's result", f"{name}")


class _Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every operation by name, constants, and the shapes of its tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        leaves = [tuple(leaf.shape) if isinstance(leaf, Tensor) else repr(leaf)
                  for leaf in tree_leaves((args, kwargs or {}))]
        self.trace.append((str(func), *leaves))
        return func(*args, **(kwargs or {}))


def _places(buffers: Buffers) -> list[tuple[Any, str]]:
    return [(buffers, n) for n in vars(buffers) if n != "tree"] + [(buffers.tree, n) for n in vars(buffers.tree)]


@contextmanager
def _kept(buffers: Buffers) -> Iterator[None]:
    before = [(holder, name, getattr(holder, name)) for holder, name in _places(buffers)]
    try:
        yield
        for holder, name, tensor in before:
            if getattr(holder, name) is not tensor:
                raise _leak("a stage replaced a buffer by a fresh tensor", f"buffer {name}")
    finally:
        for holder, name, tensor in before:
            setattr(holder, name, tensor)
