"""Decoders of fields: values, and errors that name shard, member and byte."""

import gc
import io
import json
import pickle
import random
import struct
import subprocess
import sys
import zipfile
from collections.abc import Mapping

import numpy as np
import pytest

import fastshard
from fastshard import FastshardError, FormatError
from fastshard._core.dataset.npy import array_from_buffer
from fastshard.formats.decoders import (
    DECODERS,
    MAX_ARRAY_BYTES,
    NpzDecoder,
    decode_field,
    decoder_for,
)
from support.marks import SANITIZED, not_sanitized
from support.memory import mappings_of

PICTURE = np.arange(12 * 10 * 3, dtype="u1").reshape(12, 10, 3)


def needs_module(name, library):
    if name == "torch" and SANITIZED:
        pytest.skip("not under a sanitizer")
    try:
        return __import__(name)
    except ImportError:
        pytest.skip(f"{library} is not installed")


@pytest.fixture
def field(make_tar):
    """Return a function that stores one field and returns its view."""

    def open_field(name, data, **options):
        open_field.path = make_tar({f"a.{name}": data})
        with fastshard.open_shard(open_field.path, **options) as shard:
            return shard[0]

    return open_field


def decode(extension, data):
    return DECODERS[extension](memoryview(data))


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz(compressed=False, **arrays):
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, **arrays)
    return file.getvalue()


def image(kind, mode="RGB", **options):
    needs_module("PIL", "Pillow")
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(PICTURE).convert(mode).save(file, kind, **options)
    return file.getvalue()


def save_by_torch(**options):
    torch = needs_module("torch", "torch")
    file = io.BytesIO()
    torch.save(
        {"weight": torch.arange(6.0).reshape(2, 3), "names": ["a"]}, file, **options
    )
    return file.getvalue()


def pack(value):
    return needs_module("msgpack", "msgpack").packb(value)


# Choice of the decoder


def other(view):
    return "other"


def test_the_longest_extension_counts():
    for field in ("png", "PNG", "seg.png", "cam.seg.png"):
        assert decoder_for(field) is DECODERS["png"]
    own = {"seg.png": other}
    assert decoder_for("seg.png", own) is other
    assert decoder_for("cam.seg.PNG", own) is other
    assert decoder_for("png", own) is DECODERS["png"]
    assert decoder_for("xseg.png", own) is DECODERS["png"]
    assert decoder_for("seg.png.json", own) is DECODERS["json"]


def test_a_callers_decoder_wins_against_one_of_the_same_extension():
    assert decoder_for("png", {"png": other}) is other
    assert decoder_for("seg.png", {".PNG": other}) is other
    assert decoder_for("x", {"x": other}) is other


@pytest.mark.parametrize("field", ["", "pyd", "pickle", "xpng", "png.x", ".", "mp4"])
def test_an_unknown_extension_has_none(field):
    assert decoder_for(field) is None
    assert decoder_for(field, {"seg": other}) is None


def test_a_decoder_must_be_callable():
    with pytest.raises(TypeError, match="'x' is not callable"):
        decoder_for("png", {"x": 3})


def test_the_table_cannot_be_changed():
    assert isinstance(DECODERS, Mapping)
    with pytest.raises(TypeError):
        DECODERS["png"] = other


# Text, numbers, bytes


def test_bytes_are_the_view_itself(field):
    view = field("bin", b"abc")
    assert DECODERS["bin"](view) is view


@pytest.mark.parametrize("extension", ["txt", "text"])
def test_text(extension):
    assert decode(extension, "größe\n".encode()) == "größe\n"
    assert decode(extension, b"") == ""
    with pytest.raises(FormatError, match="UTF-8") as caught:
        decode(extension, b"abc\xff")
    assert caught.value.offset == 3


def test_json_with_a_byte_order_mark():
    data = '{"a": "é"}'.encode("utf-8-sig")
    assert decode("json", data) == json.loads(data)
    with pytest.raises(FormatError) as caught:
        decode_field(DECODERS["json"], memoryview(data[:-1]), "s.tar", 512, "a.json")
    assert caught.value.offset == 512 + len(data) - 1


