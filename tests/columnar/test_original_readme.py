"""Every example of the original's README, with the import changed.

Calls and keyword names are those of its users' code. Gaps of the examples
(``np.array(...)``, sources of data) are filled in.
"""

from __future__ import annotations

import gc
import random
import sqlite3

import numpy as np
import pytest

from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
from support.columnar.checks import (
    assert_original_reads,
    assert_same_array,
    assert_same_arrays,
)
from support.columnar.original import OriginalReader
from support.marks import not_sanitized
from support.processes import run_script

pytestmark = not_sanitized  # tests Python code and SQLite

COUNT = 10_000


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Run in an empty directory: the examples name datasets by relative paths."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def create_dataset(count, per_shard=1000, lengths=(100,)):
    """Run the example that creates ``my_dataset``; return its arrays and metadata."""
    rng = np.random.default_rng(7)
    put = {}
    writer = ShardedDatasetWriter("my_dataset", samples_per_shard=per_shard)
    writer.add_fields(["history", "target", "forecast"])
    for i in range(count):
        arrays = {
            "history": rng.standard_normal(100),
            "target": rng.standard_normal(50),
            "forecast": rng.standard_normal(50),
        }
        metadata = {"length": lengths[i % len(lengths)], "source": "synthetic"}
        sample_id = writer.add_sample(arrays, metadata=metadata)
        put[sample_id] = arrays
    writer.close()
    return put


# ---------------------------------------------------------------- quick start


def test_creating_and_reading_a_dataset(folder):
    put = create_dataset(COUNT)
    assert next(iter(put)) == "sample_000000000001"
    assert list(put)[-1] == f"sample_{COUNT:012d}"
    shards = sorted(path.name for path in (folder / "my_dataset").glob("*/*"))
    assert shards == sorted(f"shard_{i:04d}.tar" for i in range(10) for _ in range(3))

    reader = ShardedDatasetReader("my_dataset")
    assert f"Total samples: {len(reader)}" == f"Total samples: {COUNT}"
    assert reader.list_fields() == ["history", "target", "forecast"]

    arrays, metadata = reader.get_sample("sample_000000000001")
    assert arrays["history"].shape == (100,)
    assert metadata == {"length": 100, "source": "synthetic"}
    assert_same_arrays(arrays, put["sample_000000000001"])

    arrays, metadata = reader.get_sample("sample_000000000001", fields=["history"])
    assert list(arrays) == ["history"]

    sample_ids = reader.query_ids("json_extract(meta_json, '$.length') = 100")
    assert sample_ids == list(put)

    results = reader.get_many(sample_ids[:100], fields=["history", "target"])
    assert len(results) == 100
    for sample_id, (arrays, metadata) in zip(sample_ids, results, strict=False):
        assert list(arrays) == ["history", "target"]
        assert_same_array(arrays["target"], put[sample_id]["target"])
        assert metadata["source"] == "synthetic"
    reader.close()


def test_the_original_reads_the_example(folder):
    assert_original_reads(folder / "my_dataset", create_dataset(300, per_shard=64))


# ---------------------------------------------------------------- the writer


def test_initialization():
    writer = ShardedDatasetWriter(root="default")
    writer.add_field("x")
    for i in range(1001):
        writer.add_sample({"x": np.array(i)})
    writer.close()
    with ShardedDatasetReader(root="default", cache_tars=True) as reader:
        assert reader.shard_counts("x") == {0: 1000, 1: 1}


def test_field_management():
    writer = ShardedDatasetWriter("d", samples_per_shard=1000)
    writer.add_field("my_field")
    writer.add_fields(["field1", "field2", "field3"])
    writer.add_field(name="my_field")  # a second call does nothing
    writer.add_fields(names=["field3", "field4"])
    writer.close()
    reader = ShardedDatasetReader("d")
    assert reader.list_fields() == ["my_field", *(f"field{i}" for i in range(1, 5))]
    assert len(reader) == 0
    reader.close()


