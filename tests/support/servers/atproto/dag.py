"""Records as a PDS keeps them: DAG-CBOR, its order of keys, identifiers.

Apart from the code under test: what a server computes, its clients are compared with.
"""

from __future__ import annotations

import hashlib
import re
import struct
from base64 import b32decode, b32encode, b64decode, b64encode
from collections.abc import Iterator
from typing import Any

__all__ = ["InvalidRecordError", "blob_cid", "blobs_in", "normalize", "record_cid"]

CID = re.compile(r"b[a-z2-7]{58}")


class InvalidRecordError(ValueError):
    """A value that a record cannot have."""


def normalize(value: Any, place: str = "$.record") -> Any:
    """Return a record as a server returns it: keys in order, base64 without padding."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int) and -(2**53) < value < 2**53:
        return value
    if isinstance(value, list):
        return [normalize(item, f"{place}[{i}]") for i, item in enumerate(value)]
    if not isinstance(value, dict):
        raise InvalidRecordError(
            "Expected one of null, boolean, integer, string, cid, bytes, array or "
            f"object value type (got {value}) at {place}"
        )
    if set(value) == {"$bytes"}:
        return {"$bytes": b64encode(_bytes(value)).decode().rstrip("=")}
    if set(value) == {"$link"} and not CID.fullmatch(value["$link"]):
        raise InvalidRecordError(f"Invalid CID at {place}")
    items = {key: normalize(item, f"{place}.{key}") for key, item in value.items()}
    return {key: items[key] for key in sorted(items, key=_rank)}


def _rank(key: str) -> tuple[int, bytes]:
    return len(key.encode()), key.encode()


def _bytes(value: dict[str, str]) -> bytes:
    text = value["$bytes"]
    return b64decode(text + "=" * (-len(text) % 4))


def encode(value: Any) -> bytes:
    """Return the DAG-CBOR of a record."""
    if value is None:
        return b"\xf6"
    if isinstance(value, bool):
        return b"\xf5" if value else b"\xf4"
    if isinstance(value, int):
        return _head(0, value) if value >= 0 else _head(1, -1 - value)
    if isinstance(value, str):
        return _head(3, len(value.encode())) + value.encode()
    if isinstance(value, list):
        return _head(4, len(value)) + b"".join(map(encode, value))
    if set(value) == {"$bytes"}:
        return _head(2, len(_bytes(value))) + _bytes(value)
    if set(value) == {"$link"}:
        link = b"\0" + b32decode(value["$link"][1:].upper() + "======")
        return _head(6, 42) + _head(2, len(link)) + link
    parts = [encode(key) + encode(value[key]) for key in sorted(value, key=_rank)]
    return _head(5, len(value)) + b"".join(parts)


def _head(major: int, number: int) -> bytes:
    if number < 24:
        return bytes([major << 5 | number])
    for extra, form in ((24, ">B"), (25, ">H"), (26, ">I"), (27, ">Q")):
        if number < 1 << 8 * struct.calcsize(form):
            return bytes([major << 5 | extra]) + struct.pack(form, number)
    raise InvalidRecordError("an integer of more than 64 bits")


def _cid(codec: int, data: bytes) -> str:
    digest = bytes([1, codec, 0x12, 32]) + hashlib.sha256(data).digest()
    return "b" + b32encode(digest).decode().lower().rstrip("=")


def record_cid(record: Any) -> str:
    return _cid(0x71, encode(record))


def blob_cid(data: bytes) -> str:
    return _cid(0x55, data)


def blobs_in(value: Any) -> Iterator[str]:
    """Yield the identifiers of the blobs that a record refers to."""
    if isinstance(value, list):
        for item in value:
            yield from blobs_in(item)
    elif isinstance(value, dict):
        if value.get("$type") == "blob":
            yield value["ref"]["$link"]
        for item in value.values():
            yield from blobs_in(item)
