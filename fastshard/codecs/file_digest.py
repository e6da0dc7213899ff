"""SHA-256 of a growing file, by a thread behind the writer."""

from __future__ import annotations

import os
from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["FileDigest"]

# Bytes that are read and hashed at a time, without the GIL: the thread waits for it in
# between, while the writer computes.
CHUNK = 8 << 20


class FileDigest:
    """SHA-256 of an append-only file.

    A thread reads the file behind its writer, so that the digest is ready soon after
    the last byte; both the reading and the hashing run without the GIL.
    """

    def __init__(self, path: str) -> None:
        # Late: it takes 20 ms, and most writers need no digest.
        from concurrent.futures import ThreadPoolExecutor

        self._path = path
        self._ordered = 0  # bytes for the thread to read
        self._buffer = bytearray()
        self._sha256 = sha256()
        self._thread = ThreadPoolExecutor(1, "fastshard-digest")
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed by `close`
        self._last: Future[None] | None = None
        self._digest = ""

    def follow(self, nbytes: int) -> None:
        """Hash the first bytes of the file, which are written."""
        if nbytes - self._ordered >= CHUNK:
            self._order(nbytes)

    def finish(self, nbytes: int) -> None:
        """Begin to hash the rest of the file, which is complete."""
        self._order(nbytes)
        if os.name == "nt":  # an open file cannot be renamed there
            self.result()

    def result(self) -> str:
        """Return the digest of the complete file, in hexadecimal."""
        if not self._digest:
            assert self._last is not None
            try:
                self._last.result()
            finally:
                self.close()
            self._digest = self._sha256.hexdigest()
        return self._digest

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)
        self._file.close()

    def _order(self, nbytes: int) -> None:
        before, size = self._last, nbytes - self._ordered
        self._ordered = nbytes
        self._last = self._thread.submit(self._hash, before, size)

    def _hash(self, before: Future[None] | None, size: int) -> None:
        """Hash the next bytes of the file."""
        if before is not None:
            before.result()  # raises its error
        if len(self._buffer) < min(size, CHUNK):
            self._buffer = bytearray(min(size, CHUNK))
        buffer = memoryview(self._buffer)
        while size:
            read = self._file.readinto(buffer[: min(size, CHUNK)])
            if not read:
                raise OSError(f"the file ends {size:,} bytes too early: {self._path}")
            self._sha256.update(buffer[:read])
            size -= read
