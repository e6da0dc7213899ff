"""Readers of packed datasets, compared with the arrays that were put in."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest

import fastshard
from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
from fastshard.errors import (
    FastshardError,
    FieldNotFoundError,
    FormatError,
    RaggedError,
    SampleNotFoundError,
)
from support.columnar.packed import npy_bytes, write_packed
from support.memory import evict

COUNT = 60
FIELDS = ("a", "b", "c")
OWN = {  # samples whose arrays are members of their own
    "no member": lambda sample_id: False,
    "some members": lambda sample_id: sample_id.endswith("5"),
    "every second": lambda sample_id: int(sample_id[-3:]) % 2 == 0,
}
MODES = ["mmap", "private", "pread"]


def make_samples(count=COUNT):
    """Return samples of two packed fields, a scalar in one, and one of members."""
    rng = np.random.default_rng(7)
    return [
        {"a": rng.random(5), "b": np.full((2, 3), i, "f4"), "c": np.int64(i)}
        for i in range(count)
    ]


@pytest.fixture(scope="module", params=OWN)
def stored(request, tmp_path_factory):
    """Return the root of a packed dataset, its ids, and its columns."""
    root = tmp_path_factory.mktemp("packed") / "data"
    samples = make_samples()
    ids = write_packed(
        root,
        samples,
        packed=["a", "c"],
        is_own=OWN[request.param],
        rows_per_pack=7,
        samples_per_shard=25,
    )
    return root, ids, {f: np.stack([arrays[f] for arrays in samples]) for f in FIELDS}


def assert_sample(arrays, columns, i):
    assert list(arrays) == list(FIELDS)
    for field, column in columns.items():
        assert arrays[field].dtype == column.dtype
        assert arrays[field].shape == column[i].shape
        assert np.array_equal(arrays[field], column[i])


def assert_columns(stacks, columns, chosen):
    for field, column in columns.items():
        assert stacks[field].dtype == column.dtype
        assert np.array_equal(stacks[field], column[chosen])


@pytest.mark.parametrize("mode", MODES)
def test_samples_by_id_and_position(stored, mode):
    root, ids, columns = stored
    with ShardedDatasetReader(root, mode=mode) as reader:
        for i, sample_id in enumerate(ids):  # by SQL
            arrays, metadata = reader.get_sample(sample_id)
            assert_sample(arrays, columns, i)
            assert metadata == {"n": i}
        for i, (arrays, _) in enumerate(reader.get_many(ids)):
            assert_sample(arrays, columns, i)
        assert reader.samples[0]["a"].flags.writeable == (mode == "private")
        for i, sample_id in enumerate(ids):  # from rows in memory
            assert_sample(reader.samples[i], columns, i)
            assert_sample(reader.get_sample(sample_id)[0], columns, i)
        for i, (arrays, _) in enumerate(reader.get_many(ids)):
            assert_sample(arrays, columns, i)
        for i, arrays in enumerate(reader.samples.__getitems__(range(COUNT))):
            assert_sample(arrays, columns, i)
        copy = reader.get_sample(ids[3], copy=True)[0]
        copy["a"][:] = 0
        assert_sample(reader.get_sample(ids[3])[0], columns, 3)


@pytest.mark.parametrize("max_memory", [None, "1MB"])
@pytest.mark.parametrize("mode", MODES)
def test_columns_and_scans(stored, mode, max_memory):
    root, ids, columns = stored
    rng = np.random.default_rng(1)
    with ShardedDatasetReader(root, mode=mode, max_memory=max_memory) as reader:
        few = [5, 58, 5]
        assert_columns(reader.columns([ids[i] for i in few]), columns, few)
        for _ in range(3):
            chosen = rng.integers(0, COUNT, 40)
            assert_columns(reader.columns(chosen), columns, chosen)
            assert_columns(reader.columns([ids[i] for i in chosen]), columns, chosen)
        at = 0
        for batch in reader.scan(batch_size=19):
            end = at + len(batch["__key__"])
            assert batch["__key__"] == ids[at:end]
            assert_columns(batch, columns, slice(at, end))
            at = end
        assert at == COUNT
        for i, sample in enumerate(reader.scan()):
            assert sample.pop("__key__") == ids[i]
            assert_sample(sample, columns, i)
        assert i == COUNT - 1


@pytest.mark.parametrize("mode", MODES)
def test_a_dataset(stored, mode):
    root, ids, columns = stored
    with fastshard.open(root, mode=mode) as ds:
        for i, sample in enumerate(ds):
            assert sample.key == ids[i]
            for field, column in columns.items():
                assert np.array_equal(sample[field], column[i])
                data = bytes(sample.view(field))
                assert data == npy_bytes(column[i])
                assert sample.place(field)[0].read(sample.member(field)) == data
        for batch in ds.batches(16):
            i = ids.index(batch["__key__"][0])
            assert_columns(batch, columns, slice(i, i + len(batch["__key__"])))
        assert_sample(dict(pickle.loads(pickle.dumps(ds[3]))), columns, 3)
        found = pickle.loads(pickle.dumps(ds)).shuffle(seed=1)
        for sample in found:
            assert_sample(dict(sample), columns, ids.index(sample.key))


@pytest.mark.parametrize("mode", MODES)
def test_batches_of_a_dataset(stored, mode):
    root, ids, columns = stored
    rng = np.random.default_rng(4)
    with fastshard.open(root, mode=mode) as ds:
        out = {"a": np.zeros((20, 5)), "b": np.zeros((16, 2, 3), "f4")}
        given = out["a"]
        for batch in ds.shuffle(seed=3).batches(16, out=out):
            assert_columns(batch, columns, [ids.index(key) for key in batch["__key__"]])
            assert np.shares_memory(batch["a"], given)
        wide = {"a": np.zeros((16, 9))}  # its rows are strided
        batch = next(ds.batches(16, ragged="pad", out=wide))
        assert_columns(batch, columns, slice(0, 16))
        assert np.shares_memory(batch["a"], wide["a"])
        assert batch["__lengths__"]["a"].tolist() == [[5]] * 16
        with pytest.raises(ValueError, match="out"):
            next(ds.batches(16, out={"a": np.zeros((16, 4))}))
        order = rng.permutation(COUNT)
        shuffled = ds.shuffle(seed=3)
        found = [ids.index(shuffled[int(i)].key) for i in order]
        assert_columns(shuffled.columns(order, FIELDS), columns, found)
        assert_columns(ds.columns([-1, 2], FIELDS), columns, [-1, 2])
        with pytest.raises(IndexError):
            ds.columns([COUNT], FIELDS)
        for documents in (ds, shuffled):
            tokens = documents.tokens("a", 7)
            stream = np.concatenate([sample["a"] for sample in documents])
            assert np.array_equal(tokens[3], stream[18:25])
            for at, window in enumerate(np.vstack([*tokens.batches(8)])):
                assert np.array_equal(window, stream[6 * at : 6 * at + 7])


def test_batches_of_other_layouts(tmp_path):
    samples = make_samples(12)
    samples[4]["a"] = np.arange(3.0)
    samples[8]["a"] = np.asfortranarray(np.ones((2, 3)))
    samples[9]["a"] = samples[8]["a"] + 1
    del samples[11]["a"]
    ids = write_packed(tmp_path / "data", samples)
    with fastshard.open(tmp_path / "data") as ds:
        for start in (0, 8):  # the second batch begins with another layout
            chosen = range(start, start + 2)
            batch = fastshard.collate([ds[i] for i in chosen])
            assert np.array_equal(batch["a"], [samples[i]["a"] for i in chosen])
        batch = fastshard.collate([ds[i] for i in (3, 4)], ragged="list")
        assert [len(array) for array in batch["a"]] == [5, 3]
        padded = fastshard.collate([ds[i] for i in (3, 4)], ragged="pad")
        assert padded["__lengths__"]["a"].tolist() == [[5], [3]]
        with pytest.raises(RaggedError, match=ids[4]):
            ds.columns([3, 4], "a")
        with pytest.raises(FastshardError, match=ids[11]):
            fastshard.collate([ds[10], ds[11]])
        with pytest.raises(FieldNotFoundError, match=ids[11]):
            ds.columns([10, 11], "a")


def test_batches_by_a_loader(stored):
    root, ids, columns = stored
    with fastshard.open(root) as ds:
        seen = []
        for batch in ds.shuffle(seed=2).loader(16):
            chosen = [ids.index(key) for key in batch["__key__"]]
            assert_columns(batch, columns, chosen)
            seen += chosen
        assert sorted(seen) == list(range(COUNT))


@pytest.mark.parametrize("mode", MODES)
def test_bytes_of_packed_fields(stored, mode):
    root, _, columns = stored
    with fastshard.open(root, mode=mode).select_fields("a", "c") as ds:
        chosen = [1, 5, 33]
        files = [npy_bytes(columns[f][i]) for i in chosen for f in ("a", "c")]
        out = bytearray(sum(map(len, files)))
        ends = ds.read_into(chosen, out)
        assert bytes(out) == b"".join(files)
        assert np.diff(ends).tolist() == list(map(len, files))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child(stored):
    root, ids, columns = stored
    with ShardedDatasetReader(root) as reader:
        assert_columns(reader.columns(range(COUNT)), columns, slice(None))
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                assert_columns(reader.columns(range(COUNT)), columns, slice(None))
                assert_sample(reader.get_sample(ids[9])[0], columns, 9)
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0


def test_other_layouts_and_missing_fields(tmp_path):
    samples = make_samples(12)
    samples[4]["a"] = np.arange(3.0)
    samples[8]["a"] = np.arange(5, dtype="i8")
    samples[9]["a"] = np.asfortranarray(np.ones((2, 3)))
    del samples[6]["a"]
    ids = write_packed(tmp_path / "data", samples)
    with ShardedDatasetReader(tmp_path / "data") as reader:
        assert "a" not in reader.samples[6]
        with pytest.raises(FieldNotFoundError, match=ids[6]):
            reader.columns([5, 6])
        with pytest.raises(RaggedError, match=ids[4]):
            reader.columns([0, 4])
        chosen = [0, 4, 8, 9, 1]
        found = reader.columns(chosen, ["a"], ragged="list")["a"]
        for array, i in zip(found, chosen, strict=True):
            assert array.dtype == samples[i]["a"].dtype
            assert np.array_equal(array, samples[i]["a"])
        stacked = reader.columns([8, 8], ["a"])["a"]
        assert stacked.dtype == np.int64
        assert stacked.tolist() == [list(range(5))] * 2


def test_many_layouts_of_one_field(tmp_path):
    samples = [{"a": np.full(1 + i // 2 % 300, i)} for i in range(620)]
    write_packed(tmp_path / "data", samples, samples_per_shard=700)
    with ShardedDatasetReader(tmp_path / "data") as reader:
        for i in range(0, 620, 2):
            found = reader.columns([i, i + 1])["a"]
            assert np.array_equal(found, [samples[i]["a"], samples[i + 1]["a"]])


@pytest.mark.parametrize("packed", [["a", "c"], []])
def test_batches_of_shards_that_are_partly_evicted(tmp_path, packed):
    samples = make_samples()
    write_packed(
        tmp_path / "d", samples, packed=packed, rows_per_pack=7, samples_per_shard=10
    )
    shards = sorted((tmp_path / "d").glob("a_*/*.tar"))
    assert len(shards) == 6
    column = np.stack([arrays["a"] for arrays in samples])
    mixed = np.random.default_rng(2).permutation(40)
    with ShardedDatasetReader(tmp_path / "d") as reader:
        for _ in range(2):
            assert np.array_equal(reader.columns(range(20))["a"], column[:20])
        evict(*shards[2:4])  # not mapped so far; the others are known to be resident
        for _ in range(3):
            assert np.array_equal(reader.columns(mixed)["a"], column[mixed])
        os.truncate(shards[5], 600)  # within its first member
        for _ in range(2):
            with pytest.raises(FormatError):
                reader.columns([3, 55])
        assert np.array_equal(reader.columns(mixed)["a"], column[mixed])


def test_batches_of_a_shard_whose_pages_come_and_go(tmp_path):
    column = np.arange(3000 * 100, dtype=np.int32).reshape(3000, 100)
    with ShardedDatasetWriter(tmp_path / "d", pack=True) as writer:
        writer.add_fields(["a"])
        for row in column:
            writer.add_sample({"a": row})
    (shard,) = (tmp_path / "d").glob("a_*/*.tar")  # 1.2 MB: five windows of 4 KiB pages
    orders = np.random.default_rng(3).integers(0, 3000, (8, 64))
    orders[0] = np.arange(64)  # the first window alone
    orders[1] = np.arange(2936, 3000)  # the end of the file
    for last in (0, shard.stat().st_size // 2):
        evict(shard)
        with open(shard, "rb") as file:
            file.read(last)
        with ShardedDatasetReader(tmp_path / "d") as reader:
            for order in (*orders, *orders):
                assert np.array_equal(reader.columns(order)["a"], column[order])


@pytest.mark.parametrize("mode", ["mmap", "pread"])
def test_a_reader_that_follows_a_writer(tmp_path, mode):
    root = tmp_path / "d"
    samples = make_samples()
    ids = [f"s{i}" for i in range(COUNT)]
    columns = {f: np.stack([arrays[f] for arrays in samples]) for f in FIELDS}
    flushed = 0
    with ShardedDatasetWriter(root, pack=True, samples_per_shard=9) as writer:
        writer.add_fields(list(FIELDS))
        writer.flush()
        with ShardedDatasetReader(root, mode=mode) as reader:
            for i, arrays in enumerate(samples):
                writer.add_sample(arrays, ids[i])  # to the pack that is open
                if i % 7 in (0, 3, 4):
                    writer.flush()
                    flushed = i + 1
                if i % 6 == 0:
                    before = reader.samples
                    count = len(before)
                    reader.refresh()
                    assert len(reader) == flushed
                    for k in range(count):  # the state before
                        assert_sample(before[k], columns, k)
                    known = slice(0, flushed)
                    assert_columns(reader.columns(range(flushed)), columns, known)
                    assert_columns(reader.columns(ids[:flushed]), columns, known)
                    for k in (0, flushed - 1):
                        assert_sample(reader.get_sample(ids[k])[0], columns, k)
                    with pytest.raises(SampleNotFoundError):
                        reader.get_sample(ids[flushed])
                    for k, sample in enumerate(reader.scan()):
                        assert sample.pop("__key__") == ids[k]
                        assert_sample(sample, columns, k)
