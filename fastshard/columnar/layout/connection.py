"""Read-only SQLite connections to a columnar dataset's index.

No other code in the process may open and close an index file: closing it would drop
the POSIX locks of every SQLite connection of the process.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import threading
from contextlib import suppress
from functools import cache
from urllib.parse import quote

from fastshard._util.processes.sqlite import is_unshared
from fastshard.errors import FormatError

__all__ = [
    "BUSY_SECONDS",
    "INDEX_ERRORS",
    "MAX_SQL",
    "SIDE_SUFFIXES",
    "ReaderConnection",
    "begin",
    "file_size",
    "is_json_trusted",
    "open_reader",
    "open_readers",
    "translate_error",
]

SIDE_SUFFIXES = ("-wal", "-journal", "-shm")  # of the files that SQLite adds
BUSY_SECONDS = 5.0  # to wait for another process's lock
MAX_ATTEMPTS = 1000  # to begin several transactions at one state, while others write
CACHED_STATEMENTS = 128
MAX_SQL = 128 << 10  # bytes of the SQL text
SETTINGS = (
    "query_only = ON",
    "cell_size_check = ON",
    "mmap_size = 0",  # a mapped file that another process truncates raises SIGBUS
    "temp_store = FILE",  # keep temporary tables of a query out of memory
)
LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 64 << 20,  # bytes of a value or a row
    # Bounds of the preparation of a statement, which cannot be interrupted:
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: MAX_SQL,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 100_000,  # instructions of a statement
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1000,  # bytes
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
FORBIDDEN = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)
DAMAGED = (sqlite3.SQLITE_IOERR_SHORT_READ,)
# Errors of an unreadable index; SQLite's message about a damaged one may not decode.
INDEX_ERRORS = (sqlite3.Error, UnicodeDecodeError)
DISK = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL)
# Index without write access beside it, or without shared memory: the VFS without
# locks can keep the log's index in memory, so that the -wal is read.
FROZEN_WAL = "mode=ro&vfs=unix-none"
FROZEN = "mode=ro&immutable=1"


class ReaderConnection(sqlite3.Connection):
    """Connection that reads one state of an index.

    Only one thread at a time may use it. SQLite's own mutex does not ensure that: a
    thread waiting for it holds the GIL, which the owner of the mutex may need.

    Attributes
    ----------
    path : str
        The index, as given.
    lock : threading.RLock
        To be held by each user of a connection that threads share.
    rows : sqlite3.Cursor
        For lookups of single rows: creating a cursor takes a tenth of a lookup.
    is_frozen : bool
        It sees no later state of the index.
    authorizer : object or None
        The `QueryAuthorizer`, once `read.query` has installed it.
    """

    path: str = ""
    is_frozen: bool = False
    authorizer: object | None = None
    lock: threading.RLock
    rows: sqlite3.Cursor

    def __del__(self) -> None:
        """Close silently: from Python 3.13 on a freed open connection warns."""
        with suppress(sqlite3.Error):
            self.close()


def open_reader(path: str | os.PathLike[str]) -> ReaderConnection:
    """Open one read-only connection; see `open_readers`."""
    return open_readers(path, 1)[0]


def open_readers(path: str | os.PathLike[str], count: int) -> list[ReaderConnection]:
    """Open read-only connections, in transactions on the same state of the index.

    Only SQLite's bookkeeping files change: after a writer was killed an ``-shm`` file
    may stay. If the directory is not writable and no process has the index open, or its
    file system has no shared mappings, it is read as it is now.
    """
    name = os.fspath(path)
    real = os.path.realpath(name)
    if not stat.S_ISREG(os.stat(real).st_mode):
        raise FormatError("not a file", name, 0)
    wal, journal, _ = (file_size(name, real, end) for end in SIDE_SUFFIXES)
    # Closing a writable connection would change the index if there is one of these;
    # otherwise only a writable one removes -wal and -shm when it closes.
    options = "mode=ro" if wal or journal else "mode=rw"
    try:
        return _open_connections(name, real, options, count)
    except OSError as error:
        if is_unshared(error.__cause__):
            frozen = FROZEN_WAL if wal else FROZEN
        elif isinstance(error, PermissionError) and not (wal or journal):
            frozen = FROZEN
        else:
            raise
    return _open_connections(name, real, frozen, count)


def begin(*connections: sqlite3.Connection) -> None:
    """Begin a read transaction on each connection, all on the same state.

    Transactions under way are rolled back. After an error some connections may be
    outside a transaction.
    """
    first = connections[0]
    for _ in range(MAX_ATTEMPTS):
        version = _begin(first)
        for connection in connections[1:]:
            _begin(connection)
        # If no commit came in between, all of them are at the state of the first.
        if len(connections) == 1 or _begin(first) == version:
            return
    raise BlockingIOError(
        errno.EAGAIN,
        f"other processes committed to the index during {MAX_ATTEMPTS:,} attempts to "
        "read one state of it: try again",
    )


@cache
def is_json_trusted() -> bool:
    """Return whether a generated column may call json_extract in an untrusted schema.

    Some versions of SQLite (3.40) take its own JSON functions for unsafe.
    """
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("CREATE TABLE t (a, b AS (json_extract(a, '$')))")
    except sqlite3.OperationalError:
        return False
    finally:
        connection.close()
    return True


def translate_error(error: Exception, path: str) -> Exception:
    """Return the exception to raise for an error of SQLite."""
    extended = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    code = extended & 0xFF
    if code in LOCKED:
        return BlockingIOError(errno.EAGAIN, "locked by another process", path)
    if (
        code == sqlite3.SQLITE_CANTOPEN
        and (exhausted := _probe_descriptors()) is not None
    ):
        return exhausted
    if code in FORBIDDEN:
        return PermissionError(errno.EACCES, _explain_refusal(error, path), path)
    if code in DISK and extended not in DAMAGED:
        return OSError(errno.EIO, str(error), path)
    return FormatError(f"not an index of samples: {error}", path, 0)


def _probe_descriptors() -> OSError | None:
    """Return why this process cannot open files, or None if it can.

    SQLite does not report it. The probe must not open the index itself.
    """
    fds = []
    try:
        for _ in range(3):  # as many as SQLite opens for an index
            fds.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return OSError(error.errno, f"{error.strerror} (to open an index)")
    finally:
        for fd in fds:
            os.close(fd)
    return None


def _explain_refusal(error: Exception, path: str) -> str:
    """Return why an index cannot be opened, from the files beside it."""
    real = os.path.realpath(path)
    if file_size(path, real, "-journal"):
        return "a write was interrupted: open the dataset with a writer to recover it"
    if file_size(path, real, "-wal"):
        return (
            "changes in its -wal cannot be read without write access to the directory"
        )
    return str(error)


def _begin(connection: sqlite3.Connection) -> int:
    """Begin a read transaction, and return a number that every commit changes."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")
    connection.execute("BEGIN")
    connection.execute("PRAGMA schema_version").fetchone()  # reads, but not the schema
    version: int = connection.execute("PRAGMA data_version").fetchone()[0]
    return version


