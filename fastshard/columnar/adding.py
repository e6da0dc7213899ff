"""How a writer adds what it is given: arrays to shards, rows to the index."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from fastshard._core.npywrite import append_all
from fastshard.columnar.columns import WRITE_BYTES, Column, Record
from fastshard.columnar.fields import savepoint
from fastshard.columnar.folders import make_folder
from fastshard.columnar.schema import quoted
from fastshard.columnar.storing import FLUSH_SECONDS, Storing
from fastshard.columnar.swapping import Swap
from fastshard.columnar.writing import begin, is_fatal

__all__ = ["Adding", "register_rows"]

MOST_TEXTS = 256  # SQL that is kept, of each kind


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
        self._inserts: dict[tuple[str, ...], str] = {}  # SQL by fields
        self._updates: dict[tuple[object, ...], str] = {}  # with metadata or not
        super().__init__(root, samples_per_shard, allow_pickle=allow_pickle)

    def adopt(
        self,
        column: Column,
        number: int,
        record: Record,
        rows: dict[str, int],
        swap: Swap | None,
        *,
        existed: bool,
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
        existed : bool
            Whether rows that refer to the shard so far lose it.
        """
        self.flush()
        with self.withdrawing(column):
            try:
                self._swaps.finish()
                column.finish()
                with savepoint(self._conn) as cursor:
                    if swap is not None:
                        self._swaps.make(swap, cursor)
                    move_rows(cursor, column.name, number, rows, existed)
                    column.pending[number] = record
                    column.highest = max(column.highest, number)
            except (OSError, sqlite3.Error) as error:
                self._failed(error)
            self.flush()
        column.unsound.discard(number)

    @contextmanager
    def withdrawing(self, column: Column) -> Iterator[None]:
        """Let what is done to rows and a column's shards be nothing if it fails.

        It is made to count by a flush inside. Before it nothing is uncommitted.
        """
        commits = self._commits
        pending, foreign = dict(column.pending), set(column.foreign)
        highest = column.highest
        try:
            yield
        except BaseException:
            if not self.closed and self._commits == commits:
                # First the rows: files that they refer to must not go before.
                with suppress(sqlite3.Error):
                    sqlite3.Connection.rollback(self._conn)
                self._conn.begun = False
                self._swaps.undo()
                column.pending, column.foreign = pending, foreign
                column.highest = highest
            raise

    def _insert(
        self, arrays: Mapping[str, Any], sample_id: str, name: bytes, text: str
    ) -> bool:
        """Append a sample's arrays and insert its row; False: the id is taken."""
        arrays = copied(arrays)
        row, largest = self._append(arrays, name)
        row.append(sample_id)
        row.append(text)
        key = tuple(arrays)
        sql = self._inserts.get(key)
        if sql is None:
            if len(self._inserts) >= MOST_TEXTS:
                self._inserts.clear()
            sql = self._inserts[key] = insert_sql(key)
        try:
            if not self._conn.in_transaction:
                begin(self._conn)
            self._cursor.execute(sql, row)
        except sqlite3.IntegrityError as error:
            if self._is_lost():
                self._failed(error)
            self._take_back(arrays)
            if str(error) != "UNIQUE constraint failed: samples.id":
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
        arrays = copied(arrays)
        row, largest = self._append(arrays, name)
        if text is not None:
            row.append(text)
        row.append(sample_id)
        key = (text is not None, *arrays)
        sql = self._updates.get(key)
        if sql is None:
            if len(self._updates) >= MOST_TEXTS:
                self._updates.clear()
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

    def _make_folders(self, names: Iterable[str]) -> None:
        """Make the directories of new fields."""
        taken = {os.path.basename(c.folder).lower() for c in self._columns.values()}
        for folder in [f"{name}_shards" for name in names]:
            if folder.lower() in taken:
                raise ValueError(f"another field has the folder {folder}")
            if make_folder(os.path.join(self._home, folder)):
                self._folders.add(self._home)

    def _column(self, field: object) -> Column:
        column = self._columns.get(field) if isinstance(field, str) else None
        if column is None:
            raise ValueError(
                f"the field {field!r:.200} is not registered: call add_field() first"
            )
        return column

    def _append(self, arrays: Mapping[str, Any], name: bytes) -> tuple[list[Any], int]:
        """Append arrays to their shards; see `append_all`."""
        self._busy = True  # an array's own code may call the writer
        try:
            return append_all(self._buffers, arrays, name, self._make_room)
        except OSError as error:
            self._failed(error)
        finally:
            self._busy = False

    def _make_room(self, field: str) -> None:
        """Have the next shard of a field begun."""
        self._column(field).next_shard()

    def _take_back(self, appended: Iterable[str]) -> None:
        """Drop what was appended last to each of these fields."""
        for field in appended:
            self._buffers[field].drop_last()

    def _refused(self, error: sqlite3.Error, appended: Iterable[str]) -> NoReturn:
        """Raise for a row that could not be written."""
        if not is_fatal(error) and not self._is_lost():
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


def copied(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return arrays by field in a dict of our own, that no array's code changes."""
    if type(arrays) is not dict and not isinstance(arrays, Mapping):
        kind = type(arrays).__name__
        raise TypeError(f"arrays are a mapping from fields, not {kind}")
    return dict(arrays)


def move_rows(
    cursor: sqlite3.Cursor, field: str, number: int, rows: dict[str, int], existed: bool
) -> None:
    """Let a shard hold the arrays of these samples, new ones too, and of no others."""
    offset, shard = quoted(f"{field}_offset"), quoted(f"{field}_shard")
    if existed:
        cursor.execute(
            f"UPDATE samples SET {offset} = NULL, {shard} = NULL WHERE {shard} = ?",
            (number,),
        )
    register_rows(cursor, ((sample_id, "{}") for sample_id in rows))
    cursor.executemany(
        f"UPDATE samples SET {offset} = ?, {shard} = ? WHERE id = ?",
        ((at, number, sample_id) for sample_id, at in rows.items()),
    )


def register_rows(cursor: sqlite3.Cursor, rows: Iterable[tuple[str, str]]) -> None:
    """Add samples (id, metadata) without arrays; those that exist stay as they are."""
    cursor.executemany(
        "INSERT INTO samples (id, meta_json) VALUES (?, ?) ON CONFLICT (id) DO NOTHING",
        rows,
    )


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
