"""EAGLE-1 and EAGLE-2 heads as SafeAILab/EAGLE (``cnets1.py``), HASS and BaldEagle write them.

x = fc [embedding of token t+1 ; target state of token t after its final norm]; one decoder layer without an input norm;
no final norm; the target's head. Norms that old re-saves left in such files are read, not judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from eagle_convert.errors import ConfigError, DialectError
from eagle_convert.findings import Finding

from ._base import Dialect, Evidence, Facts, Reading, evidence
from ._fields import Fields, nested
from ._marks import architectures, inputs, one_state, plain, wrapped
from ._names import TOPS_EAGLE1, Names
from ._spec import Builder, check_shapes, not_run
from ._tensors import check_algorithm, map_names, read_vocabulary

NAMES = Names("eagle", TOPS_EAGLE1)

# Flags that speak of a norm, each for its own: (key, norm, value that means applied). The first three are of vLLM's
# pull request 14990, the others of NVIDIA's Model-Optimizer.
NORM_FLAGS = (("skip_prenorm", "input_norm", False), ("skip_output_norm", "output_norm", False),
              ("add_para_norm", "embed_norm", True), ("add_para_norm", "hidden_norm", True),
              ("use_input_layernorm_in_first_layer", "input_norm", True), ("use_last_layernorm", "output_norm", True),
              ("use_mtp_layernorm", "embed_norm", True), ("use_mtp_layernorm", "hidden_norm", True))
NORM_TENSORS = {"input_norm": "layers.0.input_layernorm.weight", "output_norm": "norm.weight",
                "embed_norm": "enorm.weight", "hidden_norm": "hnorm.weight"}
LEGACY_FLAGS = ("skip_prenorm", "skip_output_norm", "add_para_norm")

# Norms that only other layouts have.
_OTHER_NORMS = ("layernorms.", "embed_layernorm", "embedding_layernorm", "hidden_layernorm", "lm_head_layernorm",
                "enorm.", "hnorm.")


def automodel(facts: Facts) -> bool:
    """The config says that NeMo Automodel trained the head: nothing in the tensors tells its active norms apart."""
    return "LlamaEagleDraftModel" in architectures(facts) or "draft_num_hidden_layers" in (facts.config or {})


def detect(facts: Facts) -> Evidence:
    return evidence(
        "official-eagle1",
        (inputs(facts) == 2, "fc.weight reads two hidden widths, embedding and state"),
        (facts.starts("layers.0."), "there is a decoder layer layers.0"),
        (one_state(facts, "fc.weight", "layers.0."), "its attention reads one hidden width"),
        (not facts.contains("layers.0.hidden_norm.", "midlayer.", "eh_proj", "mask_hidden"),
         "no tensor that marks an EAGLE-3 head or an MTP module"),
        (not facts.contains(*_OTHER_NORMS) and not facts.has("token_map"),
         "no norms on embedding or state, no token_map"),
        (not wrapped(facts) and not automodel(facts), "the config is neither legacy vLLM's nor NeMo Automodel's"),
        *plain(facts))


def norm_claims(fields: Fields) -> dict[str, bool]:
    """What the flags of a config say of each norm; a norm without a flag is not in the result."""
    out: dict[str, bool] = {}
    said: dict[str, str] = {}
    for key, norm, applied in NORM_FLAGS:
        value = fields.flag(key)
        if value is None:
            continue
        if out.setdefault(norm, value is applied) != (value is applied):
            raise ConfigError("two flags contradict each other about a norm",
                              where=f"{fields.file}: {said[norm]}, {key} = {value}; both speak of {NORM_TENSORS[norm]}",
                              how="keep the one that the draft was trained with")
        said.setdefault(norm, f"{key} = {value}")
    return out


def read(facts: Facts) -> Reading:
    fields, _ = nested(facts.config_file, facts.settings)
    return read_head(facts, fields, DIALECT, NAMES, absent_bias=True)


def read_head(facts: Facts, fields: Fields, dialect: Dialect, names: Names, *, strip: tuple[str, ...] = (),
              stored: Literal["offsets", "ids"] = "offsets", claims: Mapping[str, bool] | None = None,
              recycles_normed: bool = True, absent_bias: bool | None = None,
              said: Iterable[Finding] = ()) -> Reading:
    """Read an EAGLE-1 head.

    Args:
        names: the layout's names; ``strip`` the prefixes before them.
        stored: how the layout stores a vocabulary table.
        claims: what the layout itself says of its norms, where no flag does.
        recycles_normed: whether the layout feeds the state back after a final norm, if there is one.
        absent_bias: what the layout means by a config without ``bias``: the official one means true.
        said: findings that the caller has already.
    """
    mapped = map_names(facts, dialect.title, names, strip=strip)
    builder = Builder("eagle", fields, mapped.shapes, mapped.layers, absent_bias=absent_bias, findings=list(said))
    claims = {**(claims or {}), **norm_claims(fields)}
    here = {norm: tensor in mapped.shapes for norm, tensor in NORM_TENSORS.items()}
    for norm, tensor in NORM_TENSORS.items():
        if claims.get(norm) and not here[norm]:
            raise DialectError("a norm is active and the file does not have it",
                               where=f"missing tensor {tensor}; {fields.file} and the layout say that it is applied",
                               how="nothing is filled in: fetch the complete file, or correct the flag in the config")
        if norm in ("embed_norm", "hidden_norm") and here[norm] and claims.get(norm) is False:
            raise ConfigError("the file has a norm that the config switches off",
                              where=f"{mapped.names[tensor]} is in the file, {fields.file} says that it is not applied",
                              how="set add_para_norm to true if the draft was trained with it, else remove the tensor; "
                                  "`parity-check` of both tells which")
    shapes = mapped.shapes
    check_algorithm(facts, fields, "eagle", shapes)
    head, reduced = shapes.get("lm_head.weight"), shapes.get("d2t")
    if head and reduced and head[0] != reduced[0]:
        builder.full_head = head[0]
        shapes["lm_head.weight"] = (reduced[0], *head[1:])  # what is left once the table has picked its rows
    recycled = fields.flag("norm_output")
    spec = builder.build(
        "embed_tokens.weight" in shapes, head is not None, target_hidden_size=shapes["fc.weight"][0],
        input_norm=here["input_norm"], output_norm=here["output_norm"],
        norm_output=here["output_norm"] and (recycles_normed if recycled is None else recycled))
    if builder.full_head and builder.full_head != spec.vocab_size:
        raise DialectError("head and vocabulary table do not fit each other",
                           where=f"{mapped.names['lm_head.weight']} has {builder.full_head} rows, "
                                 f"the table {spec.draft_vocab_size} ids, the vocabulary {spec.vocab_size}",
                           how="the head must have a row for every id of the table, or of the whole vocabulary")
    table = read_vocabulary(facts, "eagle", mapped, spec.vocab_size, spec.draft_vocab_size, stored=stored)
    check_shapes(spec, shapes, mapped.names)
    builder.leftovers()
    return Reading(
        dialect.name, dialect.title, "draft", spec=spec, names=mapped.names, unused=mapped.unused,
        config=fields.flat(), findings=(*builder.findings, *table.findings), claims=claims,
        runnable=not not_run(spec), convertible=True, explanation=not_run(spec), vocabulary=table.found,
        created=table.created,
        gather={"lm_head.weight": table.found.ids} if table.found and builder.full_head else {})



DIALECT = Dialect("official-eagle1", "an EAGLE-1/2 head in the official layout (SafeAILab/EAGLE)", detect, read)
