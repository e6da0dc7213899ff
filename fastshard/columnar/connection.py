"""Connections that read a columnar dataset's index.

Nothing else in the process may open and close the file of an index: that would
drop the locks that SQLite holds on it for every connection of the process.
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

SIDE_SUFFIXES = (
    "-wal",
    "-journal",
    "-shm",
)  # ends of the names of SQLite's other files
BUSY_SECONDS = 5.0  # that a lock of another process is waited for
TRIES = 1000  # to find several connections at one state, while others write
CACHED = 128  # statements
MAX_SQL = 128 << 10  # bytes of a statement
SETTINGS = (
    "query_only = ON",
    "cell_size_check = ON",
    "mmap_size = 0",  # a file that others cut would kill the process
    "temp_store = FILE",  # what a query gathers goes to the disk, not to memory
)
LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 64 << 20,  # bytes of a value or a row
    # Both bound what cannot be interrupted: the making of a statement.
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
# What is raised for an index: SQLite's text about a damaged one may be no text.
INDEX_ERRORS = (sqlite3.Error, UnicodeDecodeError)
DISK = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL)


class ReaderConnection(sqlite3.Connection):
    """A connection that reads one state of an index.

    One thread at a time may use it, whoever makes sure of that: SQLite's own
    lock is no help, for a thread that waits for it keeps Python's, which the
    thread that has it may need.

    Attributes
    ----------
    path : str
        The index, as it was given.
    lock : threading.RLock
        To hold while using it, where several threads do.
    rows : sqlite3.Cursor
        To look up single rows by: a new one takes a tenth of that.
    authorizer : object or None
        What `fastshard.columnar.read.query` keeps of it.
    """

    path: str = ""
    authorizer: object | None = None
    lock: threading.RLock
    rows: sqlite3.Cursor

    def __del__(self) -> None:
        """Close it before Python 3.13 warns: garbage is freed in any order."""
        with suppress(sqlite3.Error):
            self.close()


def open_reader(path: str | os.PathLike[str]) -> ReaderConnection:
    """Open an index to read, in a transaction; see `open_readers`."""
    return open_readers(path, 1)[0]


def open_readers(path: str | os.PathLike[str], count: int) -> list[ReaderConnection]:
    """Open an index to read some times, in transactions that see one state of it.

    No file is changed but by SQLite's own bookkeeping: where another process
    was killed while it wrote, an ``-shm`` file may stay. Where the directory
    cannot be written and nobody has the index open, it is read as a file that
    nobody writes.

    Parameters
    ----------
    path : str or path-like
        The file.
    count : int

    Returns
    -------
    list of ReaderConnection
        Each for any thread, one at a time. They commit nothing by themselves.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    FormatError
        It is no database, or a damaged one.
    BlockingIOError
        Another process keeps it locked.
    OSError
        It cannot be read as it is; the text says why.
    """
    name = os.fspath(path)
    real = os.path.realpath(name)
    if not stat.S_ISREG(os.stat(real).st_mode):
        raise FormatError("not a file", name, 0)
    wal, journal, _ = (file_size(name, real, end) for end in SIDE_SUFFIXES)
    if wal or journal:  # the last to close would change the index, were it writable
        return _opened(name, real, "mode=ro", count)
    try:
        return _opened(name, real, "mode=rw", count)  # it alone removes -wal and -shm
    except PermissionError:
        return _opened(name, real, "mode=ro&immutable=1", count)


def begin(*connections: sqlite3.Connection) -> None:
    """Begin a read transaction on each connection, all at the same state.

    Those that are in one leave it. An error leaves some of them in none.

    Raises
    ------
    BlockingIOError
        Others commit so fast that no state was found, or keep it locked.
    sqlite3.Error, UnicodeDecodeError
        The index cannot be read; see `translate_error`.
    """
    first = connections[0]
    for _ in range(TRIES):
        version = _begin(first)
        for connection in connections[1:]:
            _begin(connection)
        # Unless somebody committed in between, all see what the first saw.
        if len(connections) == 1 or _begin(first) == version:
            return
    raise BlockingIOError(errno.EAGAIN, "the index is written without a pause")


@cache
def is_json_trusted() -> bool:
    """Say whether an index that is not trusted may compute columns by json_extract.

    Versions of SQLite (3.40 is one) take its own functions for JSON for unsafe.
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
    """Say in our words what SQLite says of an index.

    Parameters
    ----------
    error : sqlite3.Error or UnicodeDecodeError
        One of `INDEX_ERRORS`.
    path : str
        The index.

    Returns
    -------
    FormatError or OSError
        To be raised in its place.
    """
    extended = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    code = extended & 0xFF
    if code in LOCKED:
        return BlockingIOError(errno.EAGAIN, "locked by another process", path)
    if code == sqlite3.SQLITE_CANTOPEN and (left := _descriptor_error()) is not None:
        return left
    if code in FORBIDDEN:
        return PermissionError(errno.EACCES, _why(error, path), path)
    if code in DISK and extended not in DAMAGED:
        return OSError(errno.EIO, str(error), path)
    return FormatError(f"not an index of samples: {error}", path, 0)


