"""The catalogue of findings: every id, its severity and its texts.

An id is stable and never reused. Hundreds: 1 what the file is, 2 config against tensors, 3 embedding and head,
4 norms and biases, 5 vocabulary, 6 values and dtypes, 7 draft against target, 8 engines, 9 files and publishing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["info", "warn", "error"]


@dataclass(frozen=True)
class Entry:
    """A row of the catalogue. ``message`` and ``fix`` are :meth:`str.format` templates; ``meaning`` is for the docs."""

    id: str
    severity: Severity
    title: str
    message: str
    fix: str
    meaning: str


_WHAT_IT_IS = (
    Entry(
        "EC101", "error", "not a draft",
        message="{what}",
        fix="{how}",
        meaning="The files are readable, but no EAGLE draft; `convert` refuses them."),
    Entry(
        "EC102", "info", "a draft of another kind",
        message="{what}",
        fix="",
        meaning="A known speculative head that is no EAGLE head: explained by `inspect`, refused by `convert`."),
    Entry(
        "EC103", "info", "wrapper prefix",
        message="every name starts with '{prefix}', which was taken off",
        fix="",
        meaning="A data-parallel wrapper put its name before every key."),
    Entry(
        "EC105", "error", "no layout fits",
        message="{what}",
        fix="{how}",
        meaning=(
            "The headers can be read, but the tensors are those of no layout that we know: something is missing, "
            "misspelt, of another shape, or there is more than a draft.")),
)

_CONFIG = (
    Entry(
        "EC201", "warn", "config against tensors",
        message="the config says {key} = {stated}, the tensors say {value}; the tensors are believed",
        fix="nothing to do, unless the tensors are another draft's",
        meaning="Configs are copied from targets; the compact config states what the tensors say."),
    Entry(
        "EC202", "info", "size taken from tensors",
        message="{key} is absent from the config, the tensors say {value}",
        fix="",
        meaning="The compact config states it."),
    Entry(
        "EC203", "info", "default by rule",
        message="{key} is absent from the config, {value} is used: {rule}",
        fix="add {key} to the config if the draft was trained with another value",
        meaning="A key that no tensor can show, and what its absence means."),
    Entry(
        "EC204", "warn", "bias key against tensors",
        message="the key {key} says {stated}, the file has {tensors}; the tensors are believed",
        fix="nothing to do: the compact config states the tensors' truth",
        meaning=(
            "`bias` absent means true to the official loader, and other engines take it for attention biases. "
            "Biases are read from the tensors; the compact config says them in keys that each engine understands "
            "alike.")),
    Entry(
        "EC205", "info", "tying corrected",
        message="the config says tie_word_embeddings, the draft has {tensors}; the compact config says false",
        fix="",
        meaning="Copied from a tied target. A reduced head cannot be tied to a full embedding."),
    Entry(
        "EC207", "warn", "keys not carried",
        message="keys that mean nothing to a draft of this kind are left out: {keys}",
        fix="if one of them changes what the draft computes, do not use the result",
        meaning="Every key is mapped, known to have no influence, or listed here."),
    Entry(
        "EC208", "info", "quantisation block removed",
        message="the config has a quantization_config while every tensor is plain; it is left out",
        fix="",
        meaning="Copied from a quantised target; engines would look for packed tensors."),
    Entry(
        "EC209", "info", "auxiliary layers",
        message=(
            "the ids {ids} stand here, so they are {kind}: boundaries {boundaries} (the residual stream after so "
            "many layers); the other reading is {other}"),
        fix="`parity-check --fault aux-shift` measures the other reading",
        meaning=(
            "Top-level ids are boundaries; ids inside eagle_config are the layers whose output is taken, one "
            "less.")),
    Entry(
        "EC210", "info", "auxiliary layers by default",
        message="no auxiliary layer ids are declared: the official defaults 2, L // 2, L - 3 are meant",
        fix="",
        meaning="Only where nothing is declared."),
    Entry(
        "EC211", "warn", "rope base of an EAGLE-3 head",
        message=(
            "the config states the rope base {theta}; official EAGLE-3 training code does not read it and uses "
            "10000, official inference code reads it"),
        fix=(
            "`convert --rope-theta 10000` writes the other reading; `parity-check` of both tells which is right "
            "(the higher acceptance)"),
        meaning="Nothing in the file can tell which base the head was trained with."),
    Entry(
        "EC212", "warn", "recycled state",
        message=(
            "norm_output is true: the state fed to the next draft step is the normalised one (EAGLE-3.1). "
            "SpecForge configs written before its pull request 879 meant the norm before the head, which every "
            "EAGLE-3 head has"),
        fix=(
            "if the head comes from such a config, set norm_output to false; `parity-check --fault recycled-norm`"
            " at K >= 2 measures the other reading"),
        meaning="One draft step cannot see the difference; from the second on it can."),
    Entry(
        "EC213", "info", "own width",
        message="the draft is {hidden} wide, the target {target}: the draft needs its own embedding",
        fix="",
        meaning="fc takes states of the target's width; the embedding cannot be shared."),
    Entry(
        "EC214", "warn", "rope scaling",
        message="rope scaling of type '{type}' is carried as stated; the bundled runtime does not run it",
        fix="run the draft in an engine that has it",
        meaning="The runtime has linear, dynamic and llama3 scaling."),
    Entry(
        "EC215", "warn", "norm before the head",
        message=(
            "the norm before the head is read as its name says: the state fed to the next draft step is the one before "
            "it; nothing in the layout states that"),
        fix=(
            "`parity-check --fault recycled-norm` at K >= 2 measures the other reading; set norm_output to true in the "
            "config if it wins"),
        meaning="The library that wrote this layout never drafted more than one step, so it does not define it."),
)

_TABLES = (
    Entry(
        "EC301", "info", "table equal to the target's",
        message="bit-equal (in value) to the target's {target_tensor}; {bytes} bytes that the target already holds",
        fix="",
        meaning="The table is the target's own. A compact folder leaves it out; any engine shares the target's."),
    Entry(
        "EC302", "warn", "table equal to the target's after rounding",
        message=(
            "equal to the target's {target_tensor} ({target_dtype}) rounded to {dtype}: {differing} of {elements} "
            "entries differ, by at most {largest}"),
        fix=(
            "nothing to do: the target's table is the better-rounded one; --embeddings keep or --head keep holds on "
            "to the rounded copy"),
        meaning=(
            "The file holds a rounded copy. A compact folder borrows the target's table instead, so its numbers "
            "differ from the source's by that rounding, and are closer to what the draft was trained on.")),
    Entry(
        "EC303", "warn", "padding rows",
        message=(
            "{rows} trailing rows that only {holder} has are padding (all zero, or the mean row); vocab_size becomes "
            "the target's, {vocab}"),
        fix="nothing to do",
        meaning=(
            "Vocabularies are padded to round numbers. Padding rows belong to no token, so tables that differ only by "
            "them count as equal.")),
    Entry(
        "EC304", "info", "the draft's own embedding",
        message=(
            "the draft's own table, a relative of the target's: median row cosine {cosine}, {share} % of the rows "
            "differ"),
        fix="",
        meaning=(
            "The embedding was trained on from the target's. It is kept: replacing it by the target's would change "
            "the function.")),
    Entry(
        "EC305", "warn", "embedding that differs in some rows",
        message=(
            "{share} % of the rows differ from the target's (rows {ranges}; by at most {largest}), the others are "
            "equal; kept as the draft's own"),
        fix=(
            "if the target is another release than the one the draft was trained for, give that one as --target; if "
            "only added tokens differ, this is right"),
        meaning=(
            "A draft trained for another release of the target, with added tokens, or a file damaged in part. The "
            "table is kept; `parity-check` shows what it is worth.")),
    Entry(
        "EC306", "info", "rotated embedding",
        message=(
            "the draft's own table: the target's turned by a rotation (row inner products agree, median row cosine "
            "{cosine})"),
        fix="",
        meaning=(
            "A draft for a rotated (QuaRot-like) target holds the rotated table and undoes it in fc. Kept: borrowing "
            "the unrotated one would break it.")),
    Entry(
        "EC307", "error", "embedding unrelated to the target's",
        message=(
            "unrelated to the target's: median row cosine {cosine}, {share} % of the rows differ. A broken export "
            "looks like this, and so does a table trained from scratch; nothing in the file tells them apart"),
        fix=(
            "--embeddings drop if the head was trained on the target's frozen embeddings, --embeddings keep if it was "
            "trained with this table; parity-check of both tells which (a broken one accepts nothing); else export "
            "again"),
        meaning="Exporters have saved freshly initialised embeddings. With them the draft accepts nothing."),
    Entry(
        "EC308", "info", "table not proved equal to the target's",
        message="kept, {bytes} bytes: {why}",
        fix=(
            "--target MODEL (the model the draft was trained for) to prove that it can be borrowed, or --embeddings "
            "drop / --head drop if you know it"),
        meaning="Nothing is dropped without proof."),
    Entry(
        "EC309", "warn", "table dropped as asked",
        message="dropped as asked; {evidence}",
        fix="parity-check the result against the source",
        meaning="The user overruled, or went without, the comparison."),
    Entry(
        "EC310", "warn", "embedding that is nearly the target's",
        message=(
            "every row differs from the target's a little (by at most {largest}; median row cosine {cosine}), but it "
            "is no rounding of it; kept as the draft's own"),
        fix="--embeddings drop if it is a copy that was rounded twice; parity-check tells whether it matters",
        meaning=(
            "A copy that was cast to one dtype and then to another is not what casting the target's gives. It is "
            "kept, because a slightly trained table looks the same.")),
    Entry(
        "EC311", "info", "scaled embedding",
        message="the draft's own table: the target's times {scale}",
        fix="",
        meaning="Some families scale embeddings at run time; a draft for them may hold the scaled table. Kept."),
    Entry(
        "EC312", "error", "table that cannot be borrowed",
        message="cannot be dropped: {why}",
        fix="leave out --embeddings drop / --head drop",
        meaning="The target holds no table of that shape."),
    Entry(
        "EC322", "warn", "EAGLE-1/2 head of its own",
        message=(
            "not the target's: {evidence}. Kept. Reading 1: the draft was trained with this head, or for this head's "
            "target. Reading 2: it is a copy from another release of the target; the official code and most engines "
            "always use the target's head and ignore this one"),
        fix="parity-check both: as it is, and after --head drop",
        meaning=(
            "The official EAGLE-1/2 code has no head of its own; a file that holds one says something its engine "
            "would have to honour.")),
    Entry(
        "EC323", "info", "EAGLE-3 head of its own",
        message="the draft's own: {evidence}",
        fix="",
        meaning="EAGLE-3 heads are normally trained with the draft."),
)

_NORMS = (
    Entry(
        "EC401", "warn", "norms of ones dropped",
        message=(
            "both are exactly ones and no flag activates them: dropped. Reading 1: an engine filled absent norms with "
            "ones and the file was re-saved; the head was trained without. Reading 2: it was trained with norms whose "
            "gain stayed at one; a norm that saw a gradient is not exactly ones, so this is unlikely"),
        fix="--norms keep for reading 2; parity-check of both tells which",
        meaning="A norm of ones is not the identity: it rescales. It goes only because the official head has none."),
    Entry(
        "EC402", "info", "norms applied",
        message="part of the function: {variant}",
        fix="",
        meaning=(
            "Flags of the config, the layout or --norms keep say that these norms are applied; they are kept and "
            "their flags written.")),
    Entry(
        "EC403", "error", "norms undecided",
        message="undecided: {found}; {why}. The file does not say whether they are applied",
        fix=(
            "--norms keep if the head was trained with them, --norms drop if they are left over from a re-save; "
            "parity-check of both tells which"),
        meaning="One norm without the other, or one of ones and one trained, is neither a re-save nor a variant."),
    Entry(
        "EC404", "warn", "trained norms kept",
        message="trained (not ones), and no flag speaks for them: kept as applied; the variant with {variant}",
        fix="--norms drop if the engine it was trained for skips them",
        meaning="A trained norm is part of the function. Stock engines that skip or refuse it compute something else."),
    Entry(
        "EC405", "warn", "norms dropped as asked",
        message="dropped as asked; trained ones among them: {trained}",
        fix="parity-check the result against the source",
        meaning="The user overruled the evidence."),
    Entry(
        "EC406", "error", "a norm is activated but absent",
        message="the config activates it ({flags}), the file does not hold it",
        fix="fetch the complete file, or correct the flag",
        meaning="Nothing is filled in by default."),
    Entry(
        "EC410", "info", "fc.bias of zeros dropped",
        message="every element is exactly zero: dropped",
        fix="",
        meaning="Some writers add a zero bias for engines that always build one."),
)

_VOCABULARY = (
    Entry(
        "EC501", "info", "identity vocabulary",
        message=(
            "the draft vocabulary is the whole vocabulary of {size} ids in its own order: an identity table, "
            "valid"),
        fix="",
        meaning="A d2t of zeros is right where both vocabularies are the same; it is dropped."),
    Entry(
        "EC502", "info", "draft vocabulary",
        message="{summary}",
        fix="",
        meaning="What the vocabulary table says."),
    Entry(
        "EC503", "warn", "draft vocabulary out of order",
        message="the target ids do not increase: t2d alone could not rebuild the table",
        fix="nothing to do, unless the file's t2d is all that a tool has",
        meaning="Trainers sort the ids; tools that rebuild d2t from t2d would get another table."),
    Entry(
        "EC504", "warn", "vocabulary table looks unfilled",
        message=(
            "the target ids are 0 to {last} in steps of {step}, which is what a table that was never filled looks"
            " like"),
        fix="compare with the trainer's table; give the right ids with --token-map",
        meaning=(
            "Zeros as offsets mean the first ids, a range as offsets every other one. Valid, but no trainer "
            "selects such a vocabulary.")),
)

_VALUES = (
    Entry(
        "EC601", "error", "Inf or NaN",
        message="{count} elements are Inf or NaN, the first at {first}",
        fix="export or train the head again; a cast to float16 that overflowed leaves Inf",
        meaning="One such weight makes every state non-finite: nothing the draft says means anything."),
    Entry(
        "EC602", "warn", "rounded by the cast",
        message="cast from {source} to {dtype}: {differing} of {elements} entries changed, by at most {largest}",
        fix="nothing to do; --dtype keep leaves the values alone",
        meaning="The user asked for another dtype."),
    Entry(
        "EC603", "error", "overflow of the cast",
        message="{count} values are too large for {dtype}, the largest {largest}",
        fix="--dtype bfloat16, which has the range of float32, or --dtype keep",
        meaning="An overflow to Inf would make every state non-finite."),
)

_PAIRING = (
    Entry(
        "EC701", "error", "draft for a target of another width",
        message="the draft reads states {draft_width} wide, the target {target} is {target_width} wide",
        fix="give the model that the draft was trained for as --target",
        meaning="Draft and target do not belong together."),
    Entry(
        "EC702", "error", "vocabularies differ",
        message=(
            "the draft's vocabulary has {draft_vocab} entries, that of the target {target} {target_vocab}, and the "
            "surplus is no padding"),
        fix="give the model that the draft was trained for as --target",
        meaning="Token ids would not mean the same."),
    Entry(
        "EC703", "error", "draft without an embedding of its width",
        message=(
            "the draft is {draft_width} wide and holds no embedding; the target {target} is {target_width} wide, so "
            "its table cannot be borrowed"),
        fix="export the head again with its embedding",
        meaning="A draft narrower than its target needs its own table."),
    Entry(
        "EC704", "warn", "vocabulary without the target's padding",
        message=(
            "the draft states {draft_vocab} entries, the target {target} has {target_vocab}, of which the rest are "
            "padding; vocab_size becomes the target's"),
        fix="nothing to do",
        meaning="Vocabularies are padded to round numbers."),
    Entry(
        "EC705", "error", "tapped layers beyond the target",
        message="the draft reads boundaries {ids}, the target {target} has {layers} layers",
        fix="give the model that the draft was trained for as --target, or correct the ids",
        meaning="An EAGLE-3 draft reads inner states of its target."),
    Entry(
        "EC706", "info", "the target's head is its embedding",
        message="tied: {why}, so the embedding is the head",
        fix="",
        meaning="Tied targets store one table for both."),
    Entry(
        "EC707", "info", "position limit raised",
        message="raised from {own}, the window the draft was trained on, to the target's {theirs}",
        fix="",
        meaning=(
            "Engines size rotary tables by this number and crash beyond it. The trained window stays in the manifest "
            "(trained_window): beyond it acceptance falls.")),
    Entry(
        "EC708", "warn", "position limit not compared with the target's",
        message="the draft states {own}; a target that allows more makes engines crash or read garbage beyond it",
        fix="--target MODEL to raise it to the target's",
        meaning="Engines size rotary tables by the draft's number."),
    Entry(
        "EC709", "info", "the target's head is packed",
        message="packed (quantised): a draft's head cannot be compared with it",
        fix="--target the unquantised model to compare the heads",
        meaning="Only plain tables can be compared."),
    Entry(
        "EC710", "error", "draft and target swapped",
        message="SOURCE is a complete model and the target {target} is a draft",
        fix="swap them: the draft is SOURCE, the model is --target",
        meaning="The two arguments changed places."),
    Entry(
        "EC711", "warn", "position limit below the target's",
        message=(
            "the draft states {own}, the target {theirs}; not raised, because this draft's rope scaling depends on "
            "the number"),
        fix="keep prompts within {own} positions",
        meaning="With dynamic scaling (and others that state no original window) the number is part of the function."),
    Entry(
        "EC712", "error", "the given target is none",
        message="{what}",
        fix="{how}",
        meaning="What --target names is no complete model with one embedding table."),
)

_ENGINES = (
    Entry(
        "EC801", "warn", "written although unfaithful",
        message="the destination loads and computes something else: {why}",
        fix="do not measure the head by it; the compact folder keeps its function",
        meaning="--allow-unfaithful asked for a layout that has no place for a part of the head."),
)

_FILES = (
    Entry(
        "EC901", "info", "file not used",
        message="not used: {why}",
        fix="",
        meaning="The folder holds more than the draft."),
    Entry(
        "EC911", "info", "files as the manifest says",
        message="{tensors} tensors are those of the manifest ({digests} digests read, the others by dtype and size)",
        fix="",
        meaning="The folder still holds what `convert` wrote; `--deep` reads every digest."),
    Entry(
        "EC912", "error", "files against the manifest",
        message="the manifest says {expected}, the files have {found}",
        fix="the folder was changed after the conversion: convert the source again, or remove eagle_convert.json",
        meaning="A tensor is missing, was added, or has other bytes than the manifest records."),
    Entry(
        "EC913", "info", "the target that the manifest names",
        message="the {tensors} tensors that the draft borrows are the target's ({how})",
        fix="",
        meaning="The target given holds, bit for bit, the tables that were left out of the draft."),
    Entry(
        "EC914", "error", "another target than the manifest names",
        message="borrowed from {expected}, the target given has {found}",
        fix="give the target that the draft was converted against: --target {target}",
        meaning="The draft was compacted against other tables: beside this target it computes another function."),
)

CATALOGUE: tuple[Entry, ...] = (
    *_WHAT_IT_IS, *_CONFIG, *_TABLES, *_NORMS, *_VOCABULARY, *_VALUES, *_PAIRING, *_ENGINES, *_FILES)
