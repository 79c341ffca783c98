"""Random access to a file's bytes: the one thing that readers of headers and tensors need.

Local files are read with ``pread`` into buffers of the caller's, never mapped: mapped pages would count as ours, and
a file that shrinks under a mapping kills the process. A remote file plugs in as another :class:`RangeReader`.
"""

from __future__ import annotations

import os
import stat
from abc import ABC, abstractmethod
from pathlib import Path

from eagle_convert.errors import BrokenFileError, SourceError


class RangeReader(ABC):
    """A file of known size, read by byte ranges. ``name`` is how messages call it; it is no absolute path."""

    name: str
    size: int

    @abstractmethod
    def read_at(self, offset: int, length: int) -> bytes:
        """Exactly ``length`` bytes from ``offset``.

        Raises:
            BrokenFileError: the range leaves the file, or the file has become shorter.
            SourceError: reading failed.
        """

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` (writable, one-dimensional, bytes) from ``offset``; the same errors as :meth:`read_at`."""
        buffer[:] = self.read_at(offset, len(buffer))

    def expect(self, start: int, stop: int) -> None:  # noqa: B027 - a local file needs no announcement
        """Announce that ``[start, stop)`` is about to be read from front to back: a remote file then asks once."""

    def close(self) -> None:  # noqa: B027 - a reader without a handle has nothing to close
        """Release what the reader holds. Reading afterwards is an error."""

    def check_range(self, offset: int, length: int) -> None:
        """Refuse a range that is not inside the file."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise BrokenFileError(
                f"{self.name} is shorter than what it promises",
                where=f"{self.name}: bytes {offset} to {offset + length} are wanted, the file has {self.size}",
                how="the file is truncated: download or copy it again")


class LocalFile(RangeReader):
    """A regular file on disk.

    Raises:
        SourceError: absent, not a regular file, or unreadable.
    """

    _fd = -1  # also where opening fails

    def __init__(self, path: Path, name: str | None = None) -> None:
        self.name = name or path.name
        try:
            # O_NONBLOCK: opening a FIFO must not wait for a writer; regular files ignore it.
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as e:
            raise SourceError(f"{self.name} cannot be read", where=f"{self.name}: {e.strerror}",
                              how="check the path and its permissions") from e
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._fd)
            self._fd = -1
            raise SourceError(f"{self.name} is not a regular file", where=self.name, how="give a file or a folder")
        self.size = status.st_size

    def read_at(self, offset: int, length: int) -> bytes:
        self.check_range(offset, length)
        parts = []
        while length:
            try:
                part = os.pread(self._fd, length, offset)  # Linux returns at most 2 GiB at a time
            except OSError as e:
                raise self._failed(offset, e) from e
            if not part:
                raise self._shrunk(offset)
            parts.append(part)
            offset, length = offset + len(part), length - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self.check_range(offset, len(buffer))
        while len(buffer):
            try:
                got = os.preadv(self._fd, [buffer], offset)
            except OSError as e:
                raise self._failed(offset, e) from e
            if got == 0:
                raise self._shrunk(offset)
            offset, buffer = offset + got, buffer[got:]

    def _failed(self, offset: int, error: OSError) -> SourceError:
        return SourceError(f"{self.name} could not be read", where=f"{self.name}, byte {offset}: {error.strerror}",
                           how="check the disk, then run again")

    def _shrunk(self, offset: int) -> BrokenFileError:
        return BrokenFileError(f"{self.name} became shorter while it was read",
                               where=f"{self.name}: nothing at byte {offset}, it had {self.size} bytes",
                               how="let the download or copy finish, then run again")

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()
