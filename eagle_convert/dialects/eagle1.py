"""EAGLE-1 and EAGLE-2 heads as SafeAILab/EAGLE (``cnets1.py``), HASS and BaldEagle write them.

x = fc [embedding of token t+1 ; target state of token t after its final norm]; one decoder layer without an input norm;
no final norm; the target's head. Norms that old re-saves left in such files are read, not judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from eagle_convert.errors import DialectError

from ._base import Dialect, Evidence, Facts, Reading, evidence
from ._fields import Fields, nested
from ._names import TOPS_EAGLE1, Names
from ._spec import Builder, check_shapes
from ._tensors import check_algorithm, map_names, read_vocabulary

NAMES = Names("eagle", TOPS_EAGLE1)

# Flags of vLLM's pull request 14990 (false skip = applied), each for its own norm.
NORM_FLAGS = (("skip_prenorm", "input_norm", False), ("skip_output_norm", "output_norm", False),
              ("add_para_norm", "embed_norm", True), ("add_para_norm", "hidden_norm", True))


def takes(facts: Facts, linear: str, width: int) -> bool:
    """The linear reads ``width`` columns, or is not there (then the reader says so)."""
    shape = facts.shape(linear)
    return not shape or (len(shape) == 2 and shape[1] == width)


def inputs(facts: Facts, fc: str = "fc.weight") -> int:
    """How many hidden widths fc reads; 0 where it is no such matrix."""
    shape = facts.shape(fc)
    return shape[1] // shape[0] if len(shape) == 2 and shape[0] and shape[1] % shape[0] == 0 else 0


def wrapped(facts: Facts) -> bool:
    """The config is the legacy vLLM wrapper: the head's own config under ``model``."""
    config = facts.config or {}
    return isinstance(config.get("model"), dict) or config.get("model_type") == "eagle"


def ours(facts: Facts) -> bool:
    """The folder was written by this tool."""
    return "eagle_convert.json" in facts.files


def detect(facts: Facts) -> Evidence:
    hidden = facts.shape("fc.weight")[:1]
    return evidence(
        "official-eagle1",
        (inputs(facts) == 2, "fc.weight reads two hidden widths, embedding and state"),
        (facts.starts("layers.0."), "there is a decoder layer layers.0"),
        (all(takes(facts, f"layers.0.self_attn.{p}_proj.weight", *hidden) for p in "qkv") if hidden else False,
         "its attention reads one hidden width"),
        (not facts.contains("layers.0.hidden_norm.", "midlayer.", "eh_proj", "mask_hidden"),
         "no tensor that marks an EAGLE-3 head or an MTP module"),
        (not facts.contains("layernorms.", "embed_layernorm", "hidden_layernorm", "lm_head_layernorm",
                            "post_embedding_layernorm", "enorm.", "hnorm.", "\ntoken_map\n"),
         "no norms on embedding or state, no token_map"),
        (not wrapped(facts), "the config is not the legacy vLLM wrapper"),
        (not ours(facts), "no eagle_convert.json beside it"))


def norm_claims(fields: Fields) -> dict[str, bool]:
    """What the flags of a config say of each norm; a norm without a flag is not in the result."""
    out = {}
    for key, norm, applied in NORM_FLAGS:
        value = fields.flag(key)
        if value is not None:
            out[norm] = value is applied
    return out


def read(facts: Facts) -> Reading:
    fields, _ = nested(facts.config_file, facts.settings)
    return read_head(facts, fields, DIALECT, NAMES)


def read_head(facts: Facts, fields: Fields, dialect: Dialect, names: Names, *, strip: tuple[str, ...] = (),
              stored: Literal["offsets", "ids"] = "offsets", claims: Mapping[str, bool] | None = None) -> Reading:
    """Read an EAGLE-1 head.

    Args:
        names: the layout's names; ``strip`` the prefixes before them.
        stored: how the layout stores a vocabulary table.
        claims: what the layout itself says of its norms, where no flag does.
    """
    mapped = map_names(facts, dialect.title, names, strip=strip)
    builder = Builder("eagle", fields, mapped.shapes, mapped.layers)
    claims = {**(claims or {}), **norm_claims(fields)}
    here = {norm: tensor in mapped.shapes for norm, tensor in NORM_TENSORS.items()}
    for norm, tensor in NORM_TENSORS.items():
        if claims.get(norm) and not here[norm]:
            raise DialectError("the config activates a norm that the file does not have",
                               where=f"{fields.file}: {FLAG_OF[norm]}; missing tensor {tensor}",
                               how="nothing is filled in: fetch the complete file, or correct the flag")
    shapes = mapped.shapes
    check_algorithm(facts, fields, "eagle", shapes)
    head, reduced = shapes.get("lm_head.weight"), shapes.get("d2t")
    if head and reduced and head[0] != reduced[0]:
        builder.full_head = head[0]
        shapes["lm_head.weight"] = (reduced[0], *head[1:])  # what is left once the table has picked its rows
    recycled = fields.flag("norm_output")  # engines that apply a final norm to such a head also feed it back
    spec = builder.build(
        "embed_tokens.weight" in shapes, head is not None, target_hidden_size=shapes["fc.weight"][0],
        input_norm=here["input_norm"], output_norm=here["output_norm"],
        norm_output=here["output_norm"] and recycled is not False)
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
        config=fields.flat(), findings=(*builder.findings, *table.findings), claims=claims, runnable=True,
        convertible=True, d2t=table.offsets, created=table.created,
        gather={"lm_head.weight": table.found.ids} if table.found and builder.full_head else {})


NORM_TENSORS = {"input_norm": "layers.0.input_layernorm.weight", "output_norm": "norm.weight",
                "embed_norm": "enorm.weight", "hidden_norm": "hnorm.weight"}
FLAG_OF = {norm: f"{key} = {str(applied).lower()}" for key, norm, applied in NORM_FLAGS}

DIALECT = Dialect("official-eagle1", "an EAGLE-1/2 head in the official layout (SafeAILab/EAGLE)", detect, read)