def test_simple_writing():
    writer = ShardedDatasetWriter("d")
    writer.add_fields(["field1", "field2"])
    first = {"field1": np.array([1, 2, 3]), "field2": np.array([[0.5]])}
    sample_id = writer.add_sample(arrays=first, metadata={"key": "value"})
    assert sample_id == "sample_000000000001"

    sample_id = writer.add_sample(
        arrays={"field1": np.array([4.5]), "field2": np.array([True])},
        sample_id="my_custom_id",
        metadata={"key": "value"},
    )
    assert sample_id == "my_custom_id"

    writer.update_sample(
        sample_id="my_custom_id",
        arrays={"field1": np.array([7, 8])},
        metadata={"key": "new_value"},
    )
    assert writer.add_sample(first) == "sample_000000000002"
    writer.update_sample("sample_000000000002", {"field2": np.array([2.5])})
    with pytest.raises(ValueError, match="nobody"):
        writer.update_sample("nobody", {"field1": np.array([1])})
    writer.close()

    reader = ShardedDatasetReader("d")
    ids = ["sample_000000000001", "my_custom_id", "sample_000000000002"]
    assert reader.query_ids() == ids
    found = reader.get_many(ids)
    assert_same_arrays(found[0][0], first)
    updated = {"field1": np.array([7, 8]), "field2": np.array([True])}
    assert_same_arrays(found[1][0], updated)
    assert_same_arrays(found[2][0], {**first, "field2": np.array([2.5])})
    written = [{"key": "value"}, {"key": "new_value"}, {}]
    assert [metadata for _, metadata in found] == written
    reader.close()


THREE = ["id1", "id2", "id3"]
METADATA = [{"key": "val1"}, {"key": "val2"}, {"key": "val3"}]
HISTORIES = [np.array([1.5]), np.array([2, 3]), np.array([[4]], np.int8)]


def assert_three_histories(shard):
    put = dict(zip(THREE, ({"history": array} for array in HISTORIES), strict=True))
    with ShardedDatasetReader("d") as reader:
        assert reader.query_ids() == THREE
        assert reader.shard_counts("history") == {shard: 3}
        for sample_id, metadata in zip(THREE, METADATA, strict=True):
            arrays, found = reader.get_sample(sample_id)
            assert_same_arrays(arrays, put[sample_id])
            assert found == metadata
    with OriginalReader("d") as reader:
        for sample_id, arrays in put.items():
            assert_same_arrays(reader.get_sample(sample_id)[0], arrays)


def test_registering_and_writing_a_shard():
    writer = ShardedDatasetWriter("d")
    writer.add_field("history")
    writer.register_samples(
        sample_ids=["id1", "id2", "id3"],
        metadata=[{"key": "val1"}, {"key": "val2"}, {"key": "val3"}],
    )
    writer.write_shard(
        field_name="history",
        shard_id=0,
        samples=["id1", "id2", "id3"],
        arrays=HISTORIES,
    )
    writer.close()
    assert_three_histories(0)


@pytest.mark.parametrize("shard_id", [0, 3])
def test_streaming_into_a_shard(shard_id):
    def your_data_generator():
        yield from zip(THREE, HISTORIES, strict=True)

    writer = ShardedDatasetWriter("d")
    writer.add_field("history")
    writer.register_samples(THREE, METADATA)
    with writer.open_shard("history", shard_id=shard_id) as shard:
        for sample_id, array in your_data_generator():
            shard.add_sample(sample_id, array)
    writer.close()
    assert_three_histories(shard_id)


def test_registered_samples_without_metadata():
    writer = ShardedDatasetWriter("d")
    writer.register_samples(["b", "a"])
    writer.close()
    reader = ShardedDatasetReader("d")
    assert reader.query_ids() == ["b", "a"]
    assert reader.get_sample("a") == ({}, {})
    reader.close()


# ---------------------------------------------------------------- the reader


