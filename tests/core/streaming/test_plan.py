"""Column plans, and rows of MDS shards."""

import json
import random
import struct

import numpy as np
import pytest

from fastshard import FormatError
from fastshard._core.streaming.plan import MdsRows, RowPlan
from support.marks import thin

NUMBERS = (
    *("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64"),
)


def no_decoder(encoding):
    raise ValueError(f"Unsupported encoding: {encoding}")


def plan_of(columns, resolver=no_decoder):
    """Return the plan of columns: encoding and size by name."""
    names = sorted(columns)
    encodings = [columns[name][0] for name in names]
    return RowPlan(names, encodings, [columns[name][1] for name in names], resolver)


def shard_of(plan, rows, config=None):
    """Return the bytes of an MDS shard; a row is a list of bytes by column."""
    if config is None:
        config = {
            "column_names": list(plan.names),
            "column_encodings": list(plan.encodings),
            "column_sizes": list(plan.sizes),
        }
    text = config if isinstance(config, bytes) else json.dumps(config).encode()
    packed = [
        b"".join(
            struct.pack("<I", len(field))
            for field, size in zip(row, plan.sizes, strict=True)
            if not size
        )
        + b"".join(row)
        for row in rows
    ]
    place = 4 + 4 * (len(rows) + 1) + len(text)
    offsets = [place]
    for row in packed:
        offsets.append(offsets[-1] + len(row))
    head = struct.pack(f"<I{len(offsets)}I", len(rows), *offsets)
    return b"".join([head, text, *packed])


def rows_of(plan, data, samples):
    return MdsRows("a.mds", plan, data, len(data), samples)


def decode_all(rows, data, **options):
    """Return all rows, decoded."""
    found = []
    for i in range(len(rows)):
        offset, size = rows.row(i)
        found.append(rows.decode(data[offset : offset + size], i, **options))
    return found


def decode_one(encoding, size, field, **options):
    """Return the value of a field in a row of its own."""
    plan = plan_of({"x": (encoding, size)})
    data = shard_of(plan, [[field]])
    return decode_all(rows_of(plan, data, 1), data, **options)[0]["x"]


def test_columns_of_every_size_are_found():
    plan = plan_of({"a": ("int", 8), "b": ("str", None), "c": ("bytes", 2)})
    plan_rows = [
        [struct.pack("<q", -5), "é".encode(), b"xy"],
        [struct.pack("<q", 2**62), b"", b"zz"],
    ]
    data = shard_of(plan, plan_rows)
    rows = rows_of(plan, data, 2)

    assert decode_all(rows, data) == [
        {"a": -5, "b": "é", "c": b"xy"},
        {"a": 2**62, "b": "", "c": b"zz"},
    ]
    offset, size = rows.row(0)
    assert rows.fields(0, data[offset : offset + size]) == [(4, 8), (12, 2), (14, 2)]


def test_only_the_columns_of_a_mask_are_decoded():
    plan = plan_of({"a": ("int", 8), "b": ("no such", None), "c": ("bytes", None)})
    data = shard_of(plan, [[bytes(8), b"12", b"34"]])
    rows = rows_of(plan, data, 1)

    assert decode_all(rows, data, mask=plan.mask(["c", "a"])) == [{"a": 0, "c": b"34"}]
    with pytest.raises(ValueError, match="Unsupported encoding: no such"):
        decode_all(rows, data)
    with pytest.raises(KeyError, match="no column 'd'; there are a, b, c"):
        plan.mask("d")


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_numpy_scalars(name):
    numbers = np.random.default_rng(7).bytes(8 * 20)
    for number in np.frombuffer(numbers, name):
        found = decode_one(name, number.nbytes, number.tobytes())

        assert type(found) is type(number)
        assert found.tobytes() == number.tobytes()


