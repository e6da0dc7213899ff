"""Content identifiers (CIDs) of values and of blobs, and the DAG-CBOR they hash.

A CID here is version 1: the codec of the bytes, and their SHA-256, in base32.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

__all__ = [
    "DAG_CBOR",
    "RAW",
    "cid_of_blob",
    "encode",
    "generate_cid",
    "generate_cid_from_bytes",
    "parse_cid",
    "verify_cid",
]

DAG_CBOR = 0x71  # codec of values
RAW = 0x55  # codec of blobs
SHA256 = bytes([0x12, 0x20])  # hash, and its size in bytes
MAX_DEPTH = 128  # nesting of lists and maps
CID_LENGTH = 59  # letters: the prefix, and base32 of 36 bytes

UINT, NEGATIVE, BYTES, TEXT, ARRAY, MAP = (major << 5 for major in range(6))
LINK = b"\xd8\x2a"  # tag 42
SHORT = [bytes([byte]) for byte in range(256)]  # heads with the value in them
CID_TEXT = re.compile(r"b[a-z2-7]{58}")


def generate_cid(obj: Any) -> str:
    """Return the CID of a value: that of its DAG-CBOR encoding.

    Parameters
    ----------
    obj : dict, list, str, int, float, bool, bytes or None
        Keys of dicts are str. The order of keys does not matter.

    Returns
    -------
    str
        Begins with ``bafyrei``.

    Raises
    ------
    ValueError
        DAG-CBOR cannot hold a value: NaN and infinities, ints of more than 64 bits,
        objects of other types, lists and dicts nested too deep. The message has the
        place.

    Examples
    --------
    >>> from fastshard import typed
    >>> typed.generate_cid({"name": "images", "shards": 2})
    'bafyreiaoxtsqaujbj5bbsqebxraxul575fc5ybok2x4ktzjozqogoul3ya'
    """
    return _text(DAG_CBOR, sha256(encode(obj)).digest())


def verify_cid(cid: str, obj: Any) -> bool:
    """Return whether a CID is that of a value.

    Parameters
    ----------
    cid : str
    obj : dict, list, str, int, float, bool, bytes or None
        As for `generate_cid`.

    Raises
    ------
    ValueError
        DAG-CBOR cannot hold the value.

    Examples
    --------
    >>> from fastshard import typed
    >>> cid = typed.generate_cid({"a": 1, "b": [2.5, b"raw", None]})
    >>> typed.verify_cid(cid, {"b": [2.5, b"raw", None], "a": 1})
    True
    >>> typed.verify_cid(cid, {"a": 1})
    False
    """
    return generate_cid(obj) == cid


def generate_cid_from_bytes(data: bytes) -> str:
    """Return the CID of a value from its DAG-CBOR encoding."""
    return _text(DAG_CBOR, sha256(data).digest())


def cid_of_blob(digest: bytes) -> str:
    """Return the CID of a blob from the SHA-256 of its bytes; begins ``bafkrei``."""
    return _text(RAW, digest)


def parse_cid(text: str) -> tuple[int, bytes]:
    """Return the codec and the SHA-256 digest of a CID."""
    if not isinstance(text, str) or CID_TEXT.fullmatch(text) is None:
        shown = repr(text) if len(str(text)) <= 2 * CID_LENGTH else "a longer text"
        raise ValueError(f"expected a CID in base32, as bafyrei..., got {shown}")
    data = base64.b32decode(text[1:].upper() + "======")
    codec, digest = data[1], data[4:]
    if data[0] != 1 or data[2:4] != SHA256 or codec > 0x7F:
        raise ValueError(f"expected a CID of version 1 with a SHA-256, got {text!r}")
    if _text(codec, digest) != text:
        raise ValueError(f"the last letter of a CID has bits behind its end: {text!r}")
    return codec, digest


def _text(codec: int, digest: bytes) -> str:
    """Return the text of a CID."""
    if len(digest) != 32:
        raise ValueError(f"a SHA-256 has 32 bytes, got {len(digest)}")
    binary = SHORT[1] + SHORT[codec] + SHA256 + digest
    return "b" + base64.b32encode(binary).decode().rstrip("=").lower()


def encode(obj: Any, *, record: bool = False) -> bytes:
    """Return the DAG-CBOR encoding of a value: one for equal values.

    Map keys are sorted by length and then bytes, integers are as short as they can be,
    floats have 64 bits, and -0.0 is 0.0.
    """
    parts: list[bytes] = []
    try:
        _encode(obj, parts, MAX_DEPTH, record)
    except EncodingError as fault:
        place = "".join(reversed(fault.steps))
        raise ValueError(
            f"Failed to encode as DAG-CBOR: {fault.reason} - at ${place}"
        ) from None
    return b"".join(parts)


class EncodingError(Exception):
    """A value that DAG-CBOR cannot hold.

    Attributes
    ----------
    reason : str
    steps : list of str
        The way to the value, from its end.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps: list[str] = []


