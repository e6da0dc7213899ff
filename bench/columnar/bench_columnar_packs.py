"""Bench of packed columnar datasets: their size, and compaction into packs.

pytest bench/columnar/bench_columnar_packs.py

A million samples of float32[100], [50] and [50], with metadata. Targets: the shards
take at most 1.15 times the bytes of the arrays; compaction into packs takes at most two
minutes of CPU time.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from fastshard.columnar import ShardedDatasetReader, compact, stat
from harness import SCALE, contenders
from rivals.columnar_by_id import write_fastshard
from rivals.columnar_data import PER_SHARD, Data

COUNT = max(int(10**6 * SCALE), PER_SHARD)
LARGEST = 1.15  # of the arrays' bytes
LONGEST = 120e-6  # seconds of CPU time a sample
FIRST, LAST = 0, COUNT - 1


def pack_fastshard(root: Path) -> None:
    compact(root, pack=True)


@contenders("compact into packs", fastshard=pack_fastshard)
def bench_compact(benchmark: Any, tmp_path: Path, read: Any, turn: int) -> None:
    """Compaction of a dataset of the default layout into packs."""
    data = Data(tmp_path, COUNT)
    root = data.store(write_fastshard)
    data.__dict__.pop("rows", None)

    def pack() -> None:
        begun = time.process_time()
        read(root)
        benchmark.extra_info["CPU s"] = round(time.process_time() - begun, 1)

    benchmark.group = f"compact(pack=True), {COUNT:,} samples of 3 fields"
    benchmark.pedantic(pack, rounds=1)
    figures = stat(root)
    with ShardedDatasetReader(root) as reader:
        for i in (FIRST, LAST):
            arrays, metadata = reader.get_sample(data.ids[i])
            data.check(i, arrays, metadata)
            nbytes = sum(array.nbytes for array in arrays.values())
    size = figures["bytes"] / (COUNT * nbytes)
    whole = size + figures["index_bytes"] / (COUNT * nbytes)
    benchmark.extra_info["bytes per byte of arrays"] = round(size, 3)
    benchmark.extra_info["with the index"] = round(whole, 3)
    assert size <= LARGEST
    assert benchmark.extra_info["CPU s"] <= LONGEST * COUNT
    shutil.rmtree(root)
