"""Headers of ``.npy`` files: the form that NumPy writes, and all that differs from it.

A header of more than 256 bytes is always evaluated as a Python literal. Spaces at the
end change nothing else, so that the same text, long and short, must read the same.
"""

import ast
import io
import math
import random
import re
import struct
import warnings
from concurrent.futures import ThreadPoolExecutor
from tokenize import TokenError

import numpy as np
import pytest
from numpy.lib import format as npy

import fastshard
from fastshard import FormatError
from fastshard._core.dataset.npy import array_from_buffer, npy_size
from support.marks import slow

LONG = " " * 300
MOST_BYTES = 1 << 20  # of data that a test makes

DESCRS = [
    *("'<f4'", "'>f8'", "'<u2'", "'|u1'", "'|b1'", "'<f2'", "'>i8'", "'<c16'"),
    *("'|S5'", "'<U3'", "'|V7'", "'|S0'", "'<M8[ns]'", "'>m8[25us]'", "'<M8'"),
    *("'|O'", "'O'", "'<O8'", "'|T16'", "'f4'", "'=f4'", "'float32'", "'i4,i4'"),
    *("'<f3'", "'<f04'", "'<M8[parsec]'", "'<M8[]'", "'<M8[ns'", "'<S999999999'"),
    *("'<U4294967295'", "'<S99999999999'", "'(2,)<f4'", "'<f4 '", "' <f4'", "''"),
    *('"<f4"', "b'<f4'", "u'<f4'", "'\\x3cf4'", "'<f4' ''", "'<f\x004'", "'<f\xe9'"),
    *("[('a', '<f4')]", "('<f4', (2,))", "'|S-1'", "'|b'", "'<c8'", "'", "'<f4", "5"),
]
ORDERS = [*["False"] * 6, "True", "0", "1", "None", "false", "Falsey", "not True", ""]
LENGTHS = [
    *("0", "1", "2", "3", "7", "12", "255", "663", "100000"),
    *("-1", "+1", "00", "03", "1_0", "2L", "3L", "0x2", "1.0", "1e2", "True", "None"),
    *("4294967296", "2147483648", "999999999999999999", "9223372036854775807"),
    *("9223372036854775808", "18446744073709551617", "9" * 40, "(2)", "", "2 3"),
    *("\uff12", "\u0661", "1\x00", "2if"),
]
PLAIN = (DESCRS[:15], ORDERS[:7], LENGTHS[:9])
SPACES = [*[""] * 6, *[" "] * 6, "  ", "\t", "\n", "\x0c", "#\n"]


def literal_of(rng, odd):
    """Return a header: of the form that NumPy writes, but for about `odd` places."""

    def choose(good, all_of_them):
        return rng.choice(all_of_them if rng.random() < odd else good)

    def space():
        return choose(["", "", " "], SPACES)

    dimensions = choose([0, 1, 1, 2, 3], [0, 1, 4, 31, 32, 33, 63, 64, 65, 70])
    lengths = [choose(PLAIN[2], LENGTHS) for _ in range(dimensions)]
    if dimensions > 4:
        lengths = [choose(["1"], ["0", "2", "-1"]) for _ in lengths]
    shape = f",{space()}".join(lengths) + choose([","], ["", ",,", ", "])
    values = {
        "'descr'": choose(PLAIN[0], DESCRS),
        "'fortran_order'": choose(PLAIN[1], ORDERS),
        "'shape'": choose(
            [f"({shape if dimensions else ''})"], [f"[{shape}]", f"({shape})", shape]
        ),
    }
    keys = list(values)
    rng.shuffle(keys)
    if rng.random() < odd:
        keys.append(rng.choice(keys))
    if rng.random() < odd:
        keys.pop()
    parts = [f"{space()}{key}{space()}:{space()}{values[key]}" for key in keys]
    end = choose([", ", "", ","], [" ,", ",,"])
    tail = choose(["", " \n", "   \n"], ["\n\n", "x", "}", "\x00", ";", "#", "\r\n"])
    return f"{space()}{{{','.join(parts)}{end}{space()}}}{tail}"


