"""Is a draft's table the target's, and may it go? Proof, or the user's word, for ``embed_tokens`` and ``lm_head``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from eagle_runtime.config import DraftSpec

from .findings import Finding, finding
from .manifest import Borrowed
from .pairing import Target
from .tensors import TensorIndex

if TYPE_CHECKING:  # tables.py costs numpy: it is loaded when there is something to compare
    from .tables import Comparison, Progress, Table

Choice = Literal["auto", "keep", "drop"]
Whose = Literal["own", "target", "absent", "unproved"]

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class Share:
    """The verdict on one table.

    Attributes:
        own: the compact folder holds it.
        whose: the word for it in ``inspect/1``.
        reason: for the ledger; empty where the file has no such table.
        borrowed: the target's table that stands in for it; None where there is none, or no target.
        sha256: digest of the draft's table, where the comparison computed it.
        vocab_size: the vocabulary without (or with) padding rows, where the tables differ by such.
    """

    own: bool
    whose: Whose
    reason: str = ""
    findings: tuple[Finding, ...] = ()
    borrowed: Borrowed | None = None
    sha256: str = ""
    vocab_size: int | None = None


@dataclass(frozen=True)
class Question:
    """One table and what it may be compared with.

    Attributes:
        tensor: :data:`EMBEDDING` or :data:`HEAD`.
        name: its name in the source; None where the file has none.
        why_not: why no target can lend it (another width, a reduced vocabulary); empty where one could.
        choice: ``--embeddings`` or ``--head``.
        digests: hash what is compared.
    """

    tensor: str
    index: TensorIndex
    name: str | None
    target: Target | None
    spec: DraftSpec
    choice: Choice = "auto"
    why_not: str = ""
    digests: bool = False
    progress: Progress | None = None

    @property
    def where(self) -> str:
        return f"{self.index[self.name].file}: {self.name}" if self.name else self.tensor

    @property
    def theirs(self) -> Table | None:
        """The target's counterpart, where it has one that can be read."""
        if self.target is None or (self.tensor == HEAD and self.target.head is None):
            return None
        return self.target.table(self.tensor)

    def borrow(self, sha256: str = "") -> Borrowed | None:
        theirs = self.theirs
        if theirs is None:
            return None
        if self.digests and not sha256:
            sha256 = theirs.index.sha256(theirs.name)
        return Borrowed(theirs.name, sha256, theirs.dtype, theirs.shape)


def share(ask: Question) -> Share:
    """Decide one table. An error-level finding means that nothing in the files decides it."""
    if ask.name is None:
        return Share(False, "absent" if ask.target is None else "target", borrowed=ask.borrow())
    if ask.why_not:
        refused = (finding("EC312", ask.where, why=ask.why_not),) if ask.choice == "drop" else ()
        return Share(True, "own", f"the draft's own: {ask.why_not}", refused)
    if ask.choice == "keep":
        return Share(True, "own", "kept as asked")
    if ask.theirs is None:
        return _unproved(ask, ask.name, None)
    from .tables import Table, comparable, compare

    ours, theirs = Table(ask.index, ask.name), ask.theirs
    if not comparable(ours, theirs):
        return _unproved(ask, ask.name, theirs)
    comparison = compare(ours, theirs, digests=ask.digests, progress=ask.progress)
    if comparison.unequal_rows:
        assert ask.target is not None
        return Share(True, "own", findings=(finding("EC702", ask.where, target=ask.target.source.name,
                                                    draft_vocab=ours.shape[0], target_vocab=theirs.shape[0]),))
    return _compared(ask, ours, theirs, comparison)


