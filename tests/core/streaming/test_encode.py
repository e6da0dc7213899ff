"""The encoder of rows, against the encodings in Python."""

import math
import struct

import numpy as np
import pytest

from fastshard._core.streaming.encode import RowBuffer, RowEncoder
from fastshard.streaming.encodings import mds_encode, mds_encoder, mds_size
from fastshard.streaming.encodings.registry import SCALARS


def rows_equal(encoding, value):
    """Compare the compiled encoder with the Python one; return the bytes."""
    size = mds_size(encoding)
    encoder = RowEncoder(["x"], [encoding], [size], [mds_encoder(encoding)])
    data = mds_encode(encoding, value)
    head = struct.pack("<I", len(data)) if size is None else b""
    assert encoder.encode({"x": value}) == head + data
    return data


INTEGERS = [0, 1, -1, True, False, 127, 128, -128, -129, 255, 256, 2**15, -(2**15) - 1]
INTEGERS += [2**16, 2**31 - 1, 2**31, -(2**31), 2**32 - 1, 2**32, 2**53 + 1, 2**63 - 1]
INTEGERS += [2**63, -(2**63), -(2**63) - 1, 2**64 - 1, 2**64, 10**30]
FLOATS = [0.0, -0.0, 1.5, 0.1, 1e-320, 5e-324, 65504.0, 65519.99, 3e-8, 6e-8, -1e-45]
FLOATS += [math.pi, 3.4028234e38, -math.inf, math.inf, math.nan, 2.0**-24, 2.0**-25]


@pytest.mark.parametrize("dtype", [*SCALARS, "int"])
def test_numbers(dtype):
    values = [*INTEGERS, *FLOATS, "7", [5], None]
    values += [np.dtype(d).type(v) for d in SCALARS for v in (0, 3, 100)]
    values += [np.float64(v) for v in FLOATS]
    for value in values:
        try:
            mds_encode(dtype, value)
        except Exception as expected:
            with pytest.raises(type(expected)):
                rows_equal(dtype, value)
        else:
            rows_equal(dtype, value)


def test_float16_of_random_numbers():
    rng = np.random.default_rng(0)
    for bits in rng.integers(0, 2**16, 300, dtype="u2"):
        half = float(bits.view("f2"))
        if not math.isfinite(half):
            continue
        nearby = [half, math.nextafter(half, 1e9), half + half * 2.0**-11]
        for value in nearby:
            if abs(value) < 65520:
                rows_equal("float16", value)


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_floats_that_overflow():
    for dtype, value in [("float32", 1e300), ("float16", 65520.0), ("float32", 2**200)]:
        data = rows_equal(dtype, value)
        assert np.frombuffer(data, dtype)[0] == math.inf


class Text(str):
    pass


def test_texts():
    for text in [
        "",
        "a",
        "\u00fc",
        "\U0001f600" * 300,
        "nul\0",
        Text("sub"),
        b"raw\xff",
    ]:
        rows_equal("str", text)
    with pytest.raises(UnicodeEncodeError):
        rows_equal("str", "\ud800")


def arrays(dtype):
    yield (np.arange(3, dtype="i8") % 100).astype(dtype)
    whole = (np.arange(300 * 4).reshape(300, 4) % 100).astype(dtype)
    yield whole
    yield whole[::-2, 1:]
    yield whole.T
    yield whole.reshape(2, 3, 5, 40)
    yield np.broadcast_to(whole[0], (3, 4))
    yield whole.astype(whole.dtype.newbyteorder(">"))
    yield whole.view(type("Sub", (np.ndarray,), {}))
    unaligned = np.zeros(whole.nbytes + 1, "u1")[1:].view(dtype)
    unaligned[:] = 7
    yield unaligned