@pytest.mark.parametrize("cache_tars", [True, False])
def test_introspection_querying_and_loading(cache_tars):
    put = create_dataset(300, per_shard=128, lengths=(64, 128, 192))
    writer = ShardedDatasetWriter("my_dataset", samples_per_shard=128)
    bare = writer.add_sample({"history": np.zeros(3)}, metadata={"length": 500})
    writer.close()

    reader = ShardedDatasetReader("my_dataset", cache_tars=cache_tars)
    total = len(reader)
    assert total == 301
    assert reader.list_fields() == ["history", "target", "forecast"]
    assert reader.shard_counts("history") == {0: 128, 1: 128, 2: 45}
    assert reader.shard_counts("forecast") == {0: 128, 1: 128, 2: 44}

    all_ids = reader.query_ids()
    assert all_ids == [*put, bare]
    ids_with_forecast = reader.query_ids("forecast_offset IS NOT NULL")
    assert ids_with_forecast == list(put)
    ids = reader.query_ids("json_extract(meta_json, '$.length') > ?", params=(128,))
    assert ids == [*list(put)[2::3], bare]
    first_100 = reader.query_ids(limit=100)
    assert first_100 == all_ids[:100]

    arrays, metadata = reader.get_sample("sample_000000000001")
    assert_same_arrays(arrays, put["sample_000000000001"])
    assert metadata == {"length": 64, "source": "synthetic"}
    fields = ["history", "target"]
    arrays, metadata = reader.get_sample("sample_000000000001", fields=fields)
    assert list(arrays) == fields
    arrays, metadata = reader.get_sample(bare)
    assert_same_arrays(arrays, {"history": np.zeros(3)})
    with pytest.raises(KeyError):
        reader.get_sample("nobody")

    results = reader.get_many(sample_ids=all_ids[-3:], fields=["history"])
    assert [list(arrays) for arrays, _ in results] == [["history"]] * 3
    assert_same_array(results[0][0]["history"], put[all_ids[-3]]["history"])
    assert results[2][1] == {"length": 500}
    assert [len(arrays) for arrays, _ in reader.get_many(all_ids[-2:])] == [3, 1]
    reader.close()


# ---------------------------------------------------------------- common patterns


def test_iterating_through_a_dataset():
    put = create_dataset(1000, per_shard=300)
    reader = ShardedDatasetReader("my_dataset")
    sample_ids = reader.query_ids()
    seen = 0
    batch_size = 128
    for i in range(0, len(sample_ids), batch_size):
        batch_ids = sample_ids[i : i + batch_size]
        batch_data = reader.get_many(batch_ids, fields=["history", "target"])
        for arrays, metadata in batch_data:
            history = arrays["history"]
            target = arrays["target"]
            assert_same_array(history, put[sample_ids[seen]]["history"])
            assert_same_array(target, put[sample_ids[seen]]["target"])
            assert metadata["length"] == 100
            seen += 1
    assert seen == 1000
    reader.close()


def test_adding_a_field_to_an_existing_dataset(folder):
    put = create_dataset(500, per_shard=200)

    def generate_forecast(sample_id):
        return np.full(5, int(sample_id[-4:]), np.float32)

    writer = ShardedDatasetWriter("my_dataset", samples_per_shard=200)
    writer.add_field("new_forecast")
    reader = ShardedDatasetReader("my_dataset")  # while the writer is open
    sample_ids = reader.query_ids()
    assert sample_ids == list(put)
    for sample_id in sample_ids:
        new_array = generate_forecast(sample_id)
        writer.update_sample(sample_id, {"new_forecast": new_array})
        put[sample_id]["new_forecast"] = new_array
    reader.close()
    writer.close()

    reader = ShardedDatasetReader("my_dataset")
    fields = ["history", "target", "forecast", "new_forecast"]
    assert reader.list_fields() == fields
    assert reader.shard_counts("new_forecast") == {0: 200, 1: 200, 2: 100}
    assert reader.shard_counts("history") == {0: 200, 1: 200, 2: 100}
    for (arrays, _), sample_id in zip(reader.get_many(put), put, strict=True):
        assert_same_arrays(arrays, put[sample_id])
    reader.close()
    assert_original_reads(folder / "my_dataset", put)


