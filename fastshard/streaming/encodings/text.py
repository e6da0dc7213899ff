"""MDS encodings of bytes, text, JSON and pickles."""

from __future__ import annotations

import json
import pickle
from typing import Any

from fastshard._util.json import parse_value
from fastshard.streaming.encodings.base import Buffer, Encoding, check_type, fail

__all__ = [
    "BytesEncoding",
    "JSONEncoding",
    "PickleEncoding",
    "StrEncoding",
    "decode_utf8",
]


class BytesEncoding(Encoding):
    """Bytes as they are."""

    def encode(self, obj: bytes) -> bytes:
        check_type(obj, bytes)
        return obj

    def decode(self, data: Buffer) -> bytes:
        return bytes(data)


class StrEncoding(Encoding):
    """Text in UTF-8."""

    def encode(self, obj: str) -> bytes:
        check_type(obj, str)
        return obj.encode()

    def decode(self, data: Buffer) -> str:
        return decode_utf8(data)


class JSONEncoding(Encoding):
    """A JSON value, with NaN and Infinity; an array is stored as lists."""

    def encode(self, obj: Any) -> bytes:
        import numpy as np

        if isinstance(obj, np.ndarray):
            obj = obj.tolist()
        return json.dumps(obj).encode()

    def decode(self, data: Buffer) -> Any:
        return parse_value(data, "<view>")


class PickleEncoding(Encoding):
    """Any object as a pickle. To decode it can run any code."""

    safe = False

    def encode(self, obj: object) -> bytes:
        return pickle.dumps(obj)

    def decode(self, data: Buffer) -> Any:
        try:
            return pickle.loads(data)
        except (ImportError, AttributeError, MemoryError):  # a class that is not here
            raise
        except Exception as error:
            fail(f"not a pickle: {error or type(error).__name__}", 0, error)


def decode_utf8(data: Buffer) -> str:
    """Return the text of UTF-8."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        fail(f"not UTF-8: {error.reason}", error.start, error)
