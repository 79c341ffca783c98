"""Where the reference comes from when nobody names it: what CANDIDATE's manifest says it was made from."""

from __future__ import annotations

from pathlib import PurePath

from eagle_convert.errors import EagleConvertError, UsageError
from eagle_convert.manifest import FILE, Manifest, decode
from eagle_convert.source import Source, open_source

_HOW = "give --reference SOURCE: the checkpoint that CANDIDATE was made from"


def default_reference(candidate: Source) -> str:
    """The reference of ``candidate`` as SOURCE text: the recorded hub id and revision, or a sibling folder of the
    recorded name whose tensors have the recorded digests.

    Raises UsageError (exit 2) where there is neither; it says what was looked for.
    """
    if FILE not in candidate.files:
        raise UsageError("no --reference given, and CANDIDATE does not say what it was made from",
                         where=f"{candidate.name}: no {FILE}", how=_HOW)
    manifest = decode(candidate.read_bytes(FILE), f"{candidate.name}/{FILE}")
    made_from = manifest.source
    if made_from.revision is not None:
        return f"hf://{made_from.id}@{made_from.revision}"
    name = made_from.id
    if candidate.path is None or PurePath(name).name != name or name in ("", ".", ".."):
        raise UsageError("no --reference given, and CANDIDATE was made from a folder that is not beside it",
                         where=f"{candidate.name}/{FILE}: made from the folder {name!r}", how=_HOW)
    sibling = candidate.path.resolve().parent / name
    if not sibling.is_dir():
        raise UsageError("no --reference given, and CANDIDATE was made from a folder that is not beside it",
                         where=f"looked for {name} beside {candidate.name}", how=_HOW)
    _check_digests(str(sibling), manifest)
    return str(sibling)


def _check_digests(sibling: str, manifest: Manifest) -> None:
    """The sibling must be the source itself, tensor by tensor: a folder of the same name proves nothing."""
    from eagle_convert.tensors import open_index

    name = manifest.source.id
    try:
        index = open_index(open_source(sibling))
    except EagleConvertError as error:
        raise UsageError(f"no --reference given, and the folder {name} beside CANDIDATE cannot be read",
                         where=error.where or error.what, how=_HOW) from error
    with index:
        for tensor, digest in manifest.source.digests.items():
            found = index.sha256(tensor) if tensor in index else None
            if found != digest:
                what = "has no such tensor" if found is None else f"has sha256 {found[:16]}, expected {digest[:16]}"
                raise UsageError(f"no --reference given, and the folder {name} beside CANDIDATE is not its source",
                                 where=f"{tensor}: {name} {what}", how=_HOW)
