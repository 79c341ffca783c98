"""The target a draft was trained for: where its two tables are, and whether the draft fits it.

Tensors are believed before declarations: widths and vocabulary come from the embedding table's shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eagle_runtime.config import DraftSpec

from .errors import BrokenFileError, PairingError
from .findings import Finding, finding
from .source import HubOptions, Source, open_source
from .tensors import TensorIndex, open_index

if TYPE_CHECKING:
    from .tables import Table

# A text model may sit inside a multimodal one, in either order of the two prefixes (model.language_model., …).
_PREFIXES = frozenset({"model", "language_model", "text_model", "llm", "transformer", "decoder", "base_model"})
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "tok_embeddings.weight", "word_embeddings.weight")
_HEADS = ("lm_head.weight", "output.weight", "embed_out.weight")
_PACKED = (".qweight", ".weight_packed", ".quant_state", ".weight_scale", ".scales")
# The text model's sizes may be nested; which of these keys holds them differs between families.
_NESTED = ("text_config", "llm_config", "language_config")
_DRAFT_MARKS = ("fc.weight", "fusion_fc.weight", "eagle_linear.weight", "midlayer.")


@dataclass(frozen=True)
class Target:
    """An opened target: its two tables and the sizes that a draft must fit.

    Attributes:
        index: headers of the shards that hold the two tables (all shards where no index says which).
        config: the text model's config (``text_config`` merged over the top level).
        embedding: name of the embedding table [vocabulary, hidden].
        head: name of the output table; None where the file has none that can be read (packed).
        tied: the head is the embedding.
        findings: what a user should know about the target itself.
    """

    source: Source
    index: TensorIndex
    config: Mapping[str, Any]
    embedding: str
    head: str | None
    tied: bool
    findings: tuple[Finding, ...]

    @property
    def vocab_size(self) -> int:
        return self.index[self.embedding].shape[0]

    @property
    def hidden_size(self) -> int:
        return self.index[self.embedding].shape[1]

    def table(self, which: str) -> Table:
        """The target's counterpart of the draft's ``embed_tokens.weight`` or ``lm_head.weight``."""
        from .tables import Table  # here, because it costs numpy, which a command without a target need not load

        name = self.embedding if which == "embed_tokens.weight" else self.head
        assert name is not None
        return Table(self.index, name)

    def number(self, key: str) -> int | None:
        """A positive integer of the config, or None where it states none."""
        value = self.config.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

    def close(self) -> None:
        self.index.close()


def open_target(ref: str, hub: HubOptions | None = None) -> Target:
    """Open a target and find its tables; reads headers only, and only of the shards that hold them.

    Raises:
        PairingError: what was given is a draft, or has no embedding table, or several.
        SourceError, BrokenFileError, ConfigError, HubError: it cannot be read.
    """
    source = open_source(ref, hub=hub, role="target")
    names = list(source.weight_map) if source.weight_map else None
    files = None
    if names is not None and source.weight_map is not None:
        tables = [*_matching(names, _EMBEDDINGS), *_matching(names, _HEADS)]
        files = sorted({source.weight_map[name] for name in tables}) or None
    index = open_index(source, files)
    try:
        return _describe(source, index, names or list(index))
    except BaseException:
        index.close()
        raise


def _describe(source: Source, index: TensorIndex, names: list[str]) -> Target:
    marks = draft_marks(names)
    if marks:
        raise PairingError(
            f"the target {source.name} is a draft, not the model a draft was trained for",
            where=f"--target {source.name}: found '{marks[0]}', expected a complete causal LM",
            how="draft and target may be swapped: give the draft as SOURCE and the full model as --target")
    config = text_config(source.config or {})
    embedding = _one(source, index, _matching(names, _EMBEDDINGS))
    if embedding is None:
        raise PairingError(f"the target {source.name} has no embedding table",
                           where=f"{source.name}: none of its {len(names)} tensors is an embed_tokens.weight",
                           how="give the full model that the draft was trained for as --target")
    found = []
    head = _one(source, index, _matching(names, _HEADS))
    packed = [n for n in names if _remainder(n).startswith("lm_head.") and n.endswith(_PACKED)]
    stated = config.get("tie_word_embeddings", (source.config or {}).get("tie_word_embeddings"))
    tied = stated is True or (head is None and not packed)
    if tied:
        found.append(finding("EC706", f"{source.name}: {embedding}",
                             why="its config says tie_word_embeddings" if stated is True else
                             "it holds no lm_head.weight"))
        head = embedding
    elif head is None:
        found.append(finding("EC709", f"{source.name}: {packed[0]}"))
    return Target(source, index, config, embedding, head, tied, tuple(found))


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The text model's settings: nested blocks (``text_config`` and its other names) merged over the top level."""
    flat = dict(config)
    for key in _NESTED:
        block = flat.pop(key, None)
        if isinstance(block, Mapping):
            flat |= text_config(block)
    return flat


def draft_marks(names: Iterable[str]) -> list[str]:
    """Names that only a draft has; empty for a complete model."""
    return [n for n in names if _remainder(n).startswith(_DRAFT_MARKS)]


def _remainder(name: str) -> str:
    """The name without leading model prefixes. Names of layers and of MTP modules keep their ``layers.N.``."""
    parts = name.split(".")
    while len(parts) > 1 and parts[0] in _PREFIXES:
        parts = parts[1:]
    return ".".join(parts)


def _matching(names: Iterable[str], wanted: tuple[str, ...]) -> list[str]:
    return [n for n in names if _remainder(n) in wanted]


def _one(source: Source, index: TensorIndex, found: list[str]) -> str | None:
    if len(found) > 1:
        raise PairingError(f"the target {source.name} has several tables of one kind", where=", ".join(sorted(found)),
                           how="give the text model's own folder as --target")
    if not found:
        return None
    info = index[found[0]]
    if len(info.shape) != 2 or 0 in info.shape:
        raise BrokenFileError(f"'{info.name}' of the target is no table",
                              where=f"{info.file}: shape {list(info.shape)}, expected [vocabulary, hidden]",
                              how="give the full model that the draft was trained for as --target")
    return found[0]


def check_fit(spec: DraftSpec, target: Target, has_embedding: bool) -> list[Finding]:
    """Widths, vocabulary and tapped layers; error-level findings where they do not fit.

    Args:
        has_embedding: the file holds an embedding: its rows are compared with the target's table, not here.
    """
    from .tables import surplus_is_padding

    found = []
    name, width = target.source.name, target.hidden_size
    if spec.target_hidden_size != width:
        found.append(finding("EC701", "fc.weight" if spec.has_fc else "hidden_size", target=name,
                             draft_width=spec.target_hidden_size, target_width=width))
    elif spec.hidden_size != width and not has_embedding:
        found.append(finding("EC703", "embed_tokens.weight", target=name, draft_width=spec.hidden_size,
                             target_width=width))
    ours, theirs = spec.vocab_size, target.vocab_size
    if not has_embedding and ours != theirs:
        if ours < theirs and surplus_is_padding(target.table("embed_tokens.weight"), ours):
            found.append(finding("EC704", "vocab_size", target=name, draft_vocab=ours, target_vocab=theirs))
        else:
            found.append(finding("EC702", "vocab_size", target=name, draft_vocab=ours, target_vocab=theirs))
    layers = target.number("num_hidden_layers")
    if layers is not None and spec.algorithm == "eagle3":
        beyond = [b for b in spec.boundaries(layers) if not 0 <= b <= layers]
        if beyond:
            found.append(finding("EC705", "eagle_aux_hidden_state_layer_ids", target=name, ids=beyond, layers=layers))
    return found

