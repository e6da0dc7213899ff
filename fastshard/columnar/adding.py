"""How a writer adds what it is given: arrays to shards, rows to the index."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from fastshard._core.npywrite import append_all
from fastshard.columnar.columns import WRITE_BYTES, Column, Record
from fastshard.columnar.fields import savepoint
from fastshard.columnar.schema import quoted
from fastshard.columnar.storing import FLUSH_SECONDS, Storing
from fastshard.columnar.swapping import Swap
from fastshard.columnar.writing import begin, is_fatal

__all__ = ["Adding"]


class Adding(Storing):
    """The part of a writer that appends arrays and writes the rows for them.

    Arrays are appended first. If the row cannot be written they are taken back; so
    a row never refers to what is not there.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        samples_per_shard: int = 1000,
        *,
        allow_pickle: bool = False,
    ) -> None:
        super().__init__(root, samples_per_shard, allow_pickle=allow_pickle)
        self._inserts: dict[tuple[str, ...], str] = {}  # SQL by fields
        self._updates: dict[tuple[object, ...], str] = {}  # with metadata or not
        self._cursor = sqlite3.Cursor(self._conn)

    def has_sample(self, sample_id: str) -> bool:
        """Say whether there is a sample of this id."""
        row = self._conn.execute("SELECT 1 FROM samples WHERE id = ?", (sample_id,))
        return row.fetchone() is not None

    def adopt(
        self,
        column: Column,
        number: int,
        record: Record,
        rows: dict[str, int],
        swap: Swap | None,
    ) -> None:
        """Let a shard that was written as a whole count, durably.

        Parameters
        ----------
        column : Column
        number : int
            The shard.
        record : Record
            Where it ends. It is on the disk.
        rows : dict of str to int
            Samples, and where their arrays begin. Others lose theirs in this shard.
        swap : Swap or None
            Puts its file in the place of another.
        """
        offset, shard = (quoted(f"{column.name}_{of}") for of in ("offset", "shard"))
        try:
            self.flush()
            self._swaps.finish()
            column.finish()
            with savepoint(self._conn) as cursor:
                if swap is not None:
                    self._swaps.make(swap, cursor)
                if column.has_shard(number):  # else no row refers to it
                    cursor.execute(
                        f"UPDATE samples SET {offset} = NULL, {shard} = NULL "
                        f"WHERE {shard} = ?",
                        (number,),
                    )
                cursor.executemany(
                    f"UPDATE samples SET {offset} = ?, {shard} = ? WHERE id = ?",
                    ((at, number, sample_id) for sample_id, at in rows.items()),
                )
        except (OSError, sqlite3.Error) as error:
            self._swaps.undo()
            if self.closed:
                raise
            self._failed(error)
        except BaseException:
            self._swaps.undo()
            raise
        # From here on the open transaction says that it counts.
        column.pending[number] = record
        column.highest = max(column.highest, number)
        column.unsound.discard(number)
        self.flush()

    def _insert(
        self, arrays: Mapping[str, Any], sample_id: str, name: bytes, text: str
    ) -> bool:
        """Append a sample's arrays and insert its row; False: the id is taken."""
        row, largest = self._append(arrays, name)
        row.append(sample_id)
        row.append(text)
        key = tuple(arrays)
        sql = self._inserts.get(key)
        if sql is None:
            sql = self._inserts[key] = insert_sql(key)
        try:
            if not self._conn.in_transaction:
                begin(self._conn)
            self._cursor.execute(sql, row)
        except sqlite3.IntegrityError as error:
            self._take_back(arrays)
            if "samples.id" not in str(error):
                raise ValueError(f"sample {sample_id!r:.200}: {error}") from error
            return False
        except sqlite3.Error as error:
            self._refused(error, arrays)
        if largest >= WRITE_BYTES:
            self._write_out(arrays)
        return True

    def _update(
        self, arrays: Mapping[str, Any], sample_id: str, name: bytes, text: str | None
    ) -> bool:
        """Append arrays and change a sample's row; False: there is no such sample."""
        row, largest = self._append(arrays, name)
        if text is not None:
            row.append(text)
        row.append(sample_id)
        key = (text is not None, *arrays)
        sql = self._updates.get(key)
        if sql is None:
            sql = self._updates[key] = update_sql(tuple(arrays), text is not None)
        try:
            begin(self._conn)
            self._cursor.execute(sql, row)
        except sqlite3.Error as error:
            self._refused(error, arrays)
        if not self._cursor.rowcount:
            self._take_back(arrays)
            return False
        if largest >= WRITE_BYTES:
            self._write_out(arrays)
        return True

    def _column(self, field: object) -> Column:
        column = self._columns.get(field) if isinstance(field, str) else None
        if column is None:
            raise ValueError(
                f"the field {field!r:.200} is not registered: call add_field() first"
            )
        return column

    def _append(self, arrays: Mapping[str, Any], name: bytes) -> tuple[list[Any], int]:
        """Append arrays to their shards; see `append_all`."""
        if type(arrays) is not dict and not isinstance(arrays, Mapping):
            kind = type(arrays).__name__
            raise TypeError(f"arrays are a mapping from fields, not {kind}")
        try:
            return append_all(self._buffers, arrays, name, self._make_room)
        except OSError as error:
            self._failed(error)

    def _make_room(self, field: str) -> None:
        """Have the next shard of a field begun."""
        self._column(field).next_shard()

    def _take_back(self, appended: Iterable[str]) -> None:
        """Drop what was appended last to each of these fields."""
        for field in appended:
            self._buffers[field].drop_last()

    def _refused(self, error: sqlite3.Error, appended: Iterable[str]) -> NoReturn:
        """Raise for a row that could not be written."""
        if not is_fatal(error):
            self._take_back(appended)
        self._failed(error)

    def _write_out(self, appended: Iterable[str]) -> None:
        """Write buffers that are full enough, and flush once in a while."""
        try:
            for field in appended:
                if len(self._buffers[field]) >= WRITE_BYTES:
                    self._columns[field].write()
        except OSError as error:
            self._failed(error)
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()


def insert_sql(names: Sequence[str]) -> str:
    """Return SQL that adds a sample: offset and shard of each field, id, text."""
    columns = [*_columns_of(names), "id", "meta_json"]
    marks = ", ".join("?" * len(columns))
    return f"INSERT INTO samples ({', '.join(columns)}) VALUES ({marks})"


def update_sql(names: Sequence[str], with_text: bool) -> str:
    """Return SQL that changes one: offset and shard of each field, text, id."""
    columns = [*_columns_of(names), *(["meta_json"] if with_text else [])]
    if not columns:
        return "UPDATE samples SET id = id WHERE id = ?"
    return f"UPDATE samples SET {', '.join(f'{c} = ?' for c in columns)} WHERE id = ?"


def _columns_of(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        yield quoted(f"{name}_offset")
        yield quoted(f"{name}_shard")