def _open_connections(
    path: str, real: str, options: str, count: int
) -> list[ReaderConnection]:
    connections: list[ReaderConnection] = []
    try:
        for _ in range(count):
            connections.append(_connect(path, f"{_file_uri(real)}?{options}"))
            connections[-1].is_frozen = options in (FROZEN, FROZEN_WAL)
            if options == FROZEN_WAL:
                connections[-1].execute("PRAGMA locking_mode = EXCLUSIVE")
            _configure(connections[-1])
        begin(*connections)
    except BaseException as error:
        for connection in connections:
            connection.close()
        if isinstance(error, INDEX_ERRORS):
            raise translate_error(error, path) from error
        raise
    return connections


def _connect(path: str, uri: str) -> ReaderConnection:
    connection = sqlite3.connect(
        uri,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        factory=ReaderConnection,
        cached_statements=CACHED_STATEMENTS,
        uri=True,
    )
    connection.path = path
    connection.lock = threading.RLock()
    connection.rows = connection.cursor()
    return connection


def _configure(connection: ReaderConnection) -> None:
    """Apply the settings and limits that make an untrusted index safe to read."""
    for category, limit in LIMITS.items():
        connection.setlimit(category, limit)
    for setting in SETTINGS:
        connection.execute(f"PRAGMA {setting}")
    if is_json_trusted():
        connection.execute("PRAGMA trusted_schema = OFF")


def _file_uri(path: str) -> str:
    name = os.fsencode(path.replace("\\", "/") if os.name == "nt" else path)
    return "file://" + "/" * (name[:1] != b"/") + quote(name, safe="/:")


def file_size(name: str, real: str, end: str) -> int:
    """Return the size of an index, or of a file beside it; 0 if absent."""
    try:
        status = os.stat(real + end)
    except OSError:
        return 0
    if not stat.S_ISREG(status.st_mode):
        raise FormatError("not a file", name + end, 0)
    return status.st_size
