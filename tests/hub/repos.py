"""Repositories, people and large files of the loopback hub: plain state, no HTTP."""

from __future__ import annotations

import hashlib
import itertools
import threading
from dataclasses import dataclass, field

LFS_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")


@dataclass(frozen=True)
class Blob:
    """A file's bytes; ``lfs`` files are served through the large file store."""

    data: bytes
    lfs: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def git_oid(self) -> str:
        """What git calls the file: for a large file that is the digest of its pointer."""
        data = self.pointer if self.lfs else self.data
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    @property
    def pointer(self) -> bytes:
        return (f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\n"
                f"size {len(self.data)}\n").encode()

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.git_oid


@dataclass(frozen=True)
class Commit:
    oid: str
    parent: str | None
    summary: str
    files: dict[str, Blob]


@dataclass
class Repo:
    """One model repository: commits by id, refs by name."""

    name: str
    private: bool = False
    gated: bool = False
    commits: dict[str, Commit] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    pull_requests: int = 0

    def resolve(self, revision: str) -> Commit | None:
        return self.commits.get(self.refs.get(revision, revision))

    def commit(self, files: dict[str, Blob], summary: str, ref: str = "main", parent: str | None = None) -> Commit:
        """Put ``files`` (the whole tree) on ``ref``; the commit's id is a function of its content."""
        parent = parent or self.refs.get(ref)
        text = f"{self.name}\0{parent}\0{summary}\0" + "".join(f"{p}={b.etag}\0" for p, b in sorted(files.items()))
        oid = hashlib.sha1(text.encode()).hexdigest()
        commit = Commit(oid, parent, summary, dict(files))
        self.commits[oid] = commit
        self.refs[ref] = oid
        return commit

    @property
    def head(self) -> Commit:
        return self.commits[self.refs["main"]]


@dataclass(frozen=True)
class User:
    """A person behind a token. ``role`` is the token's: read, write or fineGrained."""

    name: str
    role: str = "write"
    orgs: tuple[tuple[str, str], ...] = ()
    scopes: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    may_write: bool = True
    may_create: bool = True
    gates_open: bool = False


@dataclass
class World:
    """Everything the hub knows."""

    repos: dict[str, Repo] = field(default_factory=dict)
    users: dict[str, User] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    serial: itertools.count[int] = field(default_factory=itertools.count)

    def add(self, name: str, files: dict[str, bytes], *, private: bool = False, gated: bool = False) -> Repo:
        """A repository with one commit on ``main``."""
        with self.lock:
            repo = self.repos.setdefault(name, Repo(name, private, gated))
            blobs = {path: Blob(data, path.endswith(LFS_SUFFIXES)) for path, data in files.items()}
            self.large.update({blob.sha256: blob.data for blob in blobs.values() if blob.lfs})
            repo.commit(blobs, f"files {next(self.serial)}")
            return repo
