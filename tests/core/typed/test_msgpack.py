"""The walk of msgpack payloads, with msgspec as the oracle."""

import random
import struct

import pytest

from fastshard import FormatError
from fastshard._core.typed.msgpack import extents_of_fields, unpack_map
from support.marks import thin

msgspec = pytest.importorskip("msgspec")
encode = msgspec.msgpack.encode

INTEGERS = [
    sign * (1 << bits) + step
    for bits in (0, 5, 7, 8, 15, 16, 31, 32, 62)
    for sign in (1, -1)
    for step in (-1, 0, 1)
] + [-(2**63), 2**63 - 1, 2**63, 2**64 - 1]
FLOATS = [0.0, -0.0, 1.5, float("inf"), 5e-324, struct.unpack("f", b"abcd")[0]]
LENGTHS = [0, 1, 15, 16, 31, 32, 33, 255, 256, 65_535, 65_536]


@pytest.mark.parametrize("value", [*INTEGERS, *FLOATS, None, True, False, "é\0😀"])
def test_scalars(value):
    found = unpack_map(encode({"a": value, "b": 1}))

    assert repr(found["a"]) == repr(value)
    assert type(found["a"]) is type(value)


@pytest.mark.parametrize("length", LENGTHS)
def test_lengths_of_every_head(length):
    fields = {
        "str": "a" * length,
        "wide": "é" * length,
        "bin": b"b" * length,
        "list": [1] * length,
        "dict": {str(i): i for i in range(length)},
    }
    payload = encode(fields)

    assert unpack_map(payload) == fields
    assert unpack_map(encode(fields["dict"])) == fields["dict"]
    for name, (kind, at, size, start, nbytes) in extents_of_fields(payload).items():
        value = fields[name]
        assert kind == type(value).__name__
        assert msgspec.msgpack.decode(payload[at : at + size]) == value
        if kind in ("str", "bytes"):
            contents = value.encode() if kind == "str" else value
            assert payload[start : start + nbytes] == contents


def test_single_floats_are_read():
    assert unpack_map(b"\x81\xa1x\xca" + struct.pack(">f", 0.5)) == {"x": 0.5}


def test_int_keys_of_nested_maps_are_read():
    assert unpack_map(b"\x81\xa1x\x81\x01\x02") == {"x": {1: 2}}


def test_of_equal_keys_the_last_counts():
    payload = b"\x83\xa1x\x01\xa1y\x02\xa1x\x03"

    assert unpack_map(payload) == {"x": 3, "y": 2}
    assert extents_of_fields(payload)["x"][1] == 9


@pytest.mark.parametrize(
    ("payload", "offset", "reason"),
    [
        (b"", 0, "cut off"),
        (b"\x90", 0, "not a msgpack map"),
        (b"\xa1x", 0, "not a msgpack map"),
        (b"\xc1", 0, "0xc1"),
        (b"\x80\x00", 1, "bytes after"),
        (b"\x81\x01\x02", 1, "not a str"),
        (b"\x81\xc4\x01x\x02", 1, "not a str"),
        (b"\x81\x91\x01\x02", 1, "not a str"),
        (b"\x81\xa1x", 3, "cut off"),
        (b"\x81\xa2x", 1, "cut off"),
        (b"\x82\xa1x", 0, "more entries"),
        (b"\x81\xa5xxx", 1, "cut off"),
        (b"\x81\xa1x\xc1", 3, "0xc1"),
        (b"\x81\xa1x\x92\x01", 3, "more entries"),
        (b"\x81\xa1x\x92\x92\x01\x01\xc1", 7, "0xc1"),
        (b"\x81\xa1x\xd9\x05abcd", 3, "cut off"),
        (b"\x81\xa1x\xd9", 3, "cut off"),
        (b"\x81\xa1x\xda\x00", 3, "cut off"),
        (b"\x81\xa1x\xc6\xff\xff\xff\xffa", 3, "cut off"),
        (b"\x81\xa1x\xdd\xff\xff\xff\xffa", 3, "more entries"),
        (b"\x81\xa1x\xdf\xff\xff\xff\xffaa", 3, "more entries"),
        (b"\xdf\xff\xff\xff\xffaa", 0, "more entries"),
        (b"\x81\xa1x\xcb1234567", 3, "cut off"),
        (b"\x81\xa1x\xd4\x01a", 3, "extension"),
        (b"\x81\xa1x\x91\xd4\x01a", 3, "extension"),
        (b"\x81\xa1x\xd6\xff\0\0\0\0", 3, "extension"),
        (b"\x81\xa1x\xc7\x02\x01a", 3, "cut off"),
        (b"\x81\xa1x\xc7\x00", 3, "cut off"),
        (b"\x81\xa1\xff\x01", 2, "UTF-8"),
        (b"\x81\xa1x\xa2a\xff", 5, "UTF-8"),
        (b"\x81\xa1x\x91\xa1\xff", 3, "invalid msgpack"),
        (b"\x81\xa1x\x81\x80\x01", 3, "invalid msgpack"),
    ],
)
def test_faults_name_the_byte(payload, offset, reason):
    with pytest.raises(FormatError, match=reason) as caught:
        unpack_map(payload)

    assert caught.value.offset == offset


