"""Schema of ``index.sqlite``: tables, rules for names, JSON of metadata."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Container
from typing import Any, NamedTuple

from fastshard._util.json import parse_value, scan_json
from fastshard.columnar.layout.packs import PACKED_TABLE, ROW_VERSION, row_column
from fastshard.errors import FormatError

__all__ = [
    "INDEX_NAME",
    "MAX_COUNTER",
    "MAX_SHARD",
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
MAX_SHARD = 10**9  # number of a shard
MAX_COUNTER = (1 << 63) - 1  # of generated ids: SQLite's largest integer
MAX_ID = 64 << 10  # bytes of a sample's id
# Reserved names; SQLite compares names without regard to case.
RESERVED_COLUMNS = frozenset({"id", "meta_json", "rowid", "oid", "_rowid_"})
RESERVED_FIELDS = frozenset({"id", "meta_json", "__key__"})
SUFFIXES = ("_offset", "_shard")  # of the two columns of a field
MAX_NAME = 128  # characters; the folder's name is longer, below file systems' limits


def check_field_name(name: object, taken: Container[str]) -> str:
    """Return a field's name as a str; raise ValueError if it is not allowed."""
    checked = _check_identifier(name, "a field", RESERVED_FIELDS)
    columns = [checked + suffix for suffix in SUFFIXES]
    if checked.lower().endswith(SUFFIXES):  # it may be a column of another field
        columns.append(checked)
    for column in columns:
        if column.lower() in taken:
            raise ValueError(
                f"a field cannot be named {checked!r}: the column {column!r} exists"
            )
    return checked


def check_column_name(name: object, taken: Container[str]) -> str:
    """Return a metadata column's name as a str; ValueError if it is not allowed."""
    checked = _check_identifier(name, "a column", RESERVED_COLUMNS)
    if checked.lower().endswith(SUFFIXES):
        raise ValueError(
            f"a column's name must not end with _offset or _shard, got {name!r}"
        )
    if checked.lower() in taken:
        raise ValueError(f"the column {checked!r} exists already")
    return checked


def _check_identifier(name: object, what: str, reserved: Container[str]) -> str:
    """Return a name as a str; errors call its owner `what`."""
    if not isinstance(name, str):
        raise TypeError(f"the name of {what} must be a str, got {type(name).__name__}")
    if not IDENTIFIER.fullmatch(name) or len(name) > MAX_NAME:
        raise ValueError(
            f"the name of {what} must have at most {MAX_NAME} characters, of letters, "
            f"digits and _, and no digit first, got {name!r:.200}"
        )
    if name.lower() in reserved:
        raise ValueError(f"{what} cannot be named {name!r}: the name is reserved")
    return str(name)


def check_sample_id(sample_id: object) -> bytes:
    """Return the name of the members that hold a sample's arrays."""
    if not isinstance(sample_id, str):
        raise TypeError(f"a sample's id must be a str, got {type(sample_id).__name__}")
    if not sample_id or "\0" in sample_id:
        raise ValueError(
            f"a sample's id must be non-empty and without NUL, got {sample_id!r:.200}"
        )
    try:
        encoded = sample_id.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"a sample's id cannot be encoded as UTF-8: {sample_id!r:.200}"
        ) from None
    if len(encoded) > MAX_ID:
        raise ValueError(
            f"a sample's id must have at most {MAX_ID:,} bytes, got {len(encoded):,}"
        )
    return b"%b.npy" % encoded


# The file name of a shard, by its number.
shard_name: Callable[[int], str] = "shard_{:04d}.tar".format


def shard_number(name: str) -> int | None:
    """Return a shard's number from its file name; None if it is not a shard's name."""
    match = SHARD.fullmatch(name)
    if match is None:
        return None
    number = int(match[1])
    is_valid = number <= MAX_SHARD and shard_name(number) == name
    return number if is_valid else None


MAX_EXCERPT = 80  # characters of bad text in an error


