"""EAGLE-3 heads as SafeAILab/EAGLE (``cnets.py``) writes them: one ``midlayer``, own head over a reduced vocabulary.

g = fc [three states of the target]; u = [RMS_in(e) ; RMS_hidden(g)]; x = g + Attn(u); x += MLP(RMS_post(x));
logits = lm_head(RMS(x)); the recycled state is x before that norm. EAGLE-3.1 flags change single steps of this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from eagle_convert.errors import ConfigError, DialectError
from eagle_convert.findings import Finding, finding

from ._aux import KEY as AUX_KEY
from ._aux import read_aux
from ._base import Dialect, Evidence, Facts, Reading, evidence
from ._fields import Fields, nested
from ._marks import plain
from ._names import TOPS_EAGLE3, Names
from ._spec import EAGLE3_FLAGS, Builder, check_shapes, not_run
from ._tensors import check_algorithm, map_names, read_vocabulary

NAMES = Names("eagle3", TOPS_EAGLE3, layer="midlayer.")
BLOCKS = ("eagle_config",)


def detect(facts: Facts) -> Evidence:
    return evidence(
        "official-eagle3",
        (facts.starts("midlayer."), "there is a decoder layer called midlayer"),
        (not facts.starts("midlayer.0."), "it is one layer, not midlayer.0, midlayer.1, ..."),
        (not facts.contains("mask_hidden"), "no mask_hidden"),
        *plain(facts))


def read(facts: Facts) -> Reading:
    fields, _ = nested(facts.config_file, facts.settings, *BLOCKS)
    return read_head(facts, fields, DIALECT, NAMES)


def taps_of(fields: Fields, hidden: int, columns: int, hint: int | None) -> tuple[int, int]:
    """(number of auxiliary states, target width) from fc's columns and what is declared.

    Three states unless something else is declared. Raises ConfigError where two readings remain.
    """
    target = fields.integer("target_hidden_size")
    declared = fields.integer("num_aux_hidden_states")
    for _, ids in fields.seen(AUX_KEY):
        declared = declared or (len(ids) if isinstance(ids, list) else None)
    whole = columns % hidden == 0
    if target is None and declared and columns % declared == 0 and (columns // declared == hidden or not whole):
        target = columns // declared
    elif target is None and hint and columns % hint == 0:
        target = hint
    elif target is None and not declared and (columns == 3 * hidden or (columns % 3 == 0 and not whole)):
        target = columns // 3
    if target is None:
        readings = [f"{columns // hidden} states of width {hidden}"] if whole else []
        readings += [f"{n} of width {columns // n}" for n in (declared or 3,) if columns % n == 0]
        raise ConfigError("the number of states that fc reads is not decided",
                          where=f"fc.weight [{hidden}, {columns}]: {columns} columns are "
                                + (" or ".join(readings) or f"neither a multiple of {hidden} nor of three")
                                + (f"; {fields.file} declares {declared} states" if declared else ""),
                          how=f"add target_hidden_size to {fields.file}, or give --target")
    if columns % target or (declared and declared != columns // target):
        raise ConfigError("fc, target_hidden_size and the number of auxiliary states contradict each other",
                          where=f"fc.weight [{hidden}, {columns}], {fields.file}: target_hidden_size {target}, "
                                f"states {declared}", how="fc's columns are states x target_hidden_size")
    return columns // target, target


def read_flags(fields: Fields, shapes: Mapping[str, tuple[int, ...]], taps: int,
               require: Iterable[str] = ()) -> dict[str, bool]:
    """Behaviour flags, from tensors and config. Raises ConfigError where the two contradict each other.

    ``require`` are flags whose absence this layout cannot excuse (its writers disagree about the default).
    """
    stated = {key: fields.flag(key) for key in EAGLE3_FLAGS}
    for key in require:
        if stated[key] is None:
            raise fields.missing(key, "the tools that write this layout disagree about its default")
    tensors = {"norm_before_fc": ["input_norm.weight"], "fc_norm": [f"fc_norm.{i}.weight" for i in range(taps)]}
    for key, names in tensors.items():
        here = [name for name in names if name in shapes]
        if here and stated[key] is False:
            raise ConfigError(f"the file has a norm that the config switches off by {key}",
                              where=f"{fields.file}: {key} = false; {', '.join(here)} is in the file",
                              how=f"set {key} to true if the draft was trained with the norm, else remove the tensor; "
                                  "`parity-check` of both tells which")
        if (stated[key] or here) and len(here) != len(names):
            raise DialectError(f"{key} needs a norm that the file does not have",
                               where=f"{fields.file}: {key} = {stated[key]}; missing "
                                     + ", ".join(name for name in names if name not in shapes),
                               how="nothing is filled in: fetch the complete file, or correct the flag")
        stated[key] = bool(here)
    if stated["norm_before_fc"] and stated["fc_norm"]:
        raise ConfigError("norm_before_fc and fc_norm exclude each other",
                          where="input_norm.weight and fc_norm.0.weight are both in the file",
                          how="keep the one that the draft was trained with")
    return {key: bool(value) for key, value in stated.items()}


def read_head(facts: Facts, fields: Fields, dialect: Dialect, names: Names, *, strip: tuple[str, ...] = (),
              require: Iterable[str] = (), said: Iterable[Finding] = ()) -> Reading:
    """Read an EAGLE-3 head whose names are ``names``, with ``strip`` before them.

    ``require`` are flags that must be stated (see :func:`read_flags`), ``said`` findings that the caller has already.
    """
    uses_aux = fields.flag("use_aux_hidden_state") is not False
    mapped = map_names(facts, dialect.title, names, strip=strip, has_fc=uses_aux)
    shapes = mapped.shapes
    check_algorithm(facts, fields, "eagle3", shapes)
    if not uses_aux and "fc.weight" in shapes:
        mapped.unused[mapped.names.pop("fc.weight")] = "use_aux_hidden_state is false: the draft reads the final state"
        shapes.pop("fc.weight")
    builder = Builder("eagle3", fields, shapes, mapped.layers, findings=list(said))
    hidden = shapes["norm.weight"][0]
    taps, target = 0, hidden
    if uses_aux:
        taps, target = taps_of(fields, shapes["fc.weight"][0], shapes["fc.weight"][1],
                               facts.hints.get("target_hidden_size"))
    aux, about_aux = read_aux(fields, taps or None, facts.hints.get("num_target_layers"))
    builder.findings += about_aux
    flags = read_flags(fields, shapes, taps, require)
    spec = builder.build(
        "embed_tokens.weight" in shapes, "lm_head.weight" in shapes, target_hidden_size=target, has_fc=uses_aux,
        num_aux=taps, aux_layers=aux if uses_aux else (), parallel="mask_hidden" in shapes,
        mask_token_id=fields.integer("mask_token_id", "pard_token", "ptd_token_id", least=0), **flags)
    if "lm_head.weight" not in shapes and ("d2t" in shapes and shapes["d2t"][0] != spec.vocab_size):
        raise DialectError("the head of the reduced vocabulary is missing",
                           where=f"missing tensor lm_head.weight, expected [{spec.draft_vocab_size}, {hidden}]",
                           how="fetch the complete file; an EAGLE-3 head has its own lm_head")
    table = read_vocabulary(facts, "eagle3", mapped, spec.vocab_size, spec.draft_vocab_size)
    check_shapes(spec, shapes, mapped.names)
    if spec.norm_output:
        builder.findings.append(finding("EC212", builder.where("norm_output")))
    if spec.rope_theta not in (None, 10000.0):
        builder.findings.append(finding("EC211", builder.where("rope_theta"), theta=f"{spec.rope_theta:g}"))
    if target != hidden:
        builder.findings.append(finding("EC213", "fc.weight", hidden=hidden, target=target))
        if not spec.own_embedding:
            raise DialectError("a draft of its own width needs its own embedding",
                               where=f"missing tensor embed_tokens.weight; the draft is {hidden} wide, the target "
                                     f"{target}", how="fetch the complete file")
    builder.leftovers()
    return Reading(dialect.name, dialect.title, "draft", spec=spec, names=mapped.names, unused=mapped.unused,
                   config=fields.flat(), findings=(*builder.findings, *table.findings), runnable=not not_run(spec),
                   convertible=True, explanation=not_run(spec), vocabulary=table.found, created=table.created)


DIALECT = Dialect("official-eagle3", "an EAGLE-3 head in the official layout (SafeAILab/EAGLE)", detect, read)
