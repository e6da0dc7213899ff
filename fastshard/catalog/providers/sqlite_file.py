"""Connections to an SQLite index that may be damaged, locked or read-only."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote
from weakref import WeakSet

from fastshard._util.processes.sqlite import is_unshared, open_with_wal
from fastshard.errors import FormatError

__all__ = [
    "IndexConnection",
    "connect_reader",
    "connect_writer",
    "hold_for_fork",
    "is_stale",
    "take_inherited",
    "translate_error",
]

T = TypeVar("T")

TABLES = {
    "dataset_entries": """(
    cid         TEXT PRIMARY KEY,
    name        TEXT NOT NULL,
    schema_ref  TEXT NOT NULL,
    data_urls   BLOB NOT NULL,
    metadata    BLOB,
    legacy_uuid TEXT,
    created_at  TEXT DEFAULT (datetime('now'))
)""",
    "schemas": """(
    name        TEXT NOT NULL,
    version     TEXT NOT NULL,
    schema_json TEXT NOT NULL,
    created_at  TEXT DEFAULT (datetime('now')),
    PRIMARY KEY (name, version)
)""",
    "lenses": """(
    name        TEXT NOT NULL,
    version     TEXT NOT NULL,
    lens_json   TEXT NOT NULL,
    created_at  TEXT DEFAULT (datetime('now')),
    PRIMARY KEY (name, version)
)""",
    "labels": """(
    name        TEXT NOT NULL,
    cid         TEXT NOT NULL,
    version     TEXT NOT NULL DEFAULT '',
    description TEXT,
    created_at  TEXT DEFAULT (datetime('now')),
    PRIMARY KEY (name, version)
)""",
}
INDEXES = (
    "CREATE INDEX IF NOT EXISTS idx_entries_name ON dataset_entries(name)",
    "CREATE INDEX IF NOT EXISTS idx_labels_cid ON labels(cid)",
)
SETTINGS = (
    "trusted_schema = OFF",
    "cell_size_check = ON",
    "mmap_size = 0",  # a mapped file that another process truncates raises SIGBUS
    "temp_store = MEMORY",
    "synchronous = FULL",  # a commit survives a loss of power
)
LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 80 << 20,  # bytes of a value or a row
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
STEPS = 1000  # steps of SQLite's machine between two checks of the clock
FORK_SECONDS = 10.0  # to wait for calls of other threads before a fork
# The message about a damaged file may not decode.
ERRORS = (sqlite3.Error, UnicodeDecodeError)
LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
FORBIDDEN = (
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_AUTH,
)
Signature = tuple[tuple[int, ...], ...]


class IndexConnection(sqlite3.Connection):
    """Connection in autocommit mode that one thread uses at a time.

    Attributes
    ----------
    lock : threading.Lock
        Held while SQLite is called: a child that is forked meanwhile could never
        call it, for it has locks of the library that no thread will release.
    path : str
    identity : tuple of int
        Device and inode of the file.
    is_prepared : bool
        The tables exist, and rows may be written.
    is_temporary : bool
        Not to be kept for a second call: a table is missing, and a process may make it.
    frozen : tuple or None
        State of the files, for a connection that SQLite does not tell of changes.
    """

    lock: threading.Lock
    path: str = ""
    identity: tuple[int, int] = (0, 0)
    is_prepared: bool = False
    is_temporary: bool = False
    frozen: Signature | None = None
    limit: CallLimit

    def __init__(self, *args: Any, **options: Any) -> None:
        self.lock = threading.Lock()  # first: a connection that fails is closed, too
        super().__init__(*args, **options)

    def begin_call(self, timeout: float) -> None:
        """Limit the time of the statements that follow."""
        self.limit.at, self.limit.error = time.monotonic() + timeout, None

    def end_call(self) -> None:
        """Roll back an open transaction after a call."""
        with suppress(sqlite3.Error), self.lock:
            if self.in_transaction:
                self.execute("ROLLBACK")

    def close(self) -> None:
        """Close the connection, not during a fork."""
        with self.lock:
            super().close()

    def __del__(self) -> None:
        """Close silently: from Python 3.13 on an open connection warns when freed."""
        with suppress(sqlite3.Error):
            self.close()


class CallLimit:
    """Limit of a call: when to interrupt the statements of a connection.

    Attributes
    ----------
    at : float
        Of `time.monotonic`.
    error : BaseException or None
        Raised by the handler of a signal during a statement.
    """

    __slots__ = ("at", "error")

    def __init__(self, at: float) -> None:
        self.at = at
        self.error: BaseException | None = None

    def watch(self) -> Iterator[bool]:
        """Iterate over whether to end a statement.

        sqlite3 drops errors of a progress handler. A generator takes up a signal inside
        its ``try``; a function would do so before.
        """
        is_over = False
        while True:
            try:
                yield is_over
                is_over = time.monotonic() > self.at
            except GeneratorExit:
                return
            except BaseException as error:  # of a signal's handler
                self.error, is_over = error, True


_connections: WeakSet[IndexConnection] = WeakSet()
_opening = threading.Lock()  # held while a connection is made


def connect_reader(path: str, shown: str, timeout: float) -> IndexConnection:
    """Open a connection to read an index."""
    if not _exists(path, shown):
        connection = _open(":memory:", timeout)
        connection.is_temporary = True
        with connection.lock:
            _add_missing(connection, "TABLE", dict(TABLES))
        return connection
    try:
        return _open_reader(path, shown, timeout, "mode=rw")
    except ERRORS as error:
        if not _is_refused(error):
            raise translate_error(error, shown) from None
    try:  # a log whose index is there, or a file that has no log
        return _open_reader(path, shown, timeout, "mode=ro")
    except ERRORS as error:
        if not _is_refused(error):
            raise translate_error(error, shown) from None
        first = error
    if _size(f"{path}-journal"):
        reason = "a write was interrupted, and only a writer can undo it"
        raise PermissionError(errno.EACCES, reason, shown)
    frozen = _signature(path)
    # The directory is read-only, or memory cannot be shared. The log can be read if
    # the VFS without locks keeps the log's index in memory.
    options = "mode=ro&vfs=unix-none" if _size(f"{path}-wal") else "mode=ro&immutable=1"
    try:
        connection = _open_reader(path, shown, timeout, options)
    except ERRORS:
        raise translate_error(first, shown) from None
    connection.frozen = frozen
    return connection


def connect_writer(path: str, shown: str, timeout: float) -> IndexConnection:
    """Open a connection to write an index; create the file and the tables."""
    _exists(path, shown)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        connect = partial(_open, f"{_file_uri(path)}?mode=rwc", timeout)
        connection, _ = _retry(lambda: open_with_wal(connect, _lock_of), timeout)
        with connection.lock:
            if _missing(connection, shown):
                _make_tables(connection, shown)
    except ERRORS as error:
        raise translate_error(error, shown) from None
    _identify(connection, path)
    connection.is_prepared = True
    return connection


def is_stale(connection: IndexConnection) -> bool:
    """Return whether the path has another file now, or the frozen file changed."""
    try:
        status = os.stat(connection.path)
    except OSError:
        return True
    if (status.st_dev, status.st_ino) != connection.identity:
        return True
    return connection.frozen is not None and connection.frozen != _signature(
        connection.path
    )


def translate_error(error: Exception, path: str) -> Exception:
    """Return the exception to raise for an error of SQLite."""
    code = _code(error)
    if code in LOCKED:
        return BlockingIOError(errno.EAGAIN, "locked by another process", path)
    if code == sqlite3.SQLITE_INTERRUPT:
        return TimeoutError(errno.ETIMEDOUT, "reading took too long", path)
    if code == sqlite3.SQLITE_FULL:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    if code == sqlite3.SQLITE_CANTOPEN and (exhausted := _probe_descriptors()):
        return OSError(exhausted, os.strerror(exhausted), path)
    if code in FORBIDDEN:
        return PermissionError(errno.EACCES, str(error), path)
    if code == sqlite3.SQLITE_IOERR:
        return OSError(errno.EIO, str(error), path)
    if code == sqlite3.SQLITE_TOOBIG or isinstance(error, sqlite3.DataError):
        return ValueError(f"a value is too large for {path}")
    if code == sqlite3.SQLITE_CONSTRAINT:
        return FormatError(f"the tables take no such row: {error}", path, 0)
    return FormatError(f"not an index of datasets: {error}", path, 0)


def hold_for_fork() -> list[threading.Lock]:
    """Wait for the calls of other threads, at most `FORK_SECONDS`; hold their locks."""
    deadline = time.monotonic() + FORK_SECONDS

    def hold(lock: threading.Lock) -> bool:
        return lock.acquire(timeout=max(0.0, deadline - time.monotonic()))

    held = [lock for lock in (_opening,) if hold(lock)]  # before the list is read
    return held + [c.lock for c in _open_connections() if hold(c.lock)]


def take_inherited() -> list[IndexConnection]:
    """Renew all locks in a forked child; return the parent's connections."""
    global _opening
    _opening = threading.Lock()
    found = _open_connections()
    for connection in found:
        connection.lock = threading.Lock()
    return found