def test_json():
    assert decode("json", b'{"a": [1, null, "\xc3\xa9"]}') == {"a": [1, None, "é"]}
    for data, at in [
        (b'"\xc3\xa9", ', 4),
        (b"", 0),
        (b"[1,", 3),
        (b'"\xff"', 1),
        (b"\xef\xbb\xbf{", 4),
        (b"[" * 200_000, 0),
        (b"9" * 5000, 0),
    ]:
        with pytest.raises(FormatError) as caught:
            decode("json", data)
        assert caught.value.offset == at


@pytest.mark.parametrize("extension", ["cls", "cls2", "index", "inx", "id"])
def test_integers(extension):
    assert decode(extension, b"7") == 7
    assert decode(extension, b" -12\n") == -12
    assert decode(extension, b"0" * 60 + b"12") == 12
    for data in (
        b"",
        b" ",
        b"1.5",
        b"1_0",
        b"0x1",
        b"1 2",
        b"--1",
        b"1\0",
        "٣".encode(),
        b"1" * 65,
        b" " * (1 << 20) + b"1",
    ):
        with pytest.raises(FormatError, match="not an integer"):
            decode(extension, data)


# Arrays


def test_an_array_is_on_the_mapped_file_and_outlives_the_shard(field):
    array = np.arange(1000.0)
    view = field("npy", npy(array))
    found = DECODERS["npy"](view)
    assert np.shares_memory(found, np.frombuffer(view, "u1"))
    assert not found.flags.writeable
    view.release()
    del view
    gc.collect()
    assert mappings_of(field.path) == 1
    assert np.array_equal(found, array)
    del found
    assert mappings_of(field.path) == 0


def test_an_array_on_a_private_mapping_is_writable(field):
    data = npy(np.zeros(3))
    view = field("npy", data, mode="private")
    found = DECODERS["npy"](view)
    found[:] = 1
    assert bytes(view) != data
    with pytest.raises(ValueError, match="read-only"):
        DECODERS["npy"](view.toreadonly())[:] = 2


def test_an_array_on_any_buffer():
    data = np.arange(10, dtype="<i4")
    writable = bytearray(data.tobytes())
    found = array_from_buffer(writable, "<i4", (2, 5))
    found += 1
    assert writable == (data + 1).tobytes()
    with pytest.raises(BufferError):  # the array exports the buffer
        writable.append(0)
    del found
    writable.append(0)
    assert array_from_buffer(data, "<i4").tolist() == data.tolist()
    assert array_from_buffer(memoryview(data.tobytes())[8:16], "<i4").tolist() == [2, 3]
    assert not array_from_buffer(data.tobytes(), "<i4").flags.writeable


def test_an_array_survives_the_release_of_its_source():
    data = bytearray(npy(np.arange(5)))
    view = memoryview(data)
    found = array_from_buffer(view[:])
    view.release()
    assert found.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(BufferError):
        data.clear()


def test_arrays_on_non_contiguous_buffers():
    with pytest.raises(ValueError, match="contiguous"):
        array_from_buffer(memoryview(bytes(20))[::2], "u1")
    with pytest.raises(ValueError, match="contiguous"):
        array_from_buffer(np.zeros((4, 4))[:, 1], "u1")
    with pytest.raises(TypeError):
        array_from_buffer("text")
    view = memoryview(b"abc")
    view.release()
    with pytest.raises(ValueError, match="released"):
        array_from_buffer(view, "u1")
    with pytest.raises(ValueError, match="not a float64"):
        array_from_buffer(b"abc", "f8")
    with pytest.raises(ValueError, match="requires dtype"):
        array_from_buffer(b"abc", shape=3)


