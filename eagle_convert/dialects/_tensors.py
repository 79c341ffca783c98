"""The part of reading that all layouts of one family share: names in, a checked DraftSpec out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from eagle_convert.errors import DialectError
from eagle_convert.files.dtypes import DTYPES
from eagle_convert.files.lazy_numpy import NDArray, np
from eagle_convert.findings import Finding, finding
from eagle_convert.vocab import Vocabulary, check_d2t, plain_d2t
from eagle_runtime.config import Algorithm

from ._base import MANIFEST, Facts
from ._fields import Fields
from ._names import ALIASES, INV_FREQ, Names, complain
from ._spec import check_ranks, required
from .side_files import SideTable, read_token_map

_TABLES = frozenset({"d2t", "t2d"})  # what holds ids; everything else is computed with


@dataclass
class Mapped:
    """Source names brought to canonical ones.

    Attributes:
        names: canonical -> source (as in the file).
        shapes: canonical -> shape.
        unused: source -> reason.
        layers: number of decoder layers.
        side: a vocabulary table that lies beside the weights and takes the place of a d2t.
    """

    names: dict[str, str]
    shapes: dict[str, tuple[int, ...]]
    unused: dict[str, str]
    layers: int
    side: SideTable | None = None


def map_names(facts: Facts, title: str, names: Names, *, strip: tuple[str, ...] = (), has_fc: bool = True,
              optional: Iterable[str] = ()) -> Mapped:
    """Map every tensor, or raise DialectError that names the unknown ones (with the nearest known) and the missing.

    ``strip`` are prefixes that some or all names of the layout carry, longest first (``model.``). ``optional`` are
    canonical names that this layout may lack although most drafts have them.
    """
    bare = {name: ALIASES.get(short, short) for name in facts.shapes for short in (_strip(name, strip),)}
    layers = names.count(bare.values())
    table = names.table(layers)
    out = Mapped({}, {}, {}, layers)
    unknown, odd = [], []
    for name, short in bare.items():
        source = facts.source_name(name)
        if INV_FREQ.search(short):
            out.unused[source] = "a buffer that every loader computes from the rope base"
        elif short not in table:
            unknown.append(source)
        elif table[short] in out.names:
            raise DialectError("two tensors claim the same place", where=f"{out.names[table[short]]} and {source}",
                               how="remove the one that is not the draft's")
        else:
            out.names[table[short]], out.shapes[table[short]] = source, facts.shapes[name]
            if table[short] not in _TABLES and not DTYPES[facts.dtypes[name]].is_float:
                odd.append(f"{source} ({facts.dtypes[name]})")
    if names.algorithm == "eagle3":
        _later_norms(out)
    inverse = {canonical: source for source, canonical in table.items()}
    wanted = required(names.algorithm, max(layers, 1), has_fc=has_fc) - set(optional)
    missing = [inverse.get(name, name) for name in wanted - out.names.keys()]
    if unknown or missing:
        raise complain(title, unknown, missing, (facts.source_name(known) for known in table))
    if odd:
        raise DialectError("weights are stored as something else than floats",
                           where=", ".join(odd), how="a draft computes with F16, BF16 or F32; integers are packed or "
                           "quantised weights: give the checkpoint as it was before")
    check_ranks(out.shapes, out.names)
    find_side_table(facts, out)
    return out


@dataclass(frozen=True)
class Table:
    """The draft vocabulary of a file: None where it is the whole one, what to say, and d2t where it must be made."""

    found: Vocabulary | None
    findings: tuple[Finding, ...] = ()
    created: Mapping[str, tuple[NDArray[Any], str]] = field(default_factory=dict)


def find_side_table(facts: Facts, mapped: Mapped) -> None:
    """Take the table given with ``--token-map``, or, where the file has none, that of ``eagle_meta.pt``.

    Its length then stands in ``mapped.shapes["d2t"]`` as a tensor's would.
    """
    given = facts.hints.get("token_map")
    if given is not None:
        _drop(mapped, "d2t", "replaced by --token-map")
        _drop(mapped, "t2d", "replaced by --token-map")
        mapped.side = read_token_map(given)
    elif "d2t" not in mapped.names:
        mapped.side = facts.meta()
    if mapped.side is not None:
        mapped.shapes["d2t"] = (len(mapped.side.ids),)


def read_vocabulary(facts: Facts, algorithm: Algorithm, mapped: Mapped, vocab: int, draft_vocab: int, *,
                    stored: Literal["offsets", "ids"] = "offsets") -> Table:
    """The checked table of a file. ``t2d`` and an identity table go to ``mapped.unused``."""
    if "d2t" not in mapped.shapes:
        if draft_vocab != vocab:
            raise no_table(mapped.names.get("lm_head.weight", "lm_head.weight"), draft_vocab, vocab)
        _drop(mapped, "t2d", "the draft vocabulary is the whole vocabulary")
        return Table(None)
    rows = mapped.shapes["lm_head.weight"][0] if "lm_head.weight" in mapped.shapes else None
    where = mapped.side.where if mapped.side is not None else mapped.names["d2t"]
    found, copied = _checked(facts, mapped, vocab, rows, where, stored)
    _drop(mapped, "t2d", "derivable from d2t")
    if found.identity:
        mapped.shapes.pop("d2t")
        if "d2t" in mapped.names:
            mapped.unused[mapped.names.pop("d2t")] = "identity: the draft vocabulary is the whole vocabulary"
        return Table(None, (finding("EC501", where, size=vocab),))
    if len(found.table) == vocab:
        raise DialectError("the draft vocabulary is the whole vocabulary in another order",
                           where=f"{where}: first difference at draft id {int(np.flatnonzero(found.offsets)[0])}",
                           how="no engine has this; reorder the rows of lm_head.weight by d2t and remove d2t")
    return Table(found, tuple(vocabulary_findings(found, where)),
                 {} if copied else {"d2t": (found.offsets, where)})


def _checked(facts: Facts, mapped: Mapped, vocab: int, rows: int | None, where: str,
             stored: Literal["offsets", "ids"]) -> tuple[Vocabulary, bool]:
    """The table of the file or beside it, and whether its tensor is the canonical one (int64 offsets)."""
    names = {table: _bare(facts, mapped.names[table]) for table in ("d2t", "t2d") if table in mapped.names}
    if mapped.side is None and stored == "offsets" and all(
            facts.dtypes[name] == _USUAL[table] and len(facts.shapes[name]) == 1 for table, name in names.items()):
        mask = facts.raw(names["t2d"]) if "t2d" in names else None
        found = plain_d2t(facts.raw(names["d2t"]), vocab, t2d=mask, rows=rows)
        if found is not None:
            return found, True
    t2d = facts.array(names["t2d"]) if "t2d" in names else None
    if mapped.side is not None:
        return check_d2t(mapped.side.ids, vocab, t2d=t2d, rows=rows, where=where, stored="ids"), False
    values = facts.array(names["d2t"])
    found = check_d2t(values, vocab, t2d=t2d, rows=rows, where=where, stored=stored)
    return found, stored == "offsets" and values.dtype == np.int64


_USUAL = {"d2t": "I64", "t2d": "BOOL"}


def vocabulary_findings(found: Vocabulary, where: str) -> list[Finding]:
    """What ``inspect`` says of a reduced vocabulary."""
    out = [finding("EC502", where, summary=found.describe())]
    if not found.ascending:
        out.append(finding("EC503", where))
    if found.evenly is not None:
        out.append(finding("EC504", where, step=found.evenly, last=found.table[-1]))
    return out


def check_algorithm(facts: Facts, fields: Fields, algorithm: Algorithm, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """The algorithm is the tensors'. Raises DialectError where config or manifest claim the other one."""
    claims: list[tuple[str, str, Any]] = []
    for key in ("architectures", "model_type", "speculators_model_type", "method", "algorithm"):
        for path, block in fields.blocks:
            value = block.get(key)
            text = " ".join(map(str, value)) if isinstance(value, list) else value
            if isinstance(text, str) and "eagle" in text.lower():
                third = "eagle3" in text.lower() or "peagle" in text.lower()  # P-EAGLE is an EAGLE-3 head
                claims.append((f"{fields.file}: {path}{key}", "eagle3" if third else "eagle", value))
    if facts.manifest is not None:
        claims.append((f"{MANIFEST}: algorithm", facts.manifest, facts.manifest))
    for where, claimed, value in claims:
        if claimed != algorithm:
            found = ", ".join(f"{name} {list(shape)}" for name, shape in sorted(shapes.items())
                              if name == "fc.weight" or name.endswith("0.self_attn.q_proj.weight")
                              or name == "midlayer.self_attn.q_proj.weight")
            raise DialectError(
                f"the tensors are an {_TITLE[algorithm]} head, the claim is {_TITLE.get(claimed, claimed)}",
                where=f"{where} = {value!r}; {found}: EAGLE-1/2 has an fc of two and an attention of one hidden "
                      "width, EAGLE-3 an fc of three and an attention of two",
                how="correct the claim: run under the wrong method the draft accepts nothing and raises nothing")


