"""An index in a Postgres database, with the tables that atdata makes."""

from __future__ import annotations

import errno
import math
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any, TypeVar

from fastshard.catalog.providers.rows import is_storable
from fastshard.catalog.providers.sql import Run, SqlProvider
from fastshard.codecs.libraries import import_library
from fastshard.errors import (
    ClosedError,
    FormatError,
    RemoteError,
)

__all__ = ["PostgresProvider"]

TIMEOUT = 10.0  # seconds
T = TypeVar("T")
TABLES = (
    """CREATE TABLE IF NOT EXISTS dataset_entries (
    cid         TEXT PRIMARY KEY,
    name        TEXT NOT NULL,
    schema_ref  TEXT NOT NULL,
    data_urls   BYTEA NOT NULL,
    metadata    BYTEA,
    legacy_uuid TEXT,
    created_at  TIMESTAMPTZ DEFAULT now()
)""",
    "CREATE INDEX IF NOT EXISTS idx_entries_name ON dataset_entries(name)",
    """CREATE TABLE IF NOT EXISTS schemas (
    name        TEXT NOT NULL,
    version     TEXT NOT NULL,
    schema_json TEXT NOT NULL,
    created_at  TIMESTAMPTZ DEFAULT now(),
    PRIMARY KEY (name, version)
)""",
    """CREATE TABLE IF NOT EXISTS lenses (
    name        TEXT NOT NULL,
    version     TEXT NOT NULL,
    lens_json   TEXT NOT NULL,
    created_at  TIMESTAMPTZ DEFAULT now(),
    PRIMARY KEY (name, version)
)""",
    """CREATE TABLE IF NOT EXISTS labels (
    name        TEXT NOT NULL,
    cid         TEXT NOT NULL,
    version     TEXT NOT NULL DEFAULT '',
    description TEXT,
    created_at  TIMESTAMPTZ DEFAULT now(),
    PRIMARY KEY (name, version)
)""",
    "CREATE INDEX IF NOT EXISTS idx_labels_cid ON labels(cid)",
)
# Keys of advisory locks: two processes that make tables at once fail otherwise.
LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('fastshard ' || %s, 0))"
# A pool of connections forgets prepared statements, or has them already; a table got
# another column.
NOT_PREPARED = ("26000", "42P05", "0A000")
NO_SPACE = "53100"
TOO_LONG = ("54000", "22001")  # for an index of the database
STRUCTURE = "42"  # class of errors of foreign tables
_classes: list[Any] = []  # made when psycopg is imported
SECRETS = ("password", "sslpassword")


