"""A file on the hub, read by HTTP range requests: what is asked for crosses the wire, nothing else."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from eagle_convert.errors import BrokenFileError
from eagle_convert.files.ranges import RangeReader

from .client import body, headers, stream
from .errors import HubDownError, RangesIgnoredError, hub_errors, transport_errors

if TYPE_CHECKING:
    from eagle_convert.source import HubOptions

RETRIES = 5
LONGEST_WAIT = 8.0


class RemoteFile(RangeReader):
    """A file of a repository at a fixed commit, of known size.

    Reads that follow each other share one request when :meth:`expect` announced the range; a connection that breaks
    half way is taken up again where it broke.

    Args:
        url: the file's ``resolve`` address at a commit. The redirect to the store is followed by the HTTP library,
            which drops the token when the host changes.
        size: in bytes, as the hub lists it.
    """

    def __init__(self, url: str, size: int, name: str, repo_id: str, hub: HubOptions) -> None:
        self.name, self.size = name, size
        self._url, self._repo_id, self._hub = url, repo_id, hub
        self._announced: list[tuple[int, int]] = []
        self._stack = ExitStack()
        self._chunks: Iterator[bytes] | None = None
        self._rest = memoryview(b"")  # received and not yet handed out
        self._at = self._until = 0  # the open request still owes [_at, _until)

    def expect(self, start: int, stop: int) -> None:
        """Announce that ``[start, stop)`` is about to be read from front to back, once."""
        self.check_range(start, stop - start)
        if not any(a <= start and stop <= b for a, b in self._announced):
            self._announced.append((start, stop))

    def read_at(self, offset: int, length: int) -> bytes:
        self.check_range(offset, length)
        if not length:
            return b""
        buffer = bytearray(length)
        self.read_into(offset, memoryview(buffer))
        return bytes(buffer)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self.check_range(offset, len(buffer))
        failures = 0
        while len(buffer):
            if self._chunks is None or offset != self._at:
                with hub_errors(self._repo_id, self._hub):
                    self._ask(offset, self._stop_of(offset, len(buffer)))
            try:
                got = self._take(buffer)
            except transport_errors():
                got = 0
            offset, buffer, failures = offset + got, buffer[got:], 0 if got else failures + 1
            if failures:
                self._announced.append((offset, self._until))  # what was still to come on this connection
                self._hang_up()
                self._pause(failures, offset)

    def close(self) -> None:
        self._hang_up()

    def _stop_of(self, offset: int, length: int) -> int:
        """How far a request from ``offset`` should go. An announcement is used up by the request that it leads to."""
        stop = offset + length
        for told in [a for a in self._announced if a[0] <= offset < a[1]]:
            self._announced.remove(told)
            stop = max(stop, told[1])
        return stop

    def _take(self, buffer: memoryview) -> int:
        """Copy what is at hand or arrives next; 0 when the body ended before the range did."""
        assert self._chunks is not None
        if not self._rest:
            self._rest = memoryview(next(self._chunks, b""))
        got = min(len(self._rest), len(buffer), self._until - self._at)
        buffer[:got] = self._rest[:got]
        self._rest, self._at = self._rest[got:], self._at + got
        if self._at == self._until:
            with suppress(*transport_errors()):
                next(self._chunks, None)  # the end of the message: the connection can serve the next request
            self._hang_up()
        return got

    def _pause(self, failures: int, offset: int) -> None:
        if failures > RETRIES:
            raise HubDownError(f"the connection breaks again and again while {self.name} is read",
                               where=f"{self._repo_id}: {self.name}, byte {offset} of {self.size}",
                               how="run again in some minutes")
        time.sleep(min(LONGEST_WAIT, 0.5 * 2**failures))

    def _ask(self, start: int, stop: int) -> None:
        """Open a request for ``[start, stop)`` and check that the answer is that range, before reading any of it."""
        from huggingface_hub.utils import hf_raise_for_status

        wanted = {**headers(self._hub), "Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        response = self._stack.enter_context(stream(self._url, wanted))
        hf_raise_for_status(response)
        if response.status_code == 200 and (start, stop) != (0, self.size):
            self._hang_up()
            raise RangesIgnoredError(
                "the server ignores range requests and sends the whole file",
                where=f"{self._repo_id}: {self.name}, bytes {start} to {stop} wanted, all {self.size} offered",
                how=f"use another endpoint (HF_ENDPOINT), or download it first: hf download {self._repo_id}")
        self._check_answer(response.headers.get("Content-Range"), response.status_code, start, stop)
        self._chunks, self._at, self._until = body(response), start, stop

    def _check_answer(self, said: str | None, status: int, start: int, stop: int) -> None:
        found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", said or "")
        if status == 206 and found:
            whole = self.size if found[3] == "*" else int(found[3])
            if (int(found[1]), int(found[2]) + 1, whole) == (start, stop, self.size):
                return
        elif status == 200:
            return
        self._hang_up()
        raise BrokenFileError(f"{self.name} came as another range than was asked for",
                              where=f"{self._repo_id}: {self.name}, bytes {start}-{stop - 1}/{self.size} wanted, "
                                    f"HTTP {status} with '{said}'",
                              how="the file changed, or a proxy is at fault: run again, or try another endpoint")

    def _hang_up(self) -> None:
        self._chunks, self._rest = None, memoryview(b"")
        self._at = self._until = 0
        self._stack.close()
