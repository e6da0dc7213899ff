"""Every field of every dataset that mosaicml-streaming wrote has the value it read."""

import hashlib
from contextlib import contextmanager

import pytest

import fastshard
from fastshard.streaming import reader_from_json
from support.servers.http import Server
from support.streaming.expected import DAMAGES, described, names

UNSAFE = "edge/pkl"  # pickles
MODES = ("mmap", "private", "pread")
SPLITS = ("edge/splits#train", "edge/splits#val/nested")


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def readers_of(known):
    """Return a reader a shard."""
    readers = [
        reader_from_json(str(known.root), known.split, shard)
        for shard in known.index["shards"]
    ]
    for reader in readers:
        reader.validate(True)
    return readers


def options_of(name):
    return {"allow_unsafe_types": True} if name == UNSAFE else {}


def assert_values(values, sample):
    """Compare decoded values, and their order, with those of ``expected.json``."""
    assert list(values) == sample["keys"]
    found = {name: described(value) for name, value in values.items()}
    assert found == {
        name: (field["type"], field["sha256"])
        for name, field in sample["fields"].items()
    }


@pytest.mark.parametrize("name", names())
def test_readers(copy_streaming, name):
    known = copy_streaming(name)
    readers = readers_of(known)
    assert len(readers) == len(known.shards)
    for sample in known.samples:
        reader = readers[sample["shard"]]
        data = reader.get_sample_data(sample["index"])
        assert type(data) is bytes
        assert (len(data), sha256(data)) == (sample["data_len"], sample["data_sha256"])
        assert_values(reader[sample["index"]], sample)
        assert_values(reader.get_item(sample["index"]), sample)
        assert_values(reader.decode_sample(data), sample)


@pytest.mark.parametrize("name", names("corrupt", "edge", "mds", "json", "csv"))
def test_sizes_of_shards(streaming_data, name):
    known = streaming_data[name]
    for reader, shard in zip(readers_of(known), known.shards, strict=True):
        found = {
            "format": known.index["shards"][0]["format"],
            "class": type(reader).__name__,
            "samples": reader.samples,
            "size": reader.size,
            "len": len(reader),
            "raw_size": reader.get_raw_size(),
            "zip_size": reader.get_zip_size(),
            "max_size": reader.get_max_size(),
            "persistent_size_keep": reader.get_persistent_size(True),
            "persistent_size_drop": reader.get_persistent_size(False),
        }
        assert found == shard | {"format": found["format"]}


def assert_dataset(ds, known):
    """Compare decoded fields and stored bytes of all samples."""
    assert len(ds) == len(known.samples)
    for i, sample in enumerate(known.samples):
        values = ds[i].decode()
        assert values.pop("__key__") == str(i)
        assert_values(values, sample)
        for name, field in sample["fields"].items():
            if "enc_sha256" in field:
                stored = ds[i][name]
                assert (len(stored), sha256(stored)) == (
                    field["enc_len"],
                    field["enc_sha256"],
                )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", names())
def test_datasets(copy_streaming, name, mode):
    known = copy_streaming(name)
    with fastshard.open(
        known.root, split=known.split, mode=mode, **options_of(name)
    ) as ds:
        assert_dataset(ds, known)


@contextmanager
def served(known):
    """Yield the URL of a dataset on this machine."""
    paths = [path for path in known.root.rglob("*") if path.is_file()]
    files = {
        f"/data/{path.relative_to(known.root).as_posix()}": path.read_bytes()
        for path in paths
    }
    with Server(files) as server:
        yield f"http://127.0.0.1:{server.port}/data/"


@pytest.mark.parametrize("name", names())
def test_datasets_over_http(streaming_data, loopback, tmp_path, name):
    known = streaming_data[name]
    options = {"split": known.split, "cache_dir": tmp_path, **options_of(name)}
    with served(known) as url, fastshard.open(url, **options) as ds:
        assert_dataset(ds, known)


@pytest.mark.parametrize("name", SPLITS)
def test_the_folder_of_a_split_is_a_dataset(copy_streaming, name):
    known = copy_streaming(name)
    with fastshard.open(known.folder) as ds:
        assert_dataset(ds, known)


def test_iteration_has_the_same_values(copy_streaming):
    for name in ("edge/merged", "mds/none"):
        known = copy_streaming(name)
        with fastshard.open(known.root) as ds:
            for sample, expected in zip(ds, known.samples, strict=True):
                values = sample.decode()
                del values["__key__"]
                assert_values(values, expected)


# A flipped bit in the last field is a value like any other; only a hash tells.
DAMAGED = [name for name in DAMAGES if name != "bitflip"]


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_shards_are_errors_of_readers(streaming_data, name):
    known = streaming_data[f"corrupt/{name}"]
    (reader,) = readers_of(known)
    error = FileNotFoundError if name == "missing_file" else fastshard.FormatError
    with pytest.raises(error) as caught:
        list(reader)
    if error is fastshard.FormatError:
        assert "shard.00000.mds" in str(caught.value)
    with pytest.raises(error):
        reader.get_sample_data(0) and reader[1] and reader[0]


@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.parametrize("mode", MODES)
def test_damaged_shards_are_errors_of_datasets(streaming_data, name, mode):
    known = streaming_data[f"corrupt/{name}"]
    error = (OSError, fastshard.ShardNotFoundError)
    error = error if name == "missing_file" else fastshard.FormatError
    with (
        fastshard.open(known.root, mode=mode) as ds,
        pytest.raises(error, match=r"shard\.00000\.mds"),
    ):
        [sample.decode() for sample in ds]


def test_a_flipped_bit_is_found_by_its_hash(streaming_data, copy_streaming):
    known = streaming_data["corrupt/bitflip"]
    good = streaming_data["edge/good_for_corrupt"]
    (reader,) = readers_of(known)
    (whole,) = readers_of(good)
    different = [i for i in range(len(reader)) if reader[i] != whole[i]]
    assert different == [len(reader) - 1]
    for algo in ("sha1", "xxh64"):
        with fastshard.open(good.root, validate_hash=algo) as ds:
            assert len([sample.decode() for sample in ds]) == len(whole)
        with (
            fastshard.open(known.root, validate_hash=algo) as ds,
            pytest.raises(fastshard.FormatError, match=algo),
        ):
            ds[0].decode()
