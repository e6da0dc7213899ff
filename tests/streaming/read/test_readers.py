"""Readers of shards that mosaicml-streaming wrote: each call of its Reader."""

import copy
import json
import os
import pickle
import threading
import time

import numpy as np
import pytest

from fastshard import FormatError
from fastshard.streaming import (
    CSVReader,
    FileInfo,
    JointReader,
    JSONReader,
    MDSReader,
    SplitReader,
    TSVReader,
    XSVReader,
    reader_from_json,
)
from support.inside.streaming import release
from support.streaming import expected
from support.streaming.expected import described

SEQUENCE = "edge/sequence_1000"
UNCOMPRESSED = [
    name
    for name in expected.names()
    if name.rpartition("/")[2] not in expected.COMPRESSIONS or name.endswith("/none")
]


def readers_of(dataset, **options):
    """Return a reader for each shard of a dataset."""
    root = str(dataset.root)
    return [
        reader_from_json(root, dataset.split, shard, **options)
        for shard in dataset.index["shards"]
    ]


def has_raw_files(dataset):
    return all(
        os.path.exists(os.path.join(reader.dirname, reader.split, raw.basename))
        for reader in readers_of(dataset)
        for raw, _ in reader.file_pairs
    )


@pytest.fixture
def reader(copy_streaming):
    """The first of several shards: 177 samples, {'id': '000001', 'sample': 3} ..."""
    return readers_of(copy_streaming(SEQUENCE))[0]


@pytest.mark.parametrize("name", UNCOMPRESSED)
def test_samples_are_those_that_were_written(name, streaming_data):
    dataset = streaming_data[name]
    readers = readers_of(dataset, allow_unsafe_types=True)
    views = readers_of(dataset, allow_unsafe_types=True, copy=False)
    assert [len(each) for each in readers] == [s["len"] for s in dataset.shards]
    for known in dataset.samples:
        for found in (readers[known["shard"]], views[known["shard"]]):
            sample = found[known["index"]]
            assert list(sample) == known["keys"]
            for field, value in known["fields"].items():
                digest = (value["type"], value["sha256"])
                assert described(sample[field]) == digest, field
        data = readers[known["shard"]].get_sample_data(known["index"])
        assert len(data) == known["data_len"]
        again = readers[known["shard"]].decode_sample(memoryview(data))
        assert list(again) == known["keys"]


@pytest.mark.parametrize(
    ("name", "kind", "base"),
    [
        ("edge/raw_only", MDSReader, JointReader),
        ("json/none", JSONReader, SplitReader),
        ("csv/none", CSVReader, XSVReader),
        ("tsv/none", TSVReader, XSVReader),
        ("xsv/none", XSVReader, SplitReader),
    ],
)
def test_attributes_are_those_of_the_index(name, kind, base, streaming_data):
    dataset = streaming_data[name]
    shard = dataset.index["shards"][0]
    found = readers_of(dataset)[0]

    assert type(found) is kind
    assert isinstance(found, base)
    assert (found.dirname, found.split) == (str(dataset.root), "")
    assert found.size == len(found) == found.samples == shard["samples"]
    for key in shard.keys() - {"version", "format"}:
        value = getattr(found, key)
        assert (value.to_json() if hasattr(value, "to_json") else value) == shard[key]
    pairs = [(found.raw_data, found.zip_data)]
    if isinstance(found, SplitReader):
        pairs.insert(0, (found.raw_meta, found.zip_meta))
    assert found.file_pairs == pairs


def numbers(samples):
    if isinstance(samples, list):
        return [numbers(each) for each in samples]
    return int(samples["id"])


