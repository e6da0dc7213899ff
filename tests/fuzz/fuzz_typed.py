"""Fuzzer of typed payloads, compared with msgspec and NumPy.

Not part of the suite. From the root; a seed reproduces its payloads::

    python tests/fuzz/fuzz_typed.py 0 100000

Damaged payloads are refused at a byte of theirs, or read as msgspec reads them: without
a type, as objects of a class, and their bins as arrays. It stops at the first
difference and writes that payload to ``wrong.msgpack``.
"""

from __future__ import annotations

import random
import struct
import sys
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from fastshard import FormatError
from fastshard._core.typed.arrays import is_array, unpack_array
from fastshard._core.typed.msgpack import extents_of_fields, unpack_map
from fastshard._core.typed.plan import TypePlan

DTYPES = ["|b1", "|u1", "<f2", ">f4", "<c8", "<U3", "|S4", "<M8[ns]", "<m8[us]", "|V3"]


class Field(NamedTuple):
    name: str
    kind: str
    aliases: tuple[str, ...] = ()
    dtype: Any = None
    optional: bool = False
    has_default: bool = False
    default: Any = None
    factory: Any = None
    decode: Any = None


class Sample:
    """Class of the objects."""


decode_any = msgspec.msgpack.Decoder().decode
KINDS = {
    "a": "int",
    "b": "float",
    "c": "bool",
    "d": "str",
    "e": "bytes",
    "f": "none",
    "g": "array",
    "h": "object",
}
NAMES = list(KINDS)
PLAN = TypePlan(
    Sample,
    [
        Field(
            name,
            kind,
            aliases=(f"{name}2",),
            optional=kind in ("str", "array"),
            has_default=kind in ("int", "bytes"),
            decode=decode_any if kind == "object" else None,
        )
        for name, kind in KINDS.items()
    ],
)


def pack_array(array: np.ndarray[Any, Any]) -> bytes:
    """Return the compact form of an array."""
    kind = array.dtype.str.encode()
    lengths = struct.pack(f"<{array.ndim}q", *array.shape)
    return bytes([len(kind)]) + kind + bytes([array.ndim]) + lengths + array.tobytes()


def make_value(maker: random.Random, kind: str, depth: int = 0) -> Any:
    if kind == "int":
        return maker.choice([1, -1]) * maker.getrandbits(maker.randrange(64)) // 2
    if kind == "float":
        return maker.random()
    if kind == "bool":
        return maker.random() < 0.5
    if kind == "str":
        return "".join(maker.choices("aé😀\0", k=maker.choice([3, 40, 300])))
    if kind == "bytes":
        return maker.randbytes(maker.choice([0, 3, 300]))
    if kind == "array":
        shape = [maker.randrange(4) for _ in range(maker.randrange(4))]
        return pack_array(np.zeros(shape, maker.choice(DTYPES)))
    if kind == "object" and depth < 4:
        if maker.random() < 0.5:
            return [make_any(maker, depth + 1) for _ in range(maker.randrange(5))]
        return {str(i): make_any(maker, depth + 1) for i in range(maker.randrange(5))}
    return None


def make_any(maker: random.Random, depth: int) -> Any:
    return make_value(maker, maker.choice([*KINDS.values()]), depth)


def make_payload(maker: random.Random) -> bytes:
    """Return a payload of the class, of which a field may have another type."""
    fields = {name: make_value(maker, kind) for name, kind in KINDS.items()}
    if maker.random() < 0.3:
        fields[maker.choice(NAMES)] = make_any(maker, 0)
    if maker.random() < 0.2:
        fields[maker.choice(NAMES) + "2"] = make_any(maker, 0)
    if maker.random() < 0.2:
        del fields[maker.choice(NAMES)]
    if maker.random() < 0.2:
        fields = dict(sorted(fields.items(), key=lambda _: maker.random()))
    return msgspec.msgpack.encode(fields)


def damage(maker: random.Random, whole: bytes) -> bytes:
    """Return the payload with bytes changed, or parts moved."""
    data = bytearray(whole)
    for _ in range(maker.randrange(4)):
        at, size = maker.randrange(len(data) + 1), maker.randrange(30)
        start = maker.randrange(len(whole))
        if data and maker.random() < 0.6:
            data[at % len(data)] = maker.choice(
                [maker.randrange(256), maker.randrange(0xC0, 0xE0)]
            )
        elif maker.random() < 0.5:
            data[at : at + maker.randrange(30)] = whole[start : start + size]
        else:
            del data[at:]
    return bytes(data)


def decode(payload: bytes) -> dict[str, Any] | None:
    """Return the result of msgspec, or None."""
    try:
        raw = msgspec.msgpack.decode(payload, type=dict[str, msgspec.Raw])
        return {name: decode_any(value) for name, value in raw.items()}
    except (ValueError, TypeError):
        return None


def check(payload: bytes) -> bool:
    """Return whether a payload is an object's; raise AssertionError if read wrong."""
    expected = decode(payload)
    try:
        found = unpack_map(payload)
    except FormatError as error:
        # Of a key that is there twice msgspec checks the last value only.
        text = "extension" in error.reason or "UTF-8" in error.reason
        assert expected is None or text, error
        assert 0 <= error.offset <= len(payload), error
    else:
        assert repr(found) == repr(expected)
        assert list(extents_of_fields(payload)) == list(found)
        for value in found.values():
            if isinstance(value, bytes):
                check_array(value)
    try:
        sample = vars(PLAN.from_buffer(payload))
    except FormatError as error:
        assert 0 <= error.offset <= len(payload), error
        return False
    assert list(sample) == list(KINDS)
    for name, value in sample.items():
        check_field(name, value, payload, expected)
    return True


def check_field(
    name: str, value: Any, payload: bytes, expected: dict[str, Any] | None
) -> None:
    if expected is None:  # an error in another field
        try:
            extents = extents_of_fields(payload)
        except FormatError:  # the name of a field that the class has not
            return
        there = name if name in extents else f"{name}2"
        expected = {}
        if there in extents:
            _, at, size, _, _ = extents[there]
            expected[there] = decode_any(payload[at : at + size])
    stored = expected.get(name, expected.get(f"{name}2"))
    if isinstance(value, np.ndarray):
        assert stored.endswith(value.tobytes())
    elif KINDS[name] == "float":
        assert repr(value) == repr(float(stored))
    else:
        assert repr(value) == repr(stored)


def check_array(data: bytes) -> None:
    """A bin is an array, and NumPy agrees, or it is refused."""
    try:
        array = unpack_array(data)
    except FormatError as error:
        assert 0 <= error.offset <= len(data), error
        assert not is_array(data)
    else:
        assert is_array(data)
        if data[:6] != b"\x93NUMPY":
            again = pack_array(array)
            assert again[-array.nbytes :] == data[-array.nbytes :]
            assert len(again) == len(data)


def main(first: int, last: int) -> None:
    good = 0
    for seed in range(first, last):
        maker = random.Random(seed)
        payload = damage(maker, make_payload(maker))
        try:
            good += check(payload)
        except BaseException:
            Path("wrong.msgpack").write_bytes(payload)
            print(f"seed {seed}")
            raise
    print(f"{last - first:,} payloads, {good:,} of them read as objects")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
