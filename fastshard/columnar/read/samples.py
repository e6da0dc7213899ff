"""Loading of an index's rows into a table of samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from fastshard._core.columnar.index_rows import read_image, read_rows
from fastshard._core.columnar.rows import ColumnSamples
from fastshard.columnar.layout.connection import INDEX_ERRORS, translate_error
from fastshard.columnar.layout.packs import name_columns
from fastshard.columnar.layout.schema import fold_case, quote_name
from fastshard.columnar.read.column_sample import ColumnSample
from fastshard.columnar.read.snapshot import Snapshot
from fastshard.errors import FormatError

if TYPE_CHECKING:
    import sqlite3

__all__ = ["build_samples_from_rows", "load_image", "load_samples"]

ROWS_PER_FETCH = 4096
# Size of an index that is copied into memory (for a moment twice), and of the table of
# its rows.
MAX_BYTES = 1 << 29
COUNT = "SELECT count(*) FROM samples"  # of the index of ids, which has fewer pages
TABLE = "SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = 'samples'"
VIRTUAL = 2  # kind in PRAGMA table_xinfo: a generated column that is not stored


def load_samples(snapshot: Snapshot) -> ColumnSamples:
    """Return all samples of a dataset, in insertion order."""
    samples = load_image(snapshot)
    if samples is not None:
        return samples
    names = ["id", *name_columns(list(snapshot.folders), snapshot.packed)]
    columns = ", ".join(map(quote_name, names))
    sql = f"SELECT rowid, {columns} FROM samples ORDER BY rowid"
    samples = build_samples(_fetch_chunks(snapshot, sql), snapshot)
    ((count,),) = snapshot.select(COUNT)
    _check_count(len(samples), count, snapshot.path)
    return samples


def load_image(snapshot: Snapshot) -> ColumnSamples | None:
    """Return all samples and their metadata, parsed from a copy of the index."""
    connection = snapshot.connect()
    if not hasattr(connection, "serialize"):  # SQLite was built without it
        return None
    try:
        with connection.lock:
            names = name_columns(list(snapshot.folders), snapshot.packed)
            columns = _find_columns(connection, names)
            roots = connection.execute(TABLE).fetchall()
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            (size,) = connection.execute("PRAGMA page_size").fetchone()
            (count,) = connection.execute(COUNT).fetchone()
            if columns is None or pages * size > MAX_BYTES:
                return None
            image = connection.serialize()
        ((root,),) = roots if len(roots) == 1 else [(None,)]
        if type(root) is not int or not 0 < root <= pages:
            return None
        samples = _build_from_image(image, root, columns, snapshot)
    except (*INDEX_ERRORS, MemoryError):
        return None
    if samples is not None:
        _check_count(len(samples), count, snapshot.path)
    return samples


def _check_count(found: int, count: int, path: str) -> None:
    """Raise FormatError unless the index of ids has as many entries as the table."""
    if found != count:
        reason = f"the table of samples has {found:,} rows, the index of ids {count:,}"
        raise FormatError(reason, path, 0)


def _find_columns(
    connection: sqlite3.Connection, names: Iterable[str]
) -> list[int] | None:
    """Return the numbers, in a stored row, of the columns that `read_image` takes.

    `names` are those of the fields' columns.

    None if SQLite would convert a stored value (another declared type, a default), or
    would compare ids otherwise than by their bytes.
    """
    stored: dict[str, tuple[int, str | None]] = {}
    for _, name, type_, _, default, is_key, kind in connection.execute(
        "PRAGMA table_xinfo(samples)"
    ):
        if kind != VIRTUAL:
            # An INTEGER key is the rowid, which a row does not hold.
            is_plain = default is None and not (is_key and type_.upper() == "INTEGER")
            stored[fold_case(name)] = len(stored), type_.upper() if is_plain else None
    wanted = [("id", "TEXT"), ("meta_json", "TEXT")]
    wanted += [(name.lower(), "INTEGER") for name in names]
    columns = [stored.get(name, (0, None)) for name, _ in wanted]
    types = [type_ for _, type_ in columns]
    if types != [type_ for _, type_ in wanted]:
        return None
    return [column for column, _ in columns] if _has_plain_ids(connection) else None


def _has_plain_ids(connection: sqlite3.Connection) -> bool:
    """Return whether a unique index compares ids by their bytes."""
    indexes = connection.execute("PRAGMA index_list(samples)").fetchall()
    for _, name, is_unique, _, is_partial in indexes:
        if is_unique and not is_partial:
            info = connection.execute(f"PRAGMA index_xinfo({quote_name(name)})")
            keys = [(str(row[2]).lower(), row[4]) for row in info if row[5]]
            if len(keys) == 1 and keys[0] == ("id", "BINARY"):
                return True
    return False


def _fetch_chunks(snapshot: Snapshot, sql: str) -> Iterator[list[tuple[Any, ...]]]:
    """Yield rows without their rowid, the first value, which must increase."""
    connection = snapshot.connect()
    last = None
    try:
        with connection.lock:
            cursor = connection.execute(sql)
            while rows := cursor.fetchmany(ROWS_PER_FETCH):
                for rowid, *_ in rows:
                    if last is not None and rowid <= last:
                        reason = (
                            f"the table of samples has row {rowid:,} after {last:,}"
                        )
                        raise FormatError(reason, snapshot.path, 0)
                    last = rowid
                yield [row[1:] for row in rows]
    except INDEX_ERRORS as error:
        raise translate_error(error, snapshot.path) from error


def build_samples_from_rows(
    snapshot: Snapshot, parts: Iterable[tuple[list[tuple[Any, ...]], list[str]]]
) -> ColumnSamples:
    """Return the samples of rows that a `FieldReader` of all fields selected."""
    chunks = (
        [(sample_id, *row[:-2]) for sample_id, row in zip(ids, rows, strict=True)]
        for rows, ids in parts
    )
    return build_samples(chunks, snapshot)


def build_samples(
    chunks: Iterable[list[tuple[Any, ...]]], snapshot: Snapshot
) -> ColumnSamples:
    """Build a table of samples from rows of an index."""
    files = snapshot.files
    columns, names = read_rows(
        chunks, list(files.folders), files.opener, snapshot.path, snapshot.packed
    )
    for rows in columns:
        rows.unpickle = snapshot.unpickle
    return ColumnSamples(columns, names, ColumnSample, snapshot)


def _build_from_image(
    image: bytes, root: int, column_numbers: list[int], snapshot: Snapshot
) -> ColumnSamples | None:
    """Build a table of samples, with their metadata, from the bytes of an index.

    `column_numbers` are those in a stored row: of the id, the metadata, each field's
    offset and shard, and the rows in packs of the fields that may have packs. None:
    read the rows by SQL.
    """
    files = snapshot.files
    found = read_image(
        image,
        root,
        column_numbers,
        list(files.folders),
        files.opener,
        snapshot.path,
        MAX_BYTES,
        snapshot.packed,
    )
    if found is None:
        return None
    for rows in found[0]:
        rows.unpickle = snapshot.unpickle
    return ColumnSamples(*found, ColumnSample, snapshot, has_metadata=True)
