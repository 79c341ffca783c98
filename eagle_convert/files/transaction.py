"""A folder that appears whole or not at all, whatever kills the process.

Everything is written into a hidden sibling of DEST, flushed to the disk, and renamed. Replacing an old DEST swaps the
two names in one system call where the kernel can (``renameat2`` with ``RENAME_EXCHANGE``); elsewhere the old folder is
set aside first, and the next run puts it back if the process died between the two renames.

A sibling belongs to a live process as long as that holds a ``flock`` on it: the kernel releases the lock whatever ends
the process, also across process namespaces, so leftovers are told from work in progress without guessing from ids.
(On a network file system mounted so that locks stay on one host, two hosts must not write beside each other.)
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from eagle_convert.errors import DestinationError

_SIBLING = re.compile(r"\.(?P<dest>.+)\.eagle-convert-(?P<kind>new|old)-\d+-[0-9a-f]{8}")
_RENAME_EXCHANGE, _AT_FDCWD = 2, -100  # linux/fs.h, fcntl.h


def check_destination(dest: Path, *, sources: Iterable[Path] = (), force: bool = False, needed: int = 0) -> None:
    """Refuse a DEST that cannot or must not be written, before any work is done. Changes nothing.

    Args:
        sources: folders or files that are read; DEST may not be, hold, or lie in one of them.
        needed: bytes that will be written.

    Raises:
        DestinationError: with what to do instead.
    """
    real = _real(dest)
    for source in map(_real, sources):
        if real == source:
            raise DestinationError("DEST is the folder that is read", where=str(dest), how="give another folder")
        if real.is_relative_to(source):
            raise DestinationError("DEST lies inside a folder that is read", where=f"{dest} is in {source.name}",
                                   how="give a folder outside of it")
        if source.is_relative_to(real):
            raise DestinationError("DEST holds what is read", where=f"{source.name} is in {dest}",
                                   how="give another folder; --force would remove the source")
    if os.path.lexists(real) and not real.is_dir():
        raise DestinationError("DEST is a file", where=str(dest), how="give a folder, new or empty")
    if real.is_dir():
        _check_occupied(dest, real, force)
    parent = _existing_parent(real)
    if not parent.is_dir():
        raise DestinationError("DEST cannot be made", where=f"{parent} is not a folder", how="give another folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise DestinationError("no permission to write DEST", where=str(parent),
                               how="give another folder, or change the permissions of this one")
    free = shutil.disk_usage(parent).free
    if needed > free:
        raise DestinationError("no space left for DEST", where=f"{needed} bytes needed, {free} free at {parent}",
                               how="free some space, or give a folder on another disk")


def _check_occupied(dest: Path, real: Path, force: bool) -> None:
    try:
        held = sorted(os.listdir(real))
    except OSError as e:
        raise _failed(dest, e) from e
    if held and not force:
        shown = ", ".join(held[:6]) + (", …" if len(held) > 6 else "")
        raise DestinationError("DEST is not empty", where=f"{dest} holds {shown}",
                               how="give a new folder, or --force to replace this one whole")
    # DEST is replaced by a new folder of its name, so these are never meant.
    for place, what in ((".", "the current folder"), ("~", "the home folder")):
        if _real(Path(place).expanduser()).is_relative_to(real):
            raise DestinationError(f"DEST is, or holds, {what}", where=str(dest), how="give a folder inside it")
    folders = [name for name in held if name != ".cache" and (real / name).is_dir() and not (real / name).is_symlink()]
    if folders:
        raise DestinationError("--force would remove more than a checkpoint", how="give another folder, or remove this "
                               "one yourself", where=f"{dest} holds the folders {', '.join(folders[:6])}")


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))  # unlike Path.resolve, this does not fail on a loop of links


def _existing_parent(path: Path) -> Path:
    parent = path.parent
    while not os.path.lexists(parent):
        parent = parent.parent
    return parent


class Staging:
    """The hidden sibling that becomes DEST. Use ``with``; without :meth:`commit` it is removed at the end.

    Attributes:
        path: where to write.
    """

    def __init__(self, dest: Path) -> None:
        self._shown, self._dest = dest, _real(dest)
        with destination_errors(dest):
            self._dest.parent.mkdir(parents=True, exist_ok=True)
            _clear_leftovers(self._dest.parent)
            self.path, self._lock = _locked_sibling(self._dest)

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        # After a commit nothing is at this path, or the old DEST that was swapped out.
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)

    def commit(self, *, force: bool) -> None:
        """Flush the folder and give it DEST's name. Files in it must have been flushed by their writer.

        Raises:
            DestinationError: DEST has been filled meanwhile, or the disk refused.
        """
        with destination_errors(self._shown):
            _sync_folder(self.path)
            if force and self._dest.is_dir():
                self._replace()
            else:
                os.rename(self.path, self._dest)  # over an absent or an empty folder only
            _sync_folder(self._dest.parent)

    def _replace(self) -> None:
        if _exchange(self.path, self._dest):
            return
        aside = _sibling_path(self._dest, "old")
        os.rename(self._dest, aside)
        os.rename(self.path, self._dest)
        shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def destination_errors(dest: Path) -> Iterator[None]:
    """Turn what the operating system says while writing DEST into a :class:`DestinationError`."""
    try:
        yield
    except OSError as e:
        raise _failed(dest, e) from e


def _failed(dest: Path, e: OSError) -> DestinationError:
    if e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DestinationError("no space left for DEST", where=f"{dest}: {e.strerror}; nothing was left there",
                                how="free some space, or give a folder on another disk")
    if e.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return DestinationError("no permission to write DEST", where=f"{dest}: {e.strerror}",
                                how="give another folder, or change the permissions of this one")
    if e.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
        return DestinationError("DEST was filled by something else meanwhile", where=f"{dest}: {e.strerror}",
                                how="look at it, then run again")
    how = "give a folder inside it" if e.errno == errno.EBUSY else "check the path and the disk, then run again"
    return DestinationError("DEST could not be written", where=f"{dest}: {e.strerror}", how=how)


def _sibling_path(dest: Path, kind: str) -> Path:
    return dest.parent / f".{dest.name}.eagle-convert-{kind}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def _locked_sibling(dest: Path) -> tuple[Path, int]:
    """A new folder beside DEST and the descriptor that holds its lock."""
    while True:
        path = _sibling_path(dest, "new")
        os.mkdir(path)
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        _try_lock(lock)
        # Another run may have taken the folder for a leftover before it was locked; then it is gone by now.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(path), os.fstat(lock)):
                return path, lock
        os.close(lock)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held by a live process; or a file system without locks, where leftovers are left alone
        return False
    return True


def _clear_leftovers(parent: Path) -> None:
    """Remove the siblings of dead processes; put an old DEST back that was set aside and not yet replaced."""
    for name in sorted(os.listdir(parent)):
        match = _SIBLING.fullmatch(name)
        if not match:
            continue
        path = parent / name
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:  # gone meanwhile, another user's, or no folder
            continue
        try:
            if not _try_lock(lock):
                continue
            original = parent / match["dest"]
            if match["kind"] == "old" and not os.path.lexists(original):
                os.rename(path, original)
            else:
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step; False where the C library, kernel or file system cannot."""
    import ctypes

    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    call.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    if call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(other))


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
