"""The connection of a writer: nothing is committed before its arrays are stored."""

from __future__ import annotations

import errno
import os
import re
import sqlite3
import weakref
from collections.abc import Iterable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from fastshard.columnar.connection import SIDE_SUFFIXES, file_size, is_json_trusted
from fastshard.errors import ClosedError, FormatError, WriterLockedError

__all__ = [
    "Guard",
    "WriterConnection",
    "WriterCursor",
    "begin",
    "check_plain",
    "error_of",
    "is_fatal",
    "is_wrong",
    "open_writer",
]

BUSY_SECONDS = 30.0
OURS = ("samples", "fields", "counters", "fastshard_shards")
# What ends a transaction, behind blanks and comments.
ENDING = re.compile(
    r"(?:\s|;|\ufeff|--[^\n]*(?:\n|\Z)|/\*.*?(?:\*/|\Z))*(commit|end|release)\b",
    re.IGNORECASE | re.DOTALL,
)
FULL = getattr(sqlite3, "SQLITE_FULL", 13)
IOERR, CORRUPT, NOTADB, BUSY, LOCKED, READONLY, CANTOPEN = 10, 11, 26, 5, 6, 8, 14
ERROR, NOMEM, INTERRUPT, TOOBIG, CONSTRAINT, MISMATCH = 1, 7, 9, 18, 19, 20
SETTINGS = (
    "PRAGMA cell_size_check=ON",
    "PRAGMA synchronous=FULL",  # each commit is on the disk when it returns
    "PRAGMA fullfsync=ON",  # also where the system's fsync is not enough
    "PRAGMA cache_size=-65536",  # KiB
    "PRAGMA temp_store=MEMORY",
)


class Guard(Protocol):
    """What a connection asks before it commits: its writer."""

    def flush(self) -> None: ...

    def ending(self) -> AbstractContextManager[None]:
        """Give a context for a statement that may commit."""

    def check_transaction(self, error: sqlite3.Error) -> None:
        """Raise what says that an error has ended the open transaction, if so."""

    def check_open(self) -> None:
        """Raise what says that the writer is closed, or another process's."""

    def close(self) -> None: ...


PLAIN_LEVEL: Any = sqlite3.Connection.isolation_level


class WriterConnection(sqlite3.Connection):
    """A connection whose commits store the arrays first.

    `commit`, leaving a ``with`` block, and SQL that ends a transaction all do
    what the writer's `flush` does. A `rollback` takes back the rows of samples
    that were added since; their arrays become dead space. Closing it closes the
    writer.
    """

    guard: weakref.ref[Guard] | None = None
    finished = False
    begun = False  # a transaction, of whose end we do not know

    @property  # type: ignore[override]
    def isolation_level(self) -> str | None:
        """How transactions begin; to change it commits, as `commit` does."""
        level: str | None = PLAIN_LEVEL.__get__(self)
        return level

    @isolation_level.setter
    def isolation_level(self, level: str | None) -> None:
        guard = self._check()
        if guard is not None:
            guard.flush()
        PLAIN_LEVEL.__set__(self, level)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "autocommit":  # it commits without asking
            raise sqlite3.NotSupportedError("a writer's connection has transactions")
        super().__setattr__(name, value)

    def cursor(self, factory: Any = None) -> Any:
        """Return a cursor that does the same."""
        self._check()
        return super().cursor(WriterCursor if factory is None else factory)

    def execute(self, sql: str, parameters: Any = (), /) -> WriterCursor:
        """Execute one statement with a new cursor."""
        return self._cursor().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> WriterCursor:
        """Execute one statement many times with a new cursor."""
        return self._cursor().executemany(sql, parameters)

    def executescript(self, sql_script: str, /) -> WriterCursor:
        """Flush, then execute statements with a new cursor; each commits itself."""
        return self._cursor().executescript(sql_script)

    def _cursor(self) -> WriterCursor:
        self._check()
        return WriterCursor(self)

    def commit(self) -> None:
        """Do as the writer's `flush`."""
        guard = self._check()
        if guard is None:
            super().commit()
        else:
            guard.flush()

    def rollback(self) -> None:
        """Take back the rows that were not committed."""
        self._check()
        super().rollback()
        self.begun = False

    def close(self) -> None:
        """Close the writer, which flushes first."""
        guard = None if self.guard is None else self.guard()
        if guard is None:
            super().close()
        elif not self.finished:
            guard.close()

    def finish(self) -> None:
        """Close the connection alone. The writer calls it."""
        self.finished = True
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

    def _check(self) -> Guard | None:
        if self.finished:
            raise ClosedError("the writer of this connection is closed: open another")
        guard = None if self.guard is None else self.guard()
        if guard is not None:
            guard.check_open()
        return guard


