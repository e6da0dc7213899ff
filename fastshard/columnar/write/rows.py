"""Rows of samples, and the members that they refer to."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from fastshard._core.dataset.npy import append_all
from fastshard.columnar.layout.schema import check_sample_id
from fastshard.columnar.write.append_file import WRITE_BYTES
from fastshard.columnar.write.column import Column
from fastshard.columnar.write.connection import begin, is_fatal, savepoint
from fastshard.columnar.write.pending_rows import Insert, format_insert
from fastshard.columnar.write.session import WriterSession

__all__ = ["RowWriter", "delete_rows", "move_rows", "register_rows"]

FLUSH_SECONDS = 60.0  # since the last commit; then a full buffer is flushed
MAX_STATEMENTS = 256  # SQL texts that are cached, of each kind


class RowWriter:
    """Writer of single samples: appends arrays, then writes the row.

    The arrays come first, so that a row never refers to missing members. If the row
    is refused, they are dropped from the buffers.
    """

    def __init__(self, session: WriterSession) -> None:
        self._session = session
        self._transaction = session.transaction
        self._conn = session.conn
        self._cursor = sqlite3.Cursor(session.conn)
        self._inserts: dict[tuple[str, ...], Insert] = {}  # by fields
        self._pending = session.pending
        self._updates: dict[tuple[object, ...], str] = {}  # SQL by has_text and fields

    def insert(
        self, arrays: Mapping[str, Any], sample_id: str, name: bytes, text: str
    ) -> bool:
        """Append a sample's arrays and insert its row."""
        pending = self._pending
        if pending.is_full:
            self._write_pending()
        arrays = arrays.copy() if type(arrays) is dict else _copy_arrays(arrays)
        row, largest = self._append(arrays, name)
        row += sample_id, text
        key = tuple(arrays)
        insert = self._inserts.get(key)
        if insert is None:
            if len(self._inserts) >= MAX_STATEMENTS:
                self._inserts.clear()
            insert = self._inserts[key] = format_insert(self._name_columns(arrays))
        if not pending.accept(insert, row):
            if not self._insert_now(insert, row, arrays):
                return False
            pending.note_single(sample_id)
        pending.unflushed += 1
        if largest >= WRITE_BYTES:
            self._write_buffers(arrays)
        return True

    def _insert_now(
        self, insert: Insert, row: list[Any], fields: Iterable[str]
    ) -> bool:
        """Insert a row after the buffered ones; return False if the id is taken."""
        try:
            if not self._conn.in_transaction:
                begin(self._conn)
            self._pending.write()
        except sqlite3.Error as error:
            self._fail(error, fields)
        try:
            self._cursor.execute(insert.one, row)
        except sqlite3.IntegrityError as error:
            if self._transaction.is_lost():
                self._session.fail(error)
            self._drop_last(fields)
            if str(error) != "UNIQUE constraint failed: samples.id":
                raise ValueError(f"sample {row[-2]!r:.200}: {error}") from error
            return False
        except sqlite3.Error as error:
            self._fail(error, fields)
        return True

    def _write_pending(self) -> None:
        """Write the buffered rows before another one."""
        try:
            self._pending.write()
        except sqlite3.Error as error:
            self._session.fail(error)

    def update(
        self, arrays: Mapping[str, Any], sample_id: str, name: bytes, text: str | None
    ) -> bool:
        """Append arrays and change a sample's row."""
        arrays = _copy_arrays(arrays)
        row, largest = self._append(arrays, name)
        if text is not None:
            row.append(text)
        row.append(sample_id)
        key = (text is not None, *arrays)
        sql = self._updates.get(key)
        if sql is None:
            if len(self._updates) >= MAX_STATEMENTS:
                self._updates.clear()
            sql = _format_update(self._name_columns(arrays), text is not None)
            self._updates[key] = sql
        try:
            begin(self._conn)
            self._cursor.execute(sql, row)
        except sqlite3.Error as error:
            self._fail(error, arrays)
        if not self._cursor.rowcount:
            self._drop_last(arrays)
            return False
        self._pending.unflushed += 1
        if largest >= WRITE_BYTES:
            self._write_buffers(arrays)
        return True

    def _append(self, arrays: Mapping[str, Any], name: bytes) -> tuple[list[Any], int]:
        """Append arrays to the buffers of their fields; see `append_all`."""
        session = self._session
        session.busy = True  # an array's own code may call the writer
        try:
            return append_all(
                self._transaction.buffers, arrays, name, self._begin_next_shard
            )
        except OSError as error:
            session.fail(error)
        except (TypeError, ValueError) as error:
            error.add_note(f"sample {name.decode().removesuffix('.npy')!r:.200}")
            raise
        finally:
            session.busy = False

    def _begin_next_shard(self, field: str) -> None:
        columns = self._transaction.columns
        (columns.get(field) or self._transaction.find_column(field)).open_next_shard()

    def _name_columns(self, fields: Iterable[str]) -> list[str]:
        """Return the columns of the values that `append_all` returns."""
        names = []
        for field in fields:
            column = self._transaction.columns[field]
            names += [column.offset_column, column.shard_column]
            if column.buffer.has_rows:
                names.append(column.row_column)
        return names

    def forget_statements(self) -> None:
        """Clear the cached SQL: fields were packed or unpacked."""
        self._inserts.clear()
        self._updates.clear()

    def _drop_last(self, fields: Iterable[str]) -> None:
        """Drop the last member from the buffer of each field."""
        for field in fields:
            self._transaction.buffers[field].drop_last()

    def _fail(self, error: sqlite3.Error, fields: Iterable[str]) -> NoReturn:
        """Raise for a row that was not written."""
        if not is_fatal(error) and not self._transaction.is_lost():
            self._drop_last(fields)
        self._session.fail(error)

    def _write_buffers(self, fields: Iterable[str]) -> None:
        """Write full buffers; flush `FLUSH_SECONDS` after the last commit."""
        transaction = self._transaction
        try:
            for field in fields:
                if len(transaction.buffers[field]) >= WRITE_BYTES:
                    transaction.columns[field].write()
        except OSError as error:
            self._session.fail(error)
        if time.monotonic() - transaction.committed_at > FLUSH_SECONDS:
            self._session.flush()


