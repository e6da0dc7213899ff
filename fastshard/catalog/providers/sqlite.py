"""An index in an SQLite file, with the tables that atdata makes."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

from fastshard._util.paths.urls import redact, scheme_of
from fastshard._util.processes.forks import at_fork
from fastshard.catalog.providers.rows import is_text
from fastshard.catalog.providers.sql import Run, SqlProvider
from fastshard.catalog.providers.sqlite_file import (
    IndexConnection,
    connect_reader,
    connect_writer,
    hold_for_fork,
    is_stale,
    take_inherited,
    translate_error,
)
from fastshard.errors import ClosedError

__all__ = ["SqliteProvider"]

TIMEOUT = 30.0  # seconds for another process's lock, or for a query


class SqliteProvider(SqlProvider):
    """Index in an SQLite file.

    Each thread and process that uses it has a connection of its own. Reading makes no
    file: an index that does not exist is empty. A file on a disk that cannot be
    written is read, with the changes in a ``-wal`` beside it.
    """

    # Rows written in one second are ordered by rowid.
    now = (
        "(SELECT max(datetime('now'), coalesce(max(CAST(created_at AS TEXT)), '')) "
        "FROM {table} WHERE name = ?)"
    )
    last = ", rowid = (SELECT max(rowid) + 1 FROM {table})"
    created_at = "created_at"
    written = "created_at, rowid"

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, timeout: float = TIMEOUT
    ) -> None:
        given = "~/.atdata/index.db" if path is None else os.fspath(path)
        if scheme_of(given):  # its password would become the name of a folder
            raise ValueError(
                f"{redact(given)} is a URL, not the path of an SQLite file: an address "
                "is given as dsn= or redis="
            )
        self._path = Path(os.path.abspath(os.path.expanduser(given)))
        self._shown = given
        self._timeout = timeout
        self._idle: deque[IndexConnection] = deque()
        self._own: IndexConnection | None = None
        self._closed = False
        _providers.add(self)

    @property
    def path(self) -> Path:
        """The file, as an absolute path."""
        return self._path

    @property
    def location(self) -> str:
        """The file, as given."""
        return self._shown

    def __repr__(self) -> str:
        return f"SqliteProvider({self._shown!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_provider, (str(self._path), self._shown, self._timeout)

    # Connections

    def close(self) -> None:
        self._closed = True
        self._drop_idle()
        if self._own is not None:
            self._own.close()

    @property
    def _conn(self) -> IndexConnection:
        """A connection for SQL of one's own, as `atdata` has it."""
        self._check_open()
        if self._own is None:
            self._own = self._connect(True)
        return self._own

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the index {self._shown} is closed")

    def _select(self, sql: str, *values: str) -> list[Any]:
        if not all(map(is_text, values)):
            return []  # no row has it
        with self._using(False) as connection:
            return connection.execute(sql, values).fetchall()

    def _change(self, sql: str, *values: object) -> int:
        with self._using(True) as connection:
            changed: int = connection.execute(sql, values).rowcount
            return changed

    @contextmanager
    def _choosing(self, table: str, name: str) -> Iterator[Run]:
        with self._using(True) as connection:  # which rolls back
            connection.execute("BEGIN IMMEDIATE")
            yield lambda sql, *values: connection.execute(sql, values).fetchall()
            connection.execute("COMMIT")

    @contextmanager
    def _using(self, writing: bool) -> Iterator[IndexConnection]:
        """Lend a connection to one thread, outside a transaction."""
        connection = self._take(writing)
        try:
            with connection.lock:
                connection.begin_call(self._timeout)
                yield connection
        except BaseException as error:
            connection.end_call()
            if isinstance(error, (sqlite3.Error, UnicodeError)):
                connection.close()
                if connection.limit.error is not None:
                    raise connection.limit.error from None
                raise translate_error(error, self._shown) from None
            self._give_back(connection)
            raise
        self._give_back(connection)

    def _take(self, writing: bool) -> IndexConnection:
        self._check_open()
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread was first
                break
            if is_stale(connection) or (writing and not connection.is_prepared):
                connection.close()
                continue
            return connection
        return self._connect(writing)

    def _connect(self, writing: bool) -> IndexConnection:
        connect = connect_writer if writing else connect_reader
        return connect(str(self._path), self._shown, self._timeout)

    def _give_back(self, connection: IndexConnection) -> None:
        if self._closed or connection.is_temporary:
            connection.close()
            return
        self._idle.append(connection)
        if self._closed:  # by another thread, meanwhile
            self._drop_idle()

    def _drop_idle(self) -> None:
        with suppress(IndexError):  # another thread was first
            while self._idle:
                self._idle.pop().close()

    def _after_fork(self) -> None:
        """Forget the parent's connections."""
        _inherited.extend(self._idle)
        if self._own is not None:
            _inherited.append(self._own)
        self._idle, self._own = deque(), None


def _open_provider(path: str, shown: str, timeout: float) -> SqliteProvider:
    """Unpickle a provider."""
    provider = SqliteProvider(path, timeout=timeout)
    provider._shown = shown
    return provider


_providers: WeakSet[SqliteProvider] = WeakSet()
_inherited: list[IndexConnection] = []  # the parent's; never used nor closed
_held: list[threading.Lock] = []


def _before_fork() -> None:
    _held.extend(hold_for_fork())


def _after_fork_in_parent() -> None:
    while _held:
        _held.pop().release()


def _after_fork_in_child() -> None:
    _inherited.extend(take_inherited())
    _held.clear()
    for provider in list(_providers):
        provider._after_fork()


at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
