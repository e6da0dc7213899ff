"""Queries that users write, which can neither write, nor leave the index, nor stay.

A statement is asked about three times: SQLite's authorizer says what it reads
and which functions it names; its program says which functions it really calls,
those of the index's own generated columns too; and a thread of its own runs it,
which is interrupted when its time is over. A single call cannot be interrupted,
so values are short where a function takes more than their length's time.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import chain
from typing import Any, SupportsIndex, TypeAlias

from fastshard.columnar.connect import FAULTS, ReaderConnection, fault_of
from fastshard.columnar.guard import Guard, guarded, longest_of
from fastshard.columnar.sql import MANY, ids_sql, rows_sql
from fastshard.errors import FormatError, QueryError, QueryTimeoutError

__all__ = [
    "Params",
    "query",
    "query_ids",
    "select",
]

Params: TypeAlias = Sequence[Any] | Mapping[str, Any]

LONGEST = sqlite3.SQLITE_LIMIT_LENGTH
FETCHED = 1000  # rows at once
SLACK = 64 << 20  # bytes that an answer may have, besides what the index has
NUDGE = 0.05  # seconds between two interrupts of what has not stopped

ITS_OWN = (  # faults of a statement, and not of the index
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_AUTH,
    sqlite3.SQLITE_MISUSE,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_RANGE,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_SCHEMA,
)


def query_ids(
    conn: ReaderConnection,
    where: str | None = None,
    params: Params = (),
    limit: SupportsIndex | None = None,
    *,
    timeout: float | None = 30.0,
) -> list[str]:
    """Return the ids of the samples that fulfil a condition, in order of insertion.

    Parameters
    ----------
    conn : ReaderConnection
    where : str, optional
        An expression in SQL.
    params : sequence or mapping
        Values for its ``?``, or ``:name``.
    limit : int, optional
        Ids at most.
    timeout : float or None
        Seconds it may take.

    Raises
    ------
    QueryTimeoutError
        It took longer.
    QueryError
        It is no expression, or asks for what it may not.
    FormatError
        The index is damaged, or an id is no text.
    """
    ids = [found for (found,) in select(conn, ids_sql(where, limit), params, timeout)]
    if set(map(type, ids)) - {str}:
        raise FormatError("an id is no text", conn.path, 0)
    return ids


def query(
    conn: ReaderConnection,
    where: str | None = None,
    params: Params = (),
    columns: Sequence[str] = ("id", "meta_json"),
    limit: SupportsIndex | None = None,
    *,
    timeout: float | None = 30.0,
) -> list[dict[str, Any]]:
    """Return columns of the samples that fulfil a condition, in order of insertion.

    Parameters
    ----------
    columns : sequence of str
        Names of columns, or expressions in SQL. Placeholders in them come before
        those in `where`.
    conn, where, params, limit, timeout
        As for `query_ids`.

    Returns
    -------
    list of dict
        By the columns as they were given: None, int, float, str or bytes.

    Raises
    ------
    QueryTimeoutError, QueryError, FormatError
        As for `query_ids`.
    """
    sql = rows_sql(where, columns, limit)
    rows = select(conn, sql, params, timeout)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def select(
    conn: ReaderConnection,
    sql: str,
    params: Params = (),
    timeout: float | None = 30.0,
) -> list[tuple[Any, ...]]:
    """Run a statement that a user had a part in; return its rows.

    Holds the connection's lock, for as long as it takes. A Ctrl-C stops it.

    Parameters
    ----------
    conn : ReaderConnection
    sql : str
        One SELECT.
    params : sequence or mapping
        NumPy's numbers are taken for Python's.
    timeout : float or None
        Seconds it may take; a single step may go beyond.

    Raises
    ------
    QueryTimeoutError
        It took longer.
    QueryError
        It is no SQL, or asks for what it may not.
    FormatError
        The index is damaged.
    OSError
        It cannot be read.
    """
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"timeout is 0 seconds or more, not {timeout!r}")
    with conn.lock:
        run = Run(conn, guarded(conn), sql, _plain(params))
        try:
            ended = run.start(timeout)
        except BaseException:  # of a signal
            run.stop()
            raise
        if not ended:
            run.stop()
    if run.error is None:
        return run.rows
    if not ended:
        raise QueryTimeoutError(f"the query took longer than {timeout:g} seconds")
    raise _said(run.error, run.guard, conn.path) from run.error


class Run:
    """A statement that runs in a thread of its own.

    Whoever made it has the connection's lock, and keeps it until it has ended.
    """

    def __init__(
        self, conn: ReaderConnection, guard: Guard, sql: str, params: Params
    ) -> None:
        self.conn = conn
        self.guard = guard
        self.rows: list[tuple[Any, ...]] = []
        self.error: Exception | None = None
        self._stopped = False
        self._ended = threading.Event()  # not join, which a signal breaks off for good
        self._thread = threading.Thread(
            target=self._run, args=(sql, params), daemon=True
        )

    def start(self, timeout: float | None) -> bool:
        """Begin, and say whether it has ended within some seconds."""
        if timeout is not None:
            timeout = min(timeout, threading.TIMEOUT_MAX)
        try:
            self._thread.start()
        except RuntimeError:  # there can be no more threads
            self._ended.set()
            raise
        return self._ended.wait(timeout)

    def stop(self) -> None:
        """Interrupt it, and wait until it has ended."""
        self._stopped = True
        caught = None
        while not self._ended.is_set():
            try:
                self.conn.interrupt()  # it may be between two statements
                self._ended.wait(NUDGE)
            except KeyboardInterrupt as error:  # another; the connection is in use
                caught = error
        if caught is not None:
            raise caught

    def _run(self, sql: str, params: Params) -> None:
        try:
            whole = self.conn.getlimit(LONGEST)
            nbytes = _bytes_of(self.conn)
            self.guard.on, self.guard.reason = True, None
            try:
                program = self._program(sql, params)
                self.conn.setlimit(LONGEST, min(whole, longest_of(program)))
                with closing(self.conn.execute(sql, params)) as cursor:
                    self._fetch(cursor, SLACK + 2 * nbytes * len(cursor.description))
            finally:
                self.guard.on = False
                self.conn.setlimit(LONGEST, whole)
        except Exception as error:
            self.error = error
        finally:
            self._ended.set()

    def _program(self, sql: str, params: Params) -> list[tuple[Any, ...]]:
        """Return what SQLite makes of the statement."""
        with closing(self.conn.execute(f"EXPLAIN {sql}", params)) as cursor:
            program: list[tuple[Any, ...]] = []
            while rows := cursor.fetchmany(FETCHED):
                self._check()
                program += rows
        self._check()
        return program

    def _check(self) -> None:
        if self._stopped:
            raise QueryError("stopped")

    def _fetch(self, cursor: sqlite3.Cursor, most: int) -> None:
        while rows := cursor.fetchmany(FETCHED):
            self._check()
            self.rows += rows
            most -= _length_of(rows)
            if most < 0:
                raise QueryError("the answer is larger than the index")


def _length_of(rows: list[tuple[Any, ...]]) -> int:
    """Return how much text, and how many bytes, rows have."""
    try:
        return sum(map(len, chain.from_iterable(rows)))  # of texts alone, as ids are
    except TypeError:
        values = chain.from_iterable(rows)
        return sum(len(value) for value in values if isinstance(value, str | bytes))


def _bytes_of(conn: sqlite3.Connection) -> int:
    (pages,) = conn.execute("PRAGMA page_count").fetchone()
    (size,) = conn.execute("PRAGMA page_size").fetchone()
    return int(pages * size)


def _plain(params: Params) -> Params:
    """Make Python's numbers of NumPy's, which SQLite's binding does not know."""
    if isinstance(params, Mapping):
        return {name: _plain_value(value) for name, value in params.items()}
    if isinstance(params, str | bytes) or not isinstance(params, Sequence):
        raise QueryError(f"params is a tuple or a dict, not {type(params).__name__}")
    return tuple(map(_plain_value, params))


