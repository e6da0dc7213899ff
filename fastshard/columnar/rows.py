"""The rows of an index, read into a table of samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fastshard.columnar.connect import FAULTS, fault_of
from fastshard.columnar.schema import quoted
from fastshard.columnar.snapshot import Snapshot
from fastshard.formats.columnar import samples_of

if TYPE_CHECKING:
    from fastshard._core.columnsamples import ColumnSamples

__all__ = ["load_samples", "some_samples"]

AT_ONCE = 4096  # rows


def load_samples(snapshot: Snapshot) -> ColumnSamples:
    """Return all samples of a dataset, as they were added.

    Raises
    ------
    FormatError
        An id is no text, or the index is damaged.
    """
    columns = ["id"] + [
        quoted(f"{field}_{what}")
        for field in snapshot.folders
        for what in ("offset", "shard")
    ]
    sql = f"SELECT {', '.join(columns)} FROM samples ORDER BY rowid"
    return samples_of(_chunks(snapshot, sql), snapshot)


def _chunks(snapshot: Snapshot, sql: str) -> Iterator[list[tuple[Any, ...]]]:
    connection = snapshot.connection()
    try:
        with connection.lock:
            cursor = connection.execute(sql)
            while rows := cursor.fetchmany(AT_ONCE):
                yield rows
    except FAULTS as error:
        raise fault_of(error, snapshot.path) from error


def some_samples(
    snapshot: Snapshot, rows: list[tuple[Any, ...]], ids: list[str]
) -> ColumnSamples:
    """Return the samples of rows that `rows_sql` of all fields gave."""
    whole = [(sample_id, *row[:-2]) for sample_id, row in zip(ids, rows, strict=True)]
    return samples_of([whole], snapshot)
