"""Benches of tables, schemas, padding and metadata columns of columnar datasets.

pytest bench/columnar/bench_columnar_tables.py

20,000 samples of float32[100] and float32[50..149], with metadata. Targets: padding
takes no longer than a loop over the arrays; `to_arrow` at most 1.5 times as long as the
table built from stacks by hand; `schema` at most as long as a loop over all samples;
batches with a metadata column at most 1.3 times as long as those without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import fastshard
from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
from harness import SCALE, contenders, expect

COUNT = max(int(20_000 * SCALE), 2000)
READS = min(4096, COUNT)
BATCH = 256
FILL = float("nan")


@pytest.fixture(scope="session")
def series(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShardedDatasetReader]:
    root = tmp_path_factory.mktemp("tables") / "series"
    with ShardedDatasetWriter(root) as writer:
        writer.add_fields(["even", "ragged"])
        for i in range(COUNT):
            arrays = {
                "even": np.full(100, i, np.float32),
                "ragged": np.full(50 + i % 100, i, np.float32),
            }
            writer.add_sample(arrays, f"s{i}", {"label": i})
        writer.add_metadata_column("label", "$.label", int)
    with ShardedDatasetReader(root) as reader:
        yield reader


@pytest.fixture(scope="session")
def order() -> Any:
    return np.random.default_rng(1).permutation(COUNT)[:READS]


def pad_fastshard(reader: ShardedDatasetReader, order: Any) -> Any:
    return reader.columns(order, "ragged", ragged="pad", fill=FILL)["ragged"]


def pad_by_hand(reader: ShardedDatasetReader, order: Any) -> Any:
    arrays = reader.columns(order, "ragged", ragged="list")["ragged"]
    stack = np.full((len(arrays), max(map(len, arrays))), FILL, np.float32)
    for k, each in enumerate(arrays):
        stack[k, : len(each)] = each
    return stack


@contenders("pad ragged arrays", fastshard=pad_fastshard, by_hand=pad_by_hand)
def bench_pad(
    benchmark: Any, series: ShardedDatasetReader, order: Any, read: Any, turn: int
) -> None:
    """Ragged arrays of random samples, padded with NaN to one array."""
    found = benchmark(read, series, order)
    lengths = 50 + order % 100
    assert found.shape == (READS, lengths.max())
    np.testing.assert_array_equal(np.isfinite(found).sum(1), lengths)
    np.testing.assert_array_equal(found[:, 0], order)
    expect(benchmark, "fastshard", "by hand", 1 / 1.05)


def table_fastshard(reader: ShardedDatasetReader, order: Any) -> Any:
    return reader.to_arrow(order, ["even", "ragged"])


def table_by_hand(reader: ShardedDatasetReader, order: Any) -> Any:
    pa = pytest.importorskip("pyarrow")
    stacks = reader.columns(order, ["even", "ragged"], ragged="list")
    even, ragged = stacks["even"], stacks["ragged"]
    values = pa.array(np.ascontiguousarray(even).reshape(-1))
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in ragged])])
    return pa.table(
        {
            "id": [f"s{i}" for i in order],
            "even": pa.FixedSizeListArray.from_arrays(values, 100),
            "ragged": pa.ListArray.from_arrays(
                offsets.astype(np.int32), pa.array(np.concatenate(ragged))
            ),
        }
    )


@contenders("to_arrow", fastshard=table_fastshard, by_hand=table_by_hand)
def bench_arrow(
    benchmark: Any, series: ShardedDatasetReader, order: Any, read: Any, turn: int
) -> None:
    """A table of random samples, of an even and a ragged field."""
    table = benchmark(read, series, order)
    assert table.column_names == ["id", "even", "ragged"]
    for k in (0, READS - 1):
        i = int(order[k])
        assert table["id"][k].as_py() == f"s{i}"
        assert table["even"][k].as_py() == [i] * 100
        assert table["ragged"][k].as_py() == [i] * (50 + i % 100)
    expect(benchmark, "fastshard", "by hand", 1 / 1.5)


def schema_fastshard(reader: ShardedDatasetReader) -> Any:
    # Of a new reader: a schema is read once.
    with ShardedDatasetReader(reader.root) as another:
        fields = another.schema().fields
    return {name: (fields[name].dtype, fields[name].shape) for name in fields}


def schema_by_hand(reader: ShardedDatasetReader) -> Any:
    found: dict[str, set[Any]] = {"even": set(), "ragged": set()}
    with ShardedDatasetReader(reader.root) as another:
        for arrays in another.samples:
            for name, array in arrays.items():
                found[name].add((array.dtype, array.shape))
    return {
        name: (
            str(next(iter(seen))[0]),
            next(iter(seen))[1] if len(seen) == 1 else "ragged",
        )
        for name, seen in found.items()
    }


@contenders("schema", fastshard=schema_fastshard, by_hand=schema_by_hand)
def bench_schema(
    benchmark: Any, series: ShardedDatasetReader, read: Any, turn: int
) -> None:
    """Dtypes and shapes of all arrays, by their headers."""
    found = benchmark(read, series)
    assert found["even"] == ("float32", (100,))
    assert found["ragged"] == ("float32", "ragged")
    expect(benchmark, "fastshard", "by hand", 1)


Batches = Callable[[Any], Any]


def with_column(ds: Any) -> Any:
    return ds.select_fields("even", "label")


def without_column(ds: Any) -> Any:
    return ds.select_fields("even")


@contenders("batches", with_column=with_column, without_column=without_column)
def bench_batches(
    benchmark: Any, series: ShardedDatasetReader, read: Batches, turn: int
) -> None:
    """Shuffled batches with a metadata column, and without."""
    with fastshard.open(series.root) as ds:
        chosen = read(ds).shuffle(seed=1)
        count = 0

        def run() -> None:
            nonlocal count
            count = 0
            for batch in chosen.batches(BATCH):
                count += len(batch["even"])
                if "label" in batch:
                    assert (batch["label"] == batch["even"][:, 0]).all()

        benchmark(run)
    assert count == COUNT
    expect(benchmark, "with_column", "without_column", 1 / 1.3)
