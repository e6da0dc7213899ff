"""Encoders of values to fields."""

import io
import math
import sys

import numpy as np
import pytest

import fastshard
import fastshard.formats.writer
from fastshard.formats.writer import ShardWriter
from support.writing import read_back, refused, write_one


@pytest.fixture
def one(tmp_path):
    """Write samples to one shard."""

    def write_shard(*samples, name="shard.tar", **options):
        return write_one(tmp_path / name, *samples, **options)

    return write_shard


def field_of(path, field="x"):
    ((_, fields),) = read_back(path, index="none")
    return fields[field]


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("bin", b"ab", b"ab"),
        ("bin", bytearray(b"ab"), b"ab"),
        ("bin", memoryview(b"ab"), b"ab"),
        ("bin", memoryview(b"aXbX")[::2], b"ab"),
        ("bin", memoryview(b"abcd").cast("B", (2, 2)), b"abcd"),
        ("bin", memoryview(b"").cast("b"), b""),
        ("bin", np.frombuffer(b"ab", "u1"), b"ab"),
        ("jpg", np.frombuffer(b"\xff\xd8", "u1"), b"\xff\xd8"),
        ("npy", b"as it is", b"as it is"),
        ("json", b"as it is", b"as it is"),
        ("bin", "é", "é".encode()),
        ("unknown", "text", b"text"),
        ("txt", "", b""),
        ("caption.txt", "é", "é".encode()),
        ("cls", 7, b"7"),
        ("cls", -1, b"-1"),
        ("cls", np.int64(3), b"3"),
        ("cls", "cat", b"cat"),
        ("meta.index", 10**30, b"1" + b"0" * 30),
        ("json", {"a": [1, 2.5, None, True, "é"]}, '{"a":[1,2.5,null,true,"é"]}'),
        ("json", None, b"null"),
        ("json", '{"a": 1}', b'{"a": 1}'),
        ("meta.json", [], b"[]"),
    ],
)
def test_encoding(one, field, value, expected):
    if isinstance(expected, str):
        expected = expected.encode()
    assert field_of(one({"__key__": "k", field: value}), field) == expected


def test_views_of_another_shard_are_written_as_they_are(one, shard_path, members):
    with fastshard.open_shard(shard_path) as shard:
        samples = [{"__key__": s.key, **s} for s in shard.samples]
        path = one(*samples, name="again.tar")
    assert dict(read_back(path))["sub/002"] == {"jpg": b"x" * 512, "json": b"[]"}


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (1000, 100)])
@pytest.mark.parametrize("dtype", ["f4", ">i2", "?", [("a", "u1"), ("b", "f8")]])
def test_arrays_are_aligned_and_equal(one, dtype, shape):
    array = np.zeros(shape, dtype)
    path = one(
        {"__key__": "k", "a": b"1", "npy": array}, {"__key__": "l", "npy": array}
    )
    with fastshard.open_shard(path) as shard:
        for name in ("k.npy", "l.npy"):
            data = bytes(shard[name])
            start = int(shard.offsets[shard.position(name)]) + len(data) - array.nbytes
            assert start % 64 == 0
            loaded = np.load(io.BytesIO(data), allow_pickle=False)
            assert loaded.dtype == array.dtype
            np.testing.assert_array_equal(loaded, array)
            if not array.dtype.names:
                np.testing.assert_array_equal(shard.array(name), array)


def test_npz_is_not_compressed_and_has_no_time(one):
    arrays = {"a": np.zeros(1000), "b/c": np.arange(3)}
    data = field_of(one({"__key__": "k", "npz": arrays}), "npz")
    assert len(data) > 8000
    with np.load(io.BytesIO(data), allow_pickle=False) as loaded:
        assert set(loaded) == set(arrays)
        assert (loaded["b/c"] == arrays["b/c"]).all()


@pytest.mark.parametrize("field", ["png", "webp", "ppm", "bmp", "tiff", "jpg", "a.png"])
@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 1), (4, 5, 3)])
@pytest.mark.parametrize("as_image", [False, True])
def test_images(one, field, shape, as_image):
    image = pytest.importorskip("PIL.Image")
    array = np.arange(math.prod(shape), dtype="u1").reshape(shape)
    squeezed = array[:, :, 0] if shape[-1] == 1 else array
    value = image.fromarray(squeezed) if as_image else array
    data = field_of(one({"__key__": "k", field: value}), field)
    with image.open(io.BytesIO(data)) as decoded:
        pixels = np.asarray(decoded.convert("RGB" if squeezed.ndim == 3 else "L"))
    loss = np.abs(pixels.astype(int) - squeezed).max()
    assert loss <= (20 if field == "jpg" else 0)


