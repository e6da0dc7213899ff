"""Calls of readers, row by row of mosaicml-streaming's: arguments and results."""

import copy
import operator
import os
import pickle
import re
import shutil

import numpy as np
import pytest

import fastshard.streaming as streaming
from fastshard import FormatError
from fastshard.streaming import FileInfo, reader_from_json

CLASSES = {
    "mds": "edge/sequence_1000",
    "json": "json/none",
    "csv": "csv/none",
    "tsv": "tsv/none",
    "xsv": "xsv/none",
}
SPLIT_FORMATS = ("json", "csv", "tsv", "xsv")
NAMES = {"mds": "MDS", "json": "JSON", "csv": "CSV", "tsv": "TSV", "xsv": "XSV"}


def class_of(form):
    return getattr(streaming, f"{NAMES[form]}Reader")


def open_first(known):
    return reader_from_json(str(known.root), known.split, known.index["shards"][0])


@pytest.fixture(params=CLASSES)
def form(request):
    return request.param


@pytest.fixture
def known(form, streaming_data):
    return streaming_data[CLASSES[form]]


@pytest.fixture
def reader(known):
    return open_first(known)


@pytest.fixture
def mds(streaming_data):
    """A reader of more samples than other formats' fixtures have."""
    return open_first(streaming_data["edge/sequence_1000"])


def keys(samples):
    return [int(sample["id"]) for sample in samples]


# Construction and attributes


def test_attributes(known, reader, form):
    shard = known.index["shards"][0]
    assert type(reader) is class_of(form)
    assert isinstance(reader, streaming.Reader)
    assert isinstance(
        reader, streaming.JointReader if form == "mds" else streaming.SplitReader
    )
    assert (reader.dirname, reader.split) == (str(known.root), "")
    for name in ("compression", "hashes", "samples", "size_limit"):
        assert getattr(reader, name) == shard[name]
    pairs = [(reader.raw_data, reader.zip_data)]
    if form in SPLIT_FORMATS:
        pairs.insert(0, (reader.raw_meta, reader.zip_meta))
        assert reader.newline == shard["newline"]
    assert reader.file_pairs == pairs
    for name in ("raw_data", "raw_meta"):
        if name in shard:
            info = getattr(reader, name)
            assert (info.basename, info.bytes, info.hashes) == (
                shard[name]["basename"],
                shard[name]["bytes"],
                shard[name]["hashes"],
            )
    if form == "json":
        assert reader.columns == shard["columns"]
    else:
        assert reader.column_names == shard["column_names"]
        assert reader.column_encodings == shard["column_encodings"]
    if form == "mds":
        assert reader.column_sizes == shard["column_sizes"]
    if form in ("csv", "tsv", "xsv"):
        assert reader.separator == {"csv": ",", "tsv": "\t", "xsv": "||"}[form]


def test_attributes_of_a_compressed_shard(streaming_data):
    for name in ("mds/zstd7", "json/zstd7"):
        reader = open_first(streaming_data[name])
        assert reader.compression == "zstd:7"
        assert reader.hashes == ["sha1", "xxh64"]
        for raw, packed in reader.file_pairs:
            assert packed.basename == f"{raw.basename}.zstd"


ORDER = {  # of positional arguments
    "mds": "column_encodings column_names column_sizes compression hashes raw_data "
    "samples size_limit zip_data",
    "json": "columns compression hashes newline raw_data raw_meta samples size_limit "
    "zip_data zip_meta",
    "xsv": "column_encodings column_names compression hashes newline raw_data raw_meta "
    "samples separator size_limit zip_data zip_meta",
    "csv": "column_encodings column_names compression hashes newline raw_data raw_meta "
    "samples size_limit zip_data zip_meta",
}
ORDER["tsv"] = ORDER["csv"]


def test_positional_arguments(known, reader, form):
    values = [getattr(reader, name) for name in ORDER[form].split()]
    again = class_of(form)(str(known.root), None, *values)
    assert again.split == ""
    assert list(again) == list(reader)


class Words(streaming.Reader):
    """A format of one's own, of two methods."""

    words = (b"a", b"b", b"c")

    def decode_sample(self, data):
        return {"word": data.decode()}

    def get_sample_data(self, idx):
        return self.words[idx]


@pytest.mark.parametrize(
    ("given", "kept"),
    [("1kb", 1024), ("100kb", 102400), ("1mb", 1 << 20), (None, None), (0, 0), (7, 7)],
)
def test_size_limit(given, kept):
    assert Words("data", "train", None, [], 3, given).size_limit == kept


