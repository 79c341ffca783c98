"""``convert`` as a function: a checkpoint in any layout becomes a compact folder, whole or not at all."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from eagle_runtime.config import DraftSpec

from . import manifest as manifests
from .compaction import Item, Options, Plan, plan
from .dialects.layouts import FORMATS
from .engine_facts import engines
from .errors import BrokenFileError, CompactionError, EagleConvertError, PairingError, UsageError
from .files.dtypes import BY_TORCH_NAME, DTYPES
from .files.transaction import check_destination
from .findings import Finding, finding
from .norms import NormChoice
from .opening import Opened, opened
from .packing import Package, pack
from .sharing import Choice
from .source import HubOptions, Source, refuse_escaping_links
from .streams import Outgoing
from .tables import Progress
from .writer import OutTensor, WriteResult, weight_file_names, write_folder

SCHEMA = "eagle-convert/convert/1"
LAYOUTS = FORMATS
DTYPE_CHOICES = ("keep", "float16", "bfloat16", "float32")

# What the source grants and demands travels with its weights.
_LEGAL = re.compile(r"(LICEN[CS]E|NOTICE|COPYING)([-_.].*)?", re.IGNORECASE)


def convert(source: str, destination: str | Path, *, target: str | None = None, layout: str = "compact",
            stock: bool = False, allow_unfaithful: bool = False, embeddings: Choice = "auto", head: Choice = "auto",
            norms: NormChoice = "auto", token_map: str | Path | None = None, prune_vocab: str | None = None,
            rope_theta: float | None = None, dtype: Literal["keep", "float16", "bfloat16", "float32"] = "keep",
            max_shard_size: int | None = None, dry_run: bool = False, force: bool = False, revision: str | None = None,
            hub: HubOptions | None = None, progress: Progress | None = None) -> dict[str, Any]:
    """Write ``source`` as a compact folder, or in another tool's layout; the ``eagle-convert/convert/1`` document.

    Args:
        source: folder, file or hub id of the draft; only read.
        destination: a new or empty folder (``force``: any, replaced whole).
        target: the model the draft was trained for; without it no table is dropped as equal to the target's.
        layout: one of :data:`LAYOUTS` (``--for``).
        stock: for vLLM without a plugin of this package; there is none yet, so it changes nothing.
        allow_unfaithful: write also what the layout's engine loads and computes wrong, with a warning.
        embeddings, head, norms: ``keep`` or ``drop`` overrule the evidence.
        token_map: a file with the target ids of the draft vocabulary, where the weights do not hold them.
        prune_vocab: not supported: refused.
        rope_theta: the rotary base to write instead of the source's.
        dtype: of all float tensors; ``keep`` leaves every bit.
        max_shard_size: tensor bytes a file at most.
        dry_run: decide, read and check everything, write nothing.
        revision: of a ``source`` on the hub.
        progress: told the bytes that are read.

    Raises:
        EagleConvertError: nothing was written.
    """
    if prune_vocab is not None:
        raise CompactionError(
            "pruning a draft's vocabulary is not supported", where=f"--prune-vocab {prune_vocab}",
            how="train the head on the smaller vocabulary (EAGLE-3 heads are), or use the engine's own token map "
                "(SGLang: --speculative-token-map); --token-map reads the map of a head that has one")
    if rope_theta is not None and not 0 < rope_theta < math.inf:
        raise UsageError("a rotary base is a finite number above 0", where=f"--rope-theta {rope_theta}",
                         how="give the base that the draft was trained with, such as 10000")
    destination = Path(destination)
    hints = {} if token_map is None else {"token_map": Path(token_map)}
    with opened(source, target, revision=revision, hub=hub, **hints) as it:
        if it.mispaired:
            raise PairingError(it.mispaired.message, where=it.mispaired.where, how=it.mispaired.fix)
        it.reading.draft()
        check_destination(destination, sources=_paths(it), force=force)  # before gigabytes are read
        decided = plan(it.reading, it.index, it.target, Options(embeddings, head, norms), digests=True,
                       config_file=it.source.config_file or "config.json", progress=progress)
        checked = it.against_manifest()
        errors = (*(f for f in checked if f.severity == "error"), *decided.errors)
        if errors:
            raise _refusal(errors)
        spec = decided.spec if rope_theta is None else replace(decided.spec, rope_theta=rope_theta)
        code = None if dtype == "keep" else BY_TORCH_NAME[dtype].code
        package = pack(it, decided, spec, layout, code, allow_unfaithful)
        job = _Job(it, decided, checked, spec, package, _as_typed(
            embeddings=(embeddings, "auto"), head=(head, "auto"), norms=(norms, "auto"), rope_theta=(rope_theta, None),
            dtype=(dtype, "keep"), max_shard_size=(max_shard_size, None)), layout)
        digests = job.rehearse() if dry_run else job.write(destination, force, max_shard_size)
        return job.document(destination, digests, dry_run, max_shard_size)


def _paths(it: Opened) -> list[Path]:
    """The local folders that are read; DEST may not be in one of them."""
    sources = (it.source, it.target.source if it.target else None)
    return [s.path for s in sources if s is not None and s.path is not None]


def _legal(source: Source) -> dict[str, bytes]:
    """The source's licence files. They are copied as they are, so a link must not lead to somebody's other files."""
    names = [name for name in source.files if _LEGAL.fullmatch(name)]
    if source.path is not None:
        refuse_escaping_links(source.path, source.name, names)
    return {name: source.read_bytes(name) for name in names}


def _as_typed(**flags: tuple[Any, Any]) -> tuple[str, ...]:
    """The flags that differ from their defaults, for the manifest: name=(value, default)."""
    return tuple(word for name, (value, default) in flags.items() if value != default
                 for word in (f"--{name.replace('_', '-')}", str(value)))


def _refusal(errors: tuple[Finding, ...]) -> EagleConvertError:
    """The first error-level finding as the exception that it stands for."""
    first = errors[0]
    kinds = {"EC6": BrokenFileError, "EC7": PairingError, "EC912": BrokenFileError, "EC914": PairingError}
    kind = kinds.get(first.id) or kinds.get(first.id[:3], CompactionError)
    more = f" (and {len(errors) - 1} more: `inspect` lists them)" if len(errors) > 1 else ""
    return kind(first.message + more, where=first.where, how=first.fix)


class _Job:
    """One conversion after everything is decided: the writing, and the documents about it."""

    def __init__(self, it: Opened, decided: Plan, checked: list[Finding], spec: DraftSpec, package: Package,
                 options: tuple[str, ...], layout: str) -> None:
        self.it, self.plan, self.checked, self.spec, self.package = it, decided, checked, spec, package
        self.options, self.layout = options, layout
        self.legal = _legal(it.source)
        self.tensors = [OutTensor(name, out.dtype, out.item.out_shape, out.chunks)
                        for name, out in package.outgoing.items()]

    def rehearse(self) -> dict[str, str]:
        """Everything but the writing: each tensor is read, checked, cast and hashed."""
        return {name: out.sha256() for name, out in self.package.outgoing.items()}

    def write(self, destination: Path, force: bool, max_shard_size: int | None) -> dict[str, str]:
        """Write the folder; the digest of each tensor as written."""
        return write_folder(destination, self.tensors, self._files, force=force, max_shard_size=max_shard_size,
                            source_paths=_paths(self.it)).digests

    def _files(self, written: WriteResult) -> dict[str, bytes]:
        config = json.dumps(self.package.layout.config, indent=2, ensure_ascii=False) + "\n"
        files = {"config.json": config.encode()}
        if self.layout == "compact":  # in another layout the file would make a reader take the folder for a compact one
            files[manifests.FILE] = self.manifest(written.digests).encode()
        return files | self.legal

    def ledger(self, digests: Mapping[str, str]) -> list[dict[str, Any]]:
        """A row a tensor: ``sha256`` is of the bytes as written, of the source's for what is dropped."""
        rows = []
        for item, out in ((packed.item, packed.out) for packed in self.package.rows):
            row: dict[str, Any] = {
                "source": item.source, "destination": item.destination,
                "action": "cast" if out and out.is_cast and item.source else item.action, "reason": item.reason,
                "sha256": digests[str(item.destination)] if out else self._source_digest(item),
                "bytes": item.nbytes, "destination_bytes": _written(out) if out else 0, "dtype": item.dtype,
                "shape": list(item.shape)}
            if out and out.is_cast:
                row |= {"destination_dtype": out.dtype}
            if out and out.source_sha256 and item.source:
                row |= {"source_sha256": out.source_sha256}
            rows.append(row)
        return rows

    def _source_digest(self, item: Item) -> str:
        return item.sha256 or self.it.index.sha256(str(item.source))

    def manifest(self, digests: Mapping[str, str]) -> manifests.Manifest:
        ledger = self.ledger(digests)
        source, target = self.it.source, self.it.target
        origin = manifests.Origin(source.name, source.revision, {
            row["source"]: row.get("source_sha256", row["sha256"]) for row in ledger if row["source"]})
        borrowed = None if target is None else manifests.TargetOrigin(
            target.source.name, target.source.revision, self.plan.borrowed)
        window = self.plan.trained_window
        if self.it.earlier is not None:  # a compact folder again: what it knew of its target stays known
            borrowed = borrowed or self.it.earlier.target
            window = window or self.it.earlier.trained_window
        return manifests.Manifest(
            source=origin, target=borrowed, algorithm=self.spec.algorithm, dialect=self.it.reading.dialect,
            ledger=tuple(ledger), findings=tuple(f.document() for f in self.findings()), options=self.options,
            trained_window=window)

    def findings(self) -> list[Finding]:
        """Everything found, once the tensors have passed."""
        found = [*self.plan.findings, *self.package.layout.findings, *self.it.ignored, *self.checked]
        cast = [packed.out for packed in self.package.rows if packed.out and packed.out.is_cast and packed.item.source]
        if cast:
            worst = max(cast, key=lambda out: out.largest)
            found.append(finding(
                "EC602", worst.where, source=", ".join(sorted({DTYPES[out.item.dtype].torch for out in cast})),
                dtype=DTYPES[worst.dtype].torch, differing=f"{sum(out.differing for out in cast):,}",
                elements=f"{sum(math.prod(out.item.out_shape) for out in cast):,}", largest=f"{worst.largest:.3g}"))
        return found

    def document(self, destination: Path, digests: Mapping[str, str], dry_run: bool,
                 max_shard_size: int | None) -> dict[str, Any]:
        outgoing = self.package.outgoing
        layers = self.it.target.number("num_hidden_layers") if self.it.target else None
        return {
            "schema": SCHEMA, "source": self.it.source.ref, "destination": str(destination), "layout": self.layout,
            "algorithm": self.spec.algorithm, "dialect": self.it.reading.dialect, "ledger": self.ledger(digests),
            "bytes": {"source": self.plan.source_bytes, "destination": sum(map(_written, outgoing.values()))},
            "findings": [f.document() for f in self.findings()],
            "engines": engines(self.spec, outgoing, self.package.layout.config,
                               weight_file_names(self.tensors, max_shard_size), layers),
            "dry_run": dry_run}


def _written(out: Outgoing) -> int:
    return OutTensor("", out.dtype, out.item.out_shape, out.chunks).nbytes
