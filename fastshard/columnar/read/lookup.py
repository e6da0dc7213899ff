"""Lookup of samples by id: by SQL, or in memory once all rows are loaded."""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias

from fastshard._core.columnar.column_file import RowReader
from fastshard._core.dataset.gather import resolve_positions
from fastshard.columnar.layout.connection import INDEX_ERRORS
from fastshard.columnar.layout.headers import needs_pickle
from fastshard.columnar.layout.packs import name_columns
from fastshard.columnar.layout.schema import parse_metadata, quote_name
from fastshard.columnar.read.samples import (
    build_samples_from_rows,
    load_image,
    load_samples,
)
from fastshard.columnar.read.stacks.metadata import MetadataTable
from fastshard.errors import FastshardError, FormatError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fastshard._core.columnar.rows import ColumnSamples
    from fastshard.columnar.read.dataset_schema import DatasetSchema
    from fastshard.columnar.read.sequence import Arrays, ArraySequence
    from fastshard.columnar.read.snapshot import Snapshot
    from fastshard.columnar.read.stacks.selection import StackSelection

__all__ = ["Metadata", "RowLookup", "SampleKeys"]

Metadata: TypeAlias = dict[str, Any]
# Ids, or positions in insertion order.
SampleKeys: TypeAlias = Iterable[str] | Iterable[SupportsIndex]

ROWID = "SELECT rowid FROM samples WHERE id = ?1"  # by the SQL index of ids alone
IDS_PER_QUERY = 1024
METADATA_TIMEOUT = 30.0  # seconds to read a metadata column
MIN_LOOKUPS = 256  # before all rows may be loaded
# Loading all rows takes as long as looking up one row in:
IMAGE_RATIO = 32  # from a copy of the index
SQL_RATIO = 8  # by SQL


class FieldReader:
    """Reader of chosen fields, and the metadata, of single samples."""

    def __init__(
        self, fields: list[str], snapshot: Snapshot, samples: ColumnSamples | None
    ) -> None:
        packed = snapshot.packed
        self.rows = RowReader(fields, snapshot.files.file, snapshot.path, packed)
        self.samples = samples
        self._read: Any = None if samples is None else samples.read
        self._columns = [] if samples is None else samples.columns_of(fields)
        self._path = snapshot.path
        names = [*name_columns(fields, packed), "meta_json"]
        self._selected = ", ".join(f"samples.{quote_name(name)}" for name in names)
        # Compare the id in the row, not in the SQL index that leads to it.
        self.row_sql = (
            f"SELECT {self._selected} FROM samples WHERE rowid = ({ROWID}) AND +id = ?1"
        )

    @property
    def rows_sql(self) -> str:
        """Query of a JSON array of ids; rows of ids that do not exist are all NULL.

        The last column is the id in the row, not in the SQL index that leads to it. One
        such query takes less time than one for each id.
        """
        return (
            f"SELECT {self._selected}, samples.id FROM json_each(?) AS wanted "
            "LEFT JOIN (SELECT rowid AS at, id FROM samples) AS named "
            "ON named.id = wanted.value LEFT JOIN samples ON samples.rowid = named.at"
        )

    def find(self, sample_id: str, copy: bool) -> tuple[Arrays, Metadata] | None:
        """Return a sample from `samples`, or None if SQL has to look it up.

        Bad rows are read by SQL, for its errors.
        """
        try:
            found = self._read(sample_id, self._columns, copy)
        except FormatError:
            return None
        if found is None or found[1] is None:
            return None
        return found[0], parse_metadata(found[1], sample_id, self._path)

    def find_many(
        self, ids: list[str], copy: bool
    ) -> list[tuple[Arrays, Metadata]] | None:
        """Return many from `samples`, or None if SQL has to look one up."""
        assert self.samples is not None
        try:
            found = self.samples.read_many(ids, self._columns, copy)
        except FormatError:
            return None
        if found is None:
            return None
        samples = []
        for (arrays, text), sample_id in zip(found, ids, strict=True):
            if text is None:
                return None
            samples.append((arrays, parse_metadata(text, sample_id, self._path)))
        return samples