def parse_metadata(text: Any, sample_id: str, path: str) -> Any:
    """Parse the metadata of a sample."""
    if not text:
        return {}
    try:
        if type(text) is str:
            value, end = scan_json(text, 0)
            if end == len(text):
                return value
        elif not isinstance(text, str):
            raise TypeError(f"{type(text).__name__} instead of text")
        return parse_value(text, path)
    except (ValueError, TypeError, RecursionError, StopIteration) as error:
        excerpt = repr(text)[:MAX_EXCERPT]
        reason = getattr(error, "reason", str(error)) or "no value"
        raise FormatError(
            f"metadata of sample {sample_id!r} is not JSON: {reason} in {excerpt}",
            path,
            0,
        ) from error


INDEX_NAME = "index.sqlite"
TABLES = {  # with the columns that each must have
    "samples": ("id", "meta_json"),
    "fields": ("name", "num_shards", "base_dir"),
    "counters": ("name", "value"),
}
SHARD_COLUMNS = ("field", "shard", "nbytes", "members")  # of fastshard_shards, if any
PROBE = "fastshard_probe"  # name of an index that is never created
PLAIN = 0  # kind in PRAGMA table_xinfo: neither generated nor of a virtual table

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
    """Field of a dataset: a column of arrays."""

    name: str
    folder: str  # of its shards, in the dataset's directory: one path component
    is_packed: bool = False  # `samples` has the column of its rows in packs
    has_identities: bool = False  # those rows have the identities of their samples


def is_columnar(root: str | os.PathLike[str]) -> bool:
    """Return whether a path is a directory with an ``index.sqlite``."""
    return os.path.isfile(os.path.join(root, INDEX_NAME))


def fold_case(name: str) -> str:
    """Return a column's name as SQLite compares it: in lower case if it is ASCII."""
    return name.lower() if name.isascii() else name