def _plain_value(value: Any) -> Any:
    if value is None or isinstance(value, int | float | str | bytes):
        return value
    import numpy as np

    return value.item() if isinstance(value, np.generic) else value


def _said(error: Exception, guard: Guard, path: str) -> Exception:
    """Say what went wrong in our words."""
    if isinstance(error, QueryError):
        return error
    if isinstance(error, MemoryError):
        return QueryError(f"the query is too large: {MANY}")
    if isinstance(error, UnicodeEncodeError):
        return QueryError("the query has half a surrogate pair, which is no text")
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if guard.reason is not None:
        return QueryError(guard.reason)
    if code == sqlite3.SQLITE_TOOBIG or isinstance(error, sqlite3.DataError):
        return QueryError(f"a value, or the query, is too long: {MANY}")
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM):
        return QueryError("the query needs more temporary space than there is")
    decoding = isinstance(error, UnicodeDecodeError) or (
        str(error).startswith("Could not decode")
    )
    if isinstance(error, FAULTS) and (decoding or code not in ITS_OWN):
        return fault_of(error, path)
    if "malformed JSON" in str(error):
        return QueryError(
            "what JSON is asked of is none that SQLite reads, as metadata with NaN: "
            "CASE WHEN json_valid(meta_json) THEN ... END passes it over"
        )
    return QueryError(f"the query is wrong: {error}")
