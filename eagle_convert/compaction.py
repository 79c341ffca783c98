"""What a compact folder holds of a draft, and the reason for everything that goes (the compact format, rules 2 to 5).

:func:`plan` decides and reads no more than it must; an error-level finding in its result is what ``convert`` refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from eagle_runtime.config import DraftSpec

from . import bits
from .dialects import Reading
from .errors import DialectError
from .files.dtypes import DTYPES, Array
from .findings import Finding, finding
from .manifest import Borrowed
from .norms import NORMS, NormChoice, NormVerdict, decide
from .pairing import Target, check_fit
from .sharing import EMBEDDING, HEAD, Choice, Question, Share, Whose, share
from .tensors import TensorIndex

if TYPE_CHECKING:
    from .tables import Progress

Action = Literal["kept", "renamed", "cast", "dropped", "created"]

SMALL = 1 << 20  # bytes; `inspect` without a target reads no tensor larger than this
# rope scalings whose numbers depend on max_position_embeddings unless they state the original window themselves
_WINDOW_BOUND = frozenset({"dynamic", "yarn", "longrope", "su"})
_CODES = {"int64": "I64", "float32": "F32", "float16": "F16"}


@dataclass(frozen=True)
class Options:
    """The flags of ``convert`` that decide what is kept."""

    embeddings: Choice = "auto"
    head: Choice = "auto"
    norms: NormChoice = "auto"


@dataclass(frozen=True)
class Item:
    """One tensor's fate. ``source`` is None for a created one, ``destination`` for a dropped one.

    Attributes:
        dtype, shape, nbytes: of the source tensor (of the created one where there is no source).
        out_shape: as written; differs from ``shape`` only where ``rows`` picks some.
        rows: rows of the source to take, in this order.
        value: what a created tensor holds.
        sha256: digest of the source tensor's bytes where a comparison has already computed it.
    """

    source: str | None
    destination: str | None
    action: Action
    reason: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    out_shape: tuple[int, ...]
    rows: Array | None = field(default=None, compare=False)
    value: Array | None = field(default=None, compare=False)
    sha256: str = ""

    @property
    def out_nbytes(self) -> int:
        """Bytes as written in the same dtype; 0 for a dropped tensor."""
        if self.destination is None:
            return 0
        elements = 1
        for n in self.out_shape:
            elements *= n
        return DTYPES[self.dtype].nbytes(elements) or 0


@dataclass(frozen=True)
class Plan:
    """The compact folder, decided: ``spec`` is its function, ``items`` every tensor's fate in the source's order.

    ``borrowed`` are the target's tables that stand in, by canonical name; ``norms`` says for each norm ``absent``,
    ``applied``, ``dropped`` or ``undecided``; ``trained_window`` is the source's position limit where it was raised.
    """

    spec: DraftSpec
    items: tuple[Item, ...]
    findings: tuple[Finding, ...]
    borrowed: Mapping[str, Borrowed]
    embeddings: Whose
    head: Whose
    norms: Mapping[str, str]
    trained_window: int | None

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.severity == "error")

    @property
    def source_bytes(self) -> int:
        return sum(item.nbytes for item in self.items if item.source is not None)

    @property
    def compact_bytes(self) -> int:
        return sum(item.out_nbytes for item in self.items)


def plan(reading: Reading, index: TensorIndex, target: Target | None = None, options: Options | None = None, *,
         config_file: str = "config.json", digests: bool = False, scan: int = SMALL,
         progress: Progress | None = None) -> Plan:
    """Decide what a compact folder of this draft holds.

    Args:
        target: the opened target, or None: then no table is dropped unless the user says so.
        digests: hash both sides of a comparison on the way (``convert`` needs them, ``inspect`` does not).
        scan: search kept tensors of up to so many bytes for Inf and NaN.
        progress: told the bytes that comparisons read.
    """
    options, names, spec = options or Options(), reading.names, reading.draft()
    findings = list(reading.findings)
    if target is not None:
        unfit = check_fit(spec, target, EMBEDDING in names)
        findings += [*target.findings, *unfit]
        if any(f.severity == "error" for f in unfit):
            target = None  # nothing can be compared with it, so nothing is proved
        elif EMBEDDING not in names:
            spec = replace(spec, vocab_size=target.vocab_size)

    def question(tensor: str, choice: Choice, why_not: str) -> Question:
        return Question(tensor, index, names.get(tensor), target, spec, choice, why_not, digests, progress)

    embedding = share(question(EMBEDDING, options.embeddings, _embedding_bound(spec)))
    head = share(question(HEAD, options.head, _head_bound(spec, reading, index)))
    spec = _with_tables(spec, embedding, head)
    verdict = _norms(reading, index, options.norms)
    spec = _with_norms(spec, verdict)
    reasons = {EMBEDDING: embedding.reason, HEAD: head.reason,
               **{NORMS[norm]: reason for norm, reason in verdict.reasons.items()}}
    dropped = {NORMS[norm] for norm in verdict.reasons if not verdict.applied[norm]}
    dropped |= {tensor for tensor, verdict_ in ((EMBEDDING, embedding), (HEAD, head)) if not verdict_.own}
    findings += [*embedding.findings, *head.findings, *verdict.findings]
    reasons |= (gone := _redundant_vocabulary(reading))
    dropped |= set(gone)
    if "fc.bias" in names and bits.is_zeros(_bytes(index, names["fc.bias"]), index[names["fc.bias"]].dtype):
        dropped.add("fc.bias")
        reasons["fc.bias"] = "every element is exactly zero"
        findings.append(finding("EC410", f"{index[names['fc.bias']].file}: {names['fc.bias']}"))
        spec = replace(spec, fc_bias=False)
    spec, window, said = _positions(spec, target, f"{config_file}: max_position_embeddings")
    digest = {EMBEDDING: embedding.sha256, HEAD: head.sha256}
    items = _items(reading, index, dropped, reasons, digest)
    findings += [*said, *_scan(index, items, scan)]
    borrowed = {tensor: s.borrowed for tensor, s in ((EMBEDDING, embedding), (HEAD, head)) if s.borrowed}
    return Plan(spec, items, tuple(findings), borrowed, embedding.whose, head.whose, _norm_words(verdict, spec), window)


def _embedding_bound(spec: DraftSpec) -> str:
    return "" if spec.hidden_size == spec.target_hidden_size else (
        f"the draft is {spec.hidden_size} wide, the target {spec.target_hidden_size}")


def _head_bound(spec: DraftSpec, reading: Reading, index: TensorIndex) -> str:
    if HEAD not in reading.names or not spec.reduced_vocabulary or HEAD in reading.gather:
        return ""
    rows = index[reading.names[HEAD]].shape[0]
    return f"its {rows} rows are the draft's own vocabulary, a part of the target's {spec.vocab_size}"


def _with_tables(spec: DraftSpec, embedding: Share, head: Share) -> DraftSpec:
    """``spec`` with who owns the tables, and with the vocabulary that padding rows have changed."""
    size = embedding.vocab_size or head.vocab_size or spec.vocab_size
    draft = spec.draft_vocab_size if spec.reduced_vocabulary else size
    return replace(spec, own_embedding=embedding.own, own_head=head.own, vocab_size=size, draft_vocab_size=draft)


def _with_norms(spec: DraftSpec, verdict: NormVerdict) -> DraftSpec:
    """``spec`` of an EAGLE-1/2 head with the norms that are applied; only a final norm can norm the recycled state."""
    if spec.algorithm != "eagle":
        return spec
    applied = verdict.applied
    return replace(spec, input_norm=applied["input_norm"], output_norm=applied["output_norm"],
                   embed_norm=applied["embed_norm"], hidden_norm=applied["hidden_norm"],
                   norm_output=spec.norm_output and applied["output_norm"])


def _norms(reading: Reading, index: TensorIndex, choice: NormChoice) -> NormVerdict:
    """The verdict on the norms of an EAGLE-1/2 head; an EAGLE-3 head's are all part of its function."""
    if reading.draft().algorithm != "eagle":
        return NormVerdict()
    names = {norm: reading.names[tensor] for norm, tensor in NORMS.items() if tensor in reading.names}
    shown = {norm: f"{index[name].file}: {name}" for norm, name in names.items()}

    def is_ones(norm: str) -> bool:
        return bits.is_ones(_bytes(index, names[norm]), index[names[norm]].dtype)

    return decide(shown, reading.claims, is_ones, choice)


