"""SQLite connection of a writer: stores the arrays before it commits."""

from __future__ import annotations

import errno
import os
import re
import sqlite3
import weakref
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from fastshard._core.table.checksums import identify_row
from fastshard._util.processes.sqlite import open_with_wal
from fastshard.columnar.layout.connection import (
    INDEX_ERRORS,
    SIDE_SUFFIXES,
    file_size,
    is_json_trusted,
)
from fastshard.columnar.layout.packs import PACKED_TABLE
from fastshard.columnar.write.pending_rows import PendingRows
from fastshard.errors import ClosedError, FormatError, WriterLockedError

__all__ = [
    "CommitGuard",
    "WriterConnection",
    "WriterCursor",
    "begin",
    "check_no_triggers",
    "is_fatal",
    "is_statement_error",
    "open_writer",
    "savepoint",
    "translate_writer_error",
]

BUSY_SECONDS = 30.0
TABLES = ("samples", "fields", "counters", "fastshard_shards", PACKED_TABLE)
# SQL that may end a transaction, after blanks and comments.
ENDING = re.compile(
    r"(?:\s|;|\ufeff|--[^\n]*(?:\n|\Z)|/\*.*?(?:\*/|\Z))*(commit|end|release)\b",
    re.IGNORECASE | re.DOTALL,
)
FULL = getattr(sqlite3, "SQLITE_FULL", 13)
IOERR, CORRUPT, NOTADB, BUSY, LOCKED, READONLY, CANTOPEN = 10, 11, 26, 5, 6, 8, 14
ERROR, NOMEM, INTERRUPT, TOOBIG, CONSTRAINT, MISMATCH = 1, 7, 9, 18, 19, 20
SETTINGS = (
    "PRAGMA synchronous=FULL",  # a commit returns when it is on disk
    "PRAGMA fullfsync=ON",  # for macOS, where fsync does not suffice
    "PRAGMA cache_size=-65536",  # KiB
    "PRAGMA temp_store=MEMORY",
)


class CommitGuard(Protocol):
    """Owner of a connection, called around each commit.

    Attributes
    ----------
    state : int
        0 if it is open.
    """

    state: int

    def flush(self) -> None: ...

    def guard_commit(self) -> AbstractContextManager[None]:
        """Return a context for one statement that may commit."""

    def check_transaction(self, error: sqlite3.Error) -> None:
        """Raise an error for the writer if `error` has ended the transaction."""

    def check_open(self) -> None:
        """Raise ClosedError if the writer is closed or another process's."""

    def close(self) -> None: ...


PLAIN_LEVEL: Any = sqlite3.Connection.isolation_level
PLAIN_CHANGES: Any = sqlite3.Connection.total_changes