def test_filtering_and_subsampling():
    put = create_dataset(1000, lengths=(128, 257, 512))
    writer = ShardedDatasetWriter("my_dataset")
    for _ in range(5):
        writer.add_sample({"history": np.ones(2)}, metadata={"length": 1000})
    writer.close()

    reader = ShardedDatasetReader("my_dataset")
    long_sequences = reader.query_ids(
        "json_extract(meta_json, '$.length') > 256 AND forecast_offset IS NOT NULL"
    )
    expected = [sample_id for i, sample_id in enumerate(put) if i % 3]
    assert long_sequences == expected

    random.Random(3).shuffle(long_sequences)
    train_ids = long_sequences[:500]
    val_ids = long_sequences[500:]
    train_data = reader.get_many(train_ids)
    val_data = reader.get_many(val_ids)
    assert len(train_data) + len(val_data) == len(expected)
    for (arrays, _), sample_id in zip(train_data, train_ids, strict=True):
        assert_same_arrays(arrays, put[sample_id])
    for (arrays, _), sample_id in zip(val_data, val_ids, strict=True):
        assert_same_arrays(arrays, put[sample_id])
    reader.close()


class Item:
    def __init__(self, i):
        self.x = np.full(4, i, np.float32)
        self.y = np.array([i])


class Source:
    def __init__(self, name, numbers):
        self.name = name
        self.numbers = numbers

    def __iter__(self):
        return map(Item, self.numbers)


def assert_three_days(root):
    with ShardedDatasetReader(root) as reader:
        ids = reader.query_ids()
        assert ids == [f"sample_{i:012d}" for i in range(1, 2501)]
        for i, (arrays, metadata) in enumerate(reader.get_many(ids)):
            assert_same_arrays(arrays, {"input": Item(i).x, "output": Item(i).y})
            assert metadata == {"source": "abc"[(i >= 700) + (i >= 1800)]}
        # Each session appends to those before it.
        assert reader.shard_counts("input") == {0: 1000, 1: 1000, 2: 500}
        assert reader.shard_counts("output") == {0: 1000, 1: 1000, 2: 500}


def test_incremental_construction(folder):
    writer = ShardedDatasetWriter("growing_dataset", samples_per_shard=1000)
    writer.add_fields(["input", "output"])

    def add_batch(data_source):
        for item in data_source:
            writer.add_sample(
                {"input": item.x, "output": item.y},
                metadata={"source": data_source.name},
            )
        writer.close_tars()

    add_batch(Source("a", range(700)))

    writer = ShardedDatasetWriter("growing_dataset", samples_per_shard=1000)
    add_batch(Source("b", range(700, 1800)))

    writer = ShardedDatasetWriter("growing_dataset", samples_per_shard=1000)
    add_batch(Source("c", range(1800, 2500)))

    assert_three_days("growing_dataset")  # while the last writer is open
    with OriginalReader(folder / "growing_dataset") as reader:
        assert len(reader) == 2500
        for i in 0, 699, 700, 1799, 1800, 2499:
            arrays, _ = reader.get_sample(f"sample_{i + 1:012d}")
            assert_same_arrays(arrays, {"input": Item(i).x, "output": Item(i).y})

    def forget():
        nonlocal writer
        writer = None
        gc.collect()

    with pytest.warns(ResourceWarning):  # the example never closes it
        forget()
    assert_three_days("growing_dataset")


