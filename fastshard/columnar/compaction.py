"""Compacting a dataset that is not open."""

from __future__ import annotations

import errno
import os
import sqlite3

from fastshard.columnar.schema import is_columnar, quote_name
from fastshard.columnar.write.column import Column
from fastshard.columnar.write.rewrite import Compaction
from fastshard.columnar.write.writer import ShardedDatasetWriter

__all__ = ["Compaction", "compact"]


def compact(root: str | os.PathLike[str]) -> Compaction:
    """Rewrite the shards of a dataset without dead space.

    New shards have as many samples as the fullest of the old ones. See
    `ShardedDatasetWriter.compact`.

    Raises
    ------
    FileNotFoundError
        There is no such dataset.
    WriterLockedError
        Another process writes to it.
    """
    name = os.fsdecode(root)
    if not is_columnar(name):
        raise FileNotFoundError(errno.ENOENT, "no columnar dataset", name)
    with ShardedDatasetWriter(name) as writer:
        columns = writer._columns.values()
        fullest = max((_fullest(writer.conn, column) for column in columns), default=0)
        writer.samples_per_shard = fullest or writer.samples_per_shard
        for column in columns:
            column.limit = writer.samples_per_shard
        return writer.compact()


def _fullest(conn: sqlite3.Connection, column: Column) -> int:
    """Return how many members the fullest shard of a field has, or rows refer to."""
    shard = quote_name(f"{column.name}_shard")
    sql = f"SELECT count(*) FROM samples WHERE {shard} IS NOT NULL GROUP BY {shard}"
    counts = [count for (count,) in conn.execute(sql)]
    counts += [r.members for r in column.records.values() if r.nbytes >= 0]
    return max(counts, default=0)