ARRAYS = {
    "a": np.arange(5),
    "b/c": np.asfortranarray(np.ones((2, 3), "f4")),
    "text": np.array("csr"),
    "none": np.zeros((0, 2)),
}


@pytest.mark.parametrize("compressed", [False, True])
def test_npz_has_the_arrays_that_numpy_finds(compressed):
    data = npz(compressed, **ARRAYS)
    found = decode("npz", data)
    with np.load(io.BytesIO(data)) as expected:
        assert list(found) == expected.files
        for name in found:
            assert found[name].dtype == expected[name].dtype
            assert np.array_equal(found[name], expected[name])
            assert not found[name].flags.writeable


def test_stored_arrays_of_npz_are_on_the_mapped_file(field):
    view = field("npz", npz(a=np.arange(1000), b=np.ones(10)))
    found = DECODERS["npz"](view)
    whole = np.frombuffer(view, "u1")
    assert all(np.shares_memory(array, whole) for array in found.values())
    del view, whole
    gc.collect()
    assert found["a"].sum() == 499500
    assert mappings_of(field.path) == 1
    del found
    assert mappings_of(field.path) == 0


def make_zip(*members, method=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return bytearray(file.getvalue())


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_invalid_npz_files_are_errors():
    array = npy(np.arange(3))
    objects = io.BytesIO()
    np.savez(objects, a=np.array([{}], dtype=object))
    cases = {
        "objects": objects.getvalue(),
        "magic": make_zip(("a.txt", b"text")),
        "twice": make_zip(("a.npy", array), ("a.npy", array)),
        "twice ": make_zip(("a.npy", array), ("a", array)),
        "compression 12": make_zip(("a.npy", array), method=zipfile.ZIP_BZIP2),
        "checksum": make_zip(("a.npy", array)).replace(b"\2\0\0\0\0", b"\3\0\0\0\0"),
        "zip": array,
    }
    for message, data in cases.items():
        with pytest.raises(FormatError, match=message.strip()):
            decode("npz", data)


def find_directory(data):
    """Return the offset of the first entry of the central directory."""
    return data.index(b"PK\1\2")


def test_a_zip_bomb_is_refused_before_it_is_decompressed():
    text = make_zip(("a.npy", bytes(100_000)), method=zipfile.ZIP_DEFLATED)
    with pytest.raises(FormatError, match="magic"):
        decode("npz", text)
    array = npy(np.zeros(100_000, "u1"))
    zeros = make_zip(("a.npy", array), method=zipfile.ZIP_DEFLATED)
    for size, message in [
        (MAX_ARRAY_BYTES - 1, "cannot have its listed size"),
        (len(array) - 1, "has a wrong size"),
        (len(array) + 1, "has a wrong size"),
        (5, "cut|magic"),
    ]:
        struct.pack_into("<I", zeros, find_directory(zeros) + 24, size)
        with pytest.raises(FormatError, match=message):
            decode("npz", zeros)


PEAK = """
import resource, sys
from fastshard import FormatError
from fastshard.formats.npz import read_npz
import numpy, zipfile, fastshard._core.dataset.npy
data = memoryview(open(sys.argv[1], "rb").read())
limit = int(sys.argv[2])
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
before = peak()
try:
    found = read_npz(data, max_array_bytes=limit)
    print(peak() - before, found["a"].nbytes)
except FormatError as error:
    print(peak() - before, error.reason)
"""


def make_npy_header(nbytes):
    """Return the header of an array of `nbytes` bytes."""
    file = io.BytesIO()
    kind = {"descr": "|u1", "fortran_order": False, "shape": (nbytes,)}
    np.lib.format.write_array_header_1_0(file, kind)
    return file.getvalue()


@not_sanitized
@pytest.mark.parametrize(
    ("told", "stored", "listed", "limit", "answer", "most"),
    [
        (5, 256, None, 4096, "has a wrong size", 20),
        (5, 256, 5, 4096, "has a wrong size", 20),
        (64, 256, 64, 4096, "has a wrong size", 90),
        (256, 64, 256, 4096, "has a wrong size", 90),
        (65, 64, 65, 4096, "has a wrong size", 90),
        (256, 256, None, 200, "max_array_bytes is 209,715,200", 20),
        (256, 256, None, 4096, str(256 << 20), 300),
    ],
)
def test_memory_follows_the_header(tmp_path, told, stored, listed, limit, answer, most):
    """Sizes by header, in the data, in the directory; in MiB, except 5 bytes."""
    path = tmp_path / "a.npz"
    scale = {5: 5}
    head = make_npy_header(scale.get(told, told << 20))
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("a.npy", "w") as member,
    ):
        member.write(head)
        member.write(
            random.Random(1).randbytes(1 << 20)
        )  # more could follow at this ratio
        for _ in range(stored - 1):
            member.write(bytes(1 << 20))
    data = bytearray(path.read_bytes())
    if listed is not None:
        size = len(head) + scale.get(listed, listed << 20)
        struct.pack_into("<I", data, find_directory(data) + 24, size)
    path.write_bytes(data)
    command = [sys.executable, "-c", PEAK, path, str(limit << 20)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    used, _, said = done.stdout.partition(" ")
    assert answer in said
    assert int(used) < most


def test_a_limit_for_npz_is_a_decoder(tmp_path):
    arrays = {"a": np.zeros(100_000, "u1"), "b": np.ones(50_000, "u1")}
    with fastshard.ShardWriter(tmp_path / "s.tar") as writer:
        for key, compressed in (("k", True), ("stored", False)):
            writer.write({"__key__": key, "x.npz": npz(compressed, **arrays)})
    for limit in ("100KB", 150_000):
        own = {"npz": NpzDecoder(max_array_bytes=limit)}
        with fastshard.open(tmp_path, decoders=own) as ds:
            ds = pickle.loads(pickle.dumps(ds))
            for values in (ds["k"].decode, lambda ds=ds: ds.decode("x.npz")[0]):
                with pytest.raises(FormatError, match="max_array_bytes is 1") as caught:
                    values()
                assert caught.value.member == "k.x.npz"
                assert caught.value.path.endswith("s.tar")
            with pytest.raises(FormatError, match="max_array_bytes"):
                next(iter(ds.batches(1)))
            assert ds["stored"].decode()["x.npz"]["b"].sum() == 50_000
    own = {"npz": NpzDecoder(max_array_bytes="1MiB")}
    with fastshard.open(tmp_path, decoders=own) as ds:
        assert ds["k"].decode()["x.npz"]["b"].sum() == 50_000
        assert next(iter(ds.batches(2)))["x.npz"]["a"].shape == (2, 100_000)
    with pytest.raises(ValueError, match="size"):
        NpzDecoder(max_array_bytes="many")


@pytest.mark.filterwarnings("ignore:Stored array in format 2.0")
@pytest.mark.parametrize("fields", [1, 3_000, 6_000])
def test_npz_of_arrays_with_long_headers(fields):
    kind = np.dtype([(f"field-{i:04}", "u1") for i in range(fields)])
    array = np.zeros(3, kind)
    found = decode("npz", npz(True, a=array))["a"]
    assert found.dtype == kind
    assert found.tobytes() == array.tobytes()


def test_overlapping_and_hidden_members_are_refused():
    array = npy(np.zeros(1000))
    data = make_zip(*[(f"{i}.npy", array) for i in range(2)])
    first = find_directory(data)
    grown, hidden = data.copy(), data.copy()
    size = len(array) + 40
    struct.pack_into("<II", grown, first + 20, size, size)
    directory_entry = 46 + len("1.npy")
    struct.pack_into("<H", hidden, first + 32, directory_entry)  # hidden in its comment
    for bad in (grown, hidden):
        with pytest.raises(FormatError, match="overlap, or are missing"):
            decode("npz", bad)


class Pipe(io.BytesIO):
    """A file that cannot seek, for which zipfile writes sizes behind the data."""

    def seekable(self):
        return False

    def seek(self, *args):
        raise io.UnsupportedOperation

    tell = seek


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("zip64", [False, True])
def test_npz_that_were_written_to_a_pipe(method, zip64):
    file = Pipe()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name in ("ä", "b"):
            with archive.open(f"{name}.npy", "w", force_zip64=zip64) as member:
                member.write(npy(np.arange(3)))
    found = decode("npz", file.getvalue())
    assert {name: list(array) for name, array in found.items()} == {
        "ä": [0, 1, 2],
        "b": [0, 1, 2],
    }


def test_an_empty_npz():
    assert decode("npz", npz()) == {}


# Images, msgpack, torch


@pytest.mark.parametrize(
    ("extension", "kind", "mode"),
    [
        ("png", "PNG", "RGB"),
        ("png", "PNG", "L"),
        ("png", "PNG", "P"),
        ("webp", "WEBP", "RGB"),
        ("bmp", "BMP", "RGB"),
        ("gif", "GIF", "P"),
        ("tif", "TIFF", "RGB"),
        ("ppm", "PPM", "RGB"),
        ("jpg", "PNG", "RGB"),  # a wrong extension
    ],
)
def test_images_equal_those_of_pillow(field, extension, kind, mode):
    options = {"lossless": True} if kind == "WEBP" else {}
    data = image(kind, mode, **options)
    from PIL import Image

    found = DECODERS[extension](field(extension, data))
    expected = Image.open(io.BytesIO(data))
    expected.load()
    assert (found.mode, found.size) == (expected.mode, (10, 12))
    assert found.tobytes() == expected.tobytes()
    gc.collect()


def test_jpeg():
    found = decode("jpeg", image("JPEG", quality=95))
    assert (found.mode, found.size) == ("RGB", (10, 12))


def test_pillows_limit_on_pixels_holds(monkeypatch):
    data = image("PNG")
    from PIL import Image

    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 12 * 10 // 2 - 1)
    with pytest.raises(FormatError, match="decompression bomb"):
        decode("png", data)


@pytest.mark.parametrize("data", [b"", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"text" * 100])
def test_bytes_that_are_not_an_image(data):
    needs_module("PIL", "Pillow")
    with pytest.raises(FormatError, match="not an image of a known kind"):
        decode("png", data)


def test_msgpack():
    value = {"a": [1, 2.5, "é", b"\xff", None, True], "b": {}}
    for extension in ("msgpack", "mp", "msg"):
        assert decode(extension, pack(value)) == value
    for data in (
        b"",
        pack(1) * 2,
        pack({1: 2}),
        b"\xa1\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 5000,
        b"\xc1",
    ):
        with pytest.raises(FormatError, match="not msgpack"):
            decode("mp", data)


@pytest.mark.parametrize("extension", ["pth", "pt"])
def test_torch(extension):
    data = save_by_torch()
    found = decode(extension, data)
    assert found["names"] == ["a"]
    assert found["weight"].tolist() == [[0, 1, 2], [3, 4, 5]]


class Runs:
    """An object whose unpickling has a side effect."""

    def __reduce__(self):
        return print, ("unpickled",)


def test_torch_runs_no_pickle(capsys):
    torch = needs_module("torch", "torch")
    file = io.BytesIO()
    torch.save(Runs(), file)
    with pytest.raises(FormatError, match="weights only"):
        decode("pth", file.getvalue())
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("extension", "module", "extra"),
    [("png", "PIL", "images"), ("mp", "msgpack", "msgpack"), ("pth", "torch", "torch")],
)
def test_a_missing_library_is_an_error_that_names_the_extra(
    monkeypatch, extension, module, extra
):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(FastshardError, match=rf"fastshard\[{extra}\]") as caught:
        decode_field(DECODERS[extension], memoryview(b""), "s.tar", 512, "a.x")
    assert not isinstance(caught.value, FormatError)
    assert caught.value.__notes__ == ["decoding member 'a.x' of s.tar"]