def _unproved(ask: Question, name: str, theirs: Table | None) -> Share:
    ours = ask.index[name]
    if ask.choice == "drop":
        evidence = "it was not compared with any target"
        return Share(False, "target" if ask.target else "absent", f"dropped as asked; {evidence}",
                     (finding("EC309", ask.where, evidence=evidence),), ask.borrow())
    if ask.target is None:
        why = "no target was given to compare it with"
    elif theirs is None:
        why = "the target's head is packed (quantised) and cannot be compared"
    else:
        why = (f"{ours.dtype} {list(ours.shape)} cannot be compared with the target's {theirs.dtype} "
               f"{list(theirs.shape)}")
    return Share(True, "unproved", "not proved equal to the target's",
                 (finding("EC308", ask.where, bytes=f"{ours.nbytes:,}", why=why),))


def _compared(ask: Question, ours: Table, theirs: Table, comparison: Comparison) -> Share:
    found, own = [], False
    if comparison.equal != "no":
        reason, said = _proved(ask, ours, theirs, comparison)
    elif ask.choice == "drop":
        reason = f"dropped as asked; {evidence(comparison)}"
        said = finding("EC309", ask.where, evidence=evidence(comparison))
    else:
        own, reason = True, f"the draft's own: {evidence(comparison)}"
        said = _own_embedding(ask, ours, comparison) if ask.tensor == EMBEDDING else finding(
            "EC322" if ask.spec.algorithm == "eagle" else "EC323", ask.where, evidence=evidence(comparison))
    found.append(said)
    size = None
    if comparison.padding and not own:
        size = theirs.shape[0]
        found.append(finding("EC303", ask.where, rows=abs(comparison.padding), vocab=size,
                             holder="the draft" if comparison.padding > 0 else "the target"))
    return Share(own, "own" if own else "target", reason, tuple(found),
                 None if own else ask.borrow(comparison.target_sha256), comparison.draft_sha256, size)


def _proved(ask: Question, ours: Table, theirs: Table, comparison: Comparison) -> tuple[str, Finding]:
    if comparison.differing == 0:
        return f"equal to the target's {theirs.name}", finding(
            "EC301", ask.where, target_tensor=theirs.name, bytes=f"{ask.index[ours.name].nbytes:,}")
    return f"equal to the target's {theirs.name} rounded to {ours.dtype}: {evidence(comparison)}", finding(
        "EC302", ask.where, target_tensor=theirs.name, target_dtype=theirs.dtype, dtype=ours.dtype,
        differing=f"{comparison.differing:,}", elements=f"{comparison.elements:,}",
        largest=f"{comparison.largest:.3g}")


def _own_embedding(ask: Question, ours: Table, comparison: Comparison) -> Finding:
    """What kind of relative of the target's table it is; an unrelated one is an error-level finding."""
    rows = comparison.elements // ours.shape[1]
    numbers: dict[str, Any] = {"cosine": f"{comparison.median_cosine:.3f}", "ranges": _range_words(comparison),
                               "share": f"{comparison.rows_differing * 100 / rows:.3g}",
                               "largest": f"{comparison.largest:.3g}"}
    if not comparison.related:
        return finding("EC307", ask.where, **numbers)
    if comparison.rotated:
        return finding("EC306", ask.where, **numbers)
    if comparison.scale is not None:
        return finding("EC311", ask.where, scale=f"{comparison.scale:.6g}", **numbers)
    if comparison.rows_differing < rows:
        return finding("EC305", ask.where, **numbers)
    if comparison.median_cosine > 0.9999:
        return finding("EC310", ask.where, **numbers)
    return finding("EC304", ask.where, **numbers)


def evidence(comparison: Comparison) -> str:
    """The numbers of a comparison in words."""
    text = f"{comparison.differing:,} of {comparison.elements:,} entries differ, by at most {comparison.largest:.3g}"
    return text if comparison.equal != "no" else f"{text}; median row cosine {comparison.median_cosine:.3f}"


def _range_words(comparison: Comparison, limit: int = 4) -> str:
    words = [str(a) if b == a + 1 else f"{a}–{b - 1}" for a, b in comparison.ranges[:limit]]
    more = len(comparison.ranges) - limit
    return ", ".join(words) + (f" and {more} more ranges" if more > 0 else "")