_TITLE = {"eagle": "EAGLE-1/2", "eagle3": "EAGLE-3"}


def no_table(head: str, draft_vocab: int, vocab: int) -> DialectError:
    """The error for a reduced head without its table. Never a default: the first ids are right for no head."""
    return DialectError("the draft's vocabulary is reduced and its table is missing",
                        where=f"{head} has {draft_vocab} rows, the vocabulary {vocab}; no d2t in the file, no "
                              "eagle_meta.pt beside it",
                        how="give the ids with --token-map FILE (a .pt or .json list of absolute target ids), or "
                            "fetch the side file that the trainer wrote")


def _later_norms(mapped: Mapped) -> None:
    """Layers 1, 2, ... have one norm before attention: ``input_layernorm`` (vLLM) or ``hidden_norm`` (SGLang)."""
    for i in range(1, mapped.layers):
        other, name = f"layers.{i}.hidden_norm.weight", f"layers.{i}.input_layernorm.weight"
        if other not in mapped.names:
            continue
        if name in mapped.names:
            raise DialectError(f"layer {i} has two norms before its attention",
                               where=f"{mapped.names[name]} and {mapped.names[other]}; vLLM and speculators apply the "
                                     "first, SGLang and TensorRT-LLM the second",
                               how="remove the one that the draft was not trained with; `parity-check` of both tells")
        mapped.names[name], mapped.shapes[name] = mapped.names.pop(other), mapped.shapes.pop(other)


def _strip(name: str, prefixes: tuple[str, ...]) -> str:
    return next((name[len(prefix):] for prefix in prefixes if name.startswith(prefix)), name)


def _drop(mapped: Mapped, name: str, reason: str) -> None:
    if name in mapped.names:
        mapped.unused[mapped.names.pop(name)] = reason
        mapped.shapes.pop(name)


def _bare(facts: Facts, source: str) -> str:
    return source[len(facts.prefix):]