class WriterCursor(sqlite3.Cursor):
    """A cursor that lets no statement commit what is not stored."""

    def execute(self, sql: str, parameters: Any = (), /) -> Self:
        """Execute one statement, as `sqlite3.Cursor.execute`."""
        guard = self._guard()
        if guard is not None and ENDING.match(sql) is not None:
            with guard.ending():
                super().execute(sql, parameters)
            return self
        try:
            super().execute(sql, parameters)
        except sqlite3.Error as error:
            self._check_transaction(guard, error)
            raise
        self._note(guard)
        return self

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> Self:
        """Execute one statement many times, as `sqlite3.Cursor.executemany`."""
        guard = self._guard()
        try:
            super().executemany(sql, parameters)
        except sqlite3.Error as error:
            self._check_transaction(guard, error)
            raise
        self._note(guard)
        return self

    def executescript(self, sql_script: str, /) -> Self:
        """Flush, then execute statements; each commits itself."""
        guard = self._guard()
        if guard is not None:
            guard.flush()
        super().executescript(sql_script)
        return self

    def _note(self, guard: Guard | None) -> None:
        if guard is not None:
            self.connection.begun = self.connection.in_transaction  # type: ignore[attr-defined]

    @staticmethod
    def _check_transaction(guard: Guard | None, error: sqlite3.Error) -> None:
        if guard is not None:
            guard.check_transaction(error)

    def _guard(self) -> Guard | None:
        conn = self.connection
        return conn._check() if isinstance(conn, WriterConnection) else None


def open_writer(path: str) -> WriterConnection:
    """Open an index for writing; it is made if there is none.

    Raises
    ------
    FormatError
        It is no database.
    OSError
        It cannot be opened.
    WriterLockedError
        Another program is writing to it, and does not stop.
    """
    real = os.path.realpath(path)
    for end in ("", *SIDE_SUFFIXES):
        file_size(path, real, end)  # a pipe would be waited for
    try:
        conn = sqlite3.connect(
            path,
            timeout=BUSY_SECONDS,
            factory=WriterConnection,
            check_same_thread=False,  # the writer has a lock of its own
        )
    except sqlite3.Error as error:
        raise error_of(error, path) from error
    try:
        for setting in SETTINGS:
            conn.execute(setting)
        if is_json_trusted():
            conn.execute("PRAGMA trusted_schema=OFF")
        (mode,) = conn.execute("PRAGMA journal_mode=WAL").fetchone()
        if mode != "wal":  # a file system that cannot share memory
            conn.execute("PRAGMA synchronous=EXTRA")
        check_plain(conn, path)
    except sqlite3.Error as error:
        conn.close()
        raise error_of(error, path) from error
    except BaseException:
        conn.close()
        raise
    return conn


def check_plain(conn: sqlite3.Connection, path: str) -> None:
    """Refuse an index that does more on writing than to keep what is written.

    Raises
    ------
    FormatError
        A trigger, or a view under a name of ours.
    """
    rows = conn.execute(
        "SELECT type, name, tbl_name FROM sqlite_master WHERE type IN "
        "('trigger', 'view')"
    )
    for kind, name, table in rows.fetchall():
        if kind == "trigger" or str(table).lower() in OURS:
            reason = f"a {kind} {name!r:.80} on {table!r:.80}, which a writer refuses"
            raise FormatError(reason, path, 0)


def begin(conn: WriterConnection) -> None:
    """Begin a transaction, if there is none, that can write.

    Raises
    ------
    sqlite3.OperationalError
        Another program is writing.
    """
    if not conn.in_transaction:
        sqlite3.Cursor(conn).execute("BEGIN IMMEDIATE")
    conn.begun = True


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_fatal(error: sqlite3.Error) -> bool:
    """Say whether the transaction may be gone, not just the statement."""
    return _code(error) in (FULL, IOERR, CORRUPT, NOTADB, READONLY, CANTOPEN, NOMEM)


def is_wrong(error: Exception) -> bool:
    """Say whether a statement was refused for what it says."""
    return isinstance(error, sqlite3.Error) and _code(error) == ERROR


def error_of(error: sqlite3.Error, path: str) -> Exception:
    """Return what a caller expects in place of an error of SQLite."""
    code = _code(error)
    if code in (BUSY, LOCKED):
        reason = f"another program is writing to it: {error}"
        return WriterLockedError(errno.EAGAIN, reason, path)
    if code in (CORRUPT, NOTADB):
        return FormatError(f"SQLite cannot read it: {error}", path, 0)
    numbers = {FULL: errno.ENOSPC, IOERR: errno.EIO, READONLY: errno.EROFS}
    numbers[CANTOPEN] = errno.EACCES
    if code in numbers:
        number = numbers[code]
        return OSError(number, f"{os.strerror(number)} ({error})", path)
    if code in (CONSTRAINT, TOOBIG, MISMATCH):
        return ValueError(f"the index does not take it: {error}")
    if code == ERROR:
        return FormatError(f"the index is not as it was: {error}", path, 0)
    if code == INTERRUPT:
        return OSError(errno.EINTR, f"{os.strerror(errno.EINTR)} ({error})", path)
    if code == NOMEM:
        return MemoryError(str(error))
    if isinstance(error, sqlite3.ProgrammingError):
        return ClosedError(f"{path}: {error}")
    return error