def _copy_arrays(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy, safe from changes by the array's own code."""
    if type(arrays) is not dict and not isinstance(arrays, Mapping):
        kind = type(arrays).__name__
        raise TypeError(f"arrays must be a mapping from fields to arrays, got {kind}")
    return dict(arrays)


def register_rows(cursor: sqlite3.Cursor, rows: Iterable[tuple[str, str]]) -> None:
    """Insert samples (id, metadata as JSON) without arrays; keep existing ones."""
    cursor.executemany(
        "INSERT INTO samples (id, meta_json) VALUES (?, ?) ON CONFLICT (id) DO NOTHING",
        rows,
    )


def move_rows(
    cursor: sqlite3.Cursor,
    column: Column,
    number: int,
    places: dict[str, tuple[int, int | None]],
    *,
    clear: bool,
) -> None:
    """Let rows refer to members of a shard; insert rows that are missing."""
    offset, shard = column.offset_column, column.shard_column
    row = ""
    if column.is_packed:
        row = f", {column.row_column} = fastshard_row(?5, ?3, ?2, ?1, ?4)"
    if clear:
        cursor.execute(
            f"UPDATE samples SET {offset} = NULL, {shard} = NULL{column.cleared_row} "
            f"WHERE {shard} = ?",
            (number,),
        )
    register_rows(cursor, ((sample_id, "{}") for sample_id in places))
    cursor.executemany(
        f"UPDATE samples SET {offset} = ?1, {shard} = ?2{row} WHERE id = ?3",
        (
            (at, number, sample_id, place, column.name)[: 5 if row else 3]
            for sample_id, (at, place) in places.items()
        ),
    )


def delete_rows(session: WriterSession, sample_ids: Iterable[str]) -> None:
    """Delete the rows of samples; their members become dead space.

    Shards of other programs that lose a row get a record: a row that is added later
    with the same id refers to its own member, by an exact offset, and a compaction
    knows the shard even if no row refers to it any more.
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


def _format_update(names: Sequence[str], has_text: bool) -> str:
    """Return SQL with parameters: the columns of fields, metadata, id."""
    columns = [*names, *(["meta_json"] if has_text else [])]
    if not columns:
        return "UPDATE samples SET id = id WHERE id = ?"
    return f"UPDATE samples SET {', '.join(f'{c} = ?' for c in columns)} WHERE id = ?"
