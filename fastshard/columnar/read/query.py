"""Sandboxed user SQL: read-only, single database, time-limited."""

from __future__ import annotations

import json
import operator
import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import chain
from typing import Any, SupportsIndex, TypeAlias

from fastshard.columnar.layout.connection import (
    INDEX_ERRORS,
    MAX_SQL,
    ReaderConnection,
    translate_error,
)
from fastshard.errors import FormatError, QueryError, QueryTimeoutError

__all__ = [
    "MANY_VALUES_HINT",
    "Params",
    "QueryAuthorizer",
    "ids_sql",
    "install_authorizer",
    "limit_value_size",
    "query",
    "query_ids",
    "rows_sql",
    "select",
    "split",
]


# Advice of errors about long queries.
MANY_VALUES_HINT = (
    "pass values in params, and many ids in ids; "
    "or many values as x IN (SELECT value FROM json_each(?))"
)

# Tokens as SQLite's tokenizer splits them. A Tcl variable, such as $a(b), may have
# parentheses; the text in them is not tokenized.
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
    """Return the statement that selects the ids of samples, in insertion order."""
    return rows_sql(where, ("id",), limit)


def rows_sql(
    where: str | None,
    columns: Sequence[str],
    limit: SupportsIndex | None,
    among: Sequence[str] | None = None,
) -> str:
    """Return the statement that selects columns of samples, in insertion order."""
    if isinstance(columns, str) or not columns:
        raise QueryError(
            f"columns must be a sequence of at least one name, got {columns!r:.80}"
        )
    selected = ", ".join(_parenthesize(column, "a column") for column in columns)
    count = "" if limit is None else f" LIMIT {_check_limit(limit)}"
    if where is None or where == "":
        if among is None:
            return f"SELECT {selected} FROM samples ORDER BY rowid{count}"
        condition = "TRUE"
    else:
        condition = _parenthesize(where, "where")
    if among is not None:
        ids = " UNION ALL ".join(f"SELECT value FROM json_each({i})" for i in among)
        condition = f"{condition} AND id IN ({ids})"
    elif count:  # a scan in order usually finds a few soon
        return f"SELECT {selected} FROM samples WHERE {condition} ORDER BY rowid{count}"
    # With ORDER BY rowid SQLite would ignore indexes that users made.
    return f"SELECT {selected} FROM samples WHERE {condition} ORDER BY +rowid{count}"


def split(text: str) -> list[str]:
    """Split a list of expressions at the commas between them."""
    parts = [""]
    depth = 0
    for kind, token in _tokens(text):
        depth += (token == "(") - (token == ")") if kind == "other" else 0
        if kind == "other" and token == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += token
    return [part.strip() for part in parts]


def _parenthesize(text: str, what: str) -> str:
    """Return an expression in parentheses; errors call it `what`.

    It stands on lines of its own because it may end in a comment. ``WITH`` is refused
    for its cost: thirty tables, each a product of the one before with itself, take all
    memory before SQLite first calls the authorizer.
    """
    if not isinstance(text, str):
        raise QueryError(f"{what} must be a str, got {type(text).__name__}")
    if len(text) > MAX_SQL:  # tokenizing cannot be interrupted
        raise QueryError(
            f"{what} must have at most {MAX_SQL:,} characters, got {len(text):,}: "
            f"{MANY_VALUES_HINT}"
        )
    depth = 0
    for kind, token in _tokens(text):
        if kind == "tcl":
            raise QueryError(f"{token!r:.80} in {what} is not a parameter")
        if kind == "word" and token.upper() == "WITH":
            raise QueryError(f"WITH is not allowed in {what}")
        if kind == "other":
            if token in UNCLOSED:
                raise QueryError(f"{UNCLOSED[token]} in {what} is not closed")
            if token in ";\0":
                raise QueryError(f"{what} must be one expression, got {token!r} in it")
            depth += (token == "(") - (token == ")")
            if depth < 0:
                raise QueryError(f"a parenthesis in {what} is closed but not opened")
    if depth:
        raise QueryError(f"a parenthesis in {what} is not closed")
    return f"(\n{text}\n)"


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    for match in TOKEN.finditer(text):
        yield str(match.lastgroup), match.group()


def _check_limit(limit: SupportsIndex) -> int:
    count = operator.index(limit)
    if count < 0:
        raise ValueError(f"limit must be at least 0, got {count}")
    return min(count, (1 << 63) - 1)