def test_an_unclosed_writer_is_flushed_by_the_next():
    writer = ShardedDatasetWriter("growing_dataset", samples_per_shard=1000)
    writer.add_fields(["input", "output"])
    for start, end, name in [(0, 700, "a"), (700, 1800, "b"), (1800, 2500, "c")]:
        for i in range(start, end):  # close_tars is optional
            arrays = {"input": Item(i).x, "output": Item(i).y}
            writer.add_sample(arrays, metadata={"source": name})
        before = writer
        writer = ShardedDatasetWriter("growing_dataset", samples_per_shard=1000)
        assert before.closed
        with pytest.raises(ValueError, match="closed"):
            before.add_sample({"input": np.zeros(1)})
    writer.close()
    assert_three_days("growing_dataset")


DAYS = """
import sys
import numpy as np
from fastshard.columnar import ShardedDatasetWriter

writer = ShardedDatasetWriter("growing_dataset", samples_per_shard=1000)
writer.add_fields(["input", "output"])

def add_batch(name, numbers):
    for i in numbers:
        writer.add_sample({
            "input": np.full(4, i, np.float32),
            "output": np.array([i]),
        }, metadata={"source": name})

add_batch("a", range(700))
writer = ShardedDatasetWriter("growing_dataset", samples_per_shard=1000)
add_batch("b", range(700, 1800))
writer = ShardedDatasetWriter("growing_dataset", samples_per_shard=1000)
add_batch("c", range(1800, 2500))
"""


def test_a_script_that_ends_without_closing(folder):
    run_script(folder, DAYS)
    assert_three_days("growing_dataset")


# ---------------------------------------------------------------- performance notes


def test_flushing_by_close_tars():
    writer = ShardedDatasetWriter("d")
    writer.add_field("x")
    for i in range(3):
        writer.add_sample({"x": np.array([i])}, sample_id=f"s{i}")
        writer.close_tars()
        with ShardedDatasetReader("d") as reader:
            assert reader.query_ids() == [f"s{j}" for j in range(i + 1)]
            assert_same_array(reader.get_sample(f"s{i}")[0]["x"], np.array([i]))
    writer.close()


def test_columns_of_sql_through_the_connection():
    writer = ShardedDatasetWriter("d", samples_per_shard=10)
    writer.add_field("x")
    early = writer.add_sample({"x": np.zeros(3)}, metadata={"length": 3})
    writer.conn.execute("ALTER TABLE samples ADD COLUMN length INTEGER")
    writer.conn.execute("CREATE INDEX idx_length ON samples(length)")
    ids = []
    for i in range(25):
        sample_id = writer.add_sample({"x": np.zeros(i)}, metadata={"length": i})
        update = "UPDATE samples SET length = ? WHERE id = ?"
        writer.conn.execute(update, (i, sample_id))
        ids.append(sample_id)
    assert isinstance(writer.conn, sqlite3.Connection)
    count = writer.conn.execute("SELECT count(*) FROM samples").fetchone()
    assert count == (26,)
    writer.conn.commit()
    with ShardedDatasetReader(
        "d"
    ) as reader:  # after a commit the arrays are in the files
        assert reader.query_ids("length >= 20") == ids[20:]
        for i, sample_id in enumerate(ids):
            assert_same_array(reader.get_sample(sample_id)[0]["x"], np.zeros(i))
    with writer.conn:
        writer.conn.execute("UPDATE samples SET length = 3 WHERE id = ?", (early,))
    writer.add_field("y")  # after a column that the user added
    writer.update_sample(early, {"y": np.ones(2)})
    writer.close()

    reader = ShardedDatasetReader("d")
    assert reader.query_ids("length = 3") == [early, ids[3]]
    assert reader.query_ids("length > ? AND length < ?", params=(4, 7)) == ids[5:7]
    assert reader.list_fields() == ["x", "y"]
    expected = {"x": np.zeros(3), "y": np.ones(2)}
    assert_same_arrays(reader.get_sample(early)[0], expected)
    reader.close()
    writer = ShardedDatasetWriter("d", samples_per_shard=10)  # columns exist
    later = writer.add_sample({"x": np.ones(1)})
    writer.close()
    with ShardedDatasetReader("d") as reader:
        assert reader.query_ids("length IS NULL") == [later]