def _norm_words(verdict: NormVerdict, spec: DraftSpec) -> dict[str, str]:
    if spec.algorithm == "eagle3":
        optional = {"norm_before_fc": spec.norm_before_fc, "fc_norm": spec.fc_norm, "qk_norm": spec.qk_norm}
        return {**dict.fromkeys(("input_norm", "hidden_norm", "output_norm"), "applied"),
                **{name: "applied" if there else "absent" for name, there in optional.items()}}
    words = dict.fromkeys(NORMS, "absent")
    for norm, reason in verdict.reasons.items():
        words[norm] = "applied" if verdict.applied[norm] else "undecided" if reason == "undecided" else "dropped"
    return words


def _redundant_vocabulary(reading: Reading) -> dict[str, str]:
    """``t2d`` is derivable from ``d2t``; both go where the vocabulary is whole and every offset is 0."""
    identity = reading.vocabulary is None or reading.vocabulary.identity
    out = {"t2d": "every id is in the draft vocabulary" if identity else "derivable from d2t"}
    if identity:
        out["d2t"] = "the draft vocabulary is the whole vocabulary, every offset is 0"
    return {tensor: reason for tensor, reason in out.items() if tensor in reading.names or tensor in reading.created}


def _positions(spec: DraftSpec, target: Target | None,
               where: str) -> tuple[DraftSpec, int | None, tuple[Finding, ...]]:
    """The position limit raised to the target's, and the trained window where that changed it."""
    own = spec.max_position_embeddings
    if own is None:
        return spec, None, ()
    if target is None:
        return spec, None, (finding("EC708", where, own=own),)
    theirs = target.number("max_position_embeddings")
    if theirs is None or theirs <= own:
        return spec, None, ()
    if _window_bound(spec):
        return spec, None, (finding("EC711", where, own=own, theirs=theirs),)
    return (replace(spec, max_position_embeddings=theirs), own, (finding("EC707", where, own=own, theirs=theirs),))


