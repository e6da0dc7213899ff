"""Payloads: msgpack as other libraries read it, and arrays aligned."""

import dataclasses
import enum
import io
import pickle

import numpy as np
import pytest
from numpy.typing import NDArray

from fastshard import typed
from fastshard.typed.fields import encoder_of
from fastshard.typed.kinds.values import encode_array, make_encoder, pack

msgpack = pytest.importorskip("msgpack")

PLAIN = {
    "small": 3,
    "ints": [0, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**64 - 1],
    "negative": [-1, -32, -33, -128, -129, -32768, -32769, -(2**31), -(2**31) - 1],
    "least": -(2**63),
    "float": [1.5, -0.0, float("inf")],
    "text": "h\u00e9\0" * 20,
    "lengths": ["x" * n for n in (0, 31, 32, 255, 256, 65535, 65536)],
    "bins": [b"y" * n for n in (0, 255, 256, 65535, 65536)],
    "none": None,
    "bools": [True, False],
    "deep": {"a": [{"b": {"c": ()}}]},
    "many": list(range(70_000)),
    "counts": [[None] * n for n in (15, 16, 65535, 65536)],
    "map": {str(i): i for i in range(70_000)},
    "sixteen": {str(i): i for i in range(16)},
}
ARRAYS = {
    "vector": np.arange(512, dtype="f4"),
    "fortran": np.arange(12).reshape(3, 4).T,
    "negative strides": np.arange(12)[::-2],
    "inner strides": np.arange(60).reshape(3, 4, 5)[:, ::2, 1:],
    "0-d": np.array(3.0),
    "empty": np.zeros((0, 3)),
    "big-endian": np.arange(3, dtype=">u2"),
    "bools": np.array([True, False]),
    "text": np.array(["a", "b\u00e9"]),
    "bytes": np.array([b"a", b"bc"]),
    "times": np.array(["2020-01-01", "NaT"], "M8[ns]"),
    "void": np.zeros(2, "V3"),
    "structured": np.ones(3, [("a", "<i4"), ("b", "<f8", (2,))]),
    "complex": np.ones(2, "c16"),
    "dimensions": np.ones((1,) * 32),
    "bin8": np.zeros(140, "u1"),
    "bin16": np.zeros(65_400, "u1"),
    "bin32": np.zeros(66_000, "u1"),
    "subclass": np.eye(2).view(type("Sub", (np.ndarray,), {})),
}


def read_npy(data, **kwargs):
    return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False, **kwargs)


def read_compact(data):
    n = data[0]
    shape = np.frombuffer(data, "<i8", data[1 + n], 2 + n)
    at = 2 + n + 8 * len(shape)
    return np.frombuffer(data, np.dtype(data[1 : 1 + n].decode()), offset=at).reshape(
        shape
    )


def test_plain_values_are_stored_as_msgpack_does():
    assert pack(PLAIN) == msgpack.packb(PLAIN)
    encoder = make_encoder(list(PLAIN))
    sample = type("Sample", (), PLAIN)()
    assert encoder.encode(sample) == msgpack.packb(PLAIN)


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Pairs(tuple):
    pass


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        (Pairs([1]), [1]),
        (np.float32(2.5), 2.5),
        (np.float64(2.5), 2.5),
        (np.int16(-7), -7),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"abcdef")[::2], b"ace"),
        ([np.int8(1), Colour.RED], [1, "red"]),
    ],
)
def test_other_values_become_plain(value, stored):
    assert msgpack.unpackb(pack({"x": value})) == {"x": stored}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_are_npy_and_begin_at_multiples_of_64_bytes(name):
    array = ARRAYS[name]
    for n in range(0, 140, 3):  # of the text before, so that the padding differs
        payload = pack({"text": "x" * n, "x": array, "y": n})

        stored = msgpack.unpackb(payload)
        at = payload.index(b"\x93NUMPY")
        assert stored["x"] == payload[at : at + len(stored["x"])]
        assert stored["y"] == n
        found = read_npy(stored["x"])
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert found.tobytes() == array.tobytes()
        assert (at + len(stored["x"]) - array.nbytes) % 64 == 0
        assert len(stored["x"]) - array.nbytes <= 320


def test_the_order_of_arrays_is_kept():
    fortran, c_order = np.ones((3, 4), order="F"), np.ones((3, 4))
    stored = msgpack.unpackb(pack({"f": fortran, "c": c_order}))
    assert read_npy(stored["f"]).flags.f_contiguous
    assert read_npy(stored["c"]).flags.c_contiguous


