"""Schema of ``index.sqlite``: tables, names of fields and columns, metadata."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Container
from typing import TYPE_CHECKING, Any, NamedTuple

from fastshard.errors import FormatError

if TYPE_CHECKING:
    import sqlite3

__all__ = [
    "INDEX_NAME",
    "LARGEST_ID",
    "LARGEST_SHARD",
    "Field",
    "check_column_name",
    "check_field_name",
    "check_sample_id",
    "create",
    "fold_case",
    "has_tables",
    "is_columnar",
    "parse_metadata",
    "quote_name",
    "read_fields",
    "select_fields",
    "shard_name",
    "shard_number",
]


IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SHARD = re.compile(r"shard_([0-9]{4,10})\.tar")
LARGEST_SHARD = 10**9  # no number of a shard is larger
LARGEST_ID = (1 << 63) - 1  # that is counted: a larger one is no integer of SQLite
MAX_ID = 64 << 10  # bytes of a sample's id
# SQLite compares names without regard to case. The last three are its own.
COLUMNS = frozenset({"id", "meta_json", "rowid", "oid", "_rowid_"})
FIELDS = frozenset({"id", "meta_json", "__key__"})  # the last is the id's own, in dicts
SUFFIXES = ("_offset", "_shard")  # of the two columns of a field
MAX_NAME = 128  # characters: a folder's name is longer, and no file system's limit


def check_field_name(name: object, taken: Container[str]) -> str:
    """Return a field's name, or say why it cannot be one.

    Parameters
    ----------
    name : str
    taken : container of str
        Lower-cased names of the columns that there are.

    Raises
    ------
    ValueError
        It is no identifier, is too long, or it is or has a column that is taken.
    TypeError
        It is no str.
    """
    checked = _identifier(name, "a field", FIELDS)
    columns = [checked + suffix for suffix in SUFFIXES]
    if checked.lower().endswith(SUFFIXES):  # as another field's columns are
        columns.append(checked)
    for column in columns:
        if column.lower() in taken:
            raise ValueError(
                f"a field cannot be named {checked!r}: there is a column {column!r}"
            )
    return checked


def check_column_name(name: object, taken: Container[str]) -> str:
    """Return a metadata column's name, or say why it cannot be one.

    Raises
    ------
    ValueError
        It is no identifier, is too long, is taken, or ends as a field's columns do.
    TypeError
        It is no str.
    """
    checked = _identifier(name, "a column", COLUMNS)
    if checked.lower().endswith(SUFFIXES):
        raise ValueError(f"a column's name cannot end with _offset or _shard: {name!r}")
    if checked.lower() in taken:
        raise ValueError(f"there is a column {checked!r} already")
    return checked


def _identifier(name: object, what: str, reserved: Container[str]) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the name of {what} is a str, not {type(name).__name__}")
    if not IDENTIFIER.fullmatch(name) or len(name) > MAX_NAME:
        raise ValueError(
            f"{name!r:.200} names no {what[2:]}: letters, digits and _ only, "
            f"no digit first, at most {MAX_NAME}"
        )
    if name.lower() in reserved:
        raise ValueError(f"{what} cannot be named {name!r}: the name is reserved")
    return str(name)


def check_sample_id(sample_id: object) -> bytes:
    """Return the name of the member that holds a sample's array.

    Raises
    ------
    ValueError
        The id is empty, too long, has a NUL, or cannot be encoded as UTF-8.
    TypeError
        It is no str.
    """
    if not isinstance(sample_id, str):
        raise TypeError(f"a sample's id is a str, not {type(sample_id).__name__}")
    if not sample_id or "\0" in sample_id:
        what = "has a NUL" if sample_id else "is empty"
        raise ValueError(f"a sample's id {what}: {sample_id!r:.200}")
    try:
        encoded = sample_id.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"a sample's id cannot be encoded as UTF-8: {sample_id!r:.200}"
        ) from None
    if len(encoded) > MAX_ID:
        raise ValueError(
            f"a sample's id has {MAX_ID:,} bytes at most, not {len(encoded):,}"
        )
    return b"%b.npy" % encoded


def shard_name(shard: int) -> str:
    """Return the name of a shard's file."""
    return f"shard_{shard:04d}.tar"


def shard_number(name: str) -> int | None:
    """Return the number of a shard from its file's name, None if it names none."""
    found = SHARD.fullmatch(name)
    if found is None:
        return None
    number = int(found[1])
    known = number <= LARGEST_SHARD and shard_name(number) == name
    return number if known else None


SCAN: Any = vars(json.JSONDecoder())["scan_once"]  # json.loads without its search
MOST_SHOWN = 80  # characters of bad text in an error


def parse_metadata(text: Any, sample_id: str, path: str) -> Any:
    """Parse what an index has of a sample.

    Parameters
    ----------
    text : object
        The column's value. None and no text are no metadata.
    sample_id, path : str
        The sample and the index, for errors.

    Returns
    -------
    dict
        Whatever else the text says, where it is no object. NaN and Infinity, which
        are no JSON but which others write, come as floats.

    Raises
    ------
    FormatError
        It is no JSON.
    """
    if not text:
        return {}
    try:
        if type(text) is str:
            value, end = SCAN(text, 0)
            if end == len(text):
                return value
        elif not isinstance(text, str):
            raise TypeError(f"{type(text).__name__} instead of text")
        return json.loads(text)
    except (ValueError, TypeError, RecursionError, StopIteration) as error:
        shown = repr(text)[:MOST_SHOWN]
        reason = str(error) or "no value"
        raise FormatError(
            f"metadata of sample {sample_id!r} is no JSON: {reason} in {shown}",
            path,
            0,
        ) from error


INDEX_NAME = "index.sqlite"
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
    return os.path.isfile(os.path.join(root, INDEX_NAME))


def fold_case(name: str) -> str:
    """Return a column's name as SQLite compares it, which folds ASCII alone."""
    return name.lower() if name.isascii() else name


def quote_name(name: str) -> str:
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
    import sqlite3  # late: directories of tars are looked at for this format's mark

    try:
        if not has_tables(conn):
            reason = (
                "an index without tables, as a writer leaves it that was stopped while "
                "it made it; a ShardedDatasetWriter goes on there"
            )
            raise FormatError(reason, path, 0)
        columns = _columns(conn, path)
        named = select_fields(conn, path)
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


def select_fields(conn: sqlite3.Connection, path: str) -> list[Field]:
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
    import sqlite3

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
    return {fold_case(name): kind for _, name, _, _, _, _, kind in rows}