def _window_bound(spec: DraftSpec) -> bool:
    """Whether max_position_embeddings is part of the rotary function (then raising it would change the numbers)."""
    scaling = spec.rope_scaling or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    return kind in _WINDOW_BOUND and (kind == "dynamic" or "original_max_position_embeddings" not in scaling)


def _items(reading: Reading, index: TensorIndex, dropped: set[str], reasons: Mapping[str, str],
           digest: Mapping[str, str]) -> tuple[Item, ...]:
    """Every source tensor exactly once, in the source's order, then the created ones."""
    canonical = {source: tensor for tensor, source in reading.names.items()}
    out = []
    for name, info in index.items():
        if (name in canonical) == (name in reading.unused):
            raise DialectError(f"'{name}' is {'twice' if name in canonical else 'not'} accounted for",
                               where=f"{info.file}: {name}",
                               how="this is a bug of eagle-convert: report it with the list of tensors")
        tensor = canonical.get(name)
        reason = reading.unused[name] if tensor is None else reasons.get(tensor, "")
        rows = None if tensor is None else reading.gather.get(tensor)
        base = Item(name, None, "dropped", reason, info.dtype, info.shape, info.nbytes, (),
                    sha256=digest.get(tensor or "", ""))
        if tensor is None or tensor in dropped or (tensor in reading.created and rows is None):
            made = f"replaced by {tensor}, made from it" if tensor in reading.created and tensor not in dropped else ""
            out.append(replace(base, reason=reason or made))
        elif rows is not None:
            out.append(replace(base, destination=tensor, action="created", rows=rows,
                               reason=f"{len(rows)} rows of {name}: those of the draft vocabulary",
                               out_shape=(len(rows), *info.shape[1:])))
        else:
            out.append(replace(base, destination=tensor, action="kept" if name == tensor else "renamed",
                               out_shape=info.shape))
    for tensor, (value, origin) in reading.created.items():
        if tensor not in dropped:
            out.append(Item(None, tensor, "created", f"from {origin}", _CODES[value.dtype.name], value.shape,
                            value.nbytes, value.shape, value=value))
    return tuple(out)


def _bytes(index: TensorIndex, name: str) -> bytes:
    """A small tensor's raw bytes."""
    return b"".join(index.chunks(name))


def _scan(index: TensorIndex, items: tuple[Item, ...], limit: int) -> list[Finding]:
    """Inf and NaN in the tensors that are kept, up to ``limit`` bytes each."""
    found = []
    wanted = [item for item in items if item.source and item.destination and 0 < item.nbytes <= limit]
    index.expect(*(item.source for item in wanted if item.source))
    for item in wanted:
        assert item.source is not None
        if item.nbytes > SMALL or bits.may_hold_nonfinite(_bytes(index, item.source), item.dtype):
            count, first = _count_nonfinite(index, item.source)
            if count:
                found.append(finding("EC601", f"{index[item.source].file}: {item.source}", count=f"{count:,}",
                                     first=first))
    return found


def _count_nonfinite(index: TensorIndex, name: str) -> tuple[int, list[int]]:
    """How many elements are Inf or NaN, and where the first is; read in chunks of rows."""
    import numpy as np

    from .casting import has_nonfinite, nonfinite

    info, count, first = index[name], 0, []
    rows = info.shape[0] if info.shape else 1
    step = max(1, (4 << 20) // max(1, info.nbytes // max(1, rows)))
    for start in range(0, rows, step):
        chunk = index.array(name, start, start + step)
        if has_nonfinite(chunk, info.dtype):
            mask = nonfinite(chunk, info.dtype)
            if not count and info.shape:
                at = [int(i) for i in np.argwhere(mask)[0]]
                first = [at[0] + start, *at[1:]]
            count += int(mask.sum())
    return count, first