@pytest.mark.parametrize(
    ("at", "found"),
    [
        (7, 7),
        (-1, -1),
        (np.int64(5), 5),
        (np.uint8(5), 5),
        (np.int64(-2), -2),
        (True, 1),
        (slice(3), [0, 1, 2]),
        (slice(5, 1, -2), [5, 3]),
        (slice(None, None, -100), [-1, -101]),
        (slice(-3, None), [-3, -2, -1]),
        (slice(9, 3), []),
        ([1, -1, np.int32(2)], [1, -1, 2]),
        ([[1, 2], [[3]], []], [[1, 2], [[3]], []]),
        (np.array([4, 5]), [4, 5]),
        (np.array([[4], [5]]), [[4], [5]]),
        ([slice(2), 3], [[0, 1], 3]),
    ],
    ids=str,
)
def test_positions_of_every_kind(at, found, reader):
    def place(value):
        if isinstance(value, list):
            return [place(each) for each in value]
        return value if value >= 0 else len(reader) + value

    assert numbers(reader[at]) == place(found)


def test_reversed_slices_have_all_samples(reader):
    assert numbers(reader[::-1]) == [*range(len(reader))][::-1]
    assert numbers(list(reader)) == [*range(len(reader))]
    assert numbers(reader.__getitems__([3, -1])) == [3, len(reader) - 1]


@pytest.mark.parametrize("at", [1.0, "1", (1, 2), range(3), None, b"1", {1}])
def test_other_positions_are_refused(at, reader):
    with pytest.raises(ValueError, match="Unsupported argument type passed to __get"):
        reader[at]


def test_an_array_without_dimensions_is_refused(reader):
    with pytest.raises(TypeError):
        reader[np.array(1)]
    with pytest.raises(ValueError, match="step"):
        reader[::0]


@pytest.mark.parametrize("at", [0, 10**6, 10**30, -(10**30), np.int64(10**6)])
def test_positions_outside_are_index_errors(at, reader):
    outside = at + len(reader) if at >= 0 else at
    for fresh in (reader, copy.copy(reader)):
        with pytest.raises(IndexError, match=f"sample {outside} is out of range"):
            fresh[outside]
        with pytest.raises(IndexError, match="out of range"):
            fresh[-len(reader) - 1]
        fresh[0]


def test_get_item_takes_no_negative_position(reader):
    assert numbers(reader.get_item(3)) == 3
    for call in (reader.get_item, reader.get_sample_data):
        for at in (-1, len(reader)):
            with pytest.raises(IndexError, match="out of range"):
                call(at)


def test_only_the_fields_asked_for_are_decoded(streaming_data):
    dataset = streaming_data["mds/none"]
    names = dataset.index["shards"][0]["column_names"]
    chosen = [names[3], names[0]]
    one, *_ = readers_of(dataset, fields=chosen)
    whole, *_ = readers_of(dataset, allow_unsafe_types=True)

    assert set(one[0]) == set(one.get_item(0)) == set(chosen)
    assert list(one.get_item(0, fields=[names[1]])) == [names[1]]
    assert list(whole.get_item(0, fields=names[2])) == [names[2]]
    assert set(one.read_columns([0, 1])) == set(chosen)
    with pytest.raises(KeyError, match="no column 'nothing'"):
        whole.get_item(0, fields=["nothing"])
    with pytest.raises(KeyError, match="no column 'nothing'"):
        readers_of(dataset, fields=["nothing"])[0][0]


@pytest.mark.parametrize("name", ["mds/none", "json/none", "csv/none"])
def test_columns_are_those_of_the_samples(name, streaming_data):
    for found in readers_of(streaming_data[name], allow_unsafe_types=True):
        positions = [0, -1, 0]
        columns = found.read_columns(positions)
        samples = [found[i] for i in positions]

        assert list(columns) == list(samples[0])
        for field, values in columns.items():
            assert len(values) == len(positions)
            for value, sample in zip(values, samples, strict=True):
                if isinstance(values, list):
                    assert described(value) == described(sample[field])
                else:
                    assert values.flags.writeable
                    assert np.array_equal(value, sample[field], equal_nan=True)
        assert all(len(values) == 0 for values in found.read_columns([]).values())