# Positions in errors


def test_an_error_names_shard_member_and_byte():
    with pytest.raises(FormatError) as caught:
        decode_field(DECODERS["json"], memoryview(b"[1,"), "s.tar", 1536, "a.json")
    error = caught.value
    assert (error.path, error.offset, error.member) == ("s.tar", 1539, "a.json")
    assert isinstance(error.__cause__, json.JSONDecodeError)
    assert decode_field(DECODERS["json"], memoryview(b"[1]"), "s.tar", 0, "a") == [1]


def test_bad_arrays_name_the_byte_too():
    data = npz(a=np.arange(3))
    at = data.index(b"\x93NUMPY")
    bad = data[: at + 6] + b"\x09" + data[at + 7 :]
    for extension, content, where in [("npy", b"\x93NUMPX", 0), ("npz", bad, at)]:
        with pytest.raises(FormatError) as caught:
            decode_field(DECODERS[extension], memoryview(content), "s.tar", 512, "a.x")
        assert caught.value.path == "s.tar"
        assert caught.value.offset == 512 + where


@pytest.mark.parametrize(
    "error", [KeyError("x"), OSError(5, "x"), FormatError("x", "other", 3)]
)
def test_exceptions_of_a_callers_decoder_get_a_note(error):
    def fails(view):
        raise error

    with pytest.raises(type(error)) as caught:
        decode_field(fails, memoryview(b""), "s.tar", 512, "a.x")
    assert caught.value is error
    assert error.__notes__ == ["decoding member 'a.x' of s.tar"]