def _open_connections() -> list[IndexConnection]:
    """Return the connections of this process, while other threads open more."""
    while True:
        with suppress(RuntimeError):  # the set has changed
            return list(_connections)


def _open_reader(
    path: str, shown: str, timeout: float, options: str
) -> IndexConnection:
    exclusive = ("locking_mode = EXCLUSIVE",) if "unix-none" in options else ()
    connection = _open(f"{_file_uri(path)}?{options}", timeout, *exclusive)
    with connection.lock:
        if missing := _missing(connection, shown):
            connection.is_temporary = True
            _add_missing(connection, "TEMP TABLE", missing)
    _identify(connection, path)
    return connection


def _open(uri: str, timeout: float, *first: str) -> IndexConnection:
    """Open a connection; `first` are settings applied before the file is read."""
    with _opening:
        connection = sqlite3.connect(
            uri,
            timeout=timeout,
            isolation_level=None,
            check_same_thread=False,
            factory=IndexConnection,
            uri=True,
        )
        _connections.add(connection)
    connection.limit = CallLimit(time.monotonic() + timeout)
    watch = connection.limit.watch()
    next(watch)
    connection.set_progress_handler(partial(next, watch), STEPS)
    # Bytes that are not UTF-8 become surrogates, which `Row.text` refuses.
    connection.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
    with connection.lock:
        for category, limit in LIMITS.items():
            connection.setlimit(category, limit)
        for setting in (*first, *SETTINGS):
            connection.execute(f"PRAGMA {setting}")
    return connection


