"""Values of an index, of configs and of fields that cannot be."""

import errno
import inspect
import io
import json
import os
import struct

import pytest

import fastshard
from fastshard.errors import FormatError
from fastshard.streaming import (
    JSONReader,
    JSONWriter,
    MDSReader,
    MDSWriter,
    XSVReader,
    XSVWriter,
    reader_from_json,
)

WRITERS = {
    "mds": (MDSWriter, {}),
    "json": (JSONWriter, {}),
    "xsv": (XSVWriter, {"separator": "|"}),
}
READERS = {"mds": MDSReader, "json": JSONReader, "xsv": XSVReader}


def make(root, form, columns=("a", "b"), rows=3):
    """Write a dataset of numbers; return the first shard's object."""
    writer, options = WRITERS[form]
    with writer(out=str(root), columns=dict.fromkeys(columns, "int"), **options) as to:
        for i in range(rows):
            to.write(dict.fromkeys(columns, i))
    return read_index(root)["shards"][0]


def read_index(root):
    return json.loads((root / "index.json").read_text())


def change(root, **values):
    """Change keys of the first shard in the index."""
    index = read_index(root)
    index["shards"][0].update(values)
    (root / "index.json").write_text(json.dumps(index))
    return index["shards"][0]


def file(**values):
    return {"basename": "a", "bytes": 1, "hashes": {}} | values


WRONG = [
    ("mds", "column_sizes", [8]),
    ("mds", "column_sizes", [8, -1]),
    ("mds", "column_sizes", None),
    ("mds", "column_encodings", ["int"]),
    ("mds", "column_names", ["a", "a"]),
    ("mds", "column_names", [["a"], {}]),
    ("mds", "raw_data", None),
    ("mds", "raw_data", {}),
    ("mds", "raw_data", {"basename": "a"}),
    ("mds", "raw_data", file(bytes=-1)),
    ("mds", "raw_data", file(bytes=1 << 64)),
    ("mds", "raw_data", file(bytes="1")),
    ("mds", "raw_data", file(basename=None)),
    ("mds", "raw_data", file(hashes=[1])),
    ("mds", "zip_data", []),
    ("mds", "samples", -1),
    ("mds", "samples", 1.5),
    ("mds", "samples", {1, 2}),
    ("mds", "compression", 7),
    ("mds", "size_limit", "1xb"),
    ("mds", "size_limit", -1),
    ("mds", "hashes", [1]),
    ("mds", "format", ["mds"]),
    ("json", "columns", {"a": 1}),
    ("json", "columns", ["a"]),
    ("json", "raw_meta", None),
    ("xsv", "column_names", [{}, "b"]),
    ("xsv", "column_names", ["a", "\ud800"]),
    ("xsv", "column_encodings", ["int", 5]),
    ("xsv", "newline", ""),
    ("xsv", "newline", "\ud800"),
    ("xsv", "separator", None),
    ("xsv", "separator", "\udc80"),
]


@pytest.mark.parametrize(("form", "key", "value"), WRONG)
def test_readers_refuse_wrong_values(form, key, value, tmp_path):
    shard = make(tmp_path, form) | {key: value}
    for read in (reader_from_json, READERS[form].from_json):
        with pytest.raises(FormatError, match=key) as caught:
            read(str(tmp_path), None, shard)
        assert caught.value.path == str(tmp_path / "index.json")


@pytest.mark.parametrize("shard", [None, [], "mds", {}, {"version": 2}, {1: 2}])
def test_readers_refuse_objects_that_are_not_shards(shard, tmp_path):
    for read in (reader_from_json, MDSReader.from_json):
        with pytest.raises(FormatError, match="shard") as caught:
            read(str(tmp_path), "train", shard)
        assert caught.value.path == str(tmp_path / "train" / "index.json")


@pytest.mark.parametrize("form", ["mds", "json"])
def test_readers_without_a_raw_file_are_refused(form, tmp_path):
    reader = reader_from_json(str(tmp_path), None, make(tmp_path, form))
    names = [name for name in ("raw_data", "raw_meta") if hasattr(reader, name)]
    given = {
        name: getattr(reader, name)
        for name in inspect.signature(type(reader)).parameters
        if name != "options"
    }
    for name in names:
        with pytest.raises(FormatError, match=f"'{name}' to be a file, got null"):
            type(reader)(**(given | {name: None}))


@pytest.mark.parametrize("read", ["open", "reader"])
def test_an_unknown_compression_names_the_compressed_file(read, tmp_path):
    shard = make(tmp_path, "mds", ["a"])
    packed = tmp_path / "shard.00000.mds.lzma"
    (tmp_path / "shard.00000.mds").rename(packed)
    zip_data = shard["raw_data"] | {"basename": packed.name}
    shard = change(tmp_path, compression="lzma:9", zip_data=zip_data)

    samples = (
        fastshard.open(tmp_path)
        if read == "open"
        else reader_from_json(str(tmp_path), None, shard)
    )
    with pytest.raises(FormatError, match="'lzma:9' is not a supported") as caught:
        samples[0]["a"]

    assert caught.value.path == str(packed)


@pytest.mark.parametrize("key", ["newline", "separator"])
def test_separators_that_are_not_text_are_refused(key, tmp_path):
    make(tmp_path, "xsv")
    change(tmp_path, **{key: "\udc80"})
    with pytest.raises(FormatError, match=f"'{key}'"):
        fastshard.open(tmp_path)