def test_positions_of_columns_are_checked(reader):
    assert reader.read_columns(np.array([3], "u1"))["sample"].tolist() == [9]
    for positions in ([len(reader)], [-len(reader) - 1], [0, 2**40]):
        with pytest.raises(IndexError, match="out of range"):
            reader.read_columns(positions)
    with pytest.raises(TypeError, match="must be integers"):
        reader.read_columns([0.5])
    with pytest.raises(ValueError, match="one dimension"):
        reader.read_columns([[0]])


def test_views_lie_on_the_mapped_file(copy_streaming):
    dataset = copy_streaming("mds/none")
    found = readers_of(dataset, copy=False, allow_unsafe_types=True)[0]
    kept = found[0]
    views = [value for value in kept.values() if isinstance(value, memoryview)]
    arrays = [value for value in kept.values() if isinstance(value, np.ndarray)]
    before = [described(value) for value in (*views, *arrays)]

    found.evict()
    del found

    assert len(views) > 0
    assert len(arrays) > 0
    assert all(view.readonly for view in views)
    assert not any(array.flags.writeable for array in arrays)
    assert [described(value) for value in (*views, *arrays)] == before


@pytest.mark.parametrize("name", ["mds/none", "json/none", "xsv/none"])
@pytest.mark.parametrize(
    "again", [copy.deepcopy, copy.copy, lambda r: pickle.loads(pickle.dumps(r))]
)
def test_a_copy_reads_the_same(name, again, streaming_data):
    found = readers_of(streaming_data[name], fields=None, allow_unsafe_types=True)[0]
    sample = {key: described(value) for key, value in found[0].items()}

    other = again(found)

    assert vars(other) == vars(found)
    assert len(pickle.dumps(found)) < 5000
    assert {key: described(value) for key, value in other[0].items()} == sample


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_reads_shards_of_its_parent(reader):
    reader[0]
    child = os.fork()
    if child == 0:
        os._exit(0 if numbers(reader[7]) == 7 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_threads_share_a_reader(reader):
    wrong = []

    def read():
        for i in [*range(len(reader))] * 5:
            if numbers(reader[i]) != i:
                wrong.append(i)
            if i % 50 == 0:
                release(reader)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def wait_for_check():
    """Wait until a reader looks at its file again."""
    time.sleep(0.03)


def path_of(reader):
    return os.path.join(reader.dirname, reader.split, reader.raw_data.basename)


def test_a_missing_file_is_not_found(reader):
    reader[0]
    os.remove(path_of(reader))
    wait_for_check()

    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            reader[0]
    with pytest.raises(FileNotFoundError):
        reader.get_sample_data(0)


def test_a_replaced_file_is_opened_again(reader):
    reader[0]
    path = path_of(reader)
    with open(path, "rb") as file:
        data = bytearray(file.read())
    data[-4:] = (9999).to_bytes(4, "little")
    with open(f"{path}.new", "wb") as file:
        file.write(data)
    os.replace(f"{path}.new", path)
    wait_for_check()

    assert reader[-1]["sample"] != 3 * (len(reader) - 1)


def test_a_file_that_was_truncated_is_refused(reader):
    reader[0]
    os.truncate(path_of(reader), 4000)
    reader_again = copy.copy(reader)
    wait_for_check()

    with pytest.raises(FormatError, match="truncated"):
        reader[0]
    with pytest.raises(FormatError, match="has 4,000 bytes, by index"):
        reader_again[0]


def test_eviction_drops_the_map(reader):
    reader[0]
    nbytes = reader.evict()

    assert nbytes == reader.get_raw_size()
    assert reader.evict() == 0
    with pytest.raises(FileNotFoundError):
        reader[0]


@pytest.mark.parametrize("name", ["mds/zstd", "json/gz", "csv/bz2"])
def test_compressed_shards_are_decompressed_once(name, copy_streaming):
    dataset = copy_streaming(name)
    found = readers_of(dataset, allow_unsafe_types=True)[0]
    try:
        sample = found[0]
    except ImportError as error:
        pytest.skip(str(error))

    known = dataset.samples[0]["fields"]
    assert {key: described(value)[1] for key, value in sample.items()} == {
        key: value["sha256"] for key, value in known.items()
    }
    assert has_raw_files(dataset) == (len(dataset.shards) == 1)
    for raw, _ in found.file_pairs:
        path = os.path.join(found.dirname, raw.basename)
        assert os.path.getsize(path) == raw.bytes


def test_under_mosaicml_streaming_a_missing_raw_file_is_not_found(
    copy_streaming, monkeypatch
):
    found = readers_of(copy_streaming("mds/gz"))[0]
    monkeypatch.setattr("fastshard.streaming.Reader.installed", True)

    for call in (found.__getitem__, found.get_sample_data):
        with pytest.raises(FileNotFoundError):
            call(0)
    assert os.listdir(found.dirname) == os.listdir(found.dirname)
    assert not os.path.exists(path_of(found))


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("missing_file", FileNotFoundError),
        ("truncated", FormatError),
        ("empty_file", FormatError),
        ("bad_offset", FormatError),
        ("bad_field_size", FormatError),
    ],
)
def test_damaged_shards_are_refused(name, error, streaming_data):
    found = readers_of(streaming_data[f"corrupt/{name}"])[0]

    with pytest.raises(error) as caught:
        list(found)

    if error is FormatError:
        assert caught.value.path == path_of(found)