def test_an_empty_size_limit_is_kept():
    assert not Words("data", None, None, [], 3, "").size_limit


@pytest.mark.parametrize("given", [-1, "-1kb", "1 cake", "kb"])
def test_a_size_limit_of_none(given):
    with pytest.raises(ValueError, match=r".+"):
        Words("data", None, None, [], 3, given)


def test_arguments_that_are_kept_unread():
    reader = Words("data", "val/nested", "no such", ["no such"], 3, None)
    assert (reader.compression, reader.hashes) == ("no such", ["no such"])
    assert (reader.dirname, reader.split) == ("data", "val/nested")
    assert Words("data", None, None, [], 3, None).split == ""


def test_a_reader_of_ones_own():
    reader = Words("data", None, None, [], 3, None)
    assert len(reader) == reader.size == 3
    assert [sample["word"] for sample in reader] == ["a", "b", "c"]
    assert reader[-1] == reader.get_item(2) == {"word": "c"}
    assert reader[::-1] == [{"word": "c"}, {"word": "b"}, {"word": "a"}]
    assert reader[[0, [1]]] == [{"word": "a"}, [{"word": "b"}]]
    assert (reader.file_pairs, reader.get_raw_size(), reader.evict()) == ([], 0, 0)
    for position in (3, -4):
        with pytest.raises(IndexError):
            reader[position]


def test_a_reader_lacks_its_methods():
    class Half(streaming.Reader):
        def decode_sample(self, data):
            return {}

    for cls in (streaming.Reader, Half):
        with pytest.raises(TypeError, match="abstract"):
            cls("data", None, None, [], 3, None)


# from_json, reader_from_json


def test_from_json_leaves_its_argument(known, form):
    shard = known.index["shards"][0]
    before = copy.deepcopy(shard)
    reader = class_of(form).from_json(str(known.root), None, shard)
    assert shard == before
    assert len(list(reader)) == shard["samples"]


def change(shard, **values):
    return {**shard, **values}


def test_from_json_of_another_version_or_format(known, form):
    shard = known.index["shards"][0]
    root, cls = str(known.root), class_of(form)
    with pytest.raises(ValueError, match="version"):
        cls.from_json(root, None, change(shard, version=3))
    with pytest.raises(ValueError, match="format"):
        cls.from_json(root, None, change(shard, format="other"))
    with pytest.raises(FormatError, match="version"):
        reader_from_json(root, None, change(shard, version=1))
    with pytest.raises(FormatError, match="format"):
        reader_from_json(root, None, change(shard, format="other"))


def test_from_json_lacks_a_key(known, form):
    shard = known.index["shards"][0]
    for name in shard.keys() - {"zip_data", "zip_meta"}:  # raw files do without
        less = {key: value for key, value in shard.items() if key != name}
        with pytest.raises(FormatError, match=name) as caught:
            class_of(form).from_json(str(known.root), None, less)
        assert caught.value.path == os.path.join(known.root, "index.json")


def test_from_json_passes_over_keys_that_it_does_not_know(known, form):
    shard = known.index["shards"][0]
    more = change(
        shard, more=[float("nan"), {1}], raw_data=shard["raw_data"] | {"x": 1}
    )
    read = class_of(form).from_json

    found = read(str(known.root), None, more)

    assert vars(found) == vars(read(str(known.root), None, shard))


def test_a_csv_index_with_a_separator_is_read(streaming_data):
    known = streaming_data["csv/none"]
    shard = change(known.index["shards"][0], separator=",")
    assert len(list(reader_from_json(str(known.root), None, shard))) == shard["samples"]


# validate


def test_validate(streaming_data, reader):
    assert reader.validate(False) is None
    unsafe = open_first(streaming_data["edge/pkl"])
    with pytest.raises(ValueError, match="Column p contains an unsafe type: pkl"):
        unsafe.validate(False)
    assert unsafe.validate(True) is None


def test_pickles_are_read_only_if_allowed(streaming_data):
    known = streaming_data["edge/pkl"]
    with pytest.raises(ValueError, match="allow_unsafe_types"):
        open_first(known)[0]
    unsafe = open_first(known)
    unsafe.validate(True)
    assert unsafe[1] == {"p": "two"}


# Positions


@pytest.mark.parametrize(
    "position",
    [3, np.int64(3), np.uint8(3), True, -5, np.int32(-5), -(2**0)],
)
def test_one_position(mds, position):
    assert type(mds[position]) is dict
    assert keys([mds[position]]) == [range(len(mds))[position]]


