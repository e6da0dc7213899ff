"""Encodings: the values of upstream's datasets, bytes of each kind, errors."""

import io
import json
import math
import random
import struct
from decimal import Decimal

import numpy as np
import pytest

import fastshard
from fastshard import FormatError
from fastshard.streaming import MDSWriter, reader_from_json
from fastshard.streaming.encodings import (
    get_mds_encodings,
    is_mds_encoding,
    is_mds_encoding_safe,
    mds_decode,
    mds_decoder,
    mds_encode,
    mds_size,
    register_encoding,
)
from fastshard.streaming.encodings.registry import SCALARS
from fastshard.streaming.encodings.rows import (
    is_json_encoded,
    is_json_encoding,
    is_xsv_encoding,
    xsv_decode,
    xsv_encode,
)
from support.inside.streaming import registered_encodings
from support.marks import thin
from support.streaming.expected import described
from support.streaming.plain import mds_fields

Image = pytest.importorskip("PIL.Image")


DATASETS = ("mds/none", "edge/bytes_passthrough", "edge/column_names", "edge/pkl")


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_fields_that_upstream_wrote(streaming_data, name, kind):
    known = streaming_data[name]
    samples = iter(known.samples)
    for path in sorted(known.root.glob("*.mds")):
        for fields, sample in zip(mds_fields(path), samples, strict=False):
            assert list(fields) == sample["keys"]
            for field, (encoding, data) in fields.items():
                value = mds_decode(encoding, kind(data), unsafe=True)
                expected = sample["fields"][field]
                assert described(value) == (expected["type"], expected["sha256"]), field
                assert mds_size(encoding) in (None, len(data))
    assert next(samples, None) is None


def test_there_are_28_names():
    names = get_mds_encodings() - set(registered_encodings())
    assert len(names) == 28
    assert all(map(is_mds_encoding, names))
    assert [name for name in names if not is_mds_encoding_safe(name)] == ["pkl"]


def image(mode="RGB", size=(5, 3)):
    return Image.frombytes("L", size, bytes(range(math.prod(size)))).convert(mode)


def file_of(picture, kind):
    stream = io.BytesIO()
    picture.save(stream, kind)
    return stream.getvalue()


JPEG = file_of(image(), "JPEG")
MODES = ("1", "L", "P", "LA", "La", "PA", "RGB", "YCbCr", "LAB", "HSV", "RGBA", "RGBX")
MODES = (*MODES, "RGBa", "CMYK", "I", "F", "I;16", "I;16L", "I;16B")
PNG = file_of(image(), "PNG")


@pytest.mark.parametrize(
    ("encoding", "value", "data"),
    [
        ("bytes", b"a\0", b"a\0"),
        ("str", "\u00fc", b"\xc3\xbc"),
        ("int", -2, b"\xfe" + b"\xff" * 7),
        ("int", True, b"\1" + bytes(7)),
        ("str_int", -(10**40), b"-1" + b"0" * 40),
        ("str_float", 1e-320, b"1e-320"),
        ("str_decimal", Decimal("4E15"), b"4E+15"),
        (
            "json",
            {"b": [1.5, None], "a": math.inf},
            b'{"b": [1.5, null], "a": Infinity}',
        ),
        ("pkl", None, b"\x80\x04N."),
        ("pil", image("L"), struct.pack("<3I", 5, 3, 1) + b"L" + bytes(range(15))),
        ("jpeg", image(), JPEG),
        ("png", image(), PNG),
        ("list[png]", [image()], struct.pack("<3I", 0, 1, len(PNG)) + PNG),
        ("list[jpeg]", [], bytes(8)),
    ],
)
def test_bytes_of_a_value(encoding, value, data):
    assert mds_encode(encoding, value) == data
    found = mds_decode(encoding, data, unsafe=True)
    if encoding not in ("jpeg", "list[jpeg]"):  # JPEG loses
        assert described(found) == described(1 if value is True else value)


