"""What a dialect is: evidence, a reader, and the record that a reader hands on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from eagle_convert.errors import ConfigError, DialectError
from eagle_convert.files.lazy_numpy import NDArray, np
from eagle_convert.findings import Finding
from eagle_runtime.config import DraftSpec

from .side_files import SideTable

if TYPE_CHECKING:
    from eagle_convert.tensors import TensorIndex
    from eagle_convert.vocab import Vocabulary

MANIFEST = "eagle_convert.json"


@dataclass(frozen=True)
class Evidence:
    """What speaks for and against one dialect: ``facts`` start with ``yes:`` or ``no:``; all yes means it matches."""

    dialect: str
    matched: bool
    facts: tuple[str, ...]


def evidence(dialect: str, *checks: tuple[bool, str]) -> Evidence:
    """Evidence from (holds, statement) pairs."""
    return Evidence(dialect, all(holds for holds, _ in checks),
                    tuple(("yes: " if holds else "no: ") + text for holds, text in checks))


@dataclass(frozen=True)
class Facts:
    """Everything a dialect may look at: names, shapes, dtypes, config, file names, and small tensors on demand.

    Attributes:
        prefix: what every key carried and was taken off (``module.``); all other names here are without it.
        manifest: the algorithm that our manifest states, where there is one.
        hints: what the caller knows: ``token_map`` (a file of absolute ids), ``target_hidden_size``,
            ``num_target_layers``.
        meta: reads the trainer's ``eagle_meta.pt``, where there is one.
    """

    index: TensorIndex
    prefix: str
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    config: Mapping[str, Any] | None
    config_file: str
    files: tuple[str, ...]
    manifest: str | None = None
    hints: Mapping[str, Any] = field(default_factory=dict)
    meta: Callable[[], SideTable | None] = lambda: None

    def source_name(self, name: str) -> str:
        """The name as the file has it."""
        return self.prefix + name

    def array(self, name: str) -> NDArray[Any]:
        """The values of a tensor, without the prefix; for vocabulary tables and other small ones."""
        return self.index.array(self.source_name(name))

    def raw(self, name: str) -> bytes:
        """The bytes of a small tensor, little-endian and contiguous."""
        return b"".join(self.index.chunks(self.source_name(name)))

    @cached_property
    def text(self) -> str:
        """All names, one a line, each line starting and ending with a newline: for ``in`` tests on whole parts."""
        return "\n" + "\n".join(self.shapes) + "\n"

    def has(self, *names: str) -> bool:
        """Every one of the names is there."""
        return all(name in self.shapes for name in names)

    def starts(self, *prefixes: str) -> bool:
        """Some name starts with one of the prefixes."""
        return any(name.startswith(prefixes) for name in self.shapes)

    def contains(self, *parts: str) -> bool:
        """Some name contains one of the parts."""
        return any(part in self.text for part in parts)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, () where it is absent."""
        return self.shapes.get(name, ())

    @property
    def settings(self) -> Mapping[str, Any]:
        """The config for reading; raises ConfigError where there is none."""
        if self.config is None:
            raise ConfigError("there is no config.json", where="looked beside the weight files",
                              how="copy the draft's config.json into the folder; sizes such as the number of heads, "
                                  "the norm epsilon and the rope base are nowhere else")
        return self.config


@dataclass(frozen=True)
class Reading:
    """A checkpoint, understood.

    Every source tensor is in exactly one of ``names`` (its value is part of the function) and ``unused``.

    Attributes:
        dialect: name of the layout (one of ``DIALECTS``).
        title: the layout in one line.
        kind: a draft that this tool converts; a draft of another kind that it only explains; or no draft at all.
        evidence: what spoke for the dialect and against the others, the match first.
        spec: the function; None unless ``kind`` is ``"draft"``. The layer-0 input norm and final norm of an EAGLE-1
            head are those the file holds; whether they belong to the function is for ``compaction`` (``--norms``),
            which then clears ``input_norm``, or ``output_norm`` with ``norm_output``.
        names: canonical name -> name in the source.
        unused: name in the source -> why it is no part of the function.
        config: the source's config, flattened: nested blocks merged over the top level.
        findings: what a user should know.
        claims: what flags say of a norm (``input_norm``, ``output_norm``, ``embed_norm``, ``hidden_norm``): True
            applied, False skipped; no key, no flag.
        runnable: the bundled runtime defines this draft.
        convertible: the compact format can hold it.
        explanation: for everything but a plain draft: what it is and what can be done with it.
        vocabulary: the checked draft vocabulary; None where it is the whole one.
        created: canonical name -> (value, where it came from): tensors whose bytes are no copy of a source tensor.
            A name that is also in ``names`` is made from that source tensor (ids turned into offsets).
        gather: canonical name -> rows of its source tensor to take, in this order (a full head under a token map).
    """

    dialect: str
    title: str
    kind: Literal["draft", "other draft", "not a draft"]
    evidence: tuple[Evidence, ...] = ()
    spec: DraftSpec | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    unused: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    claims: Mapping[str, bool] = field(default_factory=dict)
    runnable: bool = False
    convertible: bool = False
    explanation: str = ""
    vocabulary: Vocabulary | None = None
    created: Mapping[str, tuple[NDArray[Any], str]] = field(default_factory=dict)
    gather: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)

    @property
    def d2t(self) -> NDArray[np.int64] | None:
        """Offsets, int64 [draft vocabulary] (target id = i + d2t[i]); None where the vocabulary is whole."""
        return None if self.vocabulary is None else self.vocabulary.offsets

    def also(self, *findings: Finding, explanation: str = "") -> Reading:
        """The same with more to say."""
        return replace(self, findings=(*self.findings, *findings), explanation=explanation or self.explanation)

    def draft(self) -> DraftSpec:
        """The spec of a draft that can be converted. Raises DialectError with the explanation otherwise."""
        if self.spec is None or not self.convertible:
            raise DialectError(f"{self.title}: {self.explanation}" if self.explanation else self.title,
                               where="; ".join(self.evidence[0].facts) if self.evidence else "",
                               how="`inspect` explains the file; give the folder of an EAGLE draft to convert")
        return self.spec


@dataclass(frozen=True)
class Dialect:
    """One layout: how it is told from the others, and how it is read."""

    name: str
    title: str
    detect: Callable[[Facts], Evidence]
    read: Callable[[Facts], Reading]
