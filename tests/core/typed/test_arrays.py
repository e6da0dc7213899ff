"""Arrays in msgpack bins, with NumPy and the layout of atdata's arrays as oracles."""

import io
import struct

import numpy as np
import pytest

from fastshard import FormatError
from fastshard._core.typed.arrays import describe_dtype, is_array, unpack_array

SAMPLES = [
    np.arange(6, dtype="<f4").reshape(2, 3),
    np.arange(6, dtype=">i2"),
    np.array([True, False]),
    np.array(2.5),
    np.empty((0, 4), "u1"),
    np.zeros((1, 2, 1, 3, 1), np.complex128),
    np.array(["ab", "é"], "<U3"),
    np.array([b"x", b"yz"], "S2"),
    np.array(["2024-01-01", "NaT"], "M8[ns]"),
    np.array([5, -3], "m8[s]"),
    np.array([7], "<M8[25s]"),
    np.array([b"abc"], "V3"),
    np.arange(3, dtype=np.float16),
    np.arange(3, dtype=np.longdouble),
]


def to_compact(array):
    """Return the compact form: type, number of dimensions, lengths, data."""
    kind = array.dtype.str.encode()
    lengths = struct.pack(f"<{array.ndim}q", *array.shape)
    return bytes([len(kind)]) + kind + bytes([array.ndim]) + lengths + array.tobytes()


def to_npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def same(found, expected):
    return (
        found.dtype == expected.dtype
        and found.shape == expected.shape
        and found.tobytes() == expected.tobytes()
    )


@pytest.mark.parametrize("encode", [to_compact, to_npy])
@pytest.mark.parametrize("array", SAMPLES, ids=lambda a: f"{a.dtype.str}{a.shape}")
def test_arrays_of_both_forms(encode, array):
    data = encode(array)
    found = unpack_array(data)

    assert same(found, array)
    assert is_array(data)
    assert not found.flags.writeable
    assert not found.flags.owndata
    assert describe_dtype(data) == str(array.dtype)


def test_structured_arrays_and_fortran_order_are_those_of_npy():
    structured = np.array([(1, 2.5)], [("a", "<i4"), ("b", "<f8")])
    fortran = np.asfortranarray(np.arange(6.0).reshape(2, 3))

    assert same(unpack_array(to_npy(structured)), structured)
    found = unpack_array(to_npy(fortran))
    assert same(found, fortran)
    assert found.flags.f_contiguous
    copy = unpack_array(to_npy(fortran), copy=True)
    assert same(copy, fortran)
    assert copy.flags.c_contiguous


def test_a_writable_buffer_makes_writable_arrays():
    data = bytearray(to_compact(np.zeros(3, "<f8")))
    found = unpack_array(data)
    found[1] = 4.0

    assert unpack_array(bytes(data)).tolist() == [0.0, 4.0, 0.0]
    with pytest.raises(BufferError):
        data.append(1)
    del found
    data.append(1)


def test_copies_own_their_memory():
    array = np.arange(4, dtype="<i4")
    found = unpack_array(to_compact(array), copy=True)

    assert same(found, array)
    assert found.flags.owndata
    assert found.flags.writeable


@pytest.mark.parametrize("shift", range(8))
def test_unaligned_arrays_are_given_as_they_lie(shift):
    array = np.arange(5, dtype="<f8")
    base = np.zeros(256, np.uint8)
    start = -base.ctypes.data % 8 + shift
    data = to_compact(array)
    base[start : start + len(data)] = np.frombuffer(data, np.uint8)
    view = memoryview(base)[start : start + len(data)].toreadonly()
    found = unpack_array(view)
    aligned = unpack_array(view, aligned=True)

    assert same(found, array)
    assert found.flags.aligned == (found.ctypes.data % 8 == 0)
    assert same(aligned, array)
    assert aligned.flags.aligned
    assert aligned.flags.owndata != found.flags.aligned
    assert not aligned.flags.writeable


