"""Seekable binary file of a member of a remote shard."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

from fastshard.remote.file import RemoteFile

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

__all__ = ["open_range"]

BUFFER = 256 << 10  # bytes of a range request at least


class RangeFile(io.RawIOBase):
    """Seekable raw file of an extent of a remote object."""

    def __init__(self, file: RemoteFile, offset: int, size: int, name: str) -> None:
        self._file = file
        self._offset = offset
        self._size = size
        self._at = 0
        self.name = name

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        if whence not in (os.SEEK_SET, os.SEEK_CUR, os.SEEK_END):
            raise ValueError(f"whence must be 0, 1 or 2, got {whence}")
        at = (0, self._at, self._size)[whence] + offset
        if at < 0:
            raise ValueError(f"the position must not be negative, got {at}")
        self._at = at
        return at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        view = view[: max(0, self._size - self._at)]
        if not len(view):
            return 0
        (error,) = self._file.read_into([(self._file, self._offset + self._at, view)])
        if error is not None:
            raise error
        self._at += len(view)
        return len(view)


def open_range(
    file: RemoteFile, offset: int, size: int, name: str
) -> io.BufferedReader:
    """Return an extent of a remote object as a buffered binary file."""
    return io.BufferedReader(RangeFile(file, offset, size, name), BUFFER)
