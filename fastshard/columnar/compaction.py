"""Compaction of a dataset without an open writer."""

from __future__ import annotations

import os
import sqlite3

from fastshard.columnar.layout.schema import INDEX_NAME, is_columnar
from fastshard.columnar.write.column import Column
from fastshard.columnar.write.compact.rewrite import Compaction
from fastshard.columnar.write.writer import ShardedDatasetWriter
from fastshard.dataset.paths.not_found import unmarked_error

__all__ = ["Compaction", "compact"]


def compact(root: str | os.PathLike[str], *, pack: bool | None = None) -> Compaction:
    """Rewrite the shards of a dataset without dead space.

    New shards have at most as many arrays as the fullest old one. See
    `ShardedDatasetWriter.compact`. On the command line: ``fastshard compact ROOT``.

    Parameters
    ----------
    root : str or path-like
        The dataset's directory.
    pack : bool, optional
        True: store small arrays as rows of packs. False: each as a member of its own.
        By default each field stays as it is.

    Returns
    -------
    Compaction
        Bytes and numbers of shard files, before and after.

    Raises
    ------
    ShardNotFoundError
        There is no columnar dataset (a `FileNotFoundError`).
    WriterLockedError
        Another process writes to it (a `BlockingIOError`).
    FormatError
        A shard is damaged, or a row refers to a missing member. The field is unchanged.
    OSError
        There is no room for the new shards. The field is unchanged.

    Examples
    --------
    >>> import numpy as np
    >>> from fastshard.columnar import ShardedDatasetWriter, compact
    >>> with ShardedDatasetWriter("weather") as writer:
    ...     writer.add_field("history")
    ...     writer.register_samples(["bonn"])
    ...     for _ in range(9):  # each update leaves the replaced bytes behind
    ...         writer.update_sample("bonn", {"history": np.zeros(1000)})
    >>> result = compact("weather")
    >>> result.bytes_before, result.bytes_after
    (79360, 9728)
    >>> with ShardedDatasetWriter("small") as writer:
    ...     writer.add_field("history")
    ...     for day in range(1000):
    ...         _ = writer.add_sample({"history": np.full(50, day, "f4")})
    >>> result = compact("small", pack=True)
    >>> result.bytes_before, result.bytes_after
    (1025024, 201728)
    """
    name = os.fsdecode(root)
    if not is_columnar(name):
        raise unmarked_error(name, "columnar", INDEX_NAME)
    with ShardedDatasetWriter(name) as writer:
        columns = writer._transaction.columns.values()
        limits = (_max_members(writer.conn, column) for column in columns)
        limit = max(limits, default=0) or writer.samples_per_shard
        writer.samples_per_shard = limit
        for column in columns:
            column.limit = limit
        return writer.compact(pack)


def _max_members(conn: sqlite3.Connection, column: Column) -> int:
    """Return the arrays in a field's fullest shard, by its records and its rows."""
    shard = column.shard_column
    sql = f"SELECT count(*) FROM samples WHERE {shard} IS NOT NULL GROUP BY {shard}"
    counts = [count for (count,) in conn.execute(sql)]
    counts += [r.members for r in column.records.values() if not r.is_condemned]
    return max(counts, default=0)