@pytest.mark.parametrize("encoding", ["jpeg_array", "jpegarray"])
def test_files_of_a_jpeg_array(encoding):
    data = mds_encode(encoding, [bytearray(JPEG), JPEG, memoryview(JPEG)])
    assert data == struct.pack("<4I", 3, *[len(JPEG)] * 3) + JPEG * 3
    assert [picture.size for picture in mds_decode(encoding, data)] == [(5, 3)] * 3


@pytest.mark.parametrize("dtype", SCALARS)
def test_scalars_are_those_of_numpy(dtype):
    for value in (0, 1, 42):
        data = mds_encode(dtype, value)
        assert data == np.dtype(dtype).type(value).tobytes()
        assert type(mds_decode(dtype, data)) is np.dtype(dtype).type
        assert mds_decode(dtype, data) == value
    assert mds_size(dtype) == np.dtype(dtype).itemsize
    assert mds_encode(dtype, np.float64(3)) == mds_encode(dtype, 3)


@pytest.mark.parametrize("dtype", SCALARS)
@pytest.mark.parametrize("shape", [(1,), (3, 2), (2, 1, 3), (257,), (65_537, 1)])
def test_arrays(dtype, shape):
    array = (np.arange(math.prod(shape)) % 100).astype(dtype).reshape(shape)
    static = f"ndarray:{dtype}:{','.join(map(str, shape))}"
    assert mds_size(static) == array.nbytes
    for encoding in ("ndarray", f"ndarray:{dtype}", static):
        data = mds_encode(encoding, array)
        found = mds_decode(encoding, data)
        assert described(found) == described(array)
        assert not found.flags.writeable
        assert data == mds_encode(encoding, np.asfortranarray(array))
        assert data == mds_encode(encoding, array.astype(array.dtype.newbyteorder()))


@pytest.mark.parametrize(
    ("largest", "k"), [(1, 0), (255, 0), (256, 1), (65_535, 1), (65_536, 2)]
)
def test_dimensions_are_stored_in_the_smallest_integers(largest, k):
    data = mds_encode("ndarray", np.zeros((largest, 1), "u1"))
    assert data[:2] == bytes([8, 2 << 2 | k])
    assert len(data) == 2 + 2 * (1 << k) + largest


@pytest.mark.parametrize("encoding", [*sorted(get_mds_encodings()), "ndarray:uint8:9"])
def test_bytes_pass_through(encoding):
    assert mds_encode(encoding, b"raw") == b"raw"


def test_an_image_of_a_file_is_stored_as_the_file(tmp_path):
    path = tmp_path / "a.jpg"
    data = file_of(image(), "JPEG") + b"behind the picture"
    path.write_bytes(data)
    with Image.open(path) as picture:
        assert mds_encode("jpeg", picture) == data
        picture.load()
        path.unlink()
        assert mds_encode("jpeg", picture)[:2] == b"\xff\xd8"