def test_headers_of_earlier_samples_are_not_those_of_later_ones():
    encoder = make_encoder(["x"])
    for array in [
        np.zeros((2, 3)),
        np.zeros((3, 2)),
        np.zeros((2, 3), order="F"),
        np.zeros((2, 3), "f4"),
        np.zeros(6),
        np.zeros((2, 3)),
    ]:
        sample = type("Sample", (), {"x": array})()
        found = read_npy(msgpack.unpackb(encoder.encode(sample))["x"])
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert found.flags.fnc == array.flags.fnc


def test_headers_beyond_64_kib_have_version_2():
    array = np.zeros(2, [(f"field{i}", "i4") for i in range(5000)])
    payload = pack({"x": array})
    data = msgpack.unpackb(payload)["x"]
    assert data[6] == 2
    assert (len(payload) - array.nbytes) % 64 == 0
    assert read_npy(data, max_header_size=1 << 20).dtype == array.dtype


def test_names_beyond_latin_1_have_version_3():
    array = np.zeros(2, [("\u0416", "i4")])
    expected = io.BytesIO()
    with pytest.warns(UserWarning, match="format 3.0"):
        np.save(expected, array)
    data = msgpack.unpackb(pack({"x": array}))["x"]
    assert data[6] == expected.getvalue()[6] == 3
    assert read_npy(data).dtype == array.dtype


@pytest.mark.parametrize("name", sorted(set(ARRAYS) - {"structured"}))
def test_compact_arrays(name):
    array = ARRAYS[name]
    payload = pack({"x": array, "y": 1}, array_format="compact")
    data = msgpack.unpackb(payload)["x"]
    found = read_compact(data)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()
    assert data == encode_array(array, "compact")
    assert payload == msgpack.packb({"x": data, "y": 1})


@pytest.mark.parametrize("order", ["C", "F"])
def test_structured_arrays_are_npy_in_compact_payloads(order):
    array = np.ones((2, 3), [("a", "<i4"), ("b", "<f8", (2,))], order=order)
    expected = io.BytesIO()
    np.save(expected, array)
    data = msgpack.unpackb(pack({"x": array}, array_format="compact"))["x"]
    assert data == expected.getvalue() == encode_array(array, "compact")


def test_an_array_of_bytes_0_to_9():
    array = np.arange(3, dtype="<u2")
    golden = b"\x81\xa1x\xc4\x13\x03<u2\x01\x03" + bytes(7) + b"\0\0\1\0\2\0"
    assert pack({"x": array}, array_format="compact") == golden


@dataclasses.dataclass
class Box:
    name: str
    corners: np.ndarray


def test_dataclasses_in_fields_are_maps_and_may_have_arrays():
    box = Box("a", np.arange(4.0))
    payload = pack({"boxes": [box, box], "box": box})
    for stored in (*msgpack.unpackb(payload)["boxes"], msgpack.unpackb(payload)["box"]):
        assert stored["name"] == "a"
        assert read_npy(stored["corners"]).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ({1: 2}, TypeError, "keys of a map must be str, got int 1"),
        ([{"a": {None: 2}}], TypeError, "keys of a map must be str, got NoneType"),
        ({1, 2}, TypeError, "cannot store set"),
        (2**64, OverflowError, "65 bits"),
        (-(2**63) - 1, OverflowError, "64 bits"),
        ([2**200], OverflowError, "201 bits"),
        (np.array([None]), ValueError, "object-dtype"),
        (np.array([(1, None)], [("a", "i4"), ("b", "O")]), ValueError, "object-dtype"),
        (np.ma.array([1, 2], mask=[0, 1]), TypeError, "mask"),
        ([np.zeros(2)], TypeError, "not a value in a list or map"),
        ({"a": np.zeros(2)}, TypeError, "not a value in a list or map"),
        (object(), TypeError, "cannot store object"),
        (1j, TypeError, "cannot store complex"),
        (np.complex64(1), TypeError, "cannot store numpy.complex64"),
        (np.datetime64("2020-01-01"), TypeError, "cannot store numpy.datetime64"),
        ("\ud800", ValueError, "surrogates"),
        (Box, TypeError, "cannot store type"),
    ],
    ids=lambda value: None,  # the repr of an object differs among processes
)
@pytest.mark.parametrize("array_format", ["npy", "compact"])
def test_values_that_cannot_be_stored_are_named(value, error, message, array_format):
    with pytest.raises(error, match=message) as caught:
        pack({"good": 1, "bad": value}, array_format=array_format)
    assert str(caught.value).startswith("field 'bad': ")


def test_string_dtypes_without_a_width_are_refused():
    if not hasattr(np.dtypes, "StringDType"):
        pytest.skip("NumPy without StringDType")
    array = np.array(["a"], np.dtypes.StringDType())
    with pytest.raises(ValueError, match=r"field 'x': .* StringDType"):
        pack({"x": array})


