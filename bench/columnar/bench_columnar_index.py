"""Benches of writing, opening and querying columnar datasets, with rivals.

pytest bench/columnar/bench_columnar_index.py

Targets: `add_sample` in 10 us a sample, flush included, and in at most 1.3 times the
CPU time of LMDB; `query_ids` in 5 ms over a declared column of 1,000,000 samples;
opening and counting them in 50 ms. With BENCH_SCALE=5, a million samples are written.
"""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
from harness import SCALE, contenders, limit
from rivals.columnar_by_id import (
    Blobs,
    Lmdb,
    Original,
    create_index,
    write_blobs,
    write_fastshard,
    write_lmdb,
    write_original,
    write_packed,
)
from rivals.columnar_data import FIELDS, PER_SHARD, Data, Write

COUNT = max(int(200_000 * SCALE), 2 * PER_SHARD)
ORIGINAL_COUNT = 20_000  # samples that the original writes
MILLION = max(int(1_000_000 * SCALE), 2 * PER_SHARD)

# The rivals leave files open.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

READERS: dict[Write, Callable[[Path], Any]] = {
    write_fastshard: ShardedDatasetReader,
    write_packed: ShardedDatasetReader,
    write_original: Original,
    write_blobs: Blobs,
    write_lmdb: Lmdb,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return Data(tmp_path_factory.mktemp("written"), COUNT)


@contenders(
    "add_sample",
    fastshard=write_fastshard,
    fastshard_packed=write_packed,
    LMDB_one_commit=write_lmdb,
    SQLite_blobs_one_commit=write_blobs,
    the_original_nothing_synced=write_original,
)
def bench_add_sample(benchmark: Any, data: Data, read: Write, turn: int) -> None:
    rows = data.rows[:ORIGINAL_COUNT] if read is write_original else data.rows
    folder = data.folder / "new"
    times: list[float] = []

    def fresh() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()

    def write() -> None:
        begun = time.process_time()
        read(folder, rows)
        times.append((time.process_time() - begun) / len(rows) * 1e6)

    benchmark.group = "add_sample of 3 small arrays, with a durable end"
    benchmark.extra_info["operations"] = len(rows)
    benchmark.pedantic(write, setup=fresh, rounds=2)
    benchmark.extra_info["CPU us"] = round(min(times), 2)
    limit(benchmark, "fastshard", "CPU us", 1.3, "LMDB_one_commit")
    limit(benchmark, "fastshard_packed", "CPU us", 1.3, "LMDB_one_commit")
    reader = READERS[read](folder)
    for i in (0, 1, len(rows) // 2, len(rows) - 1):
        data.check(i, *reader.get_sample(data.ids[i]))
    shutil.rmtree(folder)


INSERT = f"""
WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :count)
INSERT INTO samples SELECT
    printf('sample_%012d', i + 1),
    printf('{{"length": %d, "source": "synthetic"}}', 100 + i % 100)
    {", 512 + (i % :each) * 1024, i / :each" * len(FIELDS)}
FROM n
"""


@pytest.fixture(scope="module")
def million(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an index of 1,000,000 samples without shards, with a declared column."""
    root = tmp_path_factory.mktemp("million")
    database = sqlite3.connect(root / "index.sqlite")
    create_index(database, root)
    database.execute(INSERT, {"count": MILLION, "each": PER_SHARD})
    database.commit()
    database.close()
    with ShardedDatasetWriter(root) as writer:
        writer.add_metadata_column("length", "$.length", "INTEGER")
    return root


def open_and_count(root: Path) -> int:
    with ShardedDatasetReader(root) as reader:
        return len(reader)


def open_original(root: Path) -> int:
    reader = Original(root)
    count = len(reader)
    reader.close()
    return count


@contenders("opening", fastshard=open_and_count, the_original=open_original)
def bench_open(benchmark: Any, million: Path, read: Any, turn: int) -> None:
    assert read(million) == MILLION
    benchmark.group = f"a reader of {MILLION:,} samples opened and counted"
    benchmark.pedantic(read, (million,), rounds=9)


EXTRACTED = "json_extract(meta_json, '$.length')"
QUERIES: dict[str, tuple[str, tuple[int, ...], int | None]] = {
    "1 % of them": ("{0} = ?", (142,), None),
    "the first 1,000 of a half": ("{0} >= ?", (150,), 1000),
    "none": ("{0} > ?", (1000,), None),
}


def expected(kind: str) -> list[str]:
    _, (bound,), limit = QUERIES[kind]
    chosen: dict[str, Callable[[int], bool]] = {
        "1 % of them": lambda n: n == bound,
        "the first 1,000 of a half": lambda n: n >= bound,
        "none": lambda n: n > bound,
    }
    rows = (i for i in range(MILLION) if chosen[kind](100 + i % 100))
    return [f"sample_{i + 1:012d}" for i in rows][:limit]


@contenders(
    "query_ids",
    fastshard_declared_column=lambda root: (ShardedDatasetReader(root), "length"),
    fastshard_json_extract=lambda root: (ShardedDatasetReader(root), EXTRACTED),
    the_original_json_extract=lambda root: (Original(root), EXTRACTED),
)
@pytest.mark.parametrize("kind", list(QUERIES))
def bench_query(benchmark: Any, million: Path, read: Any, kind: str, turn: int) -> None:
    reader, column = read(million)
    where, params, limit = QUERIES[kind]
    where = where.format(column)
    assert reader.query_ids(where, params, limit) == expected(kind)
    benchmark.group = f"query_ids on {MILLION:,} samples, {kind}"
    rounds = 20 if column == "length" else 2
    benchmark.pedantic(reader.query_ids, (where, params, limit), rounds=rounds)
    reader.close()