def _lock_of(connection: IndexConnection) -> threading.Lock:
    return connection.lock


def _retry(call: Callable[[], T], timeout: float) -> T:
    """Retry while the file is busy: a change of mode does not wait for locks."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            return call()
        except sqlite3.OperationalError as error:
            if _code(error) not in LOCKED or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _missing(connection: IndexConnection, shown: str) -> dict[str, str]:
    """Return the columns of missing tables, by table."""
    missing = dict(TABLES)
    names = ", ".join(f"'{name}'" for name in TABLES)
    for name, kind, sql in connection.execute(
        "SELECT lower(name), type, sql FROM sqlite_master "
        f"WHERE lower(name) IN ({names}) AND type IN ('table', 'view')"
    ):
        if kind != "table" or str(sql)[:14].upper() == "CREATE VIRTUAL":
            raise FormatError(f"{name} is not a table of rows", shown, 0)
        missing.pop(name, None)
    return missing


def _make_tables(connection: IndexConnection, shown: str) -> None:
    connection.execute("BEGIN IMMEDIATE")
    _add_missing(connection, "TABLE", _missing(connection, shown))
    for sql in INDEXES:
        connection.execute(sql)
    connection.execute("COMMIT")


def _add_missing(
    connection: IndexConnection, kind: str, missing: dict[str, str]
) -> None:
    for name, columns in missing.items():
        connection.execute(f"CREATE {kind} IF NOT EXISTS {name} {columns}")


def _identify(connection: IndexConnection, path: str) -> None:
    status = os.stat(path)
    connection.path = path
    connection.identity = status.st_dev, status.st_ino


def _exists(path: str, shown: str) -> bool:
    """Return whether the file exists."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise type(error)(error.errno, error.strerror, shown) from None
    if not stat.S_ISREG(status.st_mode):
        raise FormatError("not a file", shown, 0)
    return True


def _signature(path: str) -> Signature:
    """Return numbers that change when the file or its log does."""
    found: list[tuple[int, ...]] = []
    for name in (path, f"{path}-wal"):
        try:
            status = os.stat(name)
        except OSError:
            found.append((0,))
        else:
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _is_refused(error: BaseException) -> bool:
    """Return whether SQLite could not make files beside an index, or share memory."""
    return _code(error) in FORBIDDEN or is_unshared(error)


def _code(error: BaseException) -> int:
    """Return the primary code of an error of SQLite."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _probe_descriptors() -> int | None:
    """Return the error of a process without free descriptors, or None."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno
    return None


def _file_uri(path: str) -> str:
    return f"file://{quote(os.fsencode(path), safe='/')}"