def test_msgpack(one):
    msgpack = pytest.importorskip("msgpack")
    data = field_of(one({"__key__": "k", "msgpack": {"a": [1, "é"]}}), "msgpack")
    assert msgpack.unpackb(data) == {"a": [1, "é"]}


def test_a_field_that_no_library_can_encode_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with (
        ShardWriter(tmp_path / "s.tar", index=None) as writer,
        pytest.raises(fastshard.FastshardError, match="Pillow is needed"),
    ):
        writer.write({"__key__": "k", "png": np.zeros((2, 2), "u1")})


def test_names_between_underscores_are_ignored(one):
    path = one({"__url__": "file:x", "__key__": "k", "txt": "t", "__bad__": object()})
    assert read_back(path) == [("k", {"txt": b"t"})]


@pytest.mark.parametrize(
    ("field", "value", "error", "match"),
    [
        ("bin", 5, TypeError, "str, or bytes, got int"),
        ("label", 5, TypeError, "int; a field 'cls' or 'label.cls' stores it$"),
        ("image", np.zeros((3, 3)), TypeError, "'npy' or 'image.npy' stores it$"),
        ("cls", 5.5, TypeError, "float; a field 'json' or 'cls.json' stores it$"),
        ("txt", 5, TypeError, "expected str, or bytes, got int$"),
        ("bin", None, TypeError, "got NoneType"),
        ("bin", {"a": 1}, TypeError, "got dict"),
        ("bin", np.zeros(3), TypeError, 'buffer of "d"'),
        ("bin", np.zeros((3, 3), "u1"), TypeError, "2 dimensions"),
        ("bin", memoryview(np.zeros(3)), TypeError, 'buffer of "d"'),
        ("txt", 5, TypeError, "str, or bytes, got int"),
        ("txt", "a\ud800", ValueError, "surrogates"),
        ("cls", 5.0, TypeError, "int or str, or bytes, got float"),
        ("json", math.nan, ValueError, "not JSON compliant"),
        ("json", {"a": [math.inf]}, ValueError, "not JSON compliant"),
        ("json", {"a": np.int64(1)}, TypeError, "int64"),
        ("json", object(), TypeError, "object"),
        ("json", "no json", ValueError, "JSON text"),
        ("json", "[NaN]", ValueError, "NaN is not a finite number"),
        ("json", "a\ud800", ValueError, "JSON text"),
        ("json", '"\ud800"', ValueError, "surrogates"),
        ("npy", [1, 2], TypeError, "an array, or bytes, got list"),
        ("npy", "text", TypeError, "an array, or bytes, got str"),
        ("npy", np.array([object()]), ValueError, "need pickle"),
        ("npy", np.ma.masked_array([1], [True]), TypeError, "mask"),
        ("npz", np.zeros(3), TypeError, "arrays by name"),
        ("npz", {"a": [1]}, TypeError, "arrays by name"),
        ("npz", {1: np.zeros(1)}, TypeError, "arrays by name"),
        ("npz", {"a": np.array([object()])}, ValueError, "need pickle"),
        ("jpg", "path.jpg", TypeError, "image"),
        ("jpg", 5, TypeError, "image"),
        ("pyd", {"a": 1}, TypeError, "expected bytes, got"),
        ("pth", "x", TypeError, "expected bytes, got"),
        ("txt.gz", "text", TypeError, "expected bytes, got"),
        ("msgpack", "text", TypeError, "other than str"),
    ],
)
def test_values_that_a_field_does_not_take(tmp_path, field, value, error, match):
    sample = {"__key__": "k", "a": b"1", field: value, "z": b"2"}
    refused(tmp_path, sample, error, f"sample 'k', field '{field}': .*{match}")


@pytest.mark.parametrize(
    ("value", "error", "match"),
    [
        (np.zeros((2, 2)), TypeError, "uint8, got float64"),
        (np.zeros((2, 2, 2), "u1"), ValueError, "channels, got 2"),
        (np.zeros((2, 2, 4), "u1"), ValueError, "RGBA"),  # JPEG has no alpha
    ],
)
def test_invalid_images(tmp_path, value, error, match):
    pytest.importorskip("PIL.Image")
    refused(tmp_path, {"__key__": "k", "jpg": value}, error, match)


def test_nested_too_deep_is_an_error_with_a_name(tmp_path):
    deep = []
    for _ in range(100_000):
        deep = [deep]
    refused(tmp_path, {"__key__": "k", "json": deep}, ValueError, "sample 'k'")
    while deep:  # freeing it whole would recurse
        deep = deep.pop()