class WriterConnection(sqlite3.Connection):
    """Connection whose commits store the arrays first.

    `commit`, leaving a ``with`` block, and SQL that ends a transaction act as the
    writer's `flush`. A `rollback` removes the rows of samples added since the last
    flush; their arrays become dead space. `close` closes the writer.

    Rows of new samples may wait, to be written many at once. Each statement of this
    connection's methods, and of cursors that `cursor` returns, sees them; those of a
    cursor made with ``sqlite3.Cursor(conn)`` may not.

    Attributes
    ----------
    autocommit
        As of `sqlite3.Connection`; it cannot be set.
    guard : weakref to CommitGuard, or None
        None until the index is open; until then commits are SQLite's own.
    pending : PendingRows, or None
        Rows that wait. None until the index is open, and after `finish`.
    is_finished : bool
        Whether `finish` was called.
    has_begun : bool
        Whether a transaction was begun and its end not seen yet. If SQLite says that
        there is none, an error has rolled it back.
    """

    guard: weakref.ref[CommitGuard] | None = None
    pending: PendingRows | None = None
    is_finished = False
    has_begun = False

    @property  # type: ignore[override]
    def isolation_level(self) -> str | None:
        """How transactions begin. Setting it commits, as `commit` does."""
        level: str | None = PLAIN_LEVEL.__get__(self)
        return level

    @isolation_level.setter
    def isolation_level(self, level: str | None) -> None:
        guard = self._check()
        if guard is not None:
            guard.flush()
        PLAIN_LEVEL.__set__(self, level)

    @property
    def autocommit(self) -> Any:
        """How transactions end, from Python 3.12 on. It cannot be set."""
        return super().autocommit  # type: ignore[misc,unused-ignore]

    @autocommit.setter
    def autocommit(self, value: Any) -> None:  # it would commit without our hook
        raise sqlite3.NotSupportedError(
            "autocommit cannot be set on a writer's connection"
        )

    def cursor(self, factory: Any = None) -> Any:
        """Return a `WriterCursor`, or a cursor made by `factory`."""
        self._check()
        if factory is None:
            return super().cursor(WriterCursor)
        if self.pending is not None:
            self.pending.disable()
        return super().cursor(factory)

    def execute(self, sql: str, parameters: Any = (), /) -> WriterCursor:
        """Execute one statement with a new cursor."""
        return self._new_cursor().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> WriterCursor:
        """Execute one statement many times with a new cursor."""
        return self._new_cursor().executemany(sql, parameters)

    def executescript(self, sql_script: str, /) -> WriterCursor:
        """Flush, then execute statements with a new cursor; each commits itself."""
        return self._new_cursor().executescript(sql_script)

    def _new_cursor(self) -> WriterCursor:
        self._check_unfinished()
        return WriterCursor(self)  # which checks the rest at its statement

    def commit(self) -> None:
        """Flush the writer."""
        guard = self._check()
        if guard is None:
            super().commit()
        else:
            guard.flush()

    def rollback(self) -> None:
        """Roll back the rows that are not committed."""
        with suppress(sqlite3.Error):
            self._check()
        super().rollback()
        self.has_begun = False
        if self.pending is not None:
            self.pending.forget()

    @property
    def total_changes(self) -> int:
        """Number of rows that were written since the connection was opened."""
        self._check()
        count: int = PLAIN_CHANGES.__get__(self)
        return count

    def backup(self, *args: Any, **options: Any) -> None:
        """Copy the database into another, as `sqlite3.Connection.backup`."""
        self._check()
        super().backup(*args, **options)

    def blobopen(self, *args: Any, **options: Any) -> sqlite3.Blob:
        """Open a value as a file, as `sqlite3.Connection.blobopen`."""
        self._check()
        return super().blobopen(*args, **options)

    def serialize(self, **options: Any) -> bytes:
        """Return the database as bytes, as `sqlite3.Connection.serialize`."""
        self._check()
        return super().serialize(**options)

    def close(self) -> None:
        """Close the writer, which flushes first."""
        guard = None if self.guard is None else self.guard()
        if guard is None:
            super().close()
        elif not self.is_finished:
            guard.close()

    def finish(self) -> None:
        """Close the connection alone, without a commit. For the writer."""
        self.is_finished = True
        self.pending = None  # which refers to the connection
        super().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> Literal[False]:
        if exc_type is None:
            self.commit()
        else:
            self.rollback()
        return False

    def _check(self) -> CommitGuard | None:
        """Settle pending rows and return the guard; raise ClosedError if closed."""
        self._check_unfinished()
        guard = None if self.guard is None else self.guard()
        if guard is not None:
            if guard.state:
                guard.check_open()
            if self.pending is not None and not self.pending.is_settled:
                try:
                    self.pending.settle()
                except sqlite3.Error as error:
                    guard.check_transaction(error)
                    raise
        return guard

    def _check_unfinished(self) -> None:
        if self.is_finished:
            raise ClosedError("the writer of this connection is closed: open another")


class WriterCursor(sqlite3.Cursor):
    """Cursor of a `WriterConnection`: its statements are guarded in the same way."""

    def execute(self, sql: str, parameters: Any = (), /) -> Self:
        """Execute one statement, as `sqlite3.Cursor.execute`."""
        guard = self._check()
        if guard is not None and ENDING.match(sql) is not None:
            with guard.guard_commit():
                super().execute(sql, parameters)
            return self
        try:
            super().execute(sql, parameters)
        except sqlite3.Error as error:
            self._check_transaction(guard, error)
            raise
        self._note_transaction(guard)
        return self

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> Self:
        """Execute one statement many times, as `sqlite3.Cursor.executemany`."""
        guard = self._check()
        try:
            super().executemany(sql, parameters)
        except sqlite3.Error as error:
            self._check_transaction(guard, error)
            raise
        self._note_transaction(guard)
        return self

    def executescript(self, sql_script: str, /) -> Self:
        """Flush, then execute statements; each commits itself."""
        guard = self._check()
        if guard is not None:
            guard.flush()
        super().executescript(sql_script)
        return self

    def _note_transaction(self, guard: CommitGuard | None) -> None:
        if guard is not None:
            self.connection.has_begun = self.connection.in_transaction  # type: ignore[attr-defined]

    @staticmethod
    def _check_transaction(guard: CommitGuard | None, error: sqlite3.Error) -> None:
        if guard is not None:
            guard.check_transaction(error)

    def _check(self) -> CommitGuard | None:
        conn = self.connection
        return conn._check() if isinstance(conn, WriterConnection) else None


