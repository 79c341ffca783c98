"""Layouts of EAGLE drafts in the wild: exactly one is told by evidence, then read into one DraftSpec.

Evidence is tensor names and shapes first, the config second, the model's name never. ``DIALECTS`` holds every layout;
lists of choices elsewhere are derived from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from eagle_convert.errors import DialectError
from eagle_convert.findings import finding
from eagle_convert.manifest import decode

from . import (
    automodel,
    compact,
    eagle1,
    eagle3,
    legacy_vllm,
    megatron,
    mistral,
    not_draft,
    other_drafts,
    peagle,
    speculators,
    vllm_eagle3,
)
from ._base import MANIFEST, Dialect, Evidence, Facts, Reading
from ._names import nearest
from .side_files import read_meta, read_token_map

if TYPE_CHECKING:
    from eagle_convert.source import Source
    from eagle_convert.tensors import TensorIndex
    from eagle_runtime.views import DraftView

__all__ = ["DIALECTS", "Dialect", "Evidence", "Reading", "draft_view", "open_draft", "read", "read_token_map"]

DIALECTS: tuple[Dialect, ...] = (
    compact.DIALECT,
    eagle1.DIALECT, automodel.EAGLE1, legacy_vllm.DIALECT, megatron.EAGLE1, mistral.DIALECT,
    speculators.LAYERNORMS_DIALECT, speculators.OLD_DIALECT,
    eagle3.DIALECT, vllm_eagle3.DIALECT, automodel.EAGLE3, megatron.DEEP, speculators.EAGLE3_DIALECT, peagle.DIALECT,
    *other_drafts.DIALECTS,
    not_draft.MODEL, not_draft.TABLE, not_draft.ADAPTER)

_STRANGERS = 8  # tensors whose nearest known name an error shows
_MEDUSA = "medusa_lm_head.pt"
_PREFIX = "module."  # what data-parallel wrappers put before every key
_KNOWN = tuple(sorted({*eagle1.NAMES.table(1), *eagle3.NAMES.table(1), *vllm_eagle3.NAMES.table(1)}))


def open_draft(source: Source) -> TensorIndex:
    """The headers of a source's weights, of GGUF files and Medusa's ``medusa_lm_head.pt`` too.

    Raises what :func:`eagle_convert.tensors.open_index` and :func:`eagle_convert.dialects.gguf_file.open_gguf` raise.
    """
    from eagle_convert.tensors import open_index

    if len(source.weight_files) == 1 and source.weight_files[0].endswith(".gguf"):
        from .gguf_file import open_gguf

        return open_gguf(source)
    if not source.weight_files and _MEDUSA in source.files:
        return open_index(source, [_MEDUSA])
    return open_index(source)


def read(index: TensorIndex, source: Source, **hints: Any) -> Reading:
    """Tell the layout and read it.

    Args:
        index: the weight files' header index; of data only vocabulary tables are read.
        source: the opened source.
        hints: ``target_hidden_size`` and ``num_target_layers`` (int), where a target is given; ``token_map`` (path),
            a file of absolute ids that takes the place of the source's own table.

    Raises:
        DialectError: no layout or more than one fits (the evidence for each is shown); a tensor is unknown, missing or
            of another shape.
        ConfigError: the config is absent, of wrong types, or contradicts itself.
        BrokenFileError: a vocabulary table is none.
    """
    facts = _facts(index, source, hints)
    found = [dialect.detect(facts) for dialect in DIALECTS]
    matches = [(dialect, proof) for dialect, proof in zip(DIALECTS, found, strict=True) if proof.matched]
    if len(matches) != 1:
        raise _undecided(facts, [proof.dialect for _, proof in matches], found)
    dialect, proof = matches[0]
    reading = dialect.read(facts)
    said = (finding("EC103", "every tensor name", prefix=facts.prefix),) if facts.prefix else ()
    return replace(reading, evidence=(proof, *(other for other in found if other is not proof)),
                   findings=(*said, *reading.findings))


def draft_view(reading: Reading, index: TensorIndex) -> DraftView:
    """The draft as the runtime takes it: spec, and canonical name -> callable that loads a tensor. Imports torch."""
    import torch

    from eagle_runtime.views import DraftView

    def load(name: str) -> torch.Tensor:
        if name in reading.created:
            return torch.from_numpy(reading.created[name][0].copy())
        tensor = index.torch(reading.names[name])
        if name in reading.gather:
            tensor = tensor[torch.from_numpy(reading.gather[name])].contiguous()
        return tensor

    names = {*reading.names, *reading.created}
    return DraftView(reading.draft(), {name: partial(load, name) for name in sorted(names)})


def _facts(index: TensorIndex, source: Source, hints: Mapping[str, Any]) -> Facts:
    names = list(index)
    prefix = _PREFIX if names and all(name.startswith(_PREFIX) for name in names) else ""
    bare = {name[len(prefix):]: index[name] for name in sorted(names)}
    manifest = decode(source.read_bytes(MANIFEST)).algorithm if MANIFEST in source.files else None
    return Facts(index, prefix, {name: tuple(info.shape) for name, info in bare.items()},
                 {name: info.dtype for name, info in bare.items()}, getattr(index, "gguf_metadata", source.config),
                 source.config_file or "config.json", tuple(source.files), manifest, hints, partial(read_meta, source))


def _undecided(facts: Facts, matched: list[str], found: list[Evidence]) -> DialectError:
    if matched:
        lines = [f"{proof.dialect}: " + "; ".join(proof.facts) for proof in found if proof.matched]
        return DialectError(f"the file reads as more than one layout: {', '.join(matched)}", where="\n".join(lines),
                            how="remove the tensors that are not the draft's")
    against = {proof.dialect: [fact for fact in proof.facts if fact.startswith("no:")] for proof in found}
    lines = [f"{name}: " + "; ".join(facts) for name, facts in sorted(against.items(), key=lambda item: len(item[1]))]
    strangers = [name for name in facts.shapes if name not in _KNOWN][:_STRANGERS]
    lines += [f"tensor {facts.source_name(name)}, nearest known name {near}" for name in strangers
              if (near := nearest(name, _KNOWN))]
    return DialectError("no layout of an EAGLE draft fits the file", where="\n".join(lines) or "there is no tensor",
                        how="give the folder of the draft; where a tool renamed tensors, name them as that layout does")
