"""Gathers of many members into one reused buffer.

pytest bench/bench_gather.py

The limit is memcpy of the same number of bytes from as many random offsets of a
mapped file of the same size: `numpy.take` of rows of one, which copies each by
memcpy.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastshard
from harness import contenders

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

KINDS = {"256 x 100 KiB": (2500, 102_400, 256), "4,096 x 2 KiB": (50_000, 2048, 4096)}
SAMPLES = 2400, 105_000, 256  # members, bytes of each, in a batch


class Rows:
    """Shard, with the same members as rows of a mapped file, and random batches."""

    def __init__(self, tar: Any, batch: int) -> None:
        self.size = tar.size
        self.shard = fastshard.open_shard(tar.path)
        path = Path(f"{tar.path}.rows")
        if not path.exists():
            path.write_bytes(b"".join(self.shard))
        self.rows = np.memmap(path, np.uint8, "r", shape=(tar.members, tar.size))
        batch = min(batch, tar.members)
        numbers = random.Random(batch)
        self.orders = [
            np.array(numbers.sample(range(tar.members), batch)) for _ in range(8)
        ]
        self.out = np.zeros((batch, tar.size), np.uint8)

    @property
    def count(self) -> int:
        return sum(map(len, self.orders))

    def check(self) -> None:
        for i, row in zip(self.orders[-1], self.out, strict=True):
            assert row.tobytes() == bytes(self.shard[int(i)])


def by_fastshard(rows: Rows, threads: int | None) -> None:
    for order in rows.orders:
        rows.shard.read_into(order, rows.out, threads=threads)


def by_take(rows: Rows) -> None:
    for order in rows.orders:
        np.take(rows.rows, order, axis=0, out=rows.out, mode="clip")


def by_views(rows: Rows) -> None:
    for order in rows.orders:
        for row, i in zip(rows.out, order.tolist(), strict=True):
            row[:] = np.frombuffer(rows.shard[i], np.uint8)


@contenders(
    "gather",
    memcpy=by_take,
    fastshard_1_thread=lambda rows: by_fastshard(rows, 1),
    fastshard=lambda rows: by_fastshard(rows, None),
    views_copied_in_Python=by_views,
)
@pytest.mark.parametrize("kind", KINDS)
def bench_gather(
    benchmark: Any, tars: Any, read: Callable[[Rows], None], kind: str, turn: int
) -> None:
    count, size, batch = KINDS[kind]
    rows = Rows(tars("ustar", count, size), batch)
    read(rows)
    rows.check()
    benchmark.group = f"gather {kind} into one buffer, time a GB"
    benchmark.extra_info["operations"] = rows.count * rows.size / 1e9
    benchmark.pedantic(read, (rows,), rounds=7)


class Rivals:
    """Readers of the same samples, each in a format of its own."""

    def __init__(self, rows: Rows, folder: Path) -> None:
        self.rows = rows
        self.folder = folder
        self.out = rows.out
        self._lmdb: Any = None
        self._bagz: Any = None
        self._webshart: Any = None
        self._wids: Any = None

    def copy_row(self, k: int, data: Any) -> None:
        self.out[k] = np.frombuffer(data, np.uint8)

    def lmdb(self) -> None:
        import lmdb

        if self._lmdb is None:
            self._lmdb = lmdb.open(str(self.folder / "lmdb"), map_size=1 << 30)
            with self._lmdb.begin(write=True) as change:
                for i, view in enumerate(self.rows.shard):
                    change.put(b"%08d" % i, bytes(view))
        for order in self.rows.orders:
            with self._lmdb.begin(buffers=True) as found:
                for k, i in enumerate(order.tolist()):
                    self.copy_row(k, found.get(b"%08d" % i))

    def bagz(self) -> None:
        import bagz

        path = self.folder / "samples.bag"
        if self._bagz is None:
            options = bagz.Writer.Options(compression=bagz.CompressionNone())
            with bagz.Writer(str(path), options) as writer:
                for view in self.rows.shard:
                    writer.write(bytes(view))
            self._bagz = bagz.Reader(str(path))
        for order in self.rows.orders:
            for k, data in enumerate(self._bagz.read_indices(order.tolist())):
                self.copy_row(k, data)

    def webshart(self) -> None:
        import webshart

        if self._webshart is None:
            path = self.rows.shard.path
            self.rows.shard.save_index(f"{path[:-4]}.json")
            self._webshart = webshart.discover_dataset(str(Path(path).parent))
        for order in self.rows.orders:
            requests = [(0, i) for i in order.tolist()]
            found = webshart.read_files_batch(self._webshart, requests)
            for k, data in enumerate(found):
                self.copy_row(k, data)

    def wids(self) -> None:
        import wids

        if self._wids is None:
            shard = {"url": self.rows.shard.path, "nsamples": len(self.rows.shard)}
            self._wids = wids.ShardListDataset(
                [shard], cache_dir=str(self.folder), transformations=[]
            )
        for order in self.rows.orders:
            for k, i in enumerate(order.tolist()):
                self.copy_row(k, self._wids[i][".bin"].getvalue())

    def fastshard(self) -> None:
        by_fastshard(self.rows, 1)

    def fastshard_threads(self) -> None:
        by_fastshard(self.rows, None)

    def memcpy(self) -> None:
        by_take(self.rows)


@contenders(
    "samples moved",
    fastshard_1_thread=Rivals.fastshard,
    fastshard=Rivals.fastshard_threads,
    memcpy=Rivals.memcpy,
    LMDB=Rivals.lmdb,
    bagz=Rivals.bagz,
    webshart=Rivals.webshart,
    wids=Rivals.wids,
)
def bench_samples_moved(
    benchmark: Any,
    tmp_path: Path,
    read: Callable[[Rivals], None],
    turn: int,
) -> None:
    if read is Rivals.wids:
        pytest.importorskip("torch", reason="wids needs it")
    from harness import SCALE, write

    count, size, batch = SAMPLES
    (tmp_path / "shard").mkdir()
    tar = write(
        tmp_path / "shard" / "s.tar", "ustar", max(int(count * SCALE), 300), size
    )
    rows = Rows(tar, batch)
    rivals = Rivals(rows, tmp_path)
    read(rivals)
    rows.check()
    benchmark.group = "samples of 105,000 bytes moved into one buffer of 256"
    benchmark.extra_info["operations"] = rows.count
    benchmark.pedantic(read, (rivals,), rounds=7)
