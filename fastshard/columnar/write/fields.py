"""Fields of a dataset under construction, and their directories."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fastshard._util.files import sync_directory
from fastshard.columnar.schema import (
    check_column_name,
    check_field_name,
    quote_name,
    shard_number,
)
from fastshard.columnar.write.connection import WriterConnection, begin

__all__ = [
    "columns_of",
    "make_folder",
    "make_root",
    "new_field",
    "new_metadata_column",
    "savepoint",
]


TYPES = ("INTEGER", "REAL", "TEXT", "NUMERIC")
OF_PYTHON = {bool: "INTEGER", int: "INTEGER", float: "REAL", str: "TEXT"}


def columns_of(conn: sqlite3.Connection) -> set[str]:
    """Return the names of all columns of `samples`, lower-cased."""
    rows = conn.execute("PRAGMA table_xinfo(samples)")  # computed ones too
    return {str(row[1]).lower() for row in rows}


@contextmanager
def savepoint(conn: WriterConnection) -> Iterator[sqlite3.Cursor]:
    """Give a cursor whose statements count all, or none when one fails."""
    begin(conn)
    cursor = sqlite3.Cursor(conn)
    cursor.execute("SAVEPOINT fastshard")
    try:
        yield cursor
    except BaseException:
        if conn.in_transaction:
            cursor.execute("ROLLBACK TO fastshard")
            cursor.execute("RELEASE fastshard")
        raise
    cursor.execute("RELEASE fastshard")


def new_field(cursor: sqlite3.Cursor, name: str, folder: str) -> None:
    """Add a field's columns and its row.

    Parameters
    ----------
    cursor : sqlite3.Cursor
    name : str
        Checked.
    folder : str
        The path of its shards' directory.

    Raises
    ------
    ValueError
        The table can have no more columns.
    """
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
    if not _has_shards(folder):  # what is there after a crash, we have left there
        cursor.execute(
            "INSERT OR REPLACE INTO fastshard_shards (field, shard, nbytes, members) "
            "VALUES (?, 0, 0, 0)",
            (name,),
        )


def _has_shards(folder: str) -> bool:
    try:
        return any(shard_number(name) is not None for name in os.listdir(folder))
    except FileNotFoundError:
        return False


def check_new_fields(
    names: Sequence[str], known: dict[str, object], taken: set[str]
) -> list[str]:
    """Return those that are not there yet, or say which one cannot be added."""
    new: list[str] = []
    taken = set(taken)
    for name in names:
        if isinstance(name, str) and (name in known or name in new):
            continue
        new.append(check_field_name(name, taken))
        taken |= {f"{name}_offset".lower(), f"{name}_shard".lower()}
    return new


def new_metadata_column(
    cursor: sqlite3.Cursor, name: str, path: str, kind: str | type
) -> None:
    """Add a column that is computed from the metadata, and an SQL index over it."""
    name = check_column_name(name, columns_of(cursor.connection))
    if not isinstance(path, str) or not path.startswith("$") or "\0" in path:
        raise ValueError(f"a path into the metadata begins with $: {path!r:.200}")
    declared = (OF_PYTHON.get(kind) if isinstance(kind, type) else str(kind)) or ""
    if declared.upper() not in TYPES:
        raise ValueError(f"a column's type is one of {', '.join(TYPES)}: {kind!r}")
    try:
        cursor.execute("SELECT json_extract('{}', ?)", (path,))
    except sqlite3.OperationalError as error:
        raise ValueError(f"no path into JSON: {path!r:.200}: {error}") from error
    text = "'" + path.replace("'", "''") + "'"
    try:
        cursor.execute(
            f"ALTER TABLE samples ADD COLUMN {quote_name(name)} {declared.upper()} "
            f"GENERATED ALWAYS AS (json_extract(meta_json, {text})) VIRTUAL"
        )
        cursor.execute(
            f"CREATE INDEX {quote_name('fastshard_' + name)} "
            f"ON samples ({quote_name(name)}, id)"  # ids are found without their rows
        )
    except sqlite3.OperationalError as error:
        if "malformed JSON" in str(error):
            raise ValueError(
                "a sample's metadata is no JSON: no column can be made of it"
            ) from error
        raise


def make_root(root: str) -> None:
    """Make a directory, and those above it that are missing, on the disk."""
    folder = root
    missing = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    os.makedirs(root, exist_ok=True)
    for made in missing:
        sync_directory(os.path.dirname(made))


def make_folder(folder: str) -> bool:
    """Make a field's directory; say whether it was not there.

    Raises
    ------
    FileExistsError
        Something else has its name.
    """
    if os.path.isdir(folder):
        return False
    os.mkdir(folder)
    return True