@pytest.mark.parametrize("encoding", ["int", *NUMBERS])
def test_a_number_of_another_size_is_refused(encoding):
    size = np.dtype(encoding).itemsize
    for length in (0, size - 1, size + 1, 2 * size):
        with pytest.raises(FormatError, match=f"bytes has {length}"):
            decode_one(encoding, None, bytes(length))


@pytest.mark.parametrize(
    "text",
    ["0", "-0", "12", "-12", "+7", " 8 ", "1_000", "9" * 18, "-" + "9" * 18, "٣"],
)
def test_int_text_is_read_as_by_int(text):
    assert decode_one("str_int", None, text.encode()) == int(text)


@pytest.mark.parametrize("text", ["", "-", "1-", "0x10", "1.0", "--1", "9" * 5000])
def test_text_that_is_not_an_int_is_refused(text):
    with pytest.raises(FormatError, match="str_int"):
        decode_one("str_int", None, text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "0.0",
        "-0.0",
        "1e5",
        "1E5",
        "5e-324",
        "1e999",
        "-inf",
        "nan",
        "1_0.5",
        "1." + "3" * 90,
    ],
)
def test_float_text_is_read_as_by_float(text):
    found = decode_one("str_float", None, text.encode())

    assert struct.pack("<d", found) == struct.pack("<d", float(text))


@pytest.mark.parametrize("text", ["", "-", "e5", "1e", "1.5.5", "1\0"])
def test_text_that_is_not_a_float_is_refused(text):
    with pytest.raises(FormatError, match="str_float"):
        decode_one("str_float", None, text.encode())


def test_bad_text_is_refused_at_its_byte():
    plan = plan_of({"a": ("int", 8), "b": ("str", None)})
    data = shard_of(plan, [[bytes(8), b"abc"], [bytes(8), b"ab\xff"]])
    rows = rows_of(plan, data, 2)

    with pytest.raises(FormatError, match="invalid UTF-8") as caught:
        decode_all(rows, data)

    assert caught.value.path == "a.mds"
    assert caught.value.member == "sample 1, column 'b'"
    assert caught.value.offset == len(data) - 1


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize(
    ("encoding", "head"),
    [
        ("ndarray", b"\x11\x08\x02\x03"),
        ("ndarray", b"\x11\x0b" + struct.pack("<2Q", 2, 3)),
        ("ndarray:int16", b"\x09" + struct.pack("<2H", 2, 3)),
        ("ndarray:int16:2,3", b""),
        ("ndarray:int16:3,2", b""),
    ],
)
def test_arrays_are_read_only(encoding, head, copy):
    values = np.arange(-3, 3, dtype="<i2")
    found = decode_one(encoding, None, head + values.tobytes(), copy=copy)

    assert found.shape == ((3, 2) if encoding.endswith("3,2") else (2, 3))
    assert found.dtype == np.int16
    assert found.ravel().tolist() == values.tolist()
    assert not found.flags.writeable


@pytest.mark.parametrize(
    ("encoding", "field"),
    [
        ("ndarray", b""),
        ("ndarray", b"\x08"),
        ("ndarray", b"\x07\x04\x01\x00"),
        ("ndarray", b"\x0a\x04\x01\x00"),
        ("ndarray", b"\xff\x04\x01\x00"),
        ("ndarray", b"\x08\x04\x02\x00"),
        ("ndarray", b"\x08\x04\x01\x00\x00"),
        ("ndarray", b"\x10\x04\x01\x00"),
        ("ndarray", b"\x08\x0b" + struct.pack("<2Q", 1 << 33, 1 << 33)),
        ("ndarray", b"\x08\x0b" + struct.pack("<2Q", 1 << 63, 2)),
        ("ndarray", b"\x08\xfc" + b"\xff" * 63),
        ("ndarray:uint8", b"\x05\x01"),
        ("ndarray:uint8:3", b"12"),
        ("ndarray:uint8:4294967296,4294967296,4294967296", b""),
    ],
)
def test_a_damaged_array_is_refused(encoding, field):
    with pytest.raises(FormatError, match="array") as caught:
        decode_one(encoding, None, field)

    assert caught.value.member == "sample 0, column 'x'"


