"""MDS encodings of numbers: of a fixed size, or as text."""

from __future__ import annotations

import decimal
import struct
from typing import Any

import numpy as np

from fastshard.streaming.encodings.base import (
    Buffer,
    Encoding,
    check_size,
    check_type,
    fail,
)
from fastshard.streaming.encodings.text import decode_utf8

__all__ = [
    "IntEncoding",
    "ScalarEncoding",
    "StrDecimalEncoding",
    "StrFloatEncoding",
    "StrIntEncoding",
]


class IntEncoding(Encoding):
    """Python's int as a signed integer of 64 bits."""

    size = 8

    def encode(self, obj: int) -> bytes:
        check_type(obj, int)
        return struct.pack("<q", np.int64(obj))

    def decode(self, data: Buffer) -> int:
        check_size(data, 8)
        (value,) = struct.unpack("<q", data)
        return int(value)


class ScalarEncoding(Encoding):
    """NumPy scalar of one dtype, such as ``"uint8"``."""

    def __init__(self, dtype: str) -> None:
        self._type = getattr(np, dtype)
        self._stored = np.dtype(dtype).newbyteorder("<")
        self.size = self._stored.itemsize

    def encode(self, obj: Any) -> bytes:
        # A sequence makes an array, of which the writer compares the size.
        value = self._type(obj)
        return value.astype(self._stored).tobytes()  # type: ignore[no-any-return]

    def decode(self, data: Buffer) -> Any:
        check_size(data, self._stored.itemsize)
        return self._type(np.frombuffer(data, self._stored)[0])


class StrIntEncoding(Encoding):
    """Python's int of any size, as decimal text."""

    def encode(self, obj: int) -> bytes:
        check_type(obj, int)
        return str(obj).encode()

    def decode(self, data: Buffer) -> int:
        text = decode_utf8(data)
        try:
            return int(text)
        except ValueError as error:  # also of too many digits
            fail("not an integer", 0, error)


class StrFloatEncoding(Encoding):
    """Python's float as text."""

    def encode(self, obj: float) -> bytes:
        check_type(obj, float)
        return str(obj).encode()

    def decode(self, data: Buffer) -> float:
        text = decode_utf8(data)
        try:
            return float(text)
        except ValueError as error:
            fail("not a number", 0, error)


class StrDecimalEncoding(Encoding):
    """`decimal.Decimal` as text."""

    def encode(self, obj: decimal.Decimal) -> bytes:
        check_type(obj, decimal.Decimal)
        return str(obj).encode()

    def decode(self, data: Buffer) -> decimal.Decimal:
        text = decode_utf8(data)
        try:
            return decimal.Decimal(text)
        except (decimal.DecimalException, ValueError) as error:
            fail("not a decimal number", 0, error)
