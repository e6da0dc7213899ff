"""Metadata of entries: a dict as msgpack, or an object of known names.

The lexicon says bytes; other writers give an object. A PDS refuses floats in objects,
and returns base64 without padding, which other readers require: so the bytes written
here have a length that is a multiple of three.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from fastshard.atmosphere.records.checked import (
    MAX_DEPTH,
    RecordFields,
    utf8_length,
)
from fastshard.codecs.libraries import import_library
from fastshard.errors import RecordError

__all__ = ["MOST_BYTES", "read_metadata", "write_metadata"]

MOST_BYTES = 100_000
NAMES = {  # of the object's fields, and of the dict's keys
    "sourceUri": "source_uri",
    "createdBy": "created_by",
    "version": "version",
    "processingSteps": "processing_steps",
    "split": "split",
}
STEPS = "processingSteps"
MAP16, MAP32 = 0xDE, 0xDF
FIXSTR, STR8, STR16, STR32 = 0xA0, 0xD9, 0xDA, 0xDB
LONG_KEY = 256  # bytes; longer lengths take two


def read_metadata(
    fields: RecordFields, name: str = "metadata"
) -> dict[str, Any] | None:
    """Return the metadata of a record as a dict, from either form."""
    value = fields.mapping_or_none(name)
    if value is None:
        return None
    if "$bytes" in value:
        return _decode(fields.of(value, name))
    return _flatten(fields.of(value, name))


def write_metadata(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return metadata as a record holds them: ``{"$bytes": base64}``."""
    data = _pack(dict(metadata))
    if len(data) > MOST_BYTES:
        reason = f"{len(data):,} bytes are more than the {MOST_BYTES:,} allowed"
        raise RecordError(reason, "", "metadata")
    return {"$bytes": b64encode(data).decode()}


def _decode(fields: RecordFields) -> dict[str, Any]:
    """Return the dict of msgpack in base64, with padding or without."""
    text = fields.text("$bytes", 2 * MOST_BYTES)
    try:
        data = b64decode(
            text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4), None, True
        )
    except (ValueError, binascii.Error):
        raise fields.fail("expected base64", "$bytes") from None
    if len(data) > MOST_BYTES:
        reason = f"{len(data):,} bytes are more than the {MOST_BYTES:,} allowed"
        raise fields.fail(reason, "$bytes")
    msgpack = _msgpack()
    try:
        found = msgpack.decode(data)
    except (ValueError, RecursionError) as error:
        raise fields.fail(f"not msgpack: {error}", "$bytes") from None
    if not isinstance(found, dict) or not all(isinstance(k, str) for k in found):
        raise fields.fail("the msgpack is not a map of names", "$bytes")
    fields.check_depth(found, "$bytes")
    return found


def _flatten(fields: RecordFields) -> dict[str, Any]:
    """Return the dict of an object: known names, then those of `custom`, others."""
    found: dict[str, Any] = {}
    for name, key in NAMES.items():
        value = (
            fields.texts_or_none(name, MOST_BYTES)
            if name == STEPS
            else fields.text_or_none(name, MOST_BYTES)
        )
        if value is not None:
            found[key] = value
    custom = fields.mapping_or_none("custom") or {}
    return {**fields.rest(), **custom, **found}


def _pack(metadata: dict[str, Any]) -> bytes:
    """Return msgpack whose length is a multiple of three."""
    msgpack = _msgpack()
    metadata = _plain(metadata, "metadata")
    if len(metadata) > 15:  # the first key's length may have to grow
        shortest = min(metadata, key=utf8_length)
        if utf8_length(next(iter(metadata))) >= LONG_KEY:
            metadata = {shortest: metadata[shortest]} | metadata
    try:
        data: bytes = msgpack.encode(metadata)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise RecordError(f"msgpack cannot hold it: {error}", "", "metadata") from None
    if len(data) > MOST_BYTES:
        return data  # refused
    count = len(metadata)
    body = data[1 if count < 16 else 3 :]
    heads = [
        bytes([MAP16]) + count.to_bytes(2, "big"),
        bytes([MAP32]) + count.to_bytes(4, "big"),
    ]
    if count < 16:
        heads.insert(0, data[:1])
    elif not any((len(head) + len(body)) % 3 == 0 for head in heads):
        body = _lengthen(body)
    return next(head for head in heads if (len(head) + len(body)) % 3 == 0) + body


def _lengthen(body: bytes) -> bytes:
    """Return a map's body with a longer header for its first key.

    By one byte, which the two headers of a large map cannot give, or by two.
    """
    first = body[0]
    if first == STR16:
        return bytes([STR32]) + body[1:3].rjust(4, b"\0") + body[3:]
    if first == STR8:
        return bytes([STR16]) + body[1:2].rjust(2, b"\0") + body[2:]
    return bytes([STR8, first - FIXSTR]) + body[1:]


def _plain(value: object, path: str, depth: int = 0) -> Any:
    """Return a copy of plain types that msgpack restores unchanged."""
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if depth > MAX_DEPTH:
        raise RecordError(f"values are nested deeper than {MAX_DEPTH}", "", path)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                name = type(key).__name__
                raise RecordError(f"keys must be texts, got {name}", "", path)
        return {
            str(key): _plain(item, f"{path}.{key}", depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
    raise RecordError(f"metadata hold no {type(value).__name__}", "", path)


def _msgpack() -> Any:
    need = "metadata of records need msgspec"
    return import_library("msgspec.msgpack", need, "'fastshard[typed]'")