@pytest.mark.parametrize("dtype", SCALARS)
def test_arrays(dtype):
    for array in arrays(dtype):
        shape = ",".join(map(str, array.shape))
        for encoding in ("ndarray", f"ndarray:{dtype}", f"ndarray:{dtype}:{shape}"):
            rows_equal(encoding, array)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((0, 3)),
        np.array(1.0),
        np.zeros(2, bool),
        np.zeros(2, complex),
        np.array(["a"]),
        np.array([None]),
        np.zeros(2, "M8[s]"),
        np.zeros(2, "f4,i4"),
        np.zeros(2, "longdouble"),
        [1, 2],
        memoryview(b"12"),
    ],
)
@pytest.mark.parametrize("encoding", ["ndarray", "ndarray:uint8", "ndarray:float64:2"])
def test_arrays_that_are_refused(array, encoding):
    with pytest.raises((ValueError, AttributeError)) as expected:
        mds_encode(encoding, array)
    with pytest.raises(expected.type):
        rows_equal(encoding, array)


def test_masked_arrays():
    rows_equal("ndarray", np.ma.masked_array([1, 2], [True, False], fill_value=9))


def test_an_encoder_that_returns_no_bytes():
    encoder = RowEncoder(["x"], ["mine"], [None], [lambda obj: bytearray(b"1")])
    with pytest.raises(TypeError, match="expected bytes, got bytearray"):
        encoder.encode({"x": 1})


def test_encoders_are_called_in_order_and_may_encode_rows():
    inner = RowEncoder(["a"], ["str"], [None], [mds_encoder("str")])
    encoder = RowEncoder(
        ["x", "y"],
        ["mine", "str"],
        [None, None],
        [lambda obj: inner.encode({"a": obj * 1000}), mds_encoder("str")],
    )
    row = encoder.encode({"x": "ab", "y": "z"})
    assert row == struct.pack("<3I", 2004, 1, 2000) + b"ab" * 1000 + b"z"


def test_columns_of_different_numbers_are_refused():
    with pytest.raises(ValueError, match="differ in length"):
        RowEncoder(["x"], [], [None], [])


# Rows in one block


def test_rows_of_a_buffer():
    rows = RowBuffer()
    given = [b"", b"a", b"x" * 1000, b"", b"end"] * 100
    for row in given:
        rows.append(row)
    assert len(rows) == 500
    assert [rows[i] for i in range(500)] == given
    assert rows.nbytes == sum(map(len, given))
    assert bytes(rows) == b"".join(given)
    ends = np.cumsum([0, *map(len, given)]) + 7
    assert rows.offsets(7) == ends.astype("<u4").tobytes()
    with pytest.raises(IndexError):
        rows[500]
    with pytest.raises(IndexError):
        RowBuffer()[0]


def test_the_last_row_is_taken_back():
    rows = RowBuffer()
    encoder = RowEncoder(["x"], ["str"], [None], [mds_encoder("str")])
    assert encoder.append(rows, {"x": "ab"}) == 6
    assert encoder.append(rows, {"x": ""}) == 4
    assert rows.pop() == bytes(4)
    assert rows.pop() == b"\2\0\0\0ab"
    assert (len(rows), rows.nbytes, bytes(rows)) == (0, 0, b"")
    with pytest.raises(BufferError):
        rows.pop()


def test_a_row_that_fails_is_not_appended():
    rows = RowBuffer()
    encoder = RowEncoder(["x", "y"], ["str", "int"], [None, 8], [str.encode, int])
    with pytest.raises(TypeError):
        encoder.append(rows, {"x": "ab", "y": "7"})
    with pytest.raises(KeyError):
        encoder.append(rows, {"x": "ab"})
    assert len(rows) == 0


def test_a_buffer_in_use_does_not_move():
    rows = RowBuffer()
    rows.append(b"a")
    with memoryview(rows) as view:
        assert view.readonly
        for call in (lambda: rows.append(b"b"), rows.pop, rows.clear):
            with pytest.raises(BufferError):
                call()
        assert bytes(view) == b"a"
    rows.clear()
    rows.append(b"b")
    assert bytes(rows) == b"b"


def test_offsets_beyond_4_gib():
    rows = RowBuffer()
    rows.append(b"1234")
    assert np.frombuffer(rows.offsets(2**32 - 5), "<u4").tolist() == [
        2**32 - 5,
        2**32 - 1,
    ]
    for start in (2**32 - 4, 2**32, 2**64 - 1):
        with pytest.raises(OverflowError):
            rows.offsets(start)
