"""Expressions that users write in SQL: what is built of them, and what of them is read.

They stand in parentheses in a statement of ours, so none may close them, open
what it does not close, or hide what follows in a comment.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Sequence
from typing import SupportsIndex

from fastshard.columnar.connect import MOST_SQL
from fastshard.errors import QueryError

__all__ = ["MANY", "ids_sql", "rows_sql", "split"]

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
    if len(text) > MOST_SQL:  # what follows cannot be interrupted
        raise QueryError(
            f"{what} has {len(text):,} characters, {MOST_SQL:,} at most: {MANY}"
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
