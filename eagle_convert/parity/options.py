"""What a user may ask of ``parity-check``; None is "not given": a replayed file's setting can stand instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path

from eagle_convert.errors import EngineError, UsageError
from eagle_convert.source import HubOptions
from eagle_runtime.config import TreeShape

from .engines import ENGINES, EngineChoice, parse_engine
from .settings import DTYPES, parse_shape

RUNNERS = ("auto", "eager", "compiled", "graph")


def silent(text: str) -> None:
    """No progress."""


@dataclass(frozen=True)
class Options:
    """The options of ``parity-check``, by the names of its flags (contract, section 1).

    Raises UsageError for values that cannot be, or that do not fit together, EngineError for engines that this
    version does not have.
    """

    target: str | None = None
    reference: str | None = None
    engine: str = "bundled"
    reference_engine: str = "reference"
    baseline_server: str | None = None
    draft_tokens: int | None = None
    tree: str | None = None
    tree_choices: str | None = None
    prompts: Path | str | None = None
    num_prompts: int | None = None
    raw: bool = False
    max_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    dtype: str = "auto"
    device: str = "auto"
    runner: str = "auto"
    lanes: int = 1
    tolerance: float | None = None
    tie_margin: float | None = None
    diagnose: bool = False
    fault: str | None = None
    compare: Path | str | None = None
    trace_out: Path | str | None = None
    report: Path | str | None = None
    engine_python: str | None = None
    engine_args: tuple[str, ...] = ()
    reference_python: str | None = None
    reference_args: tuple[str, ...] = ()
    revision: str | None = None
    hub: HubOptions = field(default_factory=HubOptions)
    progress: Callable[[str], None] = silent

    def __post_init__(self) -> None:
        for name, least in (("num_prompts", 1), ("max_new_tokens", 1), ("top_k", 0), ("seed", 0), ("lanes", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise _bad(name, value, f"at least {least}")
        for name in ("temperature", "tie_margin", "tolerance"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise _bad(name, value, "a number >= 0")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise _bad("top_p", self.top_p, "above 0, at most 1")
        if self.dtype not in ("auto", *DTYPES):
            raise _bad("dtype", self.dtype, f"auto, {', '.join(DTYPES)}")
        if self.runner not in RUNNERS:
            raise _bad("runner", self.runner, ", ".join(RUNNERS))
        if self.device not in ("auto", "cpu", "cuda") and not self.device.startswith("cuda:"):
            raise _bad("device", self.device, "auto, cpu or cuda[:N]")
        self._check_engines()
        self._check_outputs()

    def _check_outputs(self) -> None:
        """Where results cannot be written is said before anything is run for them."""
        if self.trace_out is not None and Path(self.trace_out).exists() and not Path(self.trace_out).is_dir():
            raise UsageError("--trace-out is a folder", where=f"{self.trace_out} is a file", how="name a folder")
        if self.report is not None and (Path(self.report).is_dir() or not Path(self.report).parent.is_dir()):
            raise UsageError("--report cannot be written", where=f"{self.report}: " + (
                "is a folder" if Path(self.report).is_dir() else "its folder does not exist"), how="name a file in an "
                "existing folder")

    def _check_engines(self) -> None:
        """Flags that only some engines have are refused for the others: nothing given is ever ignored."""
        workers = tuple(kind.word for kind in ENGINES if kind.worker)
        for flag, engine, given in (
                ("--engine-python", self.engine_choice, self.engine_python),
                ("--engine-arg", self.engine_choice, self.engine_args),
                ("--reference-python", self.reference_choice, self.reference_python),
                ("--reference-arg", self.reference_choice, self.reference_args)):
            if given and not engine.kind.worker:
                raise UsageError(f"{flag} is for engines in an interpreter of their own",
                                 where=f"the engine is {engine}, expected one of {', '.join(workers)}",
                                 how=f"leave {flag} out")
        if self.baseline_server and self.engine_choice.kind.word != "server":
            raise UsageError("--baseline-server is for --engine server:URL", where=f"--engine {self.engine}",
                             how="leave --baseline-server out")
        if self.reference is not None and (self.compare is not None or not self.reference_choice.kind.weights):
            raise UsageError("--reference is not used here",
                             where="--compare takes the reference from a report" if self.compare is not None else
                             f"--reference-engine {self.reference_choice} runs no checkpoint",
                             how="leave --reference out")
        if self.diagnose and (self.compare is not None or self.reference_choice.kind.word != "reference"):
            raise UsageError("--diagnose needs the teacher-forced reference",
                             where="--compare" if self.compare is not None else
                             f"--reference-engine {self.reference_choice}",
                             how="use --reference-engine reference, without --compare")
        if self.fault and self.engine_choice.kind.word not in ("bundled", "reference"):
            raise EngineError(f"the engine {self.engine_choice} cannot show a fault", where=f"--fault {self.fault}",
                              how="bundled and reference can: --engine bundled")

    @property
    def engine_choice(self) -> EngineChoice:
        return parse_engine(self.engine, "--engine")

    @property
    def reference_choice(self) -> EngineChoice:
        return parse_engine(self.reference_engine, "--reference-engine")

    @property
    def shape(self) -> TreeShape | None:
        return parse_shape(self.draft_tokens, self.tree, self.tree_choices)


NAMES = frozenset(f.name for f in fields(Options))


def _bad(name: str, value: object, expected: str) -> UsageError:
    flag = "--" + name.replace("_", "-")
    return UsageError(f"{flag} cannot be {value}", where=f"found {value}, expected {expected}",
                      how="see 'eagle-convert parity-check --help'")
