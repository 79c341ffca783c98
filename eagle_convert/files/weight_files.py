"""Which files of a folder hold the weights, and what the others are. Names first; contents only where names mislead."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from eagle_convert.errors import BrokenFileError, EagleConvertError, SourceError

from .json_text import parse_object
from .ranges import RangeReader

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<ending>\.safetensors|\.bin)")
# accelerate's and transformers' Trainer's own state: what lies beside the weights after training
_TRAINING = re.compile(r"(optimizer|scheduler|sampler|dl_state_dict|scaler|training_args|random_states|rng_state|"
                       r"trainer_state|optim_states|zero_pp_rank|mp_rank)[^/]*\.(bin|pt|pth|pkl)|.*optim_states\.pt")
# accelerate's save_state: one file for each prepared module, numbered from the second on
_ONE_MORE_MODULE = re.compile(r"(model|pytorch_model)_(\d+)\.(safetensors|bin)")
_SINGLE = {".safetensors": "model.safetensors", ".bin": "pytorch_model.bin"}


@dataclass(frozen=True)
class Weights:
    """The files to open, the index that named them (None without), and what was left aside and why."""

    files: tuple[str, ...]
    weight_map: Mapping[str, str] | None = None
    index_file: str | None = None
    ignored: tuple[tuple[str, str], ...] = ()


def resolve_weights(name: str, files: Sequence[str], opener: Callable[[str], RangeReader],
                    exists: Callable[[str], bool] | None = None) -> Weights:
    """Choose the weight files among ``files`` (names relative to the folder called ``name``).

    In order: ``model.safetensors``, a safetensors index, a complete set of numbered shards, a lone other safetensors
    file; then the same for ``.bin``; then a lone ``.gguf``. No weights at all is not an error here.

    Raises:
        SourceError: shards are missing (all of them are named), the index leaves the folder, or several files could
            be meant.
        BrokenFileError: the index is not one.
    """
    present = exists or set(files).__contains__
    for ending in (".safetensors", ".bin"):
        found = _of_kind(name, files, ending, opener, present)
        if found:
            return Weights(found.files, found.weight_map, found.index_file, _ignored(files, found, opener))
    ggufs = [f for f in files if f.endswith(".gguf")]
    if len(ggufs) > 1:
        raise _ambiguous(name, ggufs)
    found = Weights(tuple(ggufs))
    return Weights(found.files, ignored=_ignored(files, found, opener))


def _of_kind(name: str, files: Sequence[str], ending: str, opener: Callable[[str], RangeReader],
             present: Callable[[str], bool]) -> Weights | None:
    if _SINGLE[ending] in files:
        return Weights((_SINGLE[ending],))
    indexes = [f for f in files if f.endswith(f"{ending}.index.json")]
    if len(indexes) > 1:
        raise _ambiguous(name, indexes)
    if indexes:
        return read_shard_index(name, indexes[0], opener, present)
    rest = [f for f in files if f.endswith(ending) and not _TRAINING.fullmatch(f) and not _ONE_MORE_MODULE.fullmatch(f)]
    shards = [m for m in map(_SHARD.fullmatch, rest) if m]
    if shards and len(shards) == len(rest) and len({(m["stem"], m["count"]) for m in shards}) == 1:
        stem, count = shards[0]["stem"], shards[0]["count"]
        wanted = [f"{stem}-{i:05d}-of-{count}{ending}" for i in range(1, int(count) + 1)]
        _refuse_missing(name, f"the shards' own numbering (of {count})", wanted, present)
        return Weights(tuple(wanted))
    if len(rest) > 1:
        raise _ambiguous(name, rest)
    return Weights((rest[0],)) if rest else None


def read_shard_index(name: str, index_file: str, opener: Callable[[str], RangeReader],
                     present: Callable[[str], bool]) -> Weights:
    """The shards that an index names, each checked to be there and to lie inside the folder."""
    reader = opener(index_file)
    try:
        table = parse_object(reader.read_at(0, reader.size), index_file, error=BrokenFileError)
    finally:
        reader.close()
    weight_map = table.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(v, str) for v in weight_map.values()):
        raise BrokenFileError(f"{index_file} is not a shard index",
                              where=f"{index_file}: 'weight_map' must name a file for each tensor",
                              how="download it again, or give the weight file itself")
    shards = sorted(set(weight_map.values()))
    for shard in shards:
        path = PurePosixPath(shard)
        if path.is_absolute() or ".." in path.parts or str(path) != shard or "\0" in shard or shard == ".":
            tensor = next(t for t, f in weight_map.items() if f == shard)
            raise SourceError(f"{index_file} names a file outside of its folder",
                              where=f"{index_file}: '{tensor}' -> '{shard}'",
                              how="nothing was read from there; get the checkpoint from a source you trust")
    _refuse_missing(name, index_file, shards, present)
    return Weights(tuple(shards), weight_map, index_file)


def _refuse_missing(name: str, by: str, wanted: Sequence[str], present: Callable[[str], bool]) -> None:
    missing = [f for f in wanted if not present(f)]
    if missing:
        raise SourceError(f"{name} is an incomplete download: {len(missing)} of {len(wanted)} shards are missing",
                          where=f"named by {by}, not in the folder: {', '.join(missing)}",
                          how="download the missing files, then run again")


def _ambiguous(name: str, files: Sequence[str]) -> SourceError:
    return SourceError(f"{name} holds several files that could be the weights", where=", ".join(sorted(files)),
                       how=f"give the file itself, such as {name}/{sorted(files)[0]}")


def _ignored(files: Sequence[str], chosen: Weights,
             opener: Callable[[str], RangeReader]) -> tuple[tuple[str, str], ...]:
    used = {*chosen.files, chosen.index_file}
    reasons = ((f, _why_ignored(f, chosen, opener)) for f in sorted(files) if f not in used)
    return tuple((f, why) for f, why in reasons if why)


def _why_ignored(file: str, chosen: Weights, opener: Callable[[str], RangeReader]) -> str | None:
    """The reason, or None for files that are no weights (text, tokenizers, side files that a dialect may read)."""
    main = chosen.index_file or (chosen.files[0] if chosen.files else "")
    if _TRAINING.fullmatch(file):
        return "training state, not weights"
    if file.endswith(".safetensors") and _ONE_MORE_MODULE.fullmatch(file):
        return _what_module(file, opener)
    if file.endswith((".bin", ".bin.index.json")) and not main.endswith((".bin", ".bin.index.json")):
        return f"a pickle beside {main}, which is read instead"
    if file.endswith(".index.json"):
        return f"an index beside {main}, which is read instead"
    if file.endswith((".safetensors", ".bin")):
        return f"not named by {main}" if chosen.index_file else f"other weights beside {main}, which are read instead"
    if file.endswith((".gguf", ".h5", ".msgpack", ".onnx", ".ckpt", ".ot", ".tflite")):
        return "another format of weights" if main else "a format of weights that is not read"
    return "a pickle, not read" if file.endswith(".pkl") else None


def _what_module(file: str, opener: Callable[[str], RangeReader]) -> str:
    """What a further module of a training dump is: usually the target's head, frozen, that rode along (case C11)."""
    from .safetensors_header import read_header

    try:
        reader = opener(file)
        try:
            entries = read_header(reader).entries
        finally:
            reader.close()
    except EagleConvertError as e:
        return f"a further module of a training dump, unreadable: {e.what}"
    if list(entries) == ["weight"] and len(entries["weight"].shape) == 2:
        return (f"a lone `weight` {list(entries['weight'].shape)}: the target's lm_head that training saved beside "
                "the draft; not needed")
    return f"a further module of a training dump ({len(entries)} tensors: {', '.join(list(entries)[:3])})"
