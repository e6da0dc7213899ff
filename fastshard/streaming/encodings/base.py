"""Base class of MDS encodings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NoReturn, TypeAlias

from fastshard.codecs.libraries import import_library
from fastshard.errors import FormatError

__all__ = ["Buffer", "Encoding", "check_size", "check_type", "fail", "pillow"]

Buffer: TypeAlias = bytes | bytearray | memoryview


class Encoding(ABC):
    """Base class of encodings: how the values of an MDS column are stored.

    A user's encoding has the same attributes; it need not derive from this class.

    Attributes
    ----------
    size : int or None
        Bytes of each encoded value, if all have the same size.
    safe : bool
        Whether `decode` is harmless for any bytes.
    """

    size: int | None = None
    safe: ClassVar[bool] = True

    @abstractmethod
    def encode(self, obj: Any) -> bytes:
        """Return the bytes of a value."""

    @abstractmethod
    def decode(self, data: Buffer) -> Any:
        """Return the value of encoded bytes."""


def check_type(obj: object, expected: type) -> None:
    """Raise upstream's AttributeError unless `obj` is an instance of `expected`."""
    if not isinstance(obj, expected):
        raise AttributeError(
            f"data should be of type {expected}, but instead, found as {type(obj)}"
        )


def check_size(data: Buffer, size: int) -> None:
    if len(data) != size:
        fail(f"expected {size} bytes, got {len(data):,}", 0)


def fail(reason: str, at: int, cause: BaseException | None = None) -> NoReturn:
    """Raise a FormatError at a byte of the field; callers add path and offset."""
    raise FormatError(reason, "<view>", at) from cause


def pillow(module: str = "Image") -> Any:
    """Import a module of Pillow."""
    need = "Pillow is needed for encodings of images"
    return import_library(f"PIL.{module}", need, "'fastshard[images]'")