def test_pickles_are_decoded_only_if_allowed(streaming_data):
    dataset = streaming_data["edge/pkl"]
    found = readers_of(dataset)[0]
    shard = dataset.index["shards"][0]
    column = shard["column_names"][shard["column_encodings"].index("pkl")]

    with pytest.raises(ValueError, match="allow_unsafe_types=True"):
        found[0]
    with pytest.raises(
        ValueError, match=f"Column {column} contains an unsafe type: pkl"
    ):
        found.validate(False)
    found.validate(True)
    assert (
        described(found[0][column])[1] == dataset.samples[0]["fields"][column]["sha256"]
    )


def test_unknown_encodings_are_a_warning(streaming_data):
    shard = copy.deepcopy(streaming_data["edge/raw_only"].index["shards"][0])
    shard["column_encodings"][0] = "unheard of"
    found = reader_from_json(str(streaming_data["edge/raw_only"].root), None, shard)

    with pytest.warns(UserWarning, match="unknown encoding: unheard of"):
        found.validate(False)
    with pytest.raises(ValueError, match="column_encodings disagree"):
        found[0]


def shard_with(changes, dataset):
    shard = copy.deepcopy(dataset.index["shards"][0])
    shard.update(changes)
    return shard


@pytest.mark.parametrize("name", ["mds/none", "json/none", "csv/none", "xsv/none"])
def test_objects_of_shards_are_checked(name, streaming_data):
    dataset = streaming_data[name]
    kind = type(readers_of(dataset)[0])
    root = str(dataset.root)
    known = shard_with({}, dataset)

    assert kind.from_json(root, None, known).samples == known["samples"]
    assert known == dataset.index["shards"][0]
    with pytest.raises(ValueError, match="Unsupported streaming data version: 3"):
        kind.from_json(root, None, shard_with({"version": 3}, dataset))
    with pytest.raises(ValueError, match="Unsupported data format: no"):
        kind.from_json(root, None, shard_with({"format": "no"}, dataset))
    with pytest.raises(FormatError, match="hashes"):
        kind.from_json(root, None, {k: v for k, v in known.items() if k != "hashes"})
    with pytest.raises(FormatError, match="version: 1"):
        reader_from_json(root, None, shard_with({"version": 1}, dataset))
    with pytest.raises(FormatError, match="'format' to be one of mds"):
        reader_from_json(root, None, shard_with({"format": "parquet"}, dataset))


