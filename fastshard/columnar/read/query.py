"""Sandboxed user SQL: read-only, single database, time-limited."""

from __future__ import annotations

import operator
import re
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain
from typing import Any, SupportsIndex, TypeAlias

from fastshard.columnar.connection import (
    INDEX_ERRORS,
    MAX_SQL,
    ReaderConnection,
    translate_error,
)
from fastshard.errors import FormatError, QueryError, QueryTimeoutError

__all__ = [
    "MANY",
    "Params",
    "QueryAuthorizer",
    "SQLValue",
    "ids_sql",
    "install_authorizer",
    "limit_value_size",
    "query",
    "query_ids",
    "rows_sql",
    "select",
    "split",
]


# How many values get into a query.
MANY = "values go into params, many ids as id IN (SELECT value FROM json_each(?))"

# As SQLite's own tokenizer has it. A variable with parentheses is one that only
# Tcl makes use of; what stands in them may be anything.
TOKEN = re.compile(
    r"""(?P<quoted> '(?:[^']|'')*+' | "(?:[^"]|"")*+" | `(?:[^`]|``)*+` | \[[^\]]*+\] )
      | (?P<comment> --[^\n]*+ | /\*(?s:.+?)\*/ )
      | (?P<tcl> [:@\#$] (?: [\w$] | [^\x00-\x7f] | :: )*+ \( )
      | (?P<word> (?: [A-Za-z_] | [^\x00-\x7f] ) (?: [\w$] | [^\x00-\x7f] )*+ )
      | (?P<other> /\* | . )""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
UNCLOSED = {"'": "a quote", '"': "a quote", "`": "a quote", "[": "a bracket"}
UNCLOSED["/*"] = "a comment"


def ids_sql(where: str | None, limit: SupportsIndex | None) -> str:
    """Return the statement for the ids of samples, in the order of insertion.

    Raises
    ------
    QueryError
        `where` is not one expression.
    ValueError, TypeError
        `limit` is none.
    """
    return rows_sql(where, ("id",), limit)


def rows_sql(
    where: str | None, columns: Sequence[str], limit: SupportsIndex | None
) -> str:
    """Return the statement for some columns of samples, in the order of insertion.

    Parameters
    ----------
    where : str or None
        An expression that is true for the samples that are meant.
    columns : sequence of str
        Names of columns, or expressions.
    limit : int or None
        Samples at most.

    Raises
    ------
    QueryError
        `where` or one of `columns` is not one expression.
    ValueError, TypeError
        `limit` is none.
    """
    if isinstance(columns, str) or not columns:
        raise QueryError(f"columns is a sequence of names, not {columns!r:.80}")
    named = ", ".join(_enclosed(column, "a column") for column in columns)
    most = "" if limit is None else f" LIMIT {_count(limit)}"
    if where is None or where == "":
        return f"SELECT {named} FROM samples ORDER BY rowid{most}"
    condition = _enclosed(where, "where")
    if most:  # few are found soon by going through all
        return f"SELECT {named} FROM samples WHERE {condition} ORDER BY rowid{most}"
    # Asked for the order of rowid itself, SQLite passes over indexes that users made.
    return f"SELECT {named} FROM samples WHERE {condition} ORDER BY +rowid"


def split(text: str) -> list[str]:
    """Part a list of expressions at its commas, but for those inside of one."""
    parts = [""]
    depth = 0
    for kind, token in _tokens(text):
        depth += (token == "(") - (token == ")") if kind == "other" else 0
        if kind == "other" and token == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += token
    return [part.strip() for part in parts]


def _enclosed(text: str, what: str) -> str:
    """Put an expression in parentheses, on lines of its own: it may end in a comment.

    ``WITH`` is refused for what it costs: thirty tables that are each made of two
    of the one before take all memory, before SQLite asks the authorizer anything.
    """
    if not isinstance(text, str):
        raise QueryError(f"{what} is a text, not {type(text).__name__}")
    if len(text) > MAX_SQL:  # what follows cannot be interrupted
        raise QueryError(
            f"{what} has {len(text):,} characters, {MAX_SQL:,} at most: {MANY}"
        )
    depth = 0
    for kind, token in _tokens(text):
        if kind == "tcl":
            raise QueryError(f"{token!r:.80} in {what} is no parameter")
        if kind == "word" and token.upper() == "WITH":
            raise QueryError(f"WITH is not allowed in {what}")
        if kind == "other":
            if token in UNCLOSED:
                raise QueryError(f"{UNCLOSED[token]} in {what} is not closed")
            if token in ";\0":
                raise QueryError(f"{token!r} in {what}: it is one expression")
            depth += (token == "(") - (token == ")")
            if depth < 0:
                raise QueryError(f"a parenthesis too many is closed in {what}")
    if depth:
        raise QueryError(f"a parenthesis in {what} is not closed")
    return f"(\n{text}\n)"


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    for match in TOKEN.finditer(text):
        yield str(match.lastgroup), match.group()


def _count(limit: SupportsIndex) -> int:
    count = operator.index(limit)
    if count < 0:
        raise ValueError(f"limit is 0 or more, not {count}")
    return min(count, (1 << 63) - 1)


READABLE = frozenset(("samples", "fields", "counters", "json_each", "json_tree"))
# Functions that see nothing but their arguments and the clock, change nothing, and
# take no more than their length's time, or are named below.
FUNCTIONS = frozenset(
    """
    -> ->> abs acos acosh asin asinh atan atan2 atanh avg ceil ceiling char coalesce
    concat concat_ws cos cosh count cume_dist date datetime degrees dense_rank exp
    first_value floor glob group_concat hex ifnull iif instr json json_array
    json_array_length json_error_position json_extract json_group_array
    json_group_object json_insert json_object json_quote json_remove json_replace
    json_set json_type json_valid julianday lag last_value lead length like
    likelihood likely ln log log10 log2 lower ltrim max median min mod nth_value
    ntile nullif octet_length percent_rank percentile pi pow power quote radians
    random rank replace round row_number rtrim sign sin sinh sqrt strftime
    string_agg substr substring sum tan tanh time timediff total trim trunc typeof
    unicode unixepoch unlikely upper
    """.split()  # noqa: SIM905
)
COSTLY = frozenset(("instr", "replace", "like", "glob"))  # more than their length's
GROWING = frozenset(  # results longer than what they are made of
    """
    char concat concat_ws group_concat hex json_array json_group_array
    json_group_object json_insert json_object json_quote json_replace json_set
    quote replace strftime string_agg
    """.split()  # noqa: SIM905
)
TRIMS = ("trim(2)", "ltrim(2)", "rtrim(2)")  # costly beyond measure
CALL = re.compile(r"([^()]+)\(-?\d+\)")
CALLS = ("Function", "PureFunc", "Agg")  # how the names of such operations begin

GROWN = 1 << 20  # bytes of a value, where something makes values grow
COSTLY_BYTES = 512 << 10  # of a value, divided by how many costly calls there are
LEAST_BYTES = 4 << 10
MOST_COSTLY = 1000  # calls of a statement


class QueryAuthorizer:
    """What a connection's authorizer knows.

    Attributes
    ----------
    on : bool
        Whether a user's statement is prepared.
    reason : str or None
        Why the last one was refused.
    """

    def __init__(self) -> None:
        self.on = False
        self.reason: str | None = None

    def __call__(
        self,
        action: int,
        first: str | None,
        second: str | None,
        database: str | None,
        inside: str | None,
    ) -> int:
        """Answer SQLite; `inside` is the view or trigger that asks."""
        if not self.on:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_SELECT:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_READ:
            if str(first).lower() in READABLE and database in ("main", None):
                return sqlite3.SQLITE_OK
            self.reason = f"the table {first!r} may not be read"
        elif action == sqlite3.SQLITE_FUNCTION:
            if str(second).lower() in FUNCTIONS:
                return sqlite3.SQLITE_OK
            self.reason = f"the function {second!r} may not be called"
        else:
            self.reason = "a query may only read samples, fields and counters"
        return sqlite3.SQLITE_DENY


def install_authorizer(conn: ReaderConnection) -> QueryAuthorizer:
    """Watch over what `select` runs on a connection, from now on."""
    if isinstance(conn.authorizer, QueryAuthorizer):
        return conn.authorizer
    try:
        for table in ("json_each", "json_tree"):  # made by SQLite at their first use
            conn.execute(f"SELECT 1 FROM {table}('[]')").fetchall()
    except INDEX_ERRORS as error:
        raise translate_error(error, conn.path) from error
    authorizer = QueryAuthorizer()
    conn.set_authorizer(authorizer)
    conn.authorizer = authorizer
    return authorizer


def limit_value_size(program: list[tuple[Any, ...]], grown: int = GROWN) -> int:
    """Say how long values may be in a statement, of the program that SQLite made.

    Parameters
    ----------
    program : list of tuple
        What EXPLAIN says.
    grown : int
        Bytes, where values grow but no function is costly.

    Raises
    ------
    QueryError
        It calls what it may not.
    """
    costly, growing = 0, False
    for _, operation, _, _, _, call, *_ in program:
        growing |= operation == "Concat"
        if not operation.startswith(CALLS):
            continue
        if call in TRIMS:
            raise QueryError("trim takes one argument here: it removes spaces")
        named = CALL.fullmatch(str(call))
        name = "" if named is None else named[1].lower()
        if name not in FUNCTIONS:
            raise QueryError(f"the function {call!r} may not be called")
        costly += name in COSTLY
        growing |= name in GROWING
    if costly > MOST_COSTLY:
        raise QueryError(
            f"{costly:,} calls of {', '.join(sorted(COSTLY))} are too many"
        )
    if costly:
        return max(COSTLY_BYTES // costly, LEAST_BYTES)
    return grown if growing else 1 << 30


Params: TypeAlias = Sequence[Any] | Mapping[str, Any]
# The type of a column is not known before the query: any of these.
SQLValue: TypeAlias = str | int | float | bytes | Any | None

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
) -> list[dict[str, SQLValue]]:
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
        run = QueryThread(conn, install_authorizer(conn), sql, _plain(params))
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
    raise _said(run.error, run.authorizer, conn.path) from run.error


class QueryThread:
    """A statement that runs in a thread of its own.

    Whoever made it has the connection's lock, and keeps it until it has ended.
    """

    def __init__(
        self,
        conn: ReaderConnection,
        authorizer: QueryAuthorizer,
        sql: str,
        params: Params,
    ) -> None:
        self.conn = conn
        self.authorizer = authorizer
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
            self.authorizer.on, self.authorizer.reason = True, None
            try:
                program = self._program(sql, params)
                self.conn.setlimit(LONGEST, min(whole, limit_value_size(program)))
                with closing(self.conn.execute(sql, params)) as cursor:
                    self._fetch(cursor, SLACK + 2 * nbytes * len(cursor.description))
            finally:
                self.authorizer.on = False
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


def _said(error: Exception, authorizer: QueryAuthorizer, path: str) -> Exception:
    """Say what went wrong in our words."""
    if isinstance(error, QueryError):
        return error
    if isinstance(error, MemoryError):
        return QueryError(f"the query is too large: {MANY}")
    if isinstance(error, UnicodeEncodeError):
        return QueryError("the query has half a surrogate pair, which is no text")
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if authorizer.reason is not None:
        return QueryError(authorizer.reason)
    if code == sqlite3.SQLITE_TOOBIG or isinstance(error, sqlite3.DataError):
        return QueryError(f"a value, or the query, is too long: {MANY}")
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM):
        return QueryError("the query needs more temporary space than there is")
    decoding = isinstance(error, UnicodeDecodeError) or (
        str(error).startswith("Could not decode")
    )
    if isinstance(error, INDEX_ERRORS) and (decoding or code not in ITS_OWN):
        return translate_error(error, path)
    if "malformed JSON" in str(error):
        return QueryError(
            "what JSON is asked of is none that SQLite reads, as metadata with NaN: "
            "CASE WHEN json_valid(meta_json) THEN ... END passes it over"
        )
    return QueryError(f"the query is wrong: {error}")