def _head(major: int, value: int) -> bytes:
    """Return the first bytes of an item: its kind, and a number below 2 ** 64."""
    if value < 24:
        return SHORT[major | value]
    if value < 1 << 8:
        return bytes((major | 24, value))
    if value < 1 << 16:
        return struct.pack(">BH", major | 25, value)
    if value < 1 << 32:
        return struct.pack(">BI", major | 26, value)
    return struct.pack(">BQ", major | 27, value)


TEXT_HEADS = [_head(TEXT, size) for size in range(256)]


def _encode(value: Any, parts: list[bytes], depth: int, record: bool) -> None:
    """Append the encoding of a value."""
    if isinstance(value, str):
        data = _encode_text(value)
        parts += _head(TEXT, len(data)), data
    elif value is None:
        parts.append(b"\xf6")
    elif isinstance(value, bool):
        parts.append(b"\xf5" if value else b"\xf4")
    elif isinstance(value, int):
        parts.append(_encode_int(value))
    elif isinstance(value, list | tuple):
        _encode_list(value, parts, depth, record)
    elif isinstance(value, dict):
        _encode_map(value, parts, depth, record)
    elif isinstance(value, bytes):
        parts += _head(BYTES, len(value)), value
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise EncodingError(f"{value} is not a finite number")
        parts.append(b"\xfb" + struct.pack(">d", value or 0.0))
    else:
        raise EncodingError(f"DAG-CBOR has no {type(value).__name__}")


def _encode_text(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise EncodingError("the text has half a surrogate pair") from None


def _encode_int(value: int) -> bytes:
    if value >= 1 << 64 or value < -1 << 64:
        raise EncodingError(f"an integer of {value.bit_length():,} bits, at most 64")
    return _head(UINT, value) if value >= 0 else _head(NEGATIVE, -1 - value)


def _encode_list(
    values: list[Any] | tuple[Any, ...], parts: list[bytes], depth: int, record: bool
) -> None:
    if not depth:
        raise EncodingError(f"more than {MAX_DEPTH} lists and maps inside each other")
    parts.append(_head(ARRAY, len(values)))
    i = -1
    try:
        for value in values:
            i += 1
            if type(value) is str:  # the URLs of an entry
                data = _encode_text(value)
                size = len(data)
                parts.append(TEXT_HEADS[size] if size < 256 else _head(TEXT, size))
                parts.append(data)
            else:
                _encode(value, parts, depth - 1, record)
    except EncodingError as fault:
        fault.steps.append(f"[{i}]")
        raise


def _encode_map(
    values: Mapping[str, Any], parts: list[bytes], depth: int, record: bool
) -> None:
    if not depth:
        raise EncodingError(f"more than {MAX_DEPTH} lists and maps inside each other")
    if record and len(values) == 1 and not values.keys().isdisjoint(SPECIAL):
        ((key, value),) = values.items()
        parts.append(SPECIAL[key](value))
        return
    keys = []
    for key in values:
        if not isinstance(key, str):
            raise EncodingError(f"keys are str, got {type(key).__name__}")
        data = _encode_text(key)
        keys.append((len(data), data, key))
    keys.sort()
    parts.append(_head(MAP, len(keys)))
    key = ""
    try:
        for size, data, key in keys:
            parts += _head(TEXT, size), data
            _encode(values[key], parts, depth - 1, record)
    except EncodingError as fault:
        fault.steps.append(f".{key[:CID_LENGTH]}")
        raise


def _encode_link(cid: object) -> bytes:
    """Return the encoding of a record's ``{"$link": cid}``."""
    try:
        codec, digest = parse_cid(cid)  # type: ignore[arg-type]
    except ValueError as error:
        raise EncodingError(f"$link: {error}") from None
    binary = bytes([0, 1, codec]) + SHA256 + digest
    return LINK + _head(BYTES, len(binary)) + binary


def _encode_base64(text: object) -> bytes:
    """Return the encoding of a record's ``{"$bytes": base64}``."""
    if not isinstance(text, str):
        raise EncodingError(f"$bytes is base64, got {type(text).__name__}")
    bare = text.rstrip("=")
    try:
        data = base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise EncodingError("$bytes is not base64") from None
    return _head(BYTES, len(data)) + data


SPECIAL = {"$link": _encode_link, "$bytes": _encode_base64}
