"""What a columnar dataset's ``index.sqlite`` must look like."""

from __future__ import annotations

import os
import re
import sqlite3
from typing import Any, NamedTuple

from fastshard.columnar.names import IDENTIFIER
from fastshard.errors import FormatError
from fastshard.formats import format_of

__all__ = [
    "NAME",
    "Field",
    "create",
    "folded",
    "has_tables",
    "is_columnar",
    "named_fields",
    "quoted",
    "read_fields",
]

NAME = "index.sqlite"
TABLES = {  # and the columns that they must have
    "samples": ("id", "meta_json"),
    "fields": ("name", "num_shards", "base_dir"),
    "counters": ("name", "value"),
}
OURS = ("field", "shard", "nbytes", "members")  # of fastshard_shards, if it is there
PROBE = "fastshard_probe"  # an index that is never made
PLAIN = 0  # of PRAGMA table_xinfo: no generated column, and none of a virtual table

CREATE = (
    "CREATE TABLE IF NOT EXISTS samples (id TEXT PRIMARY KEY, meta_json TEXT)",
    "CREATE TABLE IF NOT EXISTS fields "
    "(name TEXT PRIMARY KEY, num_shards INTEGER, base_dir TEXT)",
    "CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER)",
    "CREATE TABLE IF NOT EXISTS fastshard_shards "
    "(field TEXT, shard INTEGER, nbytes INTEGER, members INTEGER, "
    "PRIMARY KEY (field, shard))",
    "INSERT OR IGNORE INTO counters (name, value) VALUES ('sample_id', 0)",
)


class Field(NamedTuple):
    """A column of arrays."""

    name: str
    folder: str  # of its shards, below the dataset's own: one plain name


def is_columnar(root: str | os.PathLike[str]) -> bool:
    """Say whether a path is a directory that holds an ``index.sqlite``."""
    found = format_of(root)
    return found is not None and found.mark == NAME


def folded(name: str) -> str:
    """Return a column's name as SQLite compares it, which folds ASCII alone."""
    return name.lower() if name.isascii() else name


def quoted(name: str) -> str:
    """Return a name as SQL takes it, whatever characters it has."""
    return '"' + name.replace('"', '""') + '"'


def create(conn: sqlite3.Connection) -> None:
    """Make the tables that are missing. The caller commits."""
    for statement in CREATE:
        conn.execute(statement)


def has_tables(conn: sqlite3.Connection) -> bool:
    """Say whether an index holds anything."""
    return conn.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None


def read_fields(conn: sqlite3.Connection, path: str) -> list[Field]:
    """Check an index's tables, and return its fields as they were added.

    Parameters
    ----------
    conn : sqlite3.Connection
        Of the index. No row of `samples` is read.
    path : str
        The index, for errors.

    Returns
    -------
    list of Field

    Raises
    ------
    FormatError
        It is no database, or not one of a columnar dataset: a table or a column
        is missing, or is none (a view, a virtual table, a generated column); a
        field's name is no identifier, or is there twice; its row is of wrong
        types, or its folder is not a plain name.
    """
    try:
        if not has_tables(conn):
            reason = (
                "an index without tables, as a writer leaves it that was stopped while "
                "it made it; a ShardedDatasetWriter goes on there"
            )
            raise FormatError(reason, path, 0)
        columns = _columns(conn, path)
        named = named_fields(conn, path)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise FormatError(f"not an index of samples: {error}", path, 0) from error
    fields: list[Field] = []
    seen: dict[str, str] = {}  # lower-cased names and folders: whose they are
    for field in named:
        name = field.name
        for taken in (f"{field.name.lower()}_offset", f"{field.name.lower()}_shard"):
            if taken not in columns:
                reason = f"samples has no column {taken!r} of the field {name!r}"
                raise FormatError(reason, path, 0)
            if columns[taken] != PLAIN:
                raise FormatError(f"the column {taken!r} is a generated one", path, 0)
        for key in (f"name {field.name.lower()}", f"folder {field.folder.lower()}"):
            if key in seen:
                reason = f"the fields {seen[key]!r} and {name!r} have the same {key}"
                raise FormatError(reason, path, 0)
            seen[key] = field.name
        fields.append(field)
    return fields


def named_fields(conn: sqlite3.Connection, path: str) -> list[Field]:
    """Return the fields of an index whose tables are known to be right."""
    sql = "SELECT name, base_dir FROM fields ORDER BY rowid"
    rows = conn.execute(sql).fetchall()
    return [_field(name, base_dir, path) for name, base_dir in rows]


def _field(name: Any, base_dir: Any, path: str) -> Field:
    if not isinstance(name, str) or not isinstance(base_dir, str):
        raise FormatError(f"the row of the field {name!r:.80} is no text", path, 0)
    if not IDENTIFIER.fullmatch(name):
        raise FormatError(f"{name!r:.80} is no name of a field", path, 0)
    folder = re.split(r"[/\\]", base_dir.rstrip("/\\"))[-1]
    if folder in ("", ".", "..") or "\0" in folder or ":" in folder:
        reason = f"{base_dir!r:.80}, of the field {name!r}, is no folder"
        raise FormatError(reason, path, 0)
    return Field(name, folder)


def _columns(conn: sqlite3.Connection, path: str) -> dict[str, int]:
    """Check the tables; return the columns of `samples`, lower-cased, and kinds."""
    _kinds_of(conn, "fastshard_shards", OURS, path)
    found: dict[str, dict[str, int]] = {}
    for table, names in TABLES.items():
        kinds = _kinds_of(conn, table, names, path)
        if kinds is None:
            raise FormatError(f"there is no table {table!r}", path, 0)
        conn.execute(f"SELECT rowid FROM {table} LIMIT 0")
        found[table] = kinds
    return found["samples"]


def _kinds_of(
    conn: sqlite3.Connection, table: str, names: tuple[str, ...], path: str
) -> dict[str, int] | None:
    """Return a table's columns, or None; refuse one that is none, or lacks a column.

    What ``sqlite_master`` says of a table need not be true, and most ways to ask
    SQLite make it work out every view, which can take minutes. Making an index
    needs a real table, and nothing else; EXPLAIN makes none.
    """
    probe = f"EXPLAIN CREATE INDEX main.{PROBE} ON {table} ({names[0]})"
    try:
        conn.execute(probe).close()  # nobody reads what it explains
    except sqlite3.OperationalError as error:
        if str(error).startswith("no such table"):
            return None
        if "may not be indexed" in str(error):
            reason = f"{table!r} is no table of its own: {error}"
            raise FormatError(reason, path, 0) from error
        raise
    kinds = _info(conn, table)
    for name in names:
        if kinds.get(name) != PLAIN:
            raise FormatError(f"the table {table!r} has no column {name!r}", path, 0)
    if "rowid" in kinds:
        raise FormatError(f"the table {table!r} has a column 'rowid'", path, 0)
    return kinds


def _info(conn: sqlite3.Connection, table: str) -> dict[str, int]:
    rows = conn.execute(f"PRAGMA table_xinfo({table})")
    return {folded(name): kind for _, name, _, _, _, _, kind in rows}
