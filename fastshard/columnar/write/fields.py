"""Fields and metadata columns of a writer: their SQL, and their directories."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Sequence

from fastshard.columnar.layout.packs import PACKED_TABLE, ROW_VERSION, row_column
from fastshard.columnar.layout.schema import (
    check_column_name,
    check_field_name,
    quote_name,
    shard_number,
)

__all__ = [
    "add_identities",
    "has_shards",
    "insert_field",
    "insert_metadata_column",
    "list_columns",
    "pack_field",
    "select_new_fields",
    "unpack_field",
]

TYPES = ("INTEGER", "REAL", "TEXT", "NUMERIC")
PYTHON_TYPES: dict[type, str] = {
    bool: "INTEGER",
    int: "INTEGER",
    float: "REAL",
    str: "TEXT",
}


def list_columns(conn: sqlite3.Connection) -> set[str]:
    """Return the names of all columns of `samples`, lower-cased."""
    rows = sqlite3.Cursor(conn).execute("PRAGMA table_xinfo(samples)")  # and generated
    return {str(row[1]).lower() for row in rows}


def select_new_fields(
    names: Sequence[str],
    existing: Collection[str],
    columns: set[str],
    *,
    packs: bool = False,
) -> list[str]:
    """Return the names that are not yet fields."""
    new: list[str] = []
    columns = set(columns)
    for name in names:
        if isinstance(name, str) and (name in existing or name in new):
            continue
        new.append(check_field_name(name, columns))
        columns |= {f"{name}_offset".lower(), f"{name}_shard".lower()}
        if packs:
            _check_row_column(name, columns)
            columns.add(row_column(name).lower())
    return new


def insert_field(cursor: sqlite3.Cursor, name: str, folder: str) -> None:
    """Add a field's columns and its row."""
    try:
        for suffix in ("offset", "shard"):
            column = quote_name(f"{name}_{suffix}")
            cursor.execute(f"ALTER TABLE samples ADD COLUMN {column} INTEGER")
    except sqlite3.OperationalError as error:
        if "too many columns" not in str(error):
            raise
        raise ValueError(f"the field {name!r} is one too many: {error}") from error
    cursor.execute(
        "INSERT INTO fields (name, num_shards, base_dir) VALUES (?, 0, ?)",
        (name, folder),
    )
    if not has_shards(folder):  # so that shards found after a crash are known as ours
        cursor.execute(
            "INSERT OR REPLACE INTO fastshard_shards (field, shard, nbytes, members) "
            "VALUES (?, 0, 0, 0)",
            (name,),
        )


def _check_row_column(name: str, columns: set[str]) -> None:
    """Raise ValueError if a field cannot be packed; `columns` are lower-cased."""
    column = row_column(name)
    if column.lower() in columns:
        raise ValueError(
            f"the field {name!r} cannot be packed: the column {column!r} exists"
        )


def pack_field(cursor: sqlite3.Cursor, name: str) -> None:
    """Let rows of ``samples`` refer to packs of a field that is not packed."""
    _check_row_column(name, list_columns(cursor.connection))
    cursor.execute(
        f"CREATE TABLE IF NOT EXISTS {PACKED_TABLE} "
        "(field TEXT PRIMARY KEY, version INTEGER)"
    )
    _add_version(cursor)
    try:
        cursor.execute(
            f"ALTER TABLE samples ADD COLUMN {quote_name(row_column(name))} INTEGER"
        )
    except sqlite3.OperationalError as error:
        if "too many columns" not in str(error):
            raise
        raise ValueError(f"the field {name!r} cannot be packed: {error}") from error
    cursor.execute(
        f"INSERT INTO {PACKED_TABLE} (field, version) VALUES (?, ?)",
        (name, ROW_VERSION),
    )


def _add_version(cursor: sqlite3.Cursor) -> None:
    """Add the versions of rows to a table of packed fields without them."""
    rows = cursor.execute(f"PRAGMA table_info({PACKED_TABLE})")
    if "version" not in [row[1] for row in rows]:
        cursor.execute(f"ALTER TABLE {PACKED_TABLE} ADD COLUMN version INTEGER")


def add_identities(cursor: sqlite3.Cursor, name: str) -> None:
    """Give the rows of a packed field the samples' identities.

    Invalid values stay unchanged, without an identity.
    """
    row = quote_name(row_column(name))
    shard, offset = quote_name(f"{name}_shard"), quote_name(f"{name}_offset")
    _add_version(cursor)
    cursor.execute(
        f"UPDATE samples SET {row} = fastshard_row(?, id, {shard}, {offset}, {row}) "
        f"WHERE {row} IS NOT NULL",
        (name,),
    )
    cursor.execute(
        f"UPDATE {PACKED_TABLE} SET version = ? WHERE field = ?", (ROW_VERSION, name)
    )


def unpack_field(cursor: sqlite3.Cursor, name: str) -> bool:
    """Remove the column of a field's rows in packs; no sample has one.

    The table of packed fields stays: open readers have statements that name it.
    """
    column = quote_name(row_column(name))
    try:
        cursor.execute(f"ALTER TABLE samples DROP COLUMN {column}")
    except sqlite3.OperationalError:
        return False
    cursor.execute(f"DELETE FROM {PACKED_TABLE} WHERE field = ?", (name,))
    return True


def insert_metadata_column(
    cursor: sqlite3.Cursor, name: str, path: str, kind: str | type
) -> None:
    """Add a column computed from the metadata, and an SQL index over it."""
    name = check_column_name(name, list_columns(cursor.connection))
    if not isinstance(path, str) or not path.startswith("$") or "\0" in path:
        raise ValueError(
            f"path must be a JSON path that starts with $, got {path!r:.200}"
        )
    declared = (PYTHON_TYPES.get(kind) if isinstance(kind, type) else str(kind)) or ""
    if declared.upper() not in TYPES:
        raise ValueError(f"type must be one of {', '.join(TYPES)}, got {kind!r}")
    try:
        cursor.execute("SELECT json_extract('{}', ?)", (path,))
    except sqlite3.OperationalError as error:
        raise ValueError(
            f"path must be a JSON path, got {path!r:.200}: {error}"
        ) from error
    text = "'" + path.replace("'", "''") + "'"
    try:
        cursor.execute(
            f"ALTER TABLE samples ADD COLUMN {quote_name(name)} {declared.upper()} "
            f"GENERATED ALWAYS AS (json_extract(meta_json, {text})) VIRTUAL"
        )
        cursor.execute(
            f"CREATE INDEX {quote_name('fastshard_' + name)} "
            f"ON samples ({quote_name(name)}, id)"  # with id it covers queries for ids
        )
    except sqlite3.OperationalError as error:
        if "malformed JSON" in str(error):
            raise ValueError(
                f"column {name!r}: the metadata of a sample is not JSON"
            ) from error
        raise


def has_shards(folder: str) -> bool:
    """Return whether a directory has shard files; False for a missing one."""
    try:
        return any(shard_number(name) is not None for name in os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return False