def test_images_are_lazy():
    data = file_of(Image.effect_noise((64, 64), 90), "JPEG")
    picture = mds_decode("jpeg", data[: len(data) * 2 // 3])
    assert picture.size == (64, 64)
    with pytest.raises(OSError, match="truncated"):
        picture.load()


@pytest.mark.parametrize(
    "kind",
    ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "ICO"],
)
def test_files_of_other_kinds_are_opened(kind):
    data = file_of(image(size=(16, 16)), kind)
    for encoding in ("jpeg", "png"):
        assert mds_decode(encoding, data).size == (16, 16)


@pytest.mark.parametrize(
    ("encoding", "value", "error"),
    [
        ("bytes", "9", AttributeError),
        ("str", 25, AttributeError),
        ("int", np.int64(1), AttributeError),
        ("int", 1.0, AttributeError),
        ("int", 2**63, OverflowError),
        ("str_int", 1.0, AttributeError),
        ("str_float", 1, AttributeError),
        ("str_decimal", 1.0, AttributeError),
        ("uint8", 256, OverflowError),
        ("uint64", -1, OverflowError),
        ("float64", "x", ValueError),
        ("pil", 1, AttributeError),
        ("jpeg", 1, AttributeError),
        ("png", "x", AttributeError),
        ("list[png]", (1,), AttributeError),
        ("jpeg_array", [1], TypeError),
        ("json", {1, 2}, TypeError),
        ("ndarray", [1], AttributeError),
        ("ndarray", np.array(["a"]), ValueError),
        ("ndarray", np.zeros(3, bool), ValueError),
        ("ndarray", np.zeros((3, 0)), ValueError),
        ("ndarray", np.array(0.5), ValueError),
        ("ndarray:uint8", np.zeros(3), ValueError),
        ("ndarray:float64:3", np.zeros((1, 3)), ValueError),
    ],
)
def test_values_that_are_refused(encoding, value, error):
    with pytest.raises(error):
        mds_encode(encoding, value)


@pytest.mark.parametrize(
    "encoding",
    [
        "",
        "strr",
        "str:",
        "int:8",
        "ndarray:bool",
        "ndarray:float32:",
        "ndarray:float32:0",
        "ndarray:float32:-1,2",
        "ndarray:float32:x",
        "ndarray::3",
        "ndarray:float32:3:4",
        "ndarray:uint8:4294967296,4294967296",
        "ndarray:uint8:" + ",".join("1" * 64),
        "ndarray:uint8:" + "9" * 5000,
    ],
)
def test_encodings_that_are_none(encoding):
    assert not is_mds_encoding(encoding)
    for call in (mds_decoder, mds_size):
        with pytest.raises(ValueError, match="Unsupported encoding"):
            call(encoding)


def test_pickles_are_refused_unless_asked_for():
    with pytest.raises(ValueError, match="allow_unsafe_types"):
        mds_decoder("pkl")
    assert mds_decoder("pkl", unsafe=True)(b"N.") is None


HEAD = struct.pack("<3I", 2, 2, 1)

DAMAGED = [
    ("str", b"ok\xff", 2),
    ("int", bytes(7), 0),
    ("uint16", bytes(3), 0),
    ("str_int", b"1.5", 0),
    ("str_int", b"", 0),
    ("str_int", b"9" * 5000, 0),
    ("str_float", b"one", 0),
    ("str_float", b"1\xff", 1),
    ("str_decimal", b"1..2", 0),
    ("str_decimal", b"1E+99999999999999999999", 0),
    ("json", b'{"a": \xc3', 6),
    ("json", '{"\u00fc": x}'.encode(), 7),
    ("json", b"[" * 100_000, 0),
    ("json", b"9" * 5000, 0),
    ("pkl", b"", 0),
    ("pkl", b"\xff", 0),
    ("ndarray", b"", 0),
    ("ndarray", b"\x07", 0),
    ("ndarray", b"\x08", 1),
    ("ndarray", b"\x08\x00", 1),  # no dimension, no item
    ("ndarray", b"\x08\x09\x01", 1),  # a dimension is cut
    ("ndarray", b"\x08\x04\x00\x01", 1),  # a dimension is 0
    ("ndarray", b"\x08\x04\x02\x01", 1),
    ("ndarray", b"\x08\x04\x02\x01\x02\x03", 1),
    # The product is 0 in 64 bits.
    ("ndarray", b"\x08" + struct.pack("<B2Q", 2 << 2 | 3, 2**32, 2**32), 1),
    ("ndarray", b"\x42" + struct.pack("<BQ", 1 << 2 | 3, 2**61), 1),
    ("ndarray:uint8", b"\x04\x03\x01", 0),
    ("ndarray:uint16:2", bytes(5), 0),
    ("pil", HEAD[:11], 0),
    ("pil", struct.pack("<3I", 1, 1, 2**32 - 1) + b"L0", 8),
    ("pil", HEAD + b"X" + bytes(4), 12),
    ("pil", HEAD + b"L" + bytes(3), 0),
    ("pil", HEAD + b"L" + bytes(5), 0),
    ("pil", struct.pack("<3I", 2**32 - 1, 2**32 - 1, 1) + b"L" + bytes(4), 0),
    ("jpeg", b"", 0),
    ("jpeg", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", 0),
    ("png", PNG[:20], 0),
    ("jpeg_array", b"\1\0\0", 0),
    ("jpeg_array", bytes(4), 0),
    ("jpeg_array", struct.pack("<I", 5) + bytes(19), 0),
    ("jpeg_array", struct.pack("<2I", 1, 2**32 - 1) + JPEG, 0),
    ("jpeg_array", struct.pack("<2I", 1, len(JPEG)) + JPEG + b"x", 0),
    ("jpeg_array", struct.pack("<2I", 2**32 - 1, 0), 0),
    ("list[png]", bytes(7), 4),
    ("list[png]", b"\1" + bytes(7), 0),
    ("list[png]", struct.pack("<4I", 0, 2, 2**31, 2**31) + PNG, 4),
    ("list[pil]", struct.pack("<4I", 0, 2, 14, 1) + bytes(15), 28),
]


@pytest.mark.parametrize(
    ("encoding", "data", "at"),
    DAMAGED,
    ids=[f"{d[0]}-{i}" for i, d in enumerate(DAMAGED)],
)
def test_damaged_fields(encoding, data, at):
    with pytest.raises(FormatError) as caught:
        mds_decode(encoding, memoryview(data), unsafe=True)
    assert caught.value.offset == at


def test_the_broken_image_of_a_list_is_named():
    good = struct.pack("<3I", 1, 1, 1) + b"L7"
    data = struct.pack("<4I", 0, 2, len(good), 3) + good + b"bad"
    with pytest.raises(FormatError, match="image 1: ") as caught:
        mds_decode("list[pil]", data)
    assert caught.value.offset == 16 + len(good)


@pytest.mark.parametrize("mode", [*MODES, "I;16N"])
def test_every_mode_of_pillow(mode):
    for size in ((9, 3), (1, 1), (8, 2), (0, 4)):
        picture = Image.new(mode, size)
        found = mds_decode("pil", mds_encode("pil", picture))
        assert (found.mode, found.size) == (mode, size)
        assert found.tobytes() == picture.tobytes()


class Reversed:
    size = None

    def encode(self, obj):
        return obj.encode()[::-1]

    def decode(self, data):
        assert type(data) is bytes
        return data[::-1].decode()


@pytest.fixture
def registry():
    registered = registered_encodings()
    before = dict(registered)
    yield registered
    registered.clear()
    registered.update(before)


def test_an_encoding_of_ones_own(registry):
    register_encoding("reversed", Reversed)
    assert is_mds_encoding("reversed")
    assert mds_size("reversed") is None
    assert mds_encode("reversed", "abc") == b"cba"
    assert mds_decode("reversed", memoryview(b"cba")) == "abc"


def test_registrations_that_are_refused(registry):
    for name in ("str", "a:b", ""):
        with pytest.raises(ValueError, match=r"encoding"):
            register_encoding(name, Reversed)
    with pytest.raises(TypeError, match="size"):
        register_encoding("x", type("X", (Reversed,), {"size": 0}))
    with pytest.raises(TypeError, match="decode"):
        register_encoding("x", type("X", (Reversed,), {"decode": None}))
    assert not is_mds_encoding("x")


def test_an_encoder_that_returns_no_bytes_is_named(registry):
    register_encoding("text", type("T", (Reversed,), {"encode": lambda self, obj: obj}))
    with pytest.raises(TypeError, match="'text' returned str"):
        mds_encode("text", "a")


def test_values_of_rows():
    for encoding, value, text in [
        ("str", "a", "a"),
        ("int", 1, "1"),
        ("float", 0.5, "0.5"),
    ]:
        assert is_json_encoding(encoding)
        assert is_xsv_encoding(encoding)
        assert is_json_encoded(encoding, value)
        assert xsv_encode(encoding, value) == text
        assert xsv_decode(encoding, text) == value
        with pytest.raises(AttributeError):
            is_json_encoded(encoding, b"")
        with pytest.raises(AttributeError):
            xsv_encode(encoding, b"")
    assert not is_json_encoding("bytes")
    assert not is_xsv_encoding("int64")


SEEDS = [
    ("bytes", b"abc"),
    ("str", "h\u00fc" * 9),
    ("int", -5),
    ("uint16", 7),
    ("float64", 1.5),
    ("str_int", 10**30),
    ("str_float", 1.5e300),
    ("str_decimal", Decimal("1.5E-30")),
    ("json", {"a": [1, {"\u00fc": None}], "b": 1.5}),
    ("ndarray", np.arange(24, dtype="u2").reshape(2, 3, 4)),
    ("ndarray", np.zeros(300)),
    ("ndarray:int32", np.zeros((2, 2), "i4")),
    ("ndarray:int8:3,2", np.zeros((3, 2), "i1")),
    ("pil", image()),
    ("pil", image("1")),
    ("jpeg", image()),
    ("png", image()),
    ("jpeg_array", [JPEG, JPEG]),
    ("list[pil]", [image(), image("L")]),
    ("list[jpeg]", [image()] * 2),
    ("list[png]", [image()] * 2),
]
WORDS = (b"\xff" * 4, bytes(4), b"\0\0\0\x80", b"\xff\xff\xff\x7f")


def damage(rng, data):
    """Flip a bit, cut, lengthen, or overwrite a byte or an integer."""
    data, kind, at = bytearray(data), rng.randrange(5), rng.randrange(len(data))
    if kind == 0:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del data[at:]
    elif kind == 2:
        data += bytes(rng.randrange(1, 9))
    elif kind == 3:
        data[at % 24 % len(data)] = rng.choice((0, 1, 127, 128, 255))
    else:
        data[at : at + 4] = rng.choice(WORDS)
    return bytes(data)


@pytest.mark.filterwarnings("ignore:Image size")  # by the header of one image
@pytest.mark.parametrize("seed", range(6))
def test_damaged_fields_are_refused_or_read(seed):
    rng = random.Random(seed)
    for encoding, value in SEEDS:
        stored = mds_encode(encoding, value)
        decode = mds_decoder(encoding)
        for _ in range(len(thin(range(400), 8))):
            data = damage(rng, stored)
            try:
                decode(memoryview(data))
            except FormatError as error:
                assert 0 <= error.offset <= len(data)


@pytest.mark.parametrize("encoding", ["ndarray", "pil", "jpeg_array", "list[pil]"])
def test_every_truncation_is_refused(encoding):
    values = dict(SEEDS)
    stored = mds_encode(encoding, values[encoding])
    for size in range(0, len(stored), 1 if len(stored) < 999 else 7):
        with pytest.raises(FormatError):
            mds_decode(encoding, stored[:size])


def test_an_encoding_registered_again_is_seen_by_open_datasets(registry, tmp_path):
    class Plain(Reversed):
        def decode(self, data):
            return data.decode()

    register_encoding("again", Reversed)
    with MDSWriter(columns={"x": "again"}, out=str(tmp_path)) as writer:
        writer.write({"x": "abc"})
    ds = fastshard.open(tmp_path)
    shard = json.loads((tmp_path / "index.json").read_text())["shards"][0]
    reader = reader_from_json(str(tmp_path), None, shard)
    assert ds[0].decode("x")["x"] == reader[0]["x"] == "abc"

    register_encoding("again", Plain)
    assert ds[0].decode("x")["x"] == reader[0]["x"] == "cba"
    assert reader_from_json(str(tmp_path), None, shard)[0]["x"] == "cba"
    assert ds[0].decoder_of("x")(ds[0]["x"]) == "cba"