def quote_name(name: str) -> str:
    """Return a name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def create(conn: sqlite3.Connection) -> None:
    """Create the missing tables. The caller commits."""
    cursor = sqlite3.Cursor(conn)
    for statement in CREATE:
        cursor.execute(statement)


def has_tables(conn: sqlite3.Connection) -> bool:
    """Return whether an index has any table."""
    cursor = sqlite3.Cursor(conn).execute("SELECT 1 FROM sqlite_master LIMIT 1")
    return cursor.fetchone() is not None


def read_fields(conn: sqlite3.Connection, path: str) -> list[Field]:
    """Check the tables of an index, and return its fields in insertion order."""
    cursor = sqlite3.Cursor(conn)  # a writer's own statements need no guard
    try:
        if not has_tables(conn):
            reason = (
                "an index without tables: the writer that created it was interrupted; "
                "open the dataset with a ShardedDatasetWriter to complete it"
            )
            raise FormatError(reason, path, 0)
        columns = _check_tables(cursor, path)
        candidates = select_fields(conn, path)
        packed = _select_packed(cursor, path)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise FormatError(f"not an index of samples: {error}", path, 0) from error
    fields: list[Field] = []
    seen: dict[str, str] = {}  # field by lower-cased name and folder
    for field in candidates:
        name = field.name
        is_packed = name in packed
        needed = [f"{name.lower()}_offset", f"{name.lower()}_shard"]
        if is_packed:
            needed.append(row_column(name.lower()))
        for taken in needed:
            if taken not in columns:
                reason = f"samples has no column {taken!r} of the field {name!r}"
                raise FormatError(reason, path, 0)
            if columns[taken] != PLAIN:
                raise FormatError(f"the column {taken!r} is generated", path, 0)
        for key in (f"name {field.name.lower()}", f"folder {field.folder.lower()}"):
            if key in seen:
                reason = f"the fields {seen[key]!r} and {name!r} have the same {key}"
                raise FormatError(reason, path, 0)
            seen[key] = field.name
        identified = packed.get(name, False)
        fields.append(field._replace(is_packed=is_packed, has_identities=identified))
    return fields


def _select_packed(cursor: sqlite3.Cursor, path: str) -> dict[object, bool]:
    """Return the fields that have packs, and whether their rows have identities."""
    columns = _check_table(cursor, PACKED_TABLE, ("field",), path)
    if columns is None:
        return {}
    version = "version" if "version" in columns else "NULL"
    found = {}
    for name, number in cursor.execute(f"SELECT field, {version} FROM {PACKED_TABLE}"):
        if number not in (None, 1, ROW_VERSION):
            reason = f"rows in packs of the field {name!r:.80} have version {number!r}"
            raise FormatError(reason, path, 0)
        found[name] = number == ROW_VERSION
    return found


def select_fields(conn: sqlite3.Connection, path: str) -> list[Field]:
    """Return the fields of an index whose tables have been checked."""
    execute = sqlite3.Cursor(conn).execute
    rows = execute("SELECT name, base_dir FROM fields ORDER BY rowid").fetchall()
    indexed = execute("SELECT name FROM fields ORDER BY name").fetchall()
    if sorted(repr(row[0]) for row in rows) != sorted(repr(row[0]) for row in indexed):
        reason = (
            f"the table of fields has {rows!r:.200}, its SQL index {indexed!r:.200}"
        )
        raise FormatError(reason, path, 0)
    return [_parse_field(name, base_dir, path) for name, base_dir in rows]


def _parse_field(name: Any, base_dir: Any, path: str) -> Field:
    """Check a row of ``fields``."""
    if not isinstance(name, str) or not isinstance(base_dir, str):
        raise FormatError(f"the row of the field {name!r:.80} is not text", path, 0)
    if not IDENTIFIER.fullmatch(name):
        raise FormatError(f"the field name {name!r:.80} is not valid", path, 0)
    folder = re.split(r"[/\\]", base_dir.rstrip("/\\"))[-1]
    if folder in ("", ".", "..") or "\0" in folder or ":" in folder:
        reason = f"the folder {base_dir!r:.80} of the field {name!r} is not valid"
        raise FormatError(reason, path, 0)
    return Field(name, folder)


def _check_tables(cursor: sqlite3.Cursor, path: str) -> dict[str, int]:
    """Check the tables; return the kinds of the columns of `samples`, by name."""
    _check_table(cursor, "fastshard_shards", SHARD_COLUMNS, path)
    found: dict[str, dict[str, int]] = {}
    for table, names in TABLES.items():
        kinds = _check_table(cursor, table, names, path)
        if kinds is None:
            raise FormatError(f"the table {table!r} is missing", path, 0)
        cursor.execute(f"SELECT rowid FROM {table} LIMIT 0")
        found[table] = kinds
    return found["samples"]


def _check_table(
    cursor: sqlite3.Cursor, table: str, names: tuple[str, ...], path: str
) -> dict[str, int] | None:
    """Return the kinds of a table's columns by name; None if it does not exist.

    The text in ``sqlite_master`` is not trusted, and most statements make SQLite
    expand every view, which can take minutes. CREATE INDEX needs a real table and
    expands no view; under EXPLAIN it creates nothing.
    """
    probe = f"EXPLAIN CREATE INDEX main.{PROBE} ON {table} ({names[0]})"
    try:
        cursor.execute(probe).fetchall()  # the end of the statement
    except sqlite3.OperationalError as error:
        if str(error).startswith("no such table"):
            return None
        if "may not be indexed" in str(error):
            reason = f"{table!r} is not a real table: {error}"
            raise FormatError(reason, path, 0) from error
        raise
    kinds = _column_kinds(cursor, table)
    for name in names:
        if kinds.get(name) != PLAIN:
            raise FormatError(f"the table {table!r} lacks the column {name!r}", path, 0)
    if "rowid" in kinds:
        raise FormatError(f"the table {table!r} has a column 'rowid'", path, 0)
    return kinds


def _column_kinds(cursor: sqlite3.Cursor, table: str) -> dict[str, int]:
    rows = cursor.execute(f"PRAGMA table_xinfo({table})")
    return {fold_case(name): kind for _, name, _, _, _, _, kind in rows}
