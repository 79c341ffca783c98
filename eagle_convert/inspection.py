"""``inspect`` as a function: what a checkpoint is, what a compact folder would hold of it, what is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from eagle_runtime.config import DraftSpec

from . import dialects
from .compaction import SMALL, Item, Plan, plan
from .dialects import Reading
from .engine_facts import engines
from .errors import DialectError
from .findings import Finding, finding
from .opening import Opened, opened
from .source import HubOptions, Source, open_source
from .tensors import TensorIndex

if TYPE_CHECKING:
    from .tables import Progress

SCHEMA = "eagle-convert/inspect/1"
_EVERYTHING = 1 << 62


def inspect(source: str, *, target: str | None = None, deep: bool = False, revision: str | None = None,
            hub: HubOptions | None = None, progress: Progress | None = None) -> dict[str, Any]:
    """Describe a checkpoint; the ``eagle-convert/inspect/1`` document.

    Reads headers and tensors of up to 1 MiB. With a target, tables are compared with the target's. With a target, or
    ``deep``, every tensor that a compact folder would keep is searched for Inf and NaN; on the hub only with ``deep``.
    A folder with a manifest is held against it, and the target against what the manifest borrows.

    Args:
        source: folder, file or hub id of the draft.
        target: of the model the draft was trained for.
        revision: of a ``source`` on the hub.
        progress: told the bytes that comparisons read.

    Raises:
        EagleConvertError: the files cannot be read. A file that is readable and no draft is described, not refused.
    """
    try:
        with opened(source, target, revision=revision, hub=hub) as it:
            return _describe(it, deep, progress)
    except DialectError as error:
        return _unreadable(source, revision, hub, error)


def exit_code(document: Mapping[str, Any]) -> int:
    """3 where the document holds an error-level finding, else 0."""
    return 3 if any(f["severity"] == "error" for f in document["findings"]) else 0


def _describe(it: Opened, deep: bool, progress: Progress | None) -> dict[str, Any]:
    layers = it.target.number("num_hidden_layers") if it.target else None
    reading, extra = it.reading, [*it.ignored, *([it.mispaired] if it.mispaired else []),
                                  *it.against_manifest(deep=deep)]
    if reading.kind != "draft" or not reading.convertible or reading.spec is None:
        return _document(it.source, it.index, reading, None, [*reading.findings, *extra], layers)
    decided = plan(reading, it.index, it.target, config_file=it.source.config_file or "config.json",
                   scan=_EVERYTHING if deep or (it.target and not _remote(it.source)) else SMALL, progress=progress)
    return _document(it.source, it.index, reading, decided, [*decided.findings, *extra], layers)


def _remote(source: Source) -> bool:
    """Whether weights are read over the network, a range at a time: then what is not needed is not fetched."""
    return source.path is None and all(file.endswith(".safetensors") for file in source.weight_files)


def _document(source: Source, index: TensorIndex, reading: Reading, decided: Plan | None,
              findings: list[Finding], layers: int | None = None) -> dict[str, Any]:
    spec = reading.spec
    fate = {item.source: item for item in decided.items} if decided else {}
    return {
        "schema": SCHEMA, "source": source.ref, "name": source.name, "revision": source.revision,
        "dialect": reading.dialect, "title": reading.title, "kind": reading.kind, "explanation": reading.explanation,
        "evidence": [{"dialect": e.dialect, "matched": e.matched, "facts": list(e.facts)} for e in reading.evidence],
        "algorithm": spec.algorithm if spec else None,
        "draft": draft_document(spec, decided) if spec else None,
        "tensors": [_tensor(index, name, fate.get(name)) for name in index],
        "bytes": {"source": index.nbytes, "compact": decided.compact_bytes if decided else None},
        "findings": [f.document() for f in findings],
        "engines": _engines(source, index, reading, decided, layers),
    }


def _engines(source: Source, index: TensorIndex, reading: Reading, decided: Plan | None,
             layers: int | None) -> dict[str, Any]:
    """For each engine: would it load the file as it is, would it be faithful, and why not."""
    spec = reading.spec
    if spec is None:
        return {}
    if decided:  # the norms as they were decided; a table is held against nobody before it is proved the draft's own
        narrow = spec.hidden_size != spec.target_hidden_size
        spec = replace(decided.spec, own_embedding=spec.own_embedding and (narrow or decided.embeddings == "own"),
                       own_head=decided.head == "own" if spec.algorithm == "eagle" else spec.own_head)
    return engines(spec, index, source.config or {}, source.weight_files, layers)


def draft_document(spec: DraftSpec, decided: Plan | None) -> dict[str, Any]:
    """The ``draft`` block: the function as the source states it; tables and norms as they were decided."""
    return {
        "hidden_size": spec.hidden_size, "target_hidden_size": spec.target_hidden_size,
        "intermediate_size": spec.intermediate_size, "num_layers": spec.num_layers,
        "num_attention_heads": spec.num_attention_heads, "num_key_value_heads": spec.num_key_value_heads,
        "head_dim": spec.head_dim, "vocab_size": spec.vocab_size, "draft_vocab_size": spec.draft_vocab_size,
        "rms_norm_eps": spec.rms_norm_eps, "hidden_act": spec.hidden_act,
        "max_position_embeddings": spec.max_position_embeddings,
        "rope": {"theta": spec.rope_theta, "scaling": None if spec.rope_scaling is None else dict(spec.rope_scaling)},
        "fc_bias": spec.fc_bias, "attention_bias": spec.qkv_bias, "o_bias": spec.o_bias, "mlp_bias": spec.mlp_bias,
        "norms": dict(decided.norms) if decided else {},
        "norm_before_residual": spec.norm_before_residual, "norm_before_fc": spec.norm_before_fc,
        "fc_norm": spec.fc_norm, "norm_output": spec.norm_output,
        "aux_hidden_state_layers": None if spec.aux_layers is None else list(spec.aux_layers),
        "embeddings": decided.embeddings if decided else None, "head": decided.head if decided else None,
        "tie_word_embeddings": spec.tie_word_embeddings, "parallel": spec.parallel,
        "sliding_window": spec.sliding_window, "logit_scale": spec.logit_scale,
        "tensor_parallel": tensor_parallel_sizes(spec),
    }


def tensor_parallel_sizes(spec: DraftSpec) -> list[int]:
    """Into how many equal parts the shapes can be cut: query and KV heads, MLP and the draft's vocabulary all divide.

    Engines run the draft with the target's tensor parallel size. (Some pad a vocabulary or repeat KV heads to allow
    more; these sizes need neither.)
    """
    common = math.gcd(spec.num_attention_heads, spec.num_key_value_heads, spec.intermediate_size, spec.draft_vocab_size)
    return [n for n in range(1, common + 1) if common % n == 0]


def _tensor(index: TensorIndex, name: str, item: Item | None) -> dict[str, Any]:
    info = index[name]
    return {"name": name, "dtype": info.dtype, "shape": list(info.shape), "bytes": info.nbytes,
            "action": item.action if item else None, "destination": item.destination if item else None,
            "reason": item.reason if item else ""}


def _unreadable(ref: str, revision: str | None, hub: HubOptions | None, error: DialectError) -> dict[str, Any]:
    """The document of files whose headers can be read and that no layout explains."""
    source = open_source(ref, revision=revision, hub=hub)
    with dialects.open_draft(source) as index:
        found = finding("EC105", error.where, what=error.what, how=error.how)
        reading = Reading("", "no layout fits", "not a draft", explanation=error.what)
        document = _document(source, index, reading, None, [found])
    return document | {"dialect": None}