@pytest.mark.parametrize("lead", [b"\x91", b"\x81\xa1k"])
def test_depth_is_bounded(lead):
    def nested(depth):
        return b"\x81\xa1x" + lead * depth + b"\x01"

    found = unpack_map(nested(500))["x"]
    for _ in range(500):
        found = found["k"] if isinstance(found, dict) else found[0]
    assert found == 1
    extents_of_fields(nested(512))
    for depth in (513, 100_000):
        with pytest.raises(FormatError, match="nested deeper than 512"):
            extents_of_fields(nested(depth))


def random_value(rng, depth=0):
    kind = rng.randrange(9 if depth < 4 else 7)
    if kind == 0:
        return rng.choice([None, True, False])
    if kind == 1:
        return rng.choice(INTEGERS)
    if kind == 2:
        return rng.random()
    if kind in (3, 4):
        return "".join(rng.choices("abé😀\0", k=rng.randrange(40)))
    if kind in (5, 6):
        return rng.randbytes(rng.choice([0, 3, 300]))
    if kind == 7:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(20))]
    return {
        rng.choice([str(i), i]): random_value(rng, depth + 1)
        for i in range(rng.randrange(20))
    }


def random_payloads(count):
    for seed in range(count):
        rng = random.Random(seed)
        fields = {f"f{i}": random_value(rng) for i in range(rng.randrange(20))}
        yield rng, fields, encode(fields)


def test_random_maps_are_as_msgspec_reads_them():
    for _, fields, payload in random_payloads(300):
        assert unpack_map(payload) == fields == msgspec.msgpack.decode(payload)
        assert list(extents_of_fields(payload)) == list(fields)


def test_every_cut_is_refused():
    for _, _, payload in random_payloads(8):
        for size in range(min(len(payload), 2_000)):
            with pytest.raises(FormatError) as caught:
                unpack_map(payload[:size])
            assert caught.value.offset <= size


def test_flipped_bytes_are_read_as_msgspec_reads_them():
    for rng, _, payload in random_payloads(60):
        for _ in thin(range(100), 5):
            broken = bytearray(payload)
            broken[rng.randrange(len(broken))] = rng.randrange(256)
            compare_with_msgspec(bytes(broken))


def compare_with_msgspec(payload):
    """Where msgspec finds a map of str, so must the walk, with the same values."""
    try:
        expected = msgspec.msgpack.decode(payload, type=dict[str, msgspec.Raw])
        expected = {name: msgspec.msgpack.decode(raw) for name, raw in expected.items()}
    except (ValueError, TypeError):
        expected = None
    try:
        found = unpack_map(payload)
    except FormatError as error:
        assert expected is None or "extension" in error.reason
        assert error.offset <= len(payload)
    else:
        assert repr(found) == repr(expected)
