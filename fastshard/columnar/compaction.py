"""Compaction of a dataset without an open writer."""

from __future__ import annotations

import os
import sqlite3

from fastshard.columnar.layout.connection import INDEX_ERRORS
from fastshard.columnar.layout.schema import INDEX_NAME, is_columnar
from fastshard.columnar.layout.shard_limit import ShardLimit, ShardLimits
from fastshard.columnar.write.column import Column
from fastshard.columnar.write.compact.rewrite import Compaction
from fastshard.columnar.write.connection import translate_writer_error
from fastshard.columnar.write.session import WriterSession
from fastshard.columnar.write.writer import ShardedDatasetWriter
from fastshard.dataset.paths.not_found import unmarked_error

__all__ = ["Compaction", "compact"]


def compact(root: str | os.PathLike[str], *, pack: bool | None = None) -> Compaction:
    """Rewrite the shards of a dataset without dead space.

    New shards have at most as many arrays as the fullest old one; with ``pack=True``
    up to 50,000, and with ``pack=False`` those of packed fields up to 1000, as in new
    datasets. A shard of a packed field that has reached 256 MiB takes no more. See
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
        session = writer._session
        try:
            session.limits = _find_limits(session, pack)
        except INDEX_ERRORS as error:
            raise translate_writer_error(error, session.path) from error
        return writer.compact(pack)


def _find_limits(session: WriterSession, pack: bool | None) -> ShardLimits:
    """Return the limits of the new shards: those of the fullest old ones.

    Fields that get or lose packs have the default limits if these are more suitable.
    """
    default = session.limits
    columns = session.transaction.columns.values()
    counts: dict[bool, int] = {False: 0, True: 0}  # by whether a field has packs
    for column in columns:
        members = _max_members(session.conn, column)
        counts[column.is_packed] = max(counts[column.is_packed], members)
    unpacked, packed = counts[False], counts[True]
    if pack:
        packed = max(*counts.values(), default.packed.arrays)
    elif pack is False:
        unpacked = max(unpacked, min(packed, default.unpacked.arrays))
    return ShardLimits(
        ShardLimit(unpacked or default.unpacked.arrays),
        default.packed._replace(arrays=packed or default.packed.arrays),
    )


def _max_members(conn: sqlite3.Connection, column: Column) -> int:
    """Return the arrays in a field's fullest shard, by its records and its rows."""
    shard = column.shard_column
    sql = f"SELECT count(*) FROM samples WHERE {shard} IS NOT NULL GROUP BY {shard}"
    counts = [count for (count,) in conn.execute(sql)]
    counts += [r.members for r in column.records.values() if not r.is_condemned]
    return max(counts, default=0)
