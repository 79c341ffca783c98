"""Is a compact folder still what its manifest says, and is a target the one it borrows from?

``inspect`` asks this of every folder or repository that holds a manifest, ``push-to-hub`` before it sends anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .findings import Finding, finding
from .manifest import FILE, Borrowed, Manifest, TargetOrigin, decode
from .tensors import TensorIndex, open_index

if TYPE_CHECKING:
    from .source import Source

SMALL = 1 << 20


def verify_manifest(source: Source, index: TensorIndex, target: Source | None = None,
                    target_index: TensorIndex | None = None, *, deep: bool = False) -> list[Finding]:
    """Hold a source against its own manifest, and the target against what the manifest borrows from it.

    Digests of tensors are read with ``deep``; of small tensors also without, when the file is local. The target's
    tables are not read where the commit is the recorded one: a commit's content cannot change.

    Args:
        target_index: the target's headers, where they are read already.

    Returns:
        Findings EC911 to EC914; nothing when the source has no manifest.

    Raises:
        BrokenFileError: the manifest cannot be read.
    """
    if FILE not in source.files:
        return []
    manifest = decode(source.read_bytes(FILE))
    limit = None if deep else SMALL if source.path is not None else 0
    findings = check_files(manifest, index, limit)
    if target is not None and manifest.target is not None and manifest.target.digests:
        if target_index is not None:
            findings += _check_target(manifest.target, target, target_index)
        else:
            with open_index(target, _shards(target, manifest.target.digests.values())) as opened:
                findings += _check_target(manifest.target, target, opened)
    return findings


def check_files(manifest: Manifest, index: TensorIndex, limit: int | None = None) -> list[Finding]:
    """The tensors against the ledger. Digests are read of tensors up to ``limit`` bytes; of all with None."""
    expected = {str(row["destination"]): row for row in manifest.ledger if row.get("destination")}
    problems = [finding("EC912", f"{FILE}: {name}", expected="this tensor", found="none of that name")
                for name in expected if name not in index]
    problems += [finding("EC912", f"{info.file}: {name}", expected="no such tensor", found=f"{info.nbytes} bytes")
                 for name, info in index.items() if name not in expected]
    read = 0
    for name, info in index.items():
        row = expected.get(name)
        if row is None:
            continue
        written = row.get("destination_bytes", row.get("bytes"))  # they differ where a tensor was cast
        if info.nbytes != written:
            problems.append(finding("EC912", f"{info.file}: {name}", expected=f"{written} bytes",
                                    found=f"{info.nbytes} bytes"))
        elif limit is None or info.nbytes <= limit:
            read += 1
            if index.sha256(name) != row.get("sha256"):
                problems.append(finding("EC912", f"{info.file}: {name}", expected=f"sha256 {row.get('sha256')}",
                                        found=f"sha256 {index.sha256(name)}"))
    return problems or [finding("EC911", FILE, tensors=len(expected), digests=read)]


def _check_target(origin: TargetOrigin, target: Source, index: TensorIndex) -> list[Finding]:
    at = f"{origin.id}@{origin.revision}" if origin.revision else origin.id
    same_commit = origin.revision is not None and (target.name, target.revision) == (origin.id, origin.revision)
    problems = [
        finding("EC914", f"{FILE}: {name}", found=found, target=at,
                expected=f"{at}: {b.tensor} {b.dtype} {list(b.shape)}, sha256 {b.sha256}")
        for name, b in sorted(origin.digests.items()) if (found := _differs(index, b, same_commit))]
    how = "the recorded commit; shapes read" if same_commit else "digests read"
    return problems or [finding("EC913", target.name, tensors=len(origin.digests), how=how)]


def _shards(target: Source, borrowed: Iterable[Borrowed]) -> list[str] | None:
    """Only the target's files that hold the borrowed tensors; None: all of them."""
    if target.weight_map is None:
        return None
    names = [b.tensor for b in borrowed]
    return sorted({target.weight_map[name] for name in names if name in target.weight_map}) or None


def _differs(index: TensorIndex, borrowed: Borrowed, same_commit: bool) -> str | None:
    """What the target has instead; None when it has what was borrowed."""
    info = index.get(borrowed.tensor)
    if info is None:
        return f"no tensor {borrowed.tensor}"
    if (info.dtype, info.shape) != (borrowed.dtype, borrowed.shape):
        return f"{info.dtype} {list(info.shape)}"
    if not same_commit and index.sha256(borrowed.tensor) != borrowed.sha256:
        return f"sha256 {index.sha256(borrowed.tensor)}"
    return None