@pytest.mark.parametrize(
    "encoding",
    [
        *("ndarray:bool", "ndarray:uint8:", "ndarray:uint8:0", "ndarray:uint8:a"),
        *("ndarray::2", "ndarray:uint8:1:2", "ndarray:uint8:9223372036854775808"),
        *("ndarray:uint8:" + "1," * 64 + "1", "int:4", "INT", ""),
    ],
)
def test_unknown_encodings_fail_when_they_are_used(encoding):
    with pytest.raises(ValueError, match="Unsupported encoding") as caught:
        decode_one(encoding, None, b"")

    assert not isinstance(caught.value, FormatError)


def test_other_encodings_are_decoded_by_the_resolver():
    def resolver(encoding):
        assert encoding == "own"
        return lambda data: (encoding, data)

    plan = plan_of({"x": ("own", None)}, resolver)
    data = shard_of(plan, [[b"abc"]])

    assert decode_all(rows_of(plan, data, 1), data) == [{"x": ("own", b"abc")}]


def test_errors_of_decoders_name_their_field():
    def fail(data):
        raise FormatError("two bad bytes", "", 2)

    plan = plan_of({"a": ("bytes", 3), "x": ("own", None)}, lambda encoding: fail)
    data = shard_of(plan, [[b"abc", b"1234"]])

    with pytest.raises(FormatError, match="two bad bytes") as caught:
        decode_all(rows_of(plan, data, 1), data)

    assert caught.value.offset == len(data) - 2
    assert caught.value.member == "sample 0, column 'x'"


def test_views_keep_their_bytes():
    plan = plan_of({"x": ("bytes", None), "y": ("ndarray:uint8:4", 4)})
    data = bytearray(shard_of(plan, [[b"abc", b"1234"]]))
    rows = rows_of(plan, data, 1)
    offset, size = rows.row(0)

    found = rows.decode(memoryview(data)[offset : offset + size], 0, copy=False)
    data[-7:] = b"ABC5678"

    assert bytes(found["x"]) == b"ABC"
    assert found["y"].tobytes() == b"5678"
    with pytest.raises(BufferError):
        data.clear()


@pytest.mark.parametrize(
    ("key", "value"),
    [("column_names", ["y"]), ("column_encodings", ["int"]), ("column_sizes", [4])],
)
def test_a_config_that_disagrees_with_the_plan_is_refused(key, value):
    plan = plan_of({"x": ("str", None)})

    with pytest.raises(FormatError, match=f"{key} disagree") as caught:
        rows_of(plan, shard_of(plan, [[b"a"]], {key: value}), 1)

    assert caught.value.offset == 4 + 4 * 2


@pytest.mark.parametrize("config", [b"{", b"\xff", b"[]", b"[" * 100_000])
def test_a_config_that_is_not_a_json_object_is_refused(config):
    plan = plan_of({"x": ("str", None)})

    with pytest.raises(FormatError, match="the config"):
        rows_of(plan, shard_of(plan, [[b"a"]], config), 1)


def test_a_config_with_other_keys_is_accepted():
    plan = plan_of({"x": ("str", None)})
    data = shard_of(plan, [[b"a"]], {"new": 1, "column_names": ["x"]})

    assert decode_all(rows_of(plan, data, 1), data) == [{"x": "a"}]


@pytest.mark.parametrize("samples", [0, 1, 3, 2**40])
def test_the_number_of_samples_is_that_of_the_index(samples):
    plan = plan_of({"x": ("str", None)})
    data = shard_of(plan, [[b"a"], [b"b"]])

    with pytest.raises(FormatError, match="has 2 samples, by index"):
        rows_of(plan, data, samples)