def damage(rng, text):
    """Return the text with some characters replaced, removed or doubled."""
    letters = list(text)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(letters) + 1)
        letters[at : at + rng.randrange(3)] = rng.choice(
            ["", "'", ",", "(", ")", ":", "0", "9", "\\", "\x00", "\x7f", "\xff", " "]
        )
    return "".join(letters)


def with_lead(text, version):
    data = text.encode("utf-8" if version == 3 else "latin-1", "replace")
    form = "<H" if version == 1 else "<I"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack(form, len(data)) + data


def read_ours(header):
    """Return dtype, shape, size and order; a large size; or the error and its byte."""
    try:
        size = npy_size(header) - len(header)
        if size > MOST_BYTES:
            return size
        array = array_from_buffer(header + bytes(size))
    except FormatError as error:
        return re.sub("0x[0-9a-f]+", "ADDRESS", str(error)), error.offset
    flags = array.flags.f_contiguous, array.flags.c_contiguous
    return array.dtype, array.shape, array.nbytes, flags


def read_numpy(text, version):
    """Return NumPy's shape, order and dtype, or None if it refuses the header.

    From Python 3.12 on NumPy refuses spaces after a last line feed, and its tokenizer
    meets a null byte with `SystemError`.
    """
    text = text.rstrip(" \t\r\n\f")
    read = npy.read_array_header_1_0 if version == 1 else npy.read_array_header_2_0
    try:
        return read(io.BytesIO(with_lead(text, version)[8:]))
    except (
        ValueError, TypeError, SyntaxError, LookupError, OverflowError, TokenError,
        SystemError,
    ):  # fmt: skip
        return None


def is_refused(shape, dtype):
    """Return whether NumPy's reader accepts a header that mapped arrays cannot have."""
    return (
        dtype.hasobject
        or dtype.subdtype is not None
        or len(shape) > 64
        or any(isinstance(n, bool) or not 0 <= n < 1 << 63 for n in shape)
        or dtype.itemsize * math.prod(n or 1 for n in shape) >= 1 << 63
    )


def check_header(text, version):
    """Compare a header with NumPy's reader; return whether it is valid."""
    header = with_lead(text, version)
    ours = read_ours(header)
    assert ours == read_ours(with_lead(text + LONG, version)), (text, version)
    assert ours == read_ours(header), (text, version)  # from the cache
    is_valid = isinstance(ours, int) or not isinstance(ours[0], str)
    if not is_valid:
        assert ours[1] == (10 if version == 1 else 12)
    if version == 3 and not text.isascii():
        return is_valid  # NumPy's reader of these is private
    found = read_numpy(text, version)
    if found is None or is_refused(found[0], found[2]):
        assert not is_valid, (text, version)
        return False
    shape, fortran, dtype = found
    size = dtype.itemsize * math.prod(shape)
    assert is_valid, (text, version, ours)
    if isinstance(ours, int):
        assert ours == size, (text, version)
    else:
        assert ours[:3] == (dtype, shape, size), (text, version)
        if math.prod(n or 1 for n in shape) <= MOST_BYTES:
            flags = np.empty(shape, "u1", "F" if fortran else "C").flags
            assert ours[3] == (flags.f_contiguous, flags.c_contiguous), (text, version)
    return True


def check_headers(seed, count):
    """Compare so many headers; return how many of them are valid."""
    rng = random.Random(seed)
    valid = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(count):
            text = literal_of(rng, rng.choice([0, 0.05, 0.3]))
            if rng.random() < 0.3:
                text = damage(rng, text)
            if len(text) < 10_000:  # as NumPy's own limit
                valid += check_header(text, rng.choice([1, 1, 2, 3]))
    return valid


def test_headers_read_as_their_literals_and_as_numpy_does():
    assert 200 < check_headers(0, 1000) < 800