@pytest.mark.parametrize(
    "at",
    [
        *(slice(2, 5), slice(None), slice(5, 1, -2), slice(-27, -99, -5)),
        *(slice(None, None, -1), slice(3, None, -1), slice(10**30), slice(5, 2)),
        *([1, 2], [], [[0], [2, 1]], [slice(2)], [np.int8(-1)]),
        *(np.array([3, -1, 0]), np.array([[1, 2], [3, 4]]), np.array([], int)),
    ],
    ids=repr,
)
def test_several_positions(mds, at):
    def numbers(at):
        if isinstance(at, slice):
            return list(range(len(mds))[at])
        if isinstance(at, (list, np.ndarray)):
            return [numbers(each) for each in at]
        return range(len(mds))[operator.index(at)]

    def read(found):
        if isinstance(found, dict):
            return int(found["id"])
        assert type(found) is list
        return [read(each) for each in found]

    assert read(mds[at]) == numbers(at)


@pytest.mark.parametrize("at", [1.0, "1", (1,), range(2), None, b"1"], ids=repr)
def test_non_positions(reader, at):
    message = re.escape("Unsupported argument type passed to __getitem__")
    with pytest.raises(ValueError, match=message):
        reader[at]


def test_a_step_of_zero(reader):
    with pytest.raises(ValueError, match="zero"):
        reader[::0]


def test_an_array_without_dimensions(reader):
    with pytest.raises(TypeError):
        reader[np.array(0)]


def test_positions_out_of_range(reader):
    n = len(reader)
    for position in (n, n + 1, n + 10**6, 10**30, -n - 1, -(10**30), np.int64(n)):
        with pytest.raises(IndexError):
            reader[position]
        with pytest.raises(IndexError):
            reader[[0, position]]
    for position in (-1, n, 10**30, -n):
        with pytest.raises(IndexError):
            reader.get_item(position)
        with pytest.raises(IndexError):
            reader.get_sample_data(position)


# Samples


def test_bytes_of_samples(reader):
    for i in range(len(reader)):
        data = reader.get_sample_data(i)
        assert type(data) is bytes
        for buffer in (data, bytearray(data), memoryview(data)):
            decoded = reader.decode_sample(buffer)
            assert repr(decoded) == repr(reader[i]) == repr(reader.get_item(i))


def test_columns_are_in_their_order(reader, form):
    names = sorted(reader.columns if form == "json" else reader.column_names)
    assert all(list(sample) == names for sample in reader)


def test_iteration(reader):
    iterator = iter(reader)
    assert iter(iterator) is iterator
    assert repr(list(iterator)) == repr([reader[i] for i in range(reader.size)])
    assert repr(list(reader)) == repr(reader[:])  # again, from the start


def test_pickled_and_copied(reader):
    whole = repr(list(reader))
    for again in (
        pickle.loads(pickle.dumps(reader)),
        copy.deepcopy(reader),
        copy.copy(reader),
    ):
        assert type(again) is type(reader)
        assert again.file_pairs == reader.file_pairs
        assert repr(list(again)) == whole
    assert len(pickle.dumps(reader)) < 4000  # the file is not in it


# Files


def test_files_that_are_missing(copy_streaming, form):
    known = copy_streaming(CLASSES[form])
    for name in {"raw_data", "raw_meta"} & set(known.index["shards"][0]):
        reader = open_first(known)
        path = known.root / getattr(reader, name).basename
        kept = path.read_bytes()
        path.unlink()
        with pytest.raises(FileNotFoundError):
            reader.get_sample_data(0)
        with pytest.raises(FileNotFoundError):
            reader[0]
        path.write_bytes(kept)
        assert reader[0]


def test_compressed_files_alone_are_read(copy_streaming):
    known = copy_streaming("json/zstd")
    reader = open_first(known)
    assert reader[0]
    for path in known.root.glob("*.zstd"):
        path.unlink()
    assert open_first(known)[0] == reader[0]  # the raw files are there now
    for path in known.root.glob("shard*"):
        path.unlink()
    with pytest.raises(FileNotFoundError):
        open_first(known).get_sample_data(0)


def test_sizes(streaming_data):
    for name in ("mds/none", "mds/zstd", "csv/none", "csv/zstd"):
        known = streaming_data[name]
        reader, shard = open_first(known), known.shards[0]
        raw, packed = reader.get_raw_size(), reader.get_zip_size()
        assert (raw, packed) == (shard["raw_size"], shard["zip_size"])
        assert reader.get_max_size() == raw + (packed or 0)
        assert reader.get_persistent_size(False) == raw
        keep = raw + packed if packed else raw
        assert reader.get_persistent_size(True) == keep


