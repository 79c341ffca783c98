"""Which norms of an EAGLE-1/2 head belong to its function: the decision table of the compact format, rule 3.

The official head has no layer-0 input norm, no final norm and no norms before ``fc``. Old engines filled absent norms
with ones and re-saved them; other trainers really trained them. A gain of ones is no identity (it still rescales), so
nothing but provenance, flags or trained values tells the two apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from .findings import Finding, finding

NormChoice = Literal["auto", "keep", "drop"]

# field of DraftSpec -> canonical tensor name
PLAIN = {"input_norm": "layers.0.input_layernorm.weight", "output_norm": "norm.weight"}
PARALLEL = {"embed_norm": "enorm.weight", "hidden_norm": "hnorm.weight"}
NORMS = {**PLAIN, **PARALLEL}
FLAGS = {"input_norm": "skip_prenorm", "output_norm": "skip_output_norm", "embed_norm": "add_para_norm",
         "hidden_norm": "add_para_norm"}


@dataclass
class NormVerdict:
    """``applied``: field of DraftSpec -> part of the function; ``reasons``: why, for every norm that is in the file."""

    applied: dict[str, bool] = field(default_factory=lambda: dict.fromkeys(NORMS, False))
    reasons: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def keep(self, norm: str, reason: str) -> None:
        self.applied[norm], self.reasons[norm] = True, reason

    def drop(self, norm: str, reason: str) -> None:
        self.applied[norm], self.reasons[norm] = False, reason


def decide(present: Mapping[str, str], claims: Mapping[str, bool], is_ones: Callable[[str], bool],
           choice: NormChoice) -> NormVerdict:
    """The verdict for the norms that a file holds.

    Args:
        present: field of DraftSpec -> file and name in the source, of the norms that are there.
        claims: what flags (or the dialect itself) say: True applied, False skipped.
        is_ones: whether the norm's weight is bit-exactly ones.
        choice: ``--norms``.
    """
    verdict = NormVerdict()
    missing = [norm for norm, applied in claims.items() if applied and norm not in present]
    if missing and choice != "drop":
        verdict.findings.append(finding("EC406", ", ".join(NORMS[n] for n in missing),
                                        flags=", ".join(sorted({FLAGS[n] for n in missing}))))
    if not present:
        return verdict
    if choice != "auto":
        return _as_asked(verdict, present, is_ones, choice)
    ones = {norm: is_ones(norm) for norm in present}
    flagged = [norm for norm in present if claims.get(norm)]
    for norm in flagged:
        verdict.keep(norm, f"applied: {FLAGS[norm]} says so")
    if flagged:
        verdict.findings.append(finding("EC402", _where(present, flagged), variant=_variant(flagged)))
    skipped = [norm for norm in present if claims.get(norm) is False]
    for norm in skipped:
        if ones[norm]:
            verdict.drop(norm, f"skipped: {FLAGS[norm]} says so, and its weight is exactly ones")
        else:
            _ask(verdict, present, [norm], ones, f"{FLAGS[norm]} says it is skipped, but its weight was trained")
    open_ = [norm for norm in present if norm not in claims]
    para = [norm for norm in open_ if norm in PARALLEL]
    _decide_pair(verdict, present, para, ones, both=len(PARALLEL), droppable=False)
    plain = [norm for norm in open_ if norm in PLAIN]
    _decide_pair(verdict, present, plain, ones, both=len(PLAIN), droppable=not any(n in PARALLEL for n in present))
    return verdict


def _decide_pair(verdict: NormVerdict, present: Mapping[str, str], norms: list[str], ones: Mapping[str, bool],
                 both: int, droppable: bool) -> None:
    """Rows (a), (c) and (d) for the two norms that no flag mentions; ``droppable``: an otherwise plain head."""
    if not norms:
        return
    if len(norms) < both:
        _ask(verdict, present, norms, ones, "the other norm of the pair is absent, or a flag speaks for it alone")
    elif not any(ones[norm] for norm in norms):
        for norm in norms:
            verdict.keep(norm, "its weight was trained (it is not all ones)")
        verdict.findings.append(finding("EC404", _where(present, norms), variant=_variant(norms)))
    elif all(ones[norm] for norm in norms) and droppable:
        for norm in norms:
            verdict.drop(norm, "exactly ones and no flag activates it: what a re-save from an old engine leaves")
        verdict.findings.append(finding("EC401", _where(present, norms)))
    elif all(ones[norm] for norm in norms):
        _ask(verdict, present, norms, ones, "all are exactly ones beside other norms")
    else:
        _ask(verdict, present, norms, ones, "one is exactly ones, the other was trained")


def _ask(verdict: NormVerdict, present: Mapping[str, str], norms: list[str], ones: Mapping[str, bool],
         why: str) -> None:
    for norm in norms:
        verdict.drop(norm, "undecided")
    found = ", ".join(f"{present[n]} is {'exactly ones' if ones[n] else 'trained'}" for n in norms)
    verdict.findings.append(finding("EC403", _where(present, norms), found=found, why=why))


def _as_asked(verdict: NormVerdict, present: Mapping[str, str], is_ones: Callable[[str], bool],
              choice: NormChoice) -> NormVerdict:
    for norm in present:
        if choice == "keep":
            verdict.keep(norm, "kept as asked (--norms keep)")
        else:
            verdict.drop(norm, "dropped as asked (--norms drop)")
    norms = list(present)
    if choice == "keep":
        verdict.findings.append(finding("EC402", _where(present, norms), variant=_variant(norms)))
    else:
        trained = [norm for norm in norms if not is_ones(norm)]
        verdict.findings.append(finding("EC405", _where(present, norms),
                                        trained=_where(present, trained) if trained else "none of them"))
    return verdict


def _where(present: Mapping[str, str], norms: list[str]) -> str:
    return ", ".join(present[norm] for norm in norms)


def _variant(norms: list[str]) -> str:
    """The variant in words, as the docs call it."""
    words = {"input_norm": "a norm before the first attention", "output_norm": "a norm before the head",
             "embed_norm": "a norm on the embedding before fc", "hidden_norm": "a norm on the target's state before fc"}
    return ", ".join(words[norm] for norm in norms)