class RowLookup:
    """Lookup of samples by id in one state of a dataset, with a cache of all rows.

    Single rows are selected by SQL. After many lookups all rows of the index are
    loaded into memory, and later lookups do not query it.

    Attributes
    ----------
    generation : int
    samples : ColumnSamples or None
        All rows, once loaded.
    sequence : ArraySequence or None
        The sequence of these samples, once the reader has made it.
    metadata : MetadataTable
        Values of metadata columns.
    schema : DatasetSchema or None
        Of these samples, once the reader has read it.
    selections : dict of str, tuple of str or None to StackSelection
        By their fields, or None for all: those of arrays of one layout, once the reader
        has made them.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.generation = snapshot.generation
        self.samples: ColumnSamples | None = None
        self.sequence: ArraySequence | None = None
        self.schema: DatasetSchema | None = None
        self.selections: dict[str | tuple[str, ...] | None, StackSelection] = {}
        self.metadata = MetadataTable(snapshot, METADATA_TIMEOUT)
        self._snapshot = snapshot
        self._readers: dict[tuple[str, ...] | None, FieldReader] = {}  # None: all
        self._count: int | None = None
        self._lookups = 0  # rows selected by their ids
        self._load_at = MIN_LOOKUPS  # lookups from which on all rows may be loaded

    def count(self) -> int:
        """Return the number of samples."""
        if self._count is None:
            ((count,),) = self._snapshot.select("SELECT COUNT(*) FROM samples")
            self._count = int(count)
        return self._count

    def estimate_count(self) -> int:
        """Estimate the number of samples; `count` reads all ids of the index."""
        if self._count is not None:
            return self._count
        select = self._snapshot.select
        ((last,),) = select("SELECT max(rowid) FROM samples")  # one search each
        ((first,),) = select("SELECT min(rowid) FROM samples")
        return 0 if last is None else int(last) - int(first) + 1

    def load(self) -> ColumnSamples:
        """Return all samples; loads all rows of the index at the first call."""
        if self.samples is not None:
            return self.samples
        return self._keep(load_samples(self._snapshot))

    def get(
        self, sample_id: Any, fields: Iterable[str] | None, copy: bool
    ) -> tuple[Arrays, Metadata]:
        """Return a sample; see `ShardedDatasetReader.get_sample`."""
        snapshot = self._snapshot
        connection = snapshot.lookup_connection or snapshot.connect()
        if type(sample_id) is not str:
            sample_id = _as_id(sample_id)
        reader = self._readers.get(None) if fields is None else None
        if reader is None:
            reader = self.reader_of(fields)
        if reader.samples is not None:
            try:
                found = reader.find(sample_id, copy)
            finally:
                if not snapshot.keep_shards:
                    snapshot.release_shards()
            if found is not None:
                return found
        try:
            with connection.lock:
                row = connection.rows.execute(reader.row_sql, (sample_id,)).fetchone()
        except UnicodeEncodeError:  # half a surrogate pair is in no id
            row = None
        except INDEX_ERRORS as error:
            raise snapshot.translate_error(error) from error
        if row is None:
            raise self._missing_error(sample_id)
        arrays = self._read_row(reader, row, sample_id, copy)
        if not snapshot.keep_shards:
            snapshot.release_shards()
        self._lookups += 1
        if self._lookups >= self._load_at:
            self._note_lookups(0)
        return arrays, parse_metadata(row[-1], sample_id, snapshot.path)

    def get_many(
        self, sample_ids: Iterable[Any], fields: Iterable[str] | None, copy: bool
    ) -> list[tuple[Arrays, Metadata]]:
        """Return samples; see `ShardedDatasetReader.get_many`."""
        snapshot = self._snapshot
        reader = self.reader_of(fields)
        ids = _as_ids(sample_ids)
        if reader.samples is not None:
            try:
                found = reader.find_many(ids, copy)
            finally:
                snapshot.release_shards()
            if found is not None:
                return found
        samples = []
        for row, sample_id in zip(self._select_rows(reader, ids), ids, strict=True):
            arrays = self._read_row(reader, row, sample_id, copy)
            metadata = parse_metadata(row[-2], sample_id, snapshot.path)
            samples.append((arrays, metadata))
        snapshot.release_shards()
        self._note_lookups(len(ids))
        return samples

    def locate(
        self, keys: SampleKeys
    ) -> tuple[ColumnSamples, array[int] | NDArray[np.int64]]:
        """Return samples that include those of some keys, and the keys' positions."""
        if isinstance(keys, str):
            raise TypeError(f"ids must be a list of str, got the str {keys!r:.80}")
        items: Any = keys
        if type(keys) is not list and not hasattr(keys, "dtype"):
            items = list(keys)
        if getattr(items, "ndim", 1) != 1:
            raise ValueError(
                f"ids or positions must have one dimension, got {items.ndim}"
            )
        if len(items) and type(items[0]).__name__ in ("bool", "bool_"):  # NumPy's too
            raise TypeError(
                "ids or positions must not be a mask: pass numpy.flatnonzero(mask)"
            )
        if not len(items) or not isinstance(items[0], str):
            samples = self.load()
            return samples, resolve_positions(items, len(samples))
        ids = items if type(items) is list else _as_ids(items)
        self._note_lookups(len(ids))
        if self.samples is None and self._lookups * SQL_RATIO < self.count():
            ids = _as_ids(ids)
            rows = self._select_rows(self.reader_of(None), ids)
            order = array("q", range(len(ids)))
            return build_samples_from_rows(self._snapshot, [(rows, ids)]), order
        samples = self.load()
        return samples, samples.find_keys(ids)

    def select(self, ids: list[str]) -> ColumnSamples:
        """Return the samples of some ids, in their order; loads their rows alone."""
        reader = self.reader_of(None)
        starts = range(0, len(ids), IDS_PER_QUERY)
        parts = (ids[start : start + IDS_PER_QUERY] for start in starts)
        selected = ((self._select_rows(reader, part), part) for part in parts)
        return build_samples_from_rows(self._snapshot, selected)

    def reader_of(self, fields: Iterable[str] | None) -> FieldReader:
        """Return the reader of some fields, by default all; it is cached."""
        readers = self._readers
        names = None if fields is None else self._snapshot.resolve_fields(fields)
        key = None if names is None else tuple(names)
        reader = readers.get(key)
        if reader is None:
            if names is None:
                names = self._snapshot.resolve_fields(None)
            samples = self.samples
            if samples is not None and not _can_answer(samples):
                samples = None
            reader = readers[key] = FieldReader(names, self._snapshot, samples)
        return reader

    def _keep(self, samples: ColumnSamples) -> ColumnSamples:
        """Keep all samples; readers made from now on use them."""
        self.samples = samples
        self._readers = {}
        return samples

    def _note_lookups(self, count: int) -> None:
        """Count lookups by SQL; load all rows once that costs less.

        Errors are dropped: the caller's samples were found.
        """
        self._lookups += count
        if self._lookups < self._load_at or self.samples is not None:
            return
        self._load_at = sys.maxsize  # one attempt
        try:
            enough = max(MIN_LOOKUPS, self.estimate_count() // IMAGE_RATIO)
            if self._lookups < enough:
                self._load_at = enough
                return
            samples = load_image(self._snapshot)
        except (FastshardError, OSError):
            return
        if samples is not None:
            self._keep(samples)

    def _select_rows(self, reader: FieldReader, ids: list[str]) -> list[Any]:
        """Return the rows of some ids; metadata and id are the last two columns."""
        snapshot = self._snapshot
        sql = reader.rows_sql
        rows: list[tuple[Any, ...]] = []
        for start in range(0, len(ids), IDS_PER_QUERY):
            wanted = json.dumps(ids[start : start + IDS_PER_QUERY])
            rows += snapshot.select(sql, (wanted,))
        if len(rows) != len(ids):
            raise FormatError("several samples have the same id", snapshot.path, 0)
        for row, sample_id in zip(rows, ids, strict=True):
            if row[-1] is None:
                raise snapshot.sample_error(sample_id)
            if row[-1] != sample_id:
                raise _foreign_row_error(sample_id, snapshot.path)
        return rows

    def _missing_error(self, sample_id: str) -> FastshardError:
        """Return the error for an id without a row of its own."""
        with suppress(UnicodeEncodeError):
            if self._snapshot.select(ROWID, (sample_id,)):
                return _foreign_row_error(sample_id, self._snapshot.path)
        return self._snapshot.sample_error(sample_id)

    def _read_row(
        self, reader: FieldReader, row: tuple[Any, ...], sample_id: str, copy: bool
    ) -> Arrays:
        """Return the arrays of a row; unpickle objects if allowed."""
        try:
            return reader.rows.arrays(row, sample_id, copy)
        except FormatError as error:
            if self._snapshot.unpickle is not None:
                from fastshard.columnar.read.objects import read_row_with_objects

                return read_row_with_objects(reader.rows, row, sample_id, copy)
            if needs_pickle(error.reason):
                reason = (
                    f"{error.reason}; allow_pickle=True reads it, and runs code from "
                    "the data"
                )
                raise FormatError(
                    reason, error.path, error.offset, error.member
                ) from error
            raise


def _foreign_row_error(sample_id: str, path: str) -> FormatError:
    """Return the error of an id that leads to the row of another sample."""
    reason = f"the index of ids has the row of another sample for {sample_id!r:.200}"
    return FormatError(reason, path, 0)


def _can_answer(samples: ColumnSamples) -> bool:
    """Return whether loaded rows answer as SQL does: with metadata, unique ids."""
    return samples.has_metadata and not samples.names.has_duplicates


def _as_ids(ids: Iterable[Any]) -> list[str]:
    if isinstance(ids, str):
        raise TypeError(f"ids must be a list of str, got the str {ids!r:.80}")
    return [i if type(i) is str else _as_id(i) for i in ids]


def _as_id(sample_id: Any) -> str:
    """Return an id as a str and no subclass of it."""
    if isinstance(sample_id, str):
        return str.__str__(sample_id)
    raise TypeError(f"a sample's id must be a str, got {type(sample_id).__name__}")
