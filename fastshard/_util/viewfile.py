"""Seekable binary file over a memoryview."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

__all__ = ["ViewFile"]


class ViewFile(io.BufferedIOBase):
    """File over a view, for `zipfile`, Pillow or `soundfile`.

    Unlike `io.BytesIO` it copies only the bytes that `read` returns.
    """

    def __init__(self, view: memoryview, name: str) -> None:
        self._view = view
        self._position = 0  # may lie beyond the end
        self.name = name

    def readable(self) -> bool:
        self._check_open()
        return True

    def seekable(self) -> bool:
        self._check_open()
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._check_open()
        if whence not in (os.SEEK_SET, os.SEEK_CUR, os.SEEK_END):
            raise ValueError(f"whence must be 0, 1 or 2, got {whence}")
        position = (0, self._position, len(self._view))[whence] + offset
        if position < 0:
            raise ValueError(f"the position must not be negative, got {position}")
        self._position = position
        return position

    def tell(self) -> int:
        self._check_open()
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        self._check_open()
        end = len(self._view) if size is None or size < 0 else self._position + size
        data = bytes(self._view[self._position : end])
        self._position += len(data)
        return data

    def read1(self, size: int = -1, /) -> bytes:
        return self.read(size)

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        self._check_open()
        with memoryview(buffer).cast("B") as destination:
            data = self._view[self._position : self._position + len(destination)]
            destination[: len(data)] = data
        self._position += len(data)
        return len(data)

    def readinto1(self, buffer: WriteableBuffer, /) -> int:
        return self.readinto(buffer)

    def getbuffer(self) -> memoryview:
        """Return the underlying view, as `io.BytesIO` does."""
        self._check_open()
        return self._view

    def close(self) -> None:
        self._view = memoryview(b"")
        super().close()

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on a closed file")
