"""Deletion of samples: their rows now, their bytes with the next compaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from fastshard.columnar.layout.schema import check_sample_id
from fastshard.columnar.write.column import Column
from fastshard.columnar.write.connection import begin, savepoint
from fastshard.columnar.write.session import WriterSession

__all__ = ["delete_rows"]


def delete_rows(session: WriterSession, sample_ids: Iterable[str]) -> None:
    """Delete the rows of samples; their members become dead space.

    Shards of other programs that lose a row get a record: a row that is added later
    with the same id refers to its own member, by an exact offset, and a compaction
    knows the shard even if no row refers to it any more.

    Parameters
    ----------
    session : WriterSession
        The caller holds its mutex and flushes.
    sample_ids : iterable of str

    Raises
    ------
    ValueError
        An id is invalid, or there is no such sample. Nothing is deleted.
    TypeError
        An id is not a str. Nothing is deleted.
    """
    ids = list(dict.fromkeys(sample_ids))
    for sample_id in ids:
        check_sample_id(sample_id)
    try:
        begin(session.conn)
        missing = _find_missing(session.conn, ids)
        if missing is not None:
            raise ValueError(f"there is no sample {missing!r:.200}")
        for column in session.transaction.columns.values():
            _adopt_shards(session.conn, column, ids)
        with savepoint(session.conn) as cursor:
            cursor.executemany(
                "DELETE FROM samples WHERE id = ?", ((each,) for each in ids)
            )
    except (OSError, sqlite3.Error) as error:
        session.fail(error)
    for handle in list(session.handles):
        handle.forget(ids)


def _find_missing(conn: sqlite3.Connection, ids: list[str]) -> str | None:
    """Return the first id without a sample, or None."""
    cursor = sqlite3.Cursor(conn)
    for sample_id in ids:
        cursor.execute("SELECT 1 FROM samples WHERE id = ?", (sample_id,))
        if cursor.fetchone() is None:
            return sample_id
    return None


def _adopt_shards(conn: sqlite3.Connection, column: Column, ids: list[str]) -> None:
    """Adopt the foreign shards that the samples lie in, if they may be appended to."""
    foreign = column.foreign - column.pending.keys()
    if not foreign:
        return
    cursor = sqlite3.Cursor(conn)
    sql = f"SELECT {column.shard_column} FROM samples WHERE id = ?"
    for sample_id in ids:
        for (number,) in cursor.execute(sql, (sample_id,)):
            if type(number) is int and number in foreign:
                column.adopt(number)
                foreign.discard(number)