def test_an_index_may_repeat_the_separator_of_csv(streaming_data):
    dataset = streaming_data["csv/none"]
    shard = shard_with({"separator": ","}, dataset)

    assert reader_from_json(str(dataset.root), None, shard)[0]


@pytest.mark.parametrize("basename", ["../x.mds", "/etc/passwd", "a/../../x", ""])
def test_files_outside_the_dataset_are_not_opened(basename, copy_streaming):
    dataset = copy_streaming("edge/raw_only")
    shard = shard_with({}, dataset)
    shard["raw_data"]["basename"] = basename
    outside = dataset.root.parent / "x.mds"
    outside.write_bytes(b"keep")
    with pytest.raises(FormatError, match="basename"):
        reader_from_json(str(dataset.root), None, shard)
    found = reader_from_json(str(dataset.root), None, dataset.index["shards"][0])
    raw = FileInfo(basename, 7, {})
    found.file_pairs, found.raw_data = [(raw, None)], raw

    for call in (
        lambda: found[0],
        found.evict,
        lambda: found.set_up_local(set(), True),
    ):
        with pytest.raises(FormatError):
            call()
    assert outside.read_bytes() == b"keep"


@pytest.mark.parametrize(
    ("limit", "parsed"), [("1kb", 1024), (None, None), (0, 0), ("", ""), (7, 7)]
)
def test_size_limits_are_parsed(limit, parsed, streaming_data):
    dataset = streaming_data["edge/raw_only"]
    shard = shard_with({"size_limit": limit}, dataset)

    assert reader_from_json("x", None, shard).size_limit == parsed
    for bad in (-1, "x", "-1kb"):
        with pytest.raises(ValueError, match="size"):
            reader_from_json("x", None, {**shard, "size_limit": bad})


def test_hashes_are_checked_when_asked_for(copy_streaming):
    dataset = copy_streaming("edge/raw_only")
    algo = dataset.index["shards"][0]["hashes"][0]
    found = readers_of(dataset, validate_hash=algo)[0]
    assert found[0]
    path = path_of(found)
    with open(path, "rb") as file:
        data = bytearray(file.read())
    data[-1] ^= 1
    with open(path, "wb") as file:
        file.write(data)

    with pytest.raises(FormatError, match=algo):
        readers_of(dataset, validate_hash=algo)[0][0]


@pytest.mark.skipif(os.name == "nt", reason="sparse files")
def test_a_shard_beyond_4_gib_is_read(tmp_path):
    """Offsets are modulo 2**32: 5 rows of 1 GiB in a sparse file."""
    config = json.dumps({"column_names": ["x"]}).encode()
    size = 1 << 30
    head = 4 + 4 * 6 + len(config)
    offsets = [head + i * (size + 4) for i in range(6)]
    path = tmp_path / "shard.00000.mds"
    with open(path, "wb") as file:
        table = np.array([5, *[offset % 2**32 for offset in offsets]], "<u4")
        file.write(table.tobytes() + config)
        for i, offset in enumerate(offsets[:-1]):
            file.seek(offset)
            file.write(size.to_bytes(4, "little") + b"row %d" % i)
        file.truncate(offsets[-1])
    info = {"basename": path.name, "bytes": offsets[-1], "hashes": {}}
    columns = {"column_names": ["x"], "column_encodings": ["bytes"]}
    shard = {
        "version": 2,
        "format": "mds",
        "compression": None,
        "hashes": [],
        "size_limit": None,
        "samples": 5,
        "raw_data": info,
        "zip_data": None,
        "column_sizes": [None],
        **columns,
    }
    found = reader_from_json(str(tmp_path), None, shard, copy=False)

    for i in range(5):
        assert len(found[i]["x"]) == size
        assert bytes(found[i]["x"][:5]) == b"row %d" % i