def _descriptor_error() -> OSError | None:
    """Return what keeps this process from opening files, if it cannot: SQLite does not.

    The index itself must not be opened for that.
    """
    opened = []
    try:
        for _ in range(3):  # as many as SQLite takes
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return OSError(error.errno, f"{error.strerror} (to open an index)")
    finally:
        for fd in opened:
            os.close(fd)
    return None


def _why(error: Exception, path: str) -> str:
    real = os.path.realpath(path)
    if file_size(path, real, "-journal"):
        return "a write to it was cut off; open it once with a writer"
    if file_size(path, real, "-wal"):
        return "its -wal has changes that cannot be read without writing beside it"
    return str(error)


def _begin(connection: sqlite3.Connection) -> int:
    """Begin a read transaction; return a number that each commit changes."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")
    connection.execute("BEGIN")
    connection.execute("PRAGMA schema_version").fetchone()  # reads, but no schema
    version: int = connection.execute("PRAGMA data_version").fetchone()[0]
    return version


def _opened(path: str, real: str, options: str, count: int) -> list[ReaderConnection]:
    connections: list[ReaderConnection] = []
    try:
        for _ in range(count):
            connections.append(_connected(path, f"{_uri(real)}?{options}"))
            _settle(connections[-1])
        begin(*connections)
    except BaseException as error:
        for connection in connections:
            connection.close()
        if isinstance(error, INDEX_ERRORS):
            raise translate_error(error, path) from error
        raise
    return connections


def _connected(path: str, uri: str) -> ReaderConnection:
    connection = sqlite3.connect(
        uri,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        factory=ReaderConnection,
        cached_statements=CACHED,
        uri=True,
    )
    connection.path = path
    connection.lock = threading.RLock()
    connection.rows = connection.cursor()
    return connection


def _settle(connection: ReaderConnection) -> None:
    """Keep what is read from taking more than it should, or doing more than that."""
    for category, most in LIMITS.items():
        connection.setlimit(category, most)
    for setting in SETTINGS:
        connection.execute(f"PRAGMA {setting}")
    if is_json_trusted():
        connection.execute("PRAGMA trusted_schema = OFF")


def _uri(path: str) -> str:
    name = os.fsencode(path.replace("\\", "/") if os.name == "nt" else path)
    return "file://" + "/" * (name[:1] != b"/") + quote(name, safe="/:")


def file_size(name: str, real: str, end: str) -> int:
    """Return the bytes of an index, or of a file beside it; 0: it is not there.

    Raises
    ------
    FormatError
        It is no file: SQLite would wait for a pipe.
    """
    try:
        status = os.stat(real + end)
    except OSError:
        return 0
    if not stat.S_ISREG(status.st_mode):
        raise FormatError("not a file", name + end, 0)
    return status.st_size