class PostgresProvider(SqlProvider):
    """Index in a Postgres database.

    Each thread and process that uses it has a connection of its own, outside a
    transaction; a connection that was lost is made again. The tables are made by the
    first write. With a password in its DSN a provider does not pickle: let the
    environment or a file of passwords have it.
    """

    now = (
        "(SELECT greatest(clock_timestamp(), max(created_at) + "
        "interval '1 microsecond') FROM {table} WHERE name = ?)"
    )
    created_at = "(created_at AT TIME ZONE 'UTC')::text"
    written = "created_at"

    def __init__(self, dsn: str, *, timeout: float = TIMEOUT) -> None:
        self._library = _load_psycopg()
        options = None
        with suppress(self._library.Error):  # its text may contain the password
            options = self._library.conninfo.conninfo_to_dict(dsn)
        if options is None:
            raise ValueError("the DSN is not an address of Postgres")
        self._options = options
        self._location = _describe(self._options)
        self._timeout = timeout
        self._idle: deque[Any] = deque()
        self._own: Any = None
        self._pid = os.getpid()
        # The parent's connections: closing one would end the parent's session.
        self._inherited: list[Any] = []
        self._closed = False

    @property
    def location(self) -> str:
        """The server and its database, without user and password."""
        return self._location

    def __repr__(self) -> str:
        return f"PostgresProvider({self.location!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        if any(self._options.get(name) for name in SECRETS):
            raise TypeError(f"{self!r} does not pickle: its DSN has a password")
        dsn = self._library.conninfo.make_conninfo("", **self._options)
        return _open_provider, (dsn, self._timeout)

    def __del__(self) -> None:
        """Close silently: an open connection warns when freed."""
        if hasattr(self, "_closed") and self._pid == os.getpid():
            with suppress(Exception):
                self.close()

    def close(self) -> None:
        self._closed = True
        self._drop_idle()
        if self._own is not None and self._pid == os.getpid():
            self._own.close()

    @property
    def _conn(self) -> Any:
        """A connection for SQL of one's own, as `atdata` has it."""
        self._check_open()
        if self._own is None:
            self._own = self._connect()
            _make_tables(self._own)
        return self._own

    def _select(self, sql: str, *values: str) -> list[Any]:
        if not all(map(is_storable, values)):
            return []
        query = _translate_sql(sql)

        def select(connection: Any) -> list[Any]:
            try:
                rows: list[Any] = connection.execute(query, values).fetchall()
            except self._library.errors.UndefinedTable:
                return []  # the first write makes the tables
            return rows

        return self._call(select)

    def _change(self, sql: str, *values: object) -> int:
        query = _translate_sql(sql)

        def change(connection: Any) -> int:
            changed: int = connection.execute(query, values).rowcount
            return changed

        return self._call(change, True)

    @contextmanager
    def _choosing(self, table: str, name: str) -> Iterator[Run]:
        connection = self._call(self._prepare, True, keep=True)
        try:
            with self._translating(), connection.transaction():
                connection.limit_call(self._timeout)
                connection.execute(LOCK, (f"{table} {name}",))
                yield lambda sql, *values: _rows(connection, sql, values)
        except BaseException:
            self._give_back(connection)
            raise
        self._give_back(connection)

    def _prepare(self, connection: Any) -> Any:
        """Return a connection that reaches the server and its tables."""
        connection.execute("SELECT 1 FROM schemas, lenses LIMIT 0")
        return connection

    def _call(
        self, call: Callable[[Any], T], writing: bool = False, keep: bool = False
    ) -> T:
        """Call with a connection; reconnect once if the server closed it."""
        for is_last in (False, True):
            connection, is_new = self._take()
            try:
                with self._translating():
                    connection.limit_call(self._timeout)
                    try:
                        found = call(connection)
                    except self._library.errors.UndefinedTable:
                        if not writing:
                            raise
                        _make_tables(connection)
                        found = call(connection)
                    except self._library.Error as error:
                        if error.sqlstate not in NOT_PREPARED:
                            raise
                        connection.prepare_threshold = None
                        found = call(connection)
            except BaseException as error:
                is_lost = connection.closed and not connection.is_late
                self._give_back(connection)
                if not is_lost or is_new or is_last or not _is_transient(error):
                    raise
                self._drop_idle()  # of the same server
            else:
                if not keep:
                    self._give_back(connection)
                return found
        raise AssertionError

    @contextmanager
    def _translating(self) -> Iterator[None]:
        """Translate the errors of psycopg."""
        try:
            yield
        except self._library.Error as error:
            raise self._translate(error) from None
        except UnicodeError as error:
            reason = f"text of the database is not UTF-8: {error}"
            raise FormatError(reason, self.location, 0) from None

    def _translate(self, error: Any) -> Exception:
        state = getattr(error, "sqlstate", None) or ""
        text = str(error).strip().partition("\n")[0]
        text = _redact(text, self._options)
        if state == NO_SPACE:
            return OSError(errno.ENOSPC, text, self.location)
        if state in TOO_LONG:
            return ValueError(f"a value is too long for {self.location}: {text}")
        if state.startswith(STRUCTURE) and state != "42501":  # no privilege
            return FormatError(f"not an index of datasets: {text}", self.location, 0)
        if state.startswith("23"):
            reason = f"the tables take no such row: {text}"
            return FormatError(reason, self.location, 0)
        is_gone = isinstance(error, self._library.OperationalError)
        return RemoteError(text, self.location, transient=is_gone)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the index at {self.location} is closed")

    def _take(self) -> tuple[Any, bool]:
        """Return a connection, and whether it is new."""
        self._check_open()
        if self._pid != os.getpid():
            self._forget()
        while self._idle:
            with suppress(IndexError):  # another thread was first
                connection = self._idle.pop()
                if not connection.closed:
                    return connection, False
        return self._connect(), True

    def _forget(self) -> None:
        """Leave the parent's connections alone after a fork."""
        self._inherited += [*self._idle, self._own]
        self._idle, self._own, self._pid = deque(), None, os.getpid()

    def _connect(self) -> Any:
        options = {
            "connect_timeout": max(1, math.ceil(self._timeout)),
            "client_encoding": "UTF8",
            "application_name": "fastshard",
            **self._options,
        }
        with self._translating():
            connection = _connection_class().connect(
                "", autocommit=True, prepare_threshold=1, **options
            )
            try:
                connection.limit_call(self._timeout)
                limit = str(round(self._timeout * 1000))
                connection.execute(
                    "SELECT set_config('statement_timeout', %s, false)", (limit,)
                )
            except BaseException:
                connection.close()
                raise
        return connection

    def _give_back(self, connection: Any) -> None:
        is_idle = connection.pgconn.transaction_status == 0  # not interrupted
        if is_idle and not self._closed and not connection.closed:
            self._idle.append(connection)
            if self._closed:  # by another thread, meanwhile
                self._drop_idle()
        else:
            connection.close()

    def _drop_idle(self) -> None:
        if self._pid == os.getpid():
            while self._idle:
                with suppress(IndexError):
                    self._idle.pop().close()


