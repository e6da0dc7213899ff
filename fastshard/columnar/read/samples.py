"""The rows of an index, read into a table of samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from fastshard.columnar.connection import INDEX_ERRORS, translate_error
from fastshard.columnar.read.snapshot import Snapshot
from fastshard.columnar.samples import build_samples, build_samples_from_image
from fastshard.columnar.schema import fold_case, quote_name

if TYPE_CHECKING:
    import sqlite3

    from fastshard._core.columnar.rows import ColumnSamples

__all__ = ["build_samples_from_rows", "load_image", "load_samples"]

ROWS_PER_FETCH = 4096
# Size of an index that is copied into memory (for a moment twice), and of the table of
# its rows.
MAX_BYTES = 1 << 29
TABLE = "SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = 'samples'"
VIRTUAL = 2  # of PRAGMA table_xinfo: a generated column that is not stored


def load_samples(snapshot: Snapshot) -> ColumnSamples:
    """Return all samples of a dataset, as they were added.

    Raises
    ------
    FormatError
        An id is no text, or the index is damaged.
    """
    found = load_image(snapshot)
    if found is not None:
        return found
    columns = ["id"] + [
        quote_name(f"{field}_{what}")
        for field in snapshot.folders
        for what in ("offset", "shard")
    ]
    sql = f"SELECT {', '.join(columns)} FROM samples ORDER BY rowid"
    return build_samples(_chunks(snapshot, sql), snapshot)


def load_image(snapshot: Snapshot) -> ColumnSamples | None:
    """Return all samples and their metadata, read from a copy of the index.

    None where that takes too much memory, or where only SQL can tell what the index
    holds.
    """
    connection = snapshot.connect()
    if not hasattr(connection, "serialize"):  # SQLite was built without it
        return None
    try:
        with connection.lock:
            places = _places(connection, snapshot.folders)
            roots = connection.execute(TABLE).fetchall()
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            (size,) = connection.execute("PRAGMA page_size").fetchone()
            if places is None or pages * size > MAX_BYTES:
                return None
            image = connection.serialize()
        ((root,),) = roots if len(roots) == 1 else [(None,)]
        if type(root) is not int or not 0 < root <= pages:
            return None
        return build_samples_from_image(image, root, places, snapshot, MAX_BYTES)
    except (*INDEX_ERRORS, MemoryError):
        return None


def _places(connection: sqlite3.Connection, fields: Iterable[str]) -> list[int] | None:
    """Return which values of a stored row those of `read_image` are.

    None where SQLite would change what is stored (another type, a default), or
    where an id may be looked up otherwise than by its bytes.
    """
    stored: dict[str, tuple[int, str | None]] = {}
    for _, name, type_, _, default, is_key, kind in connection.execute(
        "PRAGMA table_xinfo(samples)"
    ):
        if kind != VIRTUAL:
            plain = default is None and not (is_key and type_.upper() == "INTEGER")
            stored[fold_case(name)] = len(stored), type_.upper() if plain else None
    wanted = [("id", "TEXT"), ("meta_json", "TEXT")]
    for field in fields:
        wanted.append((f"{field.lower()}_offset", "INTEGER"))
        wanted.append((f"{field.lower()}_shard", "INTEGER"))
    found = [stored.get(name, (0, None)) for name, _ in wanted]
    if any(type_ != kind for (_, type_), (_, kind) in zip(found, wanted, strict=True)):
        return None
    return [place for place, _ in found] if _has_plain_ids(connection) else None


def _has_plain_ids(connection: sqlite3.Connection) -> bool:
    """Whether no two ids have the same bytes, and others are others to SQLite too."""
    indexes = connection.execute("PRAGMA index_list(samples)").fetchall()
    for _, name, is_unique, _, is_partial in indexes:
        if is_unique and not is_partial:
            info = connection.execute(f"PRAGMA index_xinfo({quote_name(name)})")
            keys = [(str(row[2]).lower(), row[4]) for row in info if row[5]]
            if len(keys) == 1 and keys[0] == ("id", "BINARY"):
                return True
    return False


def _chunks(snapshot: Snapshot, sql: str) -> Iterator[list[tuple[Any, ...]]]:
    connection = snapshot.connect()
    try:
        with connection.lock:
            cursor = connection.execute(sql)
            while rows := cursor.fetchmany(ROWS_PER_FETCH):
                yield rows
    except INDEX_ERRORS as error:
        raise translate_error(error, snapshot.path) from error


def build_samples_from_rows(
    snapshot: Snapshot, rows: list[tuple[Any, ...]], ids: list[str]
) -> ColumnSamples:
    """Return the samples of rows that `rows_sql` of all fields gave."""
    whole = [(sample_id, *row[:-2]) for sample_id, row in zip(ids, rows, strict=True)]
    return build_samples([whole], snapshot)
