"""Columnar datasets: arrays by field in tar shards, under one SQLite index.

Examples
--------
A writer makes the dataset, or adds to it:

>>> import numpy as np
>>> from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
>>> with ShardedDatasetWriter("series") as writer:
...     writer.add_fields(["history", "target"])
...     for day in range(3):
...         arrays = {"history": np.full(4, day), "target": np.ones(2)}
...         sample_id = writer.add_sample(arrays, metadata={"day": day})

A reader finds samples by id, by position and by SQL:

>>> reader = ShardedDatasetReader("series")
>>> arrays, metadata = reader.get_sample("sample_000000000003")
>>> arrays["history"], metadata
(array([2, 2, 2, 2]), {'day': 2})

`fastshard.open` makes a `fastshard.Dataset` of it, to shuffle, split and batch:

>>> import fastshard
>>> ds = fastshard.open("series")
>>> next(iter(ds.batches(3)))["history"].shape
(3, 4)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastshard.columnar.compaction import compact
    from fastshard.columnar.read.column_sample import ColumnSample
    from fastshard.columnar.read.dataset_schema import DatasetSchema
    from fastshard.columnar.read.sequence import ArraySequence
    from fastshard.columnar.reader import ShardedDatasetReader
    from fastshard.columnar.stats import stat
    from fastshard.columnar.verification import verify
    from fastshard.columnar.windows import WindowDataset
    from fastshard.columnar.write.compact.rewrite import Compaction
    from fastshard.columnar.write.shard_handle import ShardHandle
    from fastshard.columnar.write.writer import ShardedDatasetWriter

__all__ = [
    "ArraySequence",
    "ColumnSample",
    "Compaction",
    "DatasetSchema",
    "ShardHandle",
    "ShardedDatasetReader",
    "ShardedDatasetWriter",
    "WindowDataset",
    "compact",
    "stat",
    "verify",
]

MODULES = {  # not named like their contents, which they would hide
    "ArraySequence": "read.sequence",
    "ColumnSample": "read.column_sample",
    "Compaction": "write.compact.rewrite",
    "DatasetSchema": "read.dataset_schema",
    "ShardHandle": "write.shard_handle",
    "ShardedDatasetReader": "reader",
    "ShardedDatasetWriter": "write.writer",
    "WindowDataset": "windows",
    "compact": "compaction",
    "stat": "stats",
    "verify": "verification",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{MODULES[name]}")
    globals()[name] = value = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
