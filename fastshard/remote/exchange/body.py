"""Bodies of requests: bytes, files, and JSON with secrets."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

from fastshard._util.secret import Secret

__all__ = ["Body", "BodyError", "BytesBody", "FileBody", "JsonBody"]

PIECE = 256 << 10  # bytes sent at a time


class Body:
    """The body of a request; each attempt to send it opens it again.

    Attributes
    ----------
    kind : str
        Its Content-Type.
    """

    kind = "application/octet-stream"

    def secrets(self) -> list[Secret]:
        """Return the secrets in the body, which no error may repeat."""
        return []

    def open(self) -> tuple[int, Iterator[bytes | memoryview]]:
        """Return the size in bytes, and the pieces."""
        raise NotImplementedError


class BytesBody(Body):
    """Bytes in memory."""

    def __init__(self, data: bytes | bytearray | memoryview, kind: str) -> None:
        self._view = memoryview(data).cast("B")
        self.nbytes = len(self._view)
        self.kind = kind

    def open(self) -> tuple[int, Iterator[bytes | memoryview]]:
        view = self._view
        pieces = (view[at : at + PIECE] for at in range(0, len(view), PIECE))
        return len(view), pieces

    def digest(self) -> bytes:
        """Return the SHA-256 of the bytes."""
        return sha256(self._view).digest()


class FileBody(Body):
    """A file, read while it is sent."""

    def __init__(self, path: str | os.PathLike[str], kind: str) -> None:
        self.path = os.fspath(path)
        self.kind = kind
        status = os.stat(self.path)
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would block
            code = errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL
            raise OSError(code, "not a regular file", self.path)
        self.nbytes = status.st_size
        self.sent = sha256()  # of the pieces of the last attempt

    def open(self) -> tuple[int, Iterator[bytes | memoryview]]:
        self.sent = sha256()
        return self.nbytes, self._pieces()

    def _pieces(self) -> Iterator[bytes]:
        left = self.nbytes
        try:
            with open(self.path, "rb", buffering=0) as file:
                while piece := file.read(min(PIECE, left + 1)):
                    left -= len(piece)
                    if left < 0:
                        break
                    self.sent.update(piece)
                    yield piece
        except OSError as error:
            raise BodyError(error) from None
        if left:
            raise BodyError(OSError(f"{self.path} changed while it was sent"))

    def digest(self) -> bytes:
        """Return the SHA-256 of the bytes sent last."""
        return self.sent.digest()


class BodyError(Exception):
    """A request body cannot be read; not an error of the network."""

    def __init__(self, reason: OSError) -> None:
        super().__init__(reason)
        self.reason = reason


class JsonBody(Body):
    """JSON, made when it is sent: a `Secret` in it is then revealed."""

    kind = "application/json"

    def __init__(self, value: dict[str, Any]) -> None:
        self._value = value
        _encode(value, str)  # raises here, where no frame has a secret

    def secrets(self) -> list[Secret]:
        return [item for item in self._value.values() if isinstance(item, Secret)]

    def open(self) -> tuple[int, Iterator[bytes | memoryview]]:
        data = _encode(self._value, Secret.reveal)
        return len(data), iter([data])


def _encode(value: dict[str, Any], show: Callable[[Secret], str]) -> bytes:
    """Return JSON in UTF-8; a function renders the secrets."""

    def default(item: object) -> str:
        if isinstance(item, Secret):
            return show(item)
        raise TypeError(f"JSON cannot hold {type(item).__name__}")

    try:
        text = json.dumps(
            value,
            ensure_ascii=False,
            allow_nan=False,
            separators=(",", ":"),
            default=default,
        )
    except RecursionError:
        raise ValueError("JSON cannot hold a value nested this deep") from None
    return text.encode()