def _connection_class() -> Any:
    """Return psycopg's class of connections with a time limit for calls."""
    if not _classes:
        import psycopg

        body = {
            "deadline": math.inf,
            "is_late": False,
            "limit_call": _limit_call,
            "wait": _wait,
        }
        _classes.append(type("LimitedConnection", (psycopg.Connection,), body))
    return _classes[0]


def _limit_call(connection: Any, timeout: float) -> None:
    """Begin a call with a time limit for the server."""
    connection.deadline = monotonic() + timeout


def _wait(connection: Any, waiting: Any, *args: Any, **options: Any) -> Any:
    """Wait as `psycopg.Connection.wait` does, until the deadline of the call."""
    import psycopg

    limited = _limit(connection, waiting)
    return psycopg.Connection.wait(connection, limited, *args, **options)


def _limit(connection: Any, waiting: Any) -> Generator[Any, Any, Any]:
    """Relay psycopg's waits, until the deadline of a call."""
    import psycopg

    try:
        state = next(waiting)
        while True:
            ready = yield state
            if monotonic() > connection.deadline:
                connection.is_late = True
                connection.pgconn.finish()
                raise psycopg.OperationalError("the server did not answer in time")
            state = waiting.send(ready)
    except StopIteration as end:
        return end.value


def _load_psycopg() -> Any:
    need, pip = "an index in Postgres needs psycopg", "'fastshard[postgres]'"
    import_library("psycopg.conninfo", need, pip)
    return import_library("psycopg", need, pip)


def _describe(options: dict[str, Any]) -> str:
    """Return the server and the database of a DSN."""
    names = {"host": "PGHOST", "port": "PGPORT", "dbname": "PGDATABASE"}
    given = {
        name: str(options.get(name) or os.environ.get(variable) or "")
        for name, variable in names.items()
    }
    host = given["host"] or str(options.get("hostaddr") or "localhost")
    host = f"[{host}]" if ":" in host else host
    return f"postgresql://{host}:{given['port'] or 5432}/{given['dbname']}"


def _open_provider(dsn: str, timeout: float) -> PostgresProvider:
    """Unpickle a provider."""
    return PostgresProvider(dsn, timeout=timeout)


def _make_tables(connection: Any) -> None:
    with connection.transaction():
        connection.execute(LOCK, ("tables",))
        for sql in TABLES:
            connection.execute(sql)


def _rows(connection: Any, sql: str, values: tuple[object, ...]) -> list[Any]:
    cursor = connection.execute(_translate_sql(sql), values)
    return [] if cursor.description is None else list(cursor.fetchall())


def _translate_sql(sql: str) -> str:
    return sql.replace("?", "%s")


def _redact(text: str, options: dict[str, Any]) -> str:
    """Return a message without the passwords of a DSN."""
    for name in SECRETS:
        if options.get(name):
            text = text.replace(str(options[name]), "***")
    return text


def _is_transient(error: BaseException) -> bool:
    return isinstance(error, RemoteError) and error.transient
