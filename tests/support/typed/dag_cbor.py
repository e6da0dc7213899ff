"""DAG-CBOR without floats: CIDs of records, computed apart from this package."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

CBOR, RAW = 0x71, 0x55  # codecs


class Link(str):
    """A CID inside a record."""

    __slots__ = ()


def cid(data: bytes, codec: int = CBOR) -> str:
    """Return the CID of bytes: version 1, SHA-256, base32."""
    binary = bytes([1, codec, 0x12, 0x20]) + hashlib.sha256(data).digest()
    return "b" + base64.b32encode(binary).decode().lower().rstrip("=")


def of_record(value: Any) -> Any:
    """Return a record's JSON with its links and bytes as such."""
    if isinstance(value, list):
        return [of_record(item) for item in value]
    if not isinstance(value, dict):
        return value
    if list(value) == ["$link"]:
        return Link(value["$link"])
    if list(value) == ["$bytes"]:
        return base64.b64decode(value["$bytes"] + "==")
    return {key: of_record(item) for key, item in value.items()}


def encode(value: Any) -> bytes:
    """Return the bytes of a value."""
    simple = {None: b"\xf6", True: b"\xf5", False: b"\xf4"}
    if value is None or isinstance(value, bool):
        return simple[value]
    if isinstance(value, Link):
        digits = value[1:].upper()
        data = b"\x00" + base64.b32decode(digits + "=" * (-len(digits) % 8))
        return b"\xd8\x2a" + head(2, len(data)) + data
    if isinstance(value, int):
        return head(0, value) if value >= 0 else head(1, -1 - value)
    if isinstance(value, bytes):
        return head(2, len(value)) + value
    if isinstance(value, str):
        return head(3, len(value.encode())) + value.encode()
    if isinstance(value, list):
        return head(4, len(value)) + b"".join(map(encode, value))
    keys = sorted(value, key=lambda key: (len(key.encode()), key.encode()))
    pairs = (encode(key) + encode(value[key]) for key in keys)
    return head(5, len(value)) + b"".join(pairs)


def head(major: int, number: int) -> bytes:
    """Return the major type and its argument, as short as can be."""
    if number < 24:
        return bytes([major << 5 | number])
    for extra, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if number < 1 << 8 * size:
            return bytes([major << 5 | extra]) + number.to_bytes(size, "big")
    raise OverflowError(number)
