"""What a user's statement may do: what it reads and calls, and how long values are.

SQLite's authorizer is asked while a statement is prepared. It does not hear of what
an index's own generated columns call; the program that SQLite makes tells that.
"""

from __future__ import annotations

import re
import sqlite3
from typing import Any

from fastshard.columnar.connect import FAULTS, ReaderConnection, fault_of
from fastshard.errors import QueryError

__all__ = ["Guard", "guarded", "longest_of"]

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


class Guard:
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


def guarded(conn: ReaderConnection) -> Guard:
    """Watch over what `select` runs on a connection, from now on."""
    if isinstance(conn.guard, Guard):
        return conn.guard
    try:
        for table in ("json_each", "json_tree"):  # made by SQLite at their first use
            conn.execute(f"SELECT 1 FROM {table}('[]')").fetchall()
    except FAULTS as error:
        raise fault_of(error, conn.path) from error
    guard = Guard()
    conn.set_authorizer(guard)
    conn.guard = guard
    return guard


def longest_of(program: list[tuple[Any, ...]], grown: int = GROWN) -> int:
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