def compact(kind=b"<f4", shape=(2,), data=b"\0" * 8, ndim=None):
    count = len(shape) if ndim is None else ndim
    lengths = struct.pack(f"<{len(shape)}q", *shape)
    return bytes([len(kind)]) + kind + bytes([count]) + lengths + data


@pytest.mark.parametrize(
    ("data", "offset", "reason"),
    [
        (b"", 0, "cut off"),
        (b"\x03<f", 0, "dtype is cut off"),
        (b"\x03<f4", 4, "dimensions is cut off"),
        (b"\x03<f4\x01\0\0", 4, "shape is cut off"),
        (compact(data=b"\0" * 7), 20, "expected 8 bytes"),
        (compact(data=b"\0" * 9), 22, "expected 8 bytes"),
        (compact(shape=(-1,)), 5, "a length of -1"),
        (compact(shape=(2**62, 4)), 13, "too large"),
        (compact(shape=(2**31, 2**31, 4)), 21, "too large"),
        (compact(shape=(0, 2**62, 4)), 21, "too large"),
        (compact(b"|V0", (2**62, 4), b""), 13, "too large"),
        (compact(shape=(2**63 - 1,)), 4, "too large"),
        (compact(b"|O", (1,)), 1, "Python objects"),
        (compact(b"O", (1,)), 1, "dtype 'O'"),
        (compact(b"|O8", (1,)), 1, "Python objects"),
        (compact(b"f4,O", (1,)), 1, "dtype"),
        (compact(b"f4,f4", (1,)), 1, "dtype"),
        (compact(b"(2,)f4", (1,)), 1, "dtype"),
        (compact(b"float32"), 1, "dtype"),
        (compact(b"<f3"), 1, "dtype"),
        (compact(b"<q4"), 1, "dtype"),
        (compact(b"<U9999999999", (1,)), 1, "dtype"),
        (compact(b"<M8[blah]"), 1, "dtype"),
        (compact(b"<M8[" + b"9" * 24 + b"]"), 1, "dtype"),
        (compact(b"<f4\0"), 1, "dtype"),
        (compact(b"\xff\xfe<f4"), 1, "dtype"),
        (compact(b""), 1, "dtype"),
        (compact(ndim=200), 4, "shape is cut off"),
        (compact(shape=(1,) * 65, data=b"\0" * 4), 4, "65 dimensions"),
        (b"\x93NUMPY", 0, "not a .npy array"),
        (b"\x93NUMPY\x01\x00\xff\xff", 8, "not a .npy array"),
        (b"\x93NUMPY\x09\x00\x01\x00 ", 6, "version"),
    ],
)
def test_broken_arrays_name_the_byte(data, offset, reason):
    with pytest.raises(FormatError, match=reason) as caught:
        unpack_array(data)

    assert caught.value.offset == offset
    assert not is_array(data)


def test_npy_of_objects_is_not_unpickled():
    file = io.BytesIO()
    np.save(file, np.array([{1: 2}], object), allow_pickle=True)

    with pytest.raises(FormatError, match="Python objects"):
        unpack_array(file.getvalue())


@pytest.mark.parametrize("encode", [to_compact, to_npy])
def test_every_cut_and_every_flip_is_refused_or_read(encode):
    whole = encode(np.arange(6, dtype="<i4").reshape(2, 3))
    for size in range(len(whole)):
        with pytest.raises(FormatError) as caught:
            unpack_array(whole[:size])
        assert caught.value.offset <= size
    for i in range(len(whole)):
        for flip in range(1, 256):
            broken = bytearray(whole)
            broken[i] ^= flip
            try:
                found = unpack_array(bytes(broken))
            except FormatError:
                continue
            assert found.nbytes <= 24
            found.tobytes()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"text",
        b"\x93NUMPY is the magic of npy",
        b"\xff\xd8\xff\xe0 the head of a JPEG",
        b"\x89PNG\r\n\x1a\n",
        bytes(range(256)),
        b"\x03<f4",
        b"\x03<f4\x00",
    ],
)
def test_other_bytes_are_not_an_array(data):
    assert not is_array(data)