def test_the_size_of_the_file_is_that_of_the_offsets():
    plan = plan_of({"x": ("str", None)})
    data = shard_of(plan, [[b"a"], [b"b"]])

    for nbytes in (len(data) - 1, len(data) + 1, 1 << 40, 7, 0):
        with pytest.raises(FormatError):
            MdsRows("a.mds", plan, data, nbytes, 2)


@pytest.mark.parametrize("sizes", [[-1], [True], ["8"], [8.0], [1 << 64], []])
def test_sizes_of_columns_are_checked(sizes):
    with pytest.raises(ValueError, match="size"):
        RowPlan(["x"], ["str"], sizes, no_decoder)


LAYOUTS = {
    ("int", 8): ("i8", ()),
    ("float16", 2): ("f2", ()),
    ("uint64", 8): ("u8", ()),
    ("ndarray:int16:2,3", 12): ("i2", (2, 3)),
    ("ndarray:int16:2,3", None): (None, None),
    ("ndarray:int16:2,3", 13): (None, None),
    ("ndarray:int16", None): (None, None),
    ("ndarray", None): (None, None),
    ("int", 4): None,
    ("uint64", None): None,
    ("str", None): None,
    ("bytes", 8): None,
    ("ndarray:int3", None): None,
}


@pytest.mark.parametrize(("encoding", "size"), LAYOUTS)
def test_layouts_of_columns(encoding, size):
    plan = RowPlan(["x"], [encoding], [size], no_decoder)
    rows = rows_of(plan, shard_of(plan, []), 0)
    assert rows.layout(0) == LAYOUTS[encoding, size]
    for k in (-1, 1):
        with pytest.raises(IndexError):
            rows.layout(k)


@pytest.fixture(scope="module")
def mixed():
    """A plan with every compiled kind, and a shard of three rows."""
    columns = {
        "a": ("int", 8),
        "b": ("str", None),
        "c": ("bytes", None),
        "d": ("float32", 4),
        "e": ("ndarray", None),
        "f": ("ndarray:uint8:2,2", 4),
        "g": ("str_int", None),
        "h": ("str_float", None),
    }
    plan = plan_of(columns)
    rows = [
        [
            *(bytes(range(8)), b"text", b"\xff\x00", b"1234", b"\x10\x04\x02abcd"),
            *(b"wxyz", b"%d" % i, b"0.5"),
        ]
        for i in range(3)
    ]
    return plan, shard_of(plan, rows)


def test_every_truncation_is_refused(mixed):
    plan, data = mixed
    for n in thin(range(len(data)), 3):
        with pytest.raises(FormatError):
            rows_of(plan, data[:n], 3)
        with pytest.raises(FormatError):
            decode_all(MdsRows("a.mds", plan, data[:n], len(data), 3), data[:n])


def test_every_byte_that_is_flipped_is_refused_or_read(mixed):
    plan, data = mixed
    for at in range(len(data)):
        for bit in thin(range(8), 3):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            read_or_refuse(plan, bytes(damaged))


def test_random_damage_is_refused_or_read(mixed):
    plan, data = mixed
    chance = random.Random(19)
    for _ in thin(range(20_000), 20):
        damaged = bytearray(data)
        for _ in range(chance.randint(1, 6)):
            damaged[chance.randrange(len(data))] = chance.choice(
                b"\x00\x01\x7f\x80\xff"
            )
        read_or_refuse(plan, bytes(damaged))


def read_or_refuse(plan, data):
    """Read all rows of a damaged shard: values of their types, or a FormatError."""
    try:
        rows = rows_of(plan, data, 3)
        found = decode_all(rows, data) + decode_all(rows, data, copy=False)
    except FormatError as error:
        assert error.path == "a.mds"
        assert 0 <= error.offset <= len(data)
        return
    for row in found:
        assert type(row["a"]) is int
        assert type(row["b"]) is str
        assert row["f"].shape == (2, 2)
        assert row["e"].nbytes <= len(data)