def test_evict(copy_streaming):
    for name in ("mds/none", "csv/none"):
        known = copy_streaming(name)
        reader = open_first(known)
        reader[0]
        assert reader.evict() == reader.get_raw_size()
        assert reader.evict() == 0
        for raw, _ in reader.file_pairs:
            assert not (known.root / raw.basename).exists()
        with pytest.raises(FileNotFoundError):
            open_first(known).get_sample_data(0)


def test_evict_counts_files(copy_streaming):
    known = copy_streaming("csv/none")
    reader = open_first(known)
    (known.root / reader.raw_meta.basename).unlink()
    assert reader.evict() == reader.raw_data.bytes
    known = copy_streaming("edge/zip_and_raw")
    reader = open_first(known)
    assert reader.evict() == reader.get_max_size()


def test_the_only_copy_is_evicted_by_force_alone(copy_streaming):
    known = copy_streaming("edge/raw_only")
    reader = open_first(known)
    assert reader.evict() == 0
    assert reader[0]["sample"] == 0
    assert reader.evict(force=True) == reader.get_raw_size()


@pytest.mark.parametrize("name", ["../outside", "/{}/outside", "a/../../outside"])
def test_no_file_outside_is_evicted(copy_streaming, name):
    known = copy_streaming("edge/one_sample")
    outside = known.root.parent / "outside"
    shutil.copy(known.root / "shard.00000.mds", outside)
    shard = known.index["shards"][0]
    shard["raw_data"]["basename"] = name.format(outside.parent)
    with pytest.raises(ValueError, match="outside"):  # a FormatError
        reader_from_json(str(known.root), None, shard).evict()
    assert outside.exists()


def listing_of(root):
    return {
        os.path.join(folder, name) for folder, _, of in os.walk(root) for name in of
    }


STATES = {  # raw, zip, keep_zip: raw and zip afterwards
    ("", "", True): "",
    ("", "zip", True): "zip",
    ("raw", "", True): "raw",
    ("raw", "zip", True): "raw zip",
    ("", "", False): "",
    ("", "zip", False): "zip",
    ("raw", "", False): "raw",
    ("raw", "zip", False): "raw",
    ("part", "zip", True): "zip",
    ("raw", "part", True): "raw",
    ("part", "", False): "part",
    ("part", "part", False): "part part",
}


@pytest.mark.parametrize("state", STATES, ids=str)
def test_states_of_local_files(copy_streaming, state):
    raw, packed, keep = state
    known = copy_streaming("csv/zstd")
    reader = open_first(known)
    reader[0]  # the raw files are there
    for kind, number in ((raw, 0), (packed, 1)):
        for pair in reader.file_pairs[{"": 0, "part": 1}.get(kind, 2) :]:
            (known.root / pair[number].basename).unlink()
        if kind == "":
            for pair in reader.file_pairs:
                (known.root / pair[number].basename).unlink(missing_ok=True)
    reader = open_first(known)
    size = reader.set_up_local(listing_of(known.root), keep)
    after = [
        [(known.root / pair[number].basename).exists() for pair in reader.file_pairs]
        for number in (0, 1)
    ]
    left, total = [], 0
    for name, there, nbytes in (
        ("raw", after[0], reader.get_raw_size()),
        ("zip", after[1], reader.get_zip_size()),
    ):
        if all(there):
            left.append(name)
            total += nbytes
        elif any(there):
            left.append("part")
    assert " ".join(left) == STATES[state]
    assert size == total


def test_local_files_without_compression(copy_streaming):
    known = copy_streaming("mds/none")
    reader = open_first(known)
    for keep in (True, False):
        assert reader.set_up_local(listing_of(known.root), keep) == (
            reader.get_raw_size()
        )
    assert reader.set_up_local(set(), True) == 0
    shard = known.index["shards"][0]
    shard["zip_data"] = {"basename": "index.json", "bytes": 1, "hashes": {}}
    with pytest.raises(ValueError, match=r"compress"):
        reader_from_json(str(known.root), None, shard).set_up_local(
            listing_of(known.root), True
        )


def test_file_info():
    info = FileInfo("a.mds", 3, {"sha1": "x"})
    assert (info.basename, info.bytes, info.hashes) == ("a.mds", 3, {"sha1": "x"})
    assert FileInfo(basename="a.mds", bytes=3, hashes={"sha1": "x"}) == info