@slow
@pytest.mark.parametrize("seed", range(1, 9))
def test_many_headers_read_as_their_literals_and_as_numpy_does(seed):
    assert check_headers(seed, 25_000) > 5000


def header_of(descr="'<f4'", order="False", shape="(2,)", extra=""):
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}{extra}}}"


ODD = [
    *(header_of(descr=each) for each in DESCRS),
    *(header_of(order=each) for each in ORDERS),
    *(header_of(shape=f"({each},)") for each in LENGTHS),
    *(header_of(shape=f"({each})") for each in LENGTHS),
    *(header_of(shape=str((1,) * n)) for n in (32, 33, 64, 65, 80)),
    *(header_of(shape=f"(4294967296, {each})") for each in LENGTHS),
    *(header_of(shape=f"(0, {each})") for each in LENGTHS),
    *(header_of(descr="'|S0'", shape=f"(3, {each})") for each in LENGTHS),
    header_of(extra=", 'shape': (3,)"),
    header_of(extra=", 'more': 1"),
    header_of(extra=",,"),
    header_of()[:-1],
    header_of() + "}",
    header_of() + "\x00",
    header_of().replace("'shape'", "'Shape'"),
    header_of().replace("'shape'", '"shape"'),
    header_of().replace("'shape'", "'shape\\x00'"),
    header_of().replace("'shape':", "'shape'"),
    *("", "{", "{}"),
]


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.filterwarnings("ignore")
def test_odd_headers_read_as_their_literals(version):
    for text in ODD:
        check_header(text, version)
        if len(text) > 3:
            check_header(text[:-1] + ", }", version)


def saved(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_headers_of_numpy_are_read_without_evaluation(make_tar, monkeypatch):
    rng = random.Random(3)
    kinds = ["<f4", ">i2", "|u1", "|b1", "<c16", "|S9", "<U2", "|V3", "<M8[ns]", "m8"]
    arrays = [
        np.zeros(rng.choices(range(9), k=rng.randrange(7)), rng.choice(kinds), order)
        for order in "CF"
        for _ in range(100)
    ]
    path = make_tar({f"{i:04}.npy": saved(array) for i, array in enumerate(arrays)})

    def refuse(text):
        raise AssertionError(f"evaluated {text}")

    monkeypatch.setattr(ast, "literal_eval", refuse)
    with fastshard.open_shard(path) as shard:
        for i, array in enumerate(arrays):
            found = shard.array(i)
            assert (found.dtype, found.shape) == (array.dtype, array.shape)
            assert found.flags.f_contiguous == array.flags.f_contiguous
            assert found.tobytes() == array.tobytes("A")


@pytest.mark.parametrize("is_shared", [True, False], ids=["one handle", "handles"])
def test_threads_read_headers_of_many_dtypes_and_shapes(make_tar, is_shared):
    arrays = [
        np.full(i % 37, b"%d" % i, f"|S{i % 150 + 1}")  # more than a cache has
        for i in range(600)
    ]
    path = make_tar({f"{i:04}.npy": saved(array) for i, array in enumerate(arrays)})

    def read(seed):
        order = random.Random(seed).sample(range(600), 600)
        handle = shard if is_shared else fastshard.open_shard(path)
        for i in order:
            found = handle.array(i)
            assert found.dtype == arrays[i].dtype
            assert found.tobytes() == arrays[i].tobytes()
        return True

    with fastshard.open_shard(path) as shard, ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(16)))


def test_a_damaged_member_among_equal_ones_is_named(make_tar):
    good = saved(np.arange(4))
    path = make_tar({"0.npy": good, "1.npy": b"not" + good[3:], "2.npy": good})
    with fastshard.open(path) as ds:
        for call in (lambda: ds.columns([0, 1, 2], "npy"), ds.batches(3).__next__):
            with pytest.raises(FormatError, match="magic") as caught:
                call()
            assert caught.value.member == "1.npy"
            assert caught.value.path == str(path)
            assert caught.value.offset == int(fastshard.open_shard(path).offsets[1])
