"""Rows of new samples buffered for statements that insert many."""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

__all__ = ["Insert", "PendingRows", "format_insert"]

ROWS = 32  # of a statement
MAX_VALUES = 512  # of a statement; SQLite has allowed 999 parameters at least
MAX_TEXT = 64 << 10  # characters of metadata; longer ones are inserted at once
SINGLE_ROWS = 32  # inserted one by one before the first statement of a transaction
COLUMN = r'(?:"\w+"|\w+) (?:INTEGER|TEXT|REAL|BLOB)'
# The table without constraints, expressions or collations but those of the id.
PLAIN_TABLE = re.compile(
    rf"CREATE TABLE samples \(id TEXT PRIMARY KEY, meta_json TEXT(?:, {COLUMN})*\)",
    re.ASCII,
)


class Insert(NamedTuple):
    """SQL that inserts rows of the same columns, the last two id and metadata."""

    one: str
    many: str  # of many rows
    num_values: int  # of `many`
    columns: tuple[str, ...]


def format_insert(names: Sequence[str]) -> Insert:
    """Return SQL with parameters: the columns of fields, id, metadata."""
    columns = (*names, "id", "meta_json")
    marks = f"({', '.join('?' * len(columns))})"
    rows = max(1, min(ROWS, MAX_VALUES // len(columns)))
    head = f"INSERT INTO samples ({', '.join(columns)}) VALUES "
    many = head + ", ".join([marks] * rows)
    return Insert(head + marks, many, rows * len(columns), columns)


class PendingRows:
    """Rows of a transaction that are not yet written to ``samples``.

    A row waits only if SQLite is sure to accept it: its id is greater than all others,
    the table has no constraint of the user, and the transaction keeps other programs
    out. Any other statement of the connection comes after the rows that wait; see
    `settle`.

    Attributes
    ----------
    is_full : bool
        Whether `write` is due before the next row: those that waited when a row was
        accepted last make a whole statement.
    is_settled : bool
        Whether `settle` has nothing to do.
    unflushed : int
        Samples added or updated since the last commit, those that wait included.
    """

    def __init__(self, conn: sqlite3.Connection, mutex: threading.RLock) -> None:
        self.mutex = mutex
        self._conn = conn
        self._cursor = sqlite3.Cursor(conn)
        self._last_id: str | None = None  # the greatest; None: rows are not buffered
        self._singles = 0  # rows written singly since the last `settle`
        self._insert: Insert | None = None  # of the buffered rows
        self._values: list[object] = []  # of these rows
        self._enabled = True
        self.is_full = False
        self.is_settled = True
        self.unflushed = 0

    def disable(self) -> None:
        """Stop buffering: a cursor exists that does not call `settle`."""
        self.settle()
        self._enabled = False

    def accept(self, insert: Insert, row: list[object]) -> bool:
        """Buffer a row; return False if it must be written at once."""
        sample_id, text = row[-2], row[-1]
        if (
            self._last_id is None
            or type(sample_id) is not str
            or sample_id <= self._last_id
            or (insert is not self._insert and self._values)
            or len(text) > MAX_TEXT  # type: ignore[arg-type]
            or not self._conn.in_transaction
        ):
            return False
        # The id first: if an interrupt comes between, the row is merely missing.
        self._last_id = sample_id
        self._insert = insert
        values = self._values
        values += row
        self.is_full = len(values) >= insert.num_values
        return True

    def note_single(self, sample_id: str) -> None:
        """Note a row that was written; decide whether to buffer the next ones."""
        if self._last_id is not None:
            if type(sample_id) is not str:
                self._last_id = None
            elif sample_id > self._last_id:
                self._last_id = sample_id
        elif self._enabled:
            self._singles += 1
            self.is_settled = False  # until `settle`, rows are not buffered
            if self._singles == SINGLE_ROWS:
                with suppress(sqlite3.Error):  # the row itself is written
                    self._last_id = self._find_last_id()

    def settle(self) -> None:
        """Write the buffered rows, before a statement that may depend on them."""
        if not self.is_settled:
            with self.mutex:
                self._last_id = None
                self._singles = 0
                self.write()
                self.is_settled = True

    def forget(self) -> None:
        """Drop the buffered rows: their transaction was rolled back."""
        with self.mutex:
            self._last_id = None
            self._singles = 0
            self._values.clear()
            self.is_settled = True
            self.unflushed = 0

    def write(self) -> None:
        """Write the buffered rows."""
        insert = self._insert
        if insert is None or not self._values:
            return
        if not self._conn.in_transaction:  # another cursor has ended it
            self._cursor.execute("BEGIN IMMEDIATE")
        if len(self._values) == insert.num_values:
            try:
                self._cursor.execute(insert.many, self._values)
            except sqlite3.Error:
                if not self._conn.in_transaction:
                    raise
            else:
                self._values = []
                return
        self._write_singly(insert)

    def _write_singly(self, insert: Insert) -> None:
        """Write rows singly."""
        width = len(insert.columns)
        refusal: sqlite3.IntegrityError | None = None
        while self._values:
            row = self._values[:width]
            try:
                self._cursor.execute(insert.one, row)
            except sqlite3.IntegrityError as error:
                if not self._conn.in_transaction:
                    raise
                if refusal is None and not self._is_written(insert, row):
                    refusal = _name_sample(error, row[-2])
            del self._values[:width]
        if refusal is not None:
            raise refusal

    def _is_written(self, insert: Insert, row: list[object]) -> bool:
        """Return whether a row is written already, before an interrupt."""
        columns = ", ".join(insert.columns)
        sql = f"SELECT {columns} FROM samples WHERE id = ?"
        return self._cursor.execute(sql, (row[-2],)).fetchall() == [tuple(row)]

    def _find_last_id(self) -> str | None:
        """Return the greatest id, or None if rows must be written one by one."""
        execute = self._cursor.execute
        if execute("PRAGMA encoding").fetchone() != ("UTF-8",):
            return None  # ids are ordered by their bytes
        if execute("SELECT 1 FROM sqlite_temp_master LIMIT 1").fetchone():
            return None
        schema = execute(
            "SELECT type, sql FROM main.sqlite_master WHERE tbl_name = 'samples' "
            "COLLATE NOCASE ORDER BY type DESC"
        ).fetchall()
        if len(schema) != 2 or schema[1] != ("index", None):  # that of the primary key
            return None
        kind, sql = schema[0]
        if kind != "table" or PLAIN_TABLE.fullmatch(str(sql)) is None:
            return None
        row = execute("SELECT max(id) FROM samples").fetchone()
        return row[0] if row and type(row[0]) is str else None


def _name_sample(
    error: sqlite3.IntegrityError, sample_id: object
) -> sqlite3.IntegrityError:
    """Add the sample's id to an error's message."""
    named = sqlite3.IntegrityError(f"sample {sample_id!r:.200}: {error}")
    named.sqlite_errorcode = error.sqlite_errorcode
    named.sqlite_errorname = error.sqlite_errorname
    return named