READABLE = frozenset(("samples", "fields", "counters", "json_each", "json_tree"))
# Allowed functions: pure but for the clock. Those that take more than linear time in
# the size of their arguments are named below.
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
COSTLY = frozenset(("instr", "replace", "like", "glob"))  # quadratic time
GROWING = frozenset(  # results longer than the arguments
    """
    char concat concat_ws group_concat hex json_array json_group_array
    json_group_object json_insert json_object json_quote json_replace json_set
    quote replace strftime string_agg
    """.split()  # noqa: SIM905
)
TRIMS = ("trim(2)", "ltrim(2)", "rtrim(2)")  # refused: of unbounded cost
CALL = re.compile(r"([^()]+)\(-?\d+\)")
CALLS = ("Function", "PureFunc", "Agg")  # prefixes of opcodes that call a function

# Maximum bytes of a value:
MAX_GROWN = 1 << 20  # in a statement with growing values
MAX_COSTLY = 512 << 10  # with costly calls; divided by their number
MIN_COSTLY = 4 << 10  # the least that the division gives
MAX_COSTLY_CALLS = 1000  # of a statement


class QueryAuthorizer:
    """Authorizer callback of a connection: denies all but reads of the index.

    Attributes
    ----------
    on : bool
        Whether the statement being prepared is a user's; others are allowed.
    reason : str or None
        Why the last statement was refused.
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
        """Return whether SQLite may take an action; `inside`: for a view or trigger."""
        if not self.on:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_SELECT:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_READ:
            if str(first).lower() in READABLE and database in ("main", None):
                return sqlite3.SQLITE_OK
            self.reason = f"a query must not read the table {first!r}"
        elif action == sqlite3.SQLITE_FUNCTION:
            if str(second).lower() in FUNCTIONS:
                return sqlite3.SQLITE_OK
            self.reason = f"a query must not call the function {second!r}"
        else:
            self.reason = "a query may only read samples, fields and counters"
        return sqlite3.SQLITE_DENY


def install_authorizer(conn: ReaderConnection) -> QueryAuthorizer:
    """Return the connection's authorizer, installed at the first call."""
    if isinstance(conn.authorizer, QueryAuthorizer):
        return conn.authorizer
    try:
        for table in ("json_each", "json_tree"):  # SQLite creates them at first use
            conn.execute(f"SELECT 1 FROM {table}('[]')").fetchall()
    except INDEX_ERRORS as error:
        raise translate_error(error, conn.path) from error
    authorizer = QueryAuthorizer()
    conn.set_authorizer(authorizer)
    conn.authorizer = authorizer
    return authorizer