def test_endless_nesting_is_refused():
    endless = []
    endless.append(endless)
    with pytest.raises(ValueError, match="field 'x': nested deeper than 511"):
        pack({"x": endless})
    deep = 1
    for _ in range(511):
        deep = [deep]
    assert msgpack.unpackb(pack({"x": deep}))["x"] == deep


@pytest.mark.parametrize("array_format", ["npy", "compact"])
def test_bfloat16_needs_a_declared_dtype(array_format):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.arange(3).astype(ml_dtypes.bfloat16)
    with pytest.raises(TypeError, match=r"field 'x': .* bfloat16: .* as uint16"):
        pack({"x": array}, array_format=array_format)
    with pytest.raises(TypeError, match="store it as uint8"):
        pack({"x": array.astype(ml_dtypes.float8_e4m3fn)}, array_format=array_format)

    encoder = make_encoder(
        ["x"], dtypes={"x": np.dtype(array.dtype)}, array_format=array_format
    )
    sample = type("Sample", (), {"x": array})()
    data = msgpack.unpackb(encoder.encode(sample))["x"]
    found = read_npy(data) if array_format == "npy" else read_compact(data)
    assert found.dtype == np.dtype("<u2")
    assert found.view(ml_dtypes.bfloat16).tolist() == [0, 1, 2]


@pytest.mark.parametrize("value", [object(), {"a": np.zeros(2)}, [1], 3])
def test_a_field_may_have_an_encoder_of_its_own(value):
    encoder = make_encoder(["x", "y"], encoders={"x": lambda value: b"made"})
    sample = type("Sample", (), {"x": value, "y": 1})()
    assert msgpack.unpackb(encoder.encode(sample)) == {"x": b"made", "y": 1}


@pytest.mark.parametrize("value", [None, b"kept"])
def test_an_encoder_is_not_given_none_and_bytes(value):
    encoder = make_encoder(["x"], encoders={"x": lambda value: b"made"})
    sample = type("Sample", (), {"x": value})()
    assert msgpack.unpackb(encoder.encode(sample)) == {"x": value}


def test_a_list_that_changes_while_it_is_encoded():
    values = []

    class Odd(list):
        def __iter__(self):
            values.append(1)
            return super().__iter__()

    values.append(Odd())
    with pytest.raises(RuntimeError, match="changed"):
        pack({"x": values})


def test_encoders_pickle():
    encoder = pickle.loads(pickle.dumps(make_encoder(["a"])))
    assert encoder.encode(type("Sample", (), {"a": 1})()) == b"\x81\xa1a\x01"


class Declared(typed.PackableSample):
    i: int = 1
    f: float = 0.5
    b: bool = True
    s: str = ""
    y: bytes = b""
    x: NDArray | None = None
    n: None = None
    oi: int | None = None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("i", 2.0), ("i", True), ("i", None), ("i", "1"), ("f", "1"), ("f", True)),
        *(("b", 1), ("s", b"a"), ("s", None), ("y", "a"), ("x", [1, 2]), ("x", 1.5)),
        *(("x", np.float32(1)), ("n", 0), ("oi", 2.5), ("oi", {"a": 1})),
    ],
    ids=repr,
)
def test_values_that_the_class_would_not_read_are_refused(field, value):
    sample = Declared()
    setattr(sample, field, value)
    for encoder in (encoder_of(Declared), pickle.loads(pickle.dumps(ENCODER))):
        with pytest.raises(TypeError, match=f"field '{field}': cannot store"):
            encoder.encode(sample)


ENCODER = encoder_of(Declared)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("i", -(2**63)), ("i", 2**64 - 1), ("i", -33), ("i", 200), ("i", Level.HIGH)),
        *(("i", np.int8(-3)), ("f", 3), ("f", -40), ("f", np.float32(1.5)), ("oi", 2)),
        *(
            ("b", np.bool_(False)),
            ("s", "é" * 20),
            ("s", "x" * 300),
            ("s", "x" * 70000),
        ),
        *(("y", bytes(300)), ("y", bytes(70000)), ("x", np.zeros(70000))),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_values_that_the_class_reads_are_stored(field, value):
    sample = Declared()
    setattr(sample, field, value)
    found = getattr(Declared.from_bytes(sample.packed), field)
    assert np.array_equal(found, value)


def test_a_missing_attribute():
    with pytest.raises(AttributeError, match="b"):
        make_encoder(["b"]).encode(object())


def test_unknown_formats_of_arrays():
    with pytest.raises(ValueError, match="array_format must be"):
        pack({}, array_format="npz")