def test_columns_of_size_0_are_variable_in_the_index_and_in_the_shard(tmp_path):
    make(tmp_path, "mds", ["a"])
    config = json.dumps({"column_sizes": [0]}).encode()
    first = 12 + len(config)
    data = struct.pack("<3I", 1, first, first + 6) + config + b"\2\0\0\0ab"
    (tmp_path / "shard.00000.mds").write_bytes(data)
    info = {"basename": "shard.00000.mds", "bytes": len(data), "hashes": {}}
    shard = change(
        tmp_path, column_encodings=["str"], column_sizes=[0], samples=1, raw_data=info
    )
    assert reader_from_json(str(tmp_path), None, shard)[0] == {"a": "ab"}
    with fastshard.open(tmp_path) as ds:
        assert ds[0].decode("a")["a"] == "ab"


def test_other_sizes_of_columns_are_a_disagreement(tmp_path):
    make(tmp_path, "mds", ["a"])
    shard = change(tmp_path, column_sizes=[None])
    with pytest.raises(FormatError, match="column_sizes disagree"):
        reader_from_json(str(tmp_path), None, shard)[0]


def peak_of(read):
    """Return the most bytes that Python objects take during a call."""
    import tracemalloc

    read()  # imports
    tracemalloc.start()
    try:
        read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.skipif(os.name == "nt", reason="needs sparse files")
def test_a_long_config_is_not_read(tmp_path):
    nbytes = 64 << 20
    make(tmp_path, "mds", ["a"])
    with open(tmp_path / "shard.00000.mds", "wb") as to:
        to.write(struct.pack("<3I", 1, nbytes - 8, nbytes))
        to.truncate(nbytes)
    info = {"basename": "shard.00000.mds", "bytes": nbytes, "hashes": {}}
    shard = change(tmp_path, samples=1, raw_data=info)

    def read():
        return reader_from_json(str(tmp_path), None, shard)[0]

    assert read() == {"a": 0}
    assert peak_of(read) < 8 << 20


@pytest.mark.skipif(os.name == "nt", reason="needs sparse files")
def test_a_long_meta_file_is_not_read(tmp_path):
    shard = make(tmp_path, "json", ["a"])
    nbytes = 64 << 20
    os.truncate(tmp_path / shard["raw_meta"]["basename"], nbytes)
    change(tmp_path, raw_meta=shard["raw_meta"] | {"bytes": nbytes})

    def read():
        with fastshard.open(tmp_path) as ds:
            return ds[2].decode("a")["a"]

    assert read() == 2
    assert peak_of(read) < 8 << 20


def test_too_many_samples_are_named(tmp_path):
    make(tmp_path, "mds")
    change(tmp_path, samples=1 << 32)
    with pytest.raises(FormatError, match="more than 4,294,967,294 samples"):
        fastshard.open(tmp_path)


@pytest.mark.skipif(os.name != "posix", reason="needs names of any bytes")
def test_datasets_of_files_with_names_of_any_bytes_have_states(tmp_path):
    make(tmp_path, "mds", ["a"])
    name = os.fsdecode(b"x\x80.mds")
    try:
        os.rename(tmp_path / "shard.00000.mds", tmp_path / name)
    except OSError:
        pytest.skip("the file system has no such names")
    info = read_index(tmp_path)["shards"][0]["raw_data"] | {"basename": name}
    change(tmp_path, raw_data=info)
    with fastshard.open(tmp_path) as ds:
        assert [sample.decode("a")["a"] for sample in ds] == [0, 1, 2]
        assert ds.state_dict()


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
    def fail(fd):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=r"No space.*shard\.00000\.mds") as caught:
        make(tmp_path, "mds")
    assert caught.value.filename == str(tmp_path / "shard.00000.mds")


@pytest.mark.parametrize("limit", [float("inf"), "infkb"])
def test_limits_of_shards_are_finite(limit, tmp_path):
    shard = make(tmp_path, "mds")
    with pytest.raises(ValueError, match="size"):
        reader_from_json(str(tmp_path), None, shard | {"size_limit": limit})


def test_an_index_cut_in_its_first_shard_is_a_damaged_one(tmp_path):
    make(tmp_path, "mds")
    text = (tmp_path / "index.json").read_bytes()
    for size in range(text.index(b"[") + 1, len(text)):
        (tmp_path / "index.json").write_bytes(text[:size])
        with pytest.raises(FormatError) as caught:
            fastshard.open(tmp_path)
        assert caught.value.path == str(tmp_path / "index.json")
        assert caught.value.offset <= size


@pytest.fixture
def images(tmp_path):
    """Three images, the last of which lacks its end."""
    numpy, image = pytest.importorskip("numpy"), pytest.importorskip("PIL.Image")
    stream = io.BytesIO()
    noise = numpy.random.default_rng(0).integers(0, 255, (40, 40, 3), "u1")
    image.fromarray(noise).save(stream, "PNG")
    whole = stream.getvalue()
    with MDSWriter(out=str(tmp_path), columns={"p": "png"}) as writer:
        for data in (whole, whole, whole[:1000]):
            writer.write({"p": data})
    with fastshard.open(tmp_path) as ds:
        yield ds


def test_damaged_pixels_name_path_and_sample(images):
    for read in (
        lambda: fastshard.collate(list(images)),
        lambda: list(images.batches(3)),
        lambda: images.columns([1, 2], "p"),
    ):
        with pytest.raises(FormatError, match="cannot be decoded") as caught:
            read()
        assert caught.value.member == "sample 2, column 'p'"
        assert caught.value.path.endswith("shard.00000.mds")
    assert fastshard.collate(list(images[:2]))["p"].shape == (2, 40, 40, 3)


def test_damaged_pixels_of_decoded_samples_name_the_sample(images):
    with pytest.raises(OSError, match="truncated") as caught:
        fastshard.collate([sample.decode() for sample in images])
    assert "sample '2'" in caught.value.__notes__
    assert "field 'p'" in caught.value.__notes__