def limit_value_size(program: list[tuple[Any, ...]], grown: int = MAX_GROWN) -> int:
    """Return the maximum size of a value of a statement, in bytes."""
    costly, growing = 0, False
    for _, operation, _, _, _, call, *_ in program:
        growing |= operation == "Concat"
        if not operation.startswith(CALLS):
            continue
        if call in TRIMS:
            raise QueryError("trim must have one argument: it removes spaces alone")
        match = CALL.fullmatch(str(call))
        name = "" if match is None else match[1].lower()
        if name not in FUNCTIONS:
            raise QueryError(f"a query must not call the function {call!r}")
        costly += name in COSTLY
        growing |= name in GROWING
    if costly > MAX_COSTLY_CALLS:
        raise QueryError(
            f"a query must have at most {MAX_COSTLY_CALLS:,} calls of "
            f"{', '.join(sorted(COSTLY))}, got {costly:,}"
        )
    if costly:
        return max(MAX_COSTLY // costly, MIN_COSTLY)
    return grown if growing else 1 << 30


Params: TypeAlias = Sequence[Any] | Mapping[str, Any]

IDS_NAME = "fastshard_ids"  # of the ids among named parameters
# Below the maximum size of a value in a statement with several costly calls.
JOINED = 32 << 10  # characters of ids in one parameter
MAX_PARTS = 400  # parameters with ids; SQLite joins 500 SELECTs at most

VALUE_SIZE = sqlite3.SQLITE_LIMIT_LENGTH
ROWS_PER_FETCH = 1000
EXTRA_BYTES = 64 << 20  # of a result, beyond a multiple of the index's size
INTERRUPT_SECONDS = 0.05  # seconds between two interrupts of a running statement

UNKNOWN = re.compile(r"^no such column: (\w{1,80})$", re.ASCII)
MAX_COLUMNS = 12  # named in an error

STATEMENT_ERRORS = (  # codes of faults of a statement, not of the index
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
    ids: Iterable[str] | None = None,
    timeout: float | None = 30.0,
) -> list[str]:
    """Return the ids of the samples that satisfy a condition, in insertion order."""
    among, params = _add_ids(params, ids)
    sql = rows_sql(where, ("id",), limit, among)
    found = [sample_id for (sample_id,) in select(conn, sql, params, timeout)]
    if set(map(type, found)) - {str}:
        raise FormatError("the id of a sample is not text", conn.path, 0)
    return found


def query(
    conn: ReaderConnection,
    where: str | None = None,
    params: Params = (),
    columns: Sequence[str] = ("id", "meta_json"),
    limit: SupportsIndex | None = None,
    *,
    ids: Iterable[str] | None = None,
    timeout: float | None = 30.0,
) -> list[dict[str, Any]]:
    """Return columns of the samples that satisfy a condition, in insertion order."""
    among, params = _add_ids(params, ids)
    sql = rows_sql(where, columns, limit, among)
    rows = select(conn, sql, params, timeout)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _add_ids(
    params: Params, ids: Iterable[str] | None
) -> tuple[list[str] | None, Params]:
    """Return the placeholders of JSON arrays of ids, and the parameters with them."""
    if ids is None:
        return None, params
    parts = _join_ids(ids)
    if isinstance(params, Mapping):
        named = {f"{IDS_NAME}{k}": part for k, part in enumerate(parts)}
        return [f":{name}" for name in named], {**params, **named}
    return ["?"] * len(parts), (*_convert_params(params), *parts)


def _join_ids(ids: Iterable[str]) -> list[str]:
    """Return JSON arrays of the distinct ids, each of about `JOINED` characters.

    Ids that no sample can have are left out: SQLite would cut them at a NUL, and
    cannot encode a lone surrogate.
    """
    if isinstance(ids, str | bytes):
        raise TypeError(f"ids must be a list of str, got the {type(ids).__name__}")
    distinct = list(dict.fromkeys(map(_check_id, ids)))
    if not all(map(str.isascii, distinct)) or "\0" in "".join(distinct):
        distinct = [i for i in distinct if "\0" not in i and _is_unicode(i)]
    count = min(MAX_PARTS, sum(map(len, distinct)) // JOINED + 1)
    step = max(1, -(-len(distinct) // count))
    return [
        json.dumps(distinct[start : start + step], ensure_ascii=False)
        for start in range(0, max(1, len(distinct)), step)
    ]


def _check_id(sample_id: str) -> str:
    if isinstance(sample_id, str):
        return str.__str__(sample_id)
    raise TypeError(f"a sample's id must be a str, got {type(sample_id).__name__}")


def _is_unicode(text: str) -> bool:
    """Return whether a text has no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def select(
    conn: ReaderConnection,
    sql: str,
    params: Params = (),
    timeout: float | None = 30.0,
) -> list[tuple[Any, ...]]:
    """Run a statement with a user's text in it, and return its rows.

    The connection's lock is held until it ends. Ctrl-C stops it.
    """
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"timeout must be at least 0 seconds, got {timeout!r}")
    with conn.lock:
        thread = QueryThread(
            conn, install_authorizer(conn), sql, _convert_params(params)
        )
        try:
            ended = thread.start(timeout)
        except BaseException:  # raised by a signal handler
            thread.stop()
            raise
        if not ended:
            thread.stop()
    if thread.error is None:
        return thread.rows
    if not ended:
        raise QueryTimeoutError(f"the query took longer than {timeout:g} seconds")
    error = _translate_query_error(thread.error, thread.authorizer, conn.path)
    if unknown := UNKNOWN.search(str(thread.error)):
        with conn.lock, suppress(*INDEX_ERRORS):
            error = QueryError(f"{error}; {_describe_columns(conn, unknown[1])}")
    raise error from thread.error


def _describe_columns(conn: ReaderConnection, unknown: str) -> str:
    """Return which columns a query may name, and how it reads metadata."""
    rows = conn.execute("PRAGMA table_xinfo(samples)").fetchmany(MAX_COLUMNS + 1)
    names = [str(row[1]) for row in rows]
    shown = ", ".join(names[:MAX_COLUMNS]) + ", ..." * (len(names) > MAX_COLUMNS)
    return (
        f"the columns are {shown}; a value of the metadata is "
        f"json_extract(meta_json, '$.{unknown}')"
    )


class QueryThread:
    """Thread that runs one statement of a user.

    The caller holds the connection's lock until the thread has ended.

    Attributes
    ----------
    rows : list of tuple
        The result; incomplete with an `error`.
    error : Exception or None
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
        self._ended = threading.Event()  # an interrupted Thread.join cannot be repeated
        self._thread = threading.Thread(
            target=self._run, args=(sql, params), daemon=True
        )

    def start(self, timeout: float | None) -> bool:
        """Start, and return whether the statement ended within `timeout` seconds."""
        if timeout is not None:
            timeout = min(timeout, threading.TIMEOUT_MAX)
        try:
            self._thread.start()
        except RuntimeError:  # the limit of threads is reached
            self._ended.set()
            raise
        return self._ended.wait(timeout)

    def stop(self) -> None:
        """Interrupt the statement, and wait until it has ended."""
        self._stopped = True
        caught = None
        while not self._ended.is_set():
            try:
                self.conn.interrupt()  # of no effect between two statements
                self._ended.wait(INTERRUPT_SECONDS)
            except KeyboardInterrupt as error:  # the connection is still in use
                caught = error
        if caught is not None:
            raise caught

    def _run(self, sql: str, params: Params) -> None:
        try:
            whole = self.conn.getlimit(VALUE_SIZE)
            nbytes = _index_size(self.conn)
            self.authorizer.on, self.authorizer.reason = True, None
            try:
                program = self._explain(sql, params)
                self.conn.setlimit(VALUE_SIZE, min(whole, limit_value_size(program)))
                with closing(self.conn.execute(sql, params)) as cursor:
                    self._fetch(
                        cursor, EXTRA_BYTES + 2 * nbytes * len(cursor.description)
                    )
            finally:
                self.authorizer.on = False
                self.conn.setlimit(VALUE_SIZE, whole)
        except Exception as error:
            self.error = error
        finally:
            self._ended.set()

    def _explain(self, sql: str, params: Params) -> list[tuple[Any, ...]]:
        """Return the bytecode of the statement, as EXPLAIN lists it."""
        with closing(self.conn.execute(f"EXPLAIN {sql}", params)) as cursor:
            program: list[tuple[Any, ...]] = []
            while rows := cursor.fetchmany(ROWS_PER_FETCH):
                self._check_stopped()
                program += rows
        self._check_stopped()
        return program

    def _check_stopped(self) -> None:
        if self._stopped:
            raise QueryError("stopped")

    def _fetch(self, cursor: sqlite3.Cursor, max_bytes: int) -> None:
        while rows := cursor.fetchmany(ROWS_PER_FETCH):
            self._check_stopped()
            self.rows += rows
            max_bytes -= _text_size(rows)
            if max_bytes < 0:
                raise QueryError("the result is larger than the index: select less")


def _text_size(rows: list[tuple[Any, ...]]) -> int:
    """Return the characters and bytes of all texts and blobs in rows."""
    try:
        return sum(map(len, chain.from_iterable(rows)))  # fast way: no numbers
    except TypeError:
        values = chain.from_iterable(rows)
        return sum(len(value) for value in values if isinstance(value, str | bytes))


def _index_size(conn: sqlite3.Connection) -> int:
    (pages,) = conn.execute("PRAGMA page_count").fetchone()
    (size,) = conn.execute("PRAGMA page_size").fetchone()
    return int(pages * size)


def _convert_params(params: Params) -> Params:
    """Return parameters with NumPy's scalars converted, which `sqlite3` refuses."""
    if isinstance(params, Mapping):
        return {name: _convert_value(value) for name, value in params.items()}
    if isinstance(params, str | bytes) or not isinstance(params, Sequence):
        raise QueryError(
            f"params must be a tuple, list or dict, got {type(params).__name__}"
        )
    return tuple(map(_convert_value, params))


def _convert_value(value: Any) -> Any:
    if value is None or isinstance(value, int | float | str | bytes):
        return value
    import numpy as np

    return value.item() if isinstance(value, np.generic) else value


def _translate_query_error(
    error: Exception, authorizer: QueryAuthorizer, path: str
) -> Exception:
    """Return the exception to raise for an error of `QueryThread`."""
    if isinstance(error, QueryError):
        return error
    if isinstance(error, MemoryError):
        return QueryError(f"the query is too large: {MANY_VALUES_HINT}")
    if isinstance(error, UnicodeEncodeError):
        return QueryError("the query has a lone surrogate, which UTF-8 cannot encode")
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if authorizer.reason is not None:
        return QueryError(authorizer.reason)
    if code == sqlite3.SQLITE_TOOBIG or isinstance(error, sqlite3.DataError):
        return QueryError(f"a value, or the query, is too long: {MANY_VALUES_HINT}")
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM):
        return QueryError("the query needs more temporary space than is free")
    decoding = isinstance(error, UnicodeDecodeError) or (
        str(error).startswith("Could not decode")
    )
    if isinstance(error, INDEX_ERRORS) and (decoding or code not in STATEMENT_ERRORS):
        return translate_error(error, path)
    if "malformed JSON" in str(error):
        return QueryError(
            "the argument of a JSON function is not JSON to SQLite, as metadata with "
            "NaN is not: CASE WHEN json_valid(meta_json) THEN ... END skips it"
        )
    return QueryError(f"the query is not valid: {error}")
