"""Compacting a dataset that is not open."""

from __future__ import annotations

import errno
import os

from fastshard.columnar.compacting import Compaction
from fastshard.columnar.schema import is_columnar
from fastshard.columnar.writer import ShardedDatasetWriter

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
    if not is_columnar(root):
        raise FileNotFoundError(errno.ENOENT, "no columnar dataset", os.fspath(root))
    with ShardedDatasetWriter(root) as writer:
        held = [
            record.members
            for c in writer._columns.values()
            for record in c.records.values()
        ]
        writer.samples_per_shard = max(held, default=writer.samples_per_shard)
        for column in writer._columns.values():
            column.limit = writer.samples_per_shard
        return writer.compact()