def open_writer(path: str) -> WriterConnection:
    """Open an index for writing; create it if it does not exist."""
    real = os.path.realpath(path)
    for suffix in ("", *SIDE_SUFFIXES):
        file_size(path, real, suffix)  # raises for a pipe, which SQLite would wait for
    try:
        conn, mode = open_with_wal(partial(_connect, path))
    except sqlite3.Error as error:
        raise translate_writer_error(error, path) from error
    try:
        for setting in SETTINGS:
            conn.execute(setting)
        conn.create_function("fastshard_row", 5, _identify_row, deterministic=True)
        if is_json_trusted():
            conn.execute("PRAGMA trusted_schema=OFF")
        if mode != "wal":  # the file system does not support shared memory
            conn.execute("PRAGMA synchronous=EXTRA")
        check_no_triggers(conn, path)
    except INDEX_ERRORS as error:
        conn.close()
        raise translate_writer_error(error, path) from error
    except BaseException:
        conn.close()
        raise
    return conn


def _connect(path: str, *settings: str) -> WriterConnection:
    conn = sqlite3.connect(
        path,
        timeout=BUSY_SECONDS,
        factory=WriterConnection,
        check_same_thread=False,  # the writer has a mutex
    )
    for setting in ("cell_size_check = ON", *settings):
        conn.execute(f"PRAGMA {setting}")
    return conn


def _identify_row(field: Any, sample_id: Any, shard: Any, offset: Any, row: Any) -> Any:
    """Return the stored value of a row in a pack, or `row` itself."""
    try:
        return identify_row(field, sample_id, shard, offset, row)
    except (TypeError, ValueError, OverflowError):
        return row


def check_no_triggers(conn: sqlite3.Connection, path: str) -> None:
    """Raise FormatError if the index runs SQL of its own when rows are written.

    Triggers do, and so do views that have the name of one of our tables.
    """
    rows = conn.execute(
        "SELECT type, name, tbl_name FROM sqlite_master WHERE type IN "
        "('trigger', 'view')"
    )
    for kind, name, table in rows.fetchall():
        if kind == "trigger" or str(table).lower() in TABLES:
            reason = f"a {kind} {name!r:.80} on {table!r:.80}: drop it"
            raise FormatError(reason, path, 0)


def begin(conn: WriterConnection) -> None:
    """Begin a write transaction, unless one is open, and write pending rows."""
    if not conn.in_transaction:
        sqlite3.Cursor(conn).execute("BEGIN IMMEDIATE")
    conn.has_begun = True
    if conn.pending is not None and not conn.pending.is_settled:
        conn.pending.settle()


@contextmanager
def savepoint(conn: WriterConnection) -> Iterator[sqlite3.Cursor]:
    """Yield a cursor; undo its statements if the context raises."""
    begin(conn)
    cursor = sqlite3.Cursor(conn)
    cursor.execute("SAVEPOINT fastshard")
    try:
        yield cursor
    except BaseException:
        if conn.in_transaction:
            cursor.execute("ROLLBACK TO fastshard")
            cursor.execute("RELEASE fastshard")
        raise
    cursor.execute("RELEASE fastshard")


def _code(error: Exception) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_fatal(error: sqlite3.Error) -> bool:
    """Return whether SQLite may have rolled back the transaction for this error."""
    return _code(error) in (FULL, IOERR, CORRUPT, NOTADB, READONLY, CANTOPEN, NOMEM)


def is_statement_error(error: Exception) -> bool:
    """Return whether SQLite refused the statement itself (SQLITE_ERROR)."""
    return isinstance(error, sqlite3.Error) and _code(error) == ERROR


def translate_writer_error(error: Exception, path: str) -> Exception:
    """Return the exception to raise for an error of SQLite."""
    code = _code(error)
    if code in (CORRUPT, NOTADB) or isinstance(error, UnicodeDecodeError):
        return FormatError(f"SQLite cannot read it: {error}", path, 0)
    if code in (BUSY, LOCKED):
        reason = f"another program is writing to it: {error}"
        return WriterLockedError(errno.EAGAIN, reason, path)
    numbers = {FULL: errno.ENOSPC, IOERR: errno.EIO, READONLY: errno.EROFS}
    numbers[CANTOPEN] = errno.EACCES
    if code in numbers:
        number = numbers[code]
        return OSError(number, f"{os.strerror(number)} ({error})", path)
    if code in (CONSTRAINT, TOOBIG, MISMATCH):
        return ValueError(f"the index does not accept it: {error}")
    if code == ERROR:
        return FormatError(f"another program has changed the index: {error}", path, 0)
    if code == INTERRUPT:
        return OSError(errno.EINTR, f"{os.strerror(errno.EINTR)} ({error})", path)
    if code == NOMEM:
        return MemoryError(str(error))
    if isinstance(error, sqlite3.ProgrammingError):
        return ClosedError(f"{path}: {error}")
    return error