# Hostile bytes

GOOD = {
    "npy": lambda: npy(np.arange(6.0).reshape(2, 3)),
    "npz": lambda: npz(a=np.arange(3), b=np.ones((2, 2))),
    "npz compressed": lambda: npz(True, a=np.arange(3), b=np.ones((2, 2))),
    "json": lambda: b'{"a": [1, -2.5e3, "\\u00e9", null], "b": {"c": true}}',
    "txt": lambda: "größe ☃".encode(),
    "cls": lambda: b" -123\n",
    "png": lambda: image("PNG", "RGBA"),
    "jpg": lambda: image("JPEG"),
    "webp": lambda: image("WEBP"),
    "gif": lambda: image("GIF", "P"),
    "bmp": lambda: image("BMP", "L"),
    "tif": lambda: image("TIFF", "L"),
    "ppm": lambda: image("PPM", "L"),
    "mp": lambda: pack({"a": [1, 2.5, "é", b"x" * 40, None], "b": {"c": -1}}),
    "pth": save_by_torch,
    "pth old": lambda: save_by_torch(_use_new_zipfile_serialization=False),
}


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.filterwarnings("ignore")
def test_damage_gives_an_error_or_a_value_and_nothing_else(name):
    good, draw = GOOD[name](), random.Random(1)
    decoder = DECODERS[name.partition(" ")[0]]
    decoder(memoryview(good))
    damaged = [good[:n] for n in range(len(good))]
    for at in range(len(good)):
        flipped = bytearray(good)
        flipped[at] ^= 1 << draw.randrange(8)
        damaged.append(bytes(flipped))
    refused = 0
    for data in damaged:
        try:
            decoder(memoryview(data))
        except FormatError as error:
            refused += 1
            assert 0 <= error.offset <= len(data)
            assert len(str(error)) < 400
    assert refused


@pytest.mark.parametrize("compressed", [False, True])
def test_damaged_npz_gives_no_wrong_numbers(compressed):
    good = npz(compressed, a=np.arange(50), b=np.ones((2, 2)))
    expected = sorted(array.tobytes() for array in decode("npz", good).values())
    for at in range(len(good)):
        flipped = bytearray(good)
        flipped[at] ^= 0x41
        try:
            found = decode("npz", flipped)
        except FormatError:
            continue
        assert sorted(array.tobytes() for array in found.values()) == expected
