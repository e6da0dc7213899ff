"""Values of metadata columns, in arrays beside those of fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from fastshard._util.options import near_fields
from fastshard.columnar.layout.metadata_columns import (
    MetadataColumn,
    read_metadata_columns,
)
from fastshard.columnar.layout.schema import quote_name
from fastshard.columnar.read.query import query, rows_sql, select
from fastshard.columnar.read.stacks.stacking import HOW_TO_GO_ON, Stacking
from fastshard.errors import FastshardError, FieldNotFoundError
from fastshard.formats.stacking.fill_values import cast_fill

if TYPE_CHECKING:
    from fastshard._core.columnar.rows import ColumnSamples
    from fastshard.columnar.read.snapshot import Snapshot
    from fastshard.columnar.read.stacks.stacking import Order

__all__ = ["ColumnValues", "MetadataTable"]

DTYPES = {"INTEGER": "int64", "REAL": "float64"}  # by declared type; others are lists
MIN_ROWS = 1000  # looked up before a whole column may be loaded
LOOKUP_RATIO = 8  # rows loaded in the time of one that is looked up


class ColumnValues:
    """Values of a metadata column for some samples."""

    def __init__(
        self, column: MetadataColumn, values: list[Any], key_at: Callable[[int], str]
    ) -> None:
        self.column = column
        self.values = values
        self._key_at = key_at

    def build(self, stacking: Stacking) -> Any:
        """Return the values as an array, or as a list if the type is not of numbers."""
        import numpy as np

        name, values = self.column.name, self.values
        dtype = DTYPES.get(self.column.type.upper())
        if None in values:
            if not stacking.has_missing(name):
                key = self._key_at(values.index(None))
                where = f"sample {key!r}: its metadata column is NULL; {HOW_TO_GO_ON}"
                raise FieldNotFoundError(name, where)
            fill = stacking.missing_value(name)
            if dtype is not None:
                fill = cast_fill(fill, np.dtype(dtype), name, "missing").item()
            values = [fill if value is None else value for value in values]
        if dtype is None:
            return values
        allowed = {int} if dtype == "int64" else {int, float}
        if set(map(type, values)) - allowed:
            k = next(k for k, v in enumerate(values) if type(v) not in allowed)
            raise FastshardError(
                f"the metadata column {name!r} is {self.column.type}, but sample "
                f"{self._key_at(k)!r} has {values[k]!r:.80}: "
                f"query(columns=({name!r},)) returns values of any type"
            )
        return np.array(values, dtype)


class MetadataTable:
    """Metadata columns of one state of a dataset, loaded at first use.

    The values of few samples are selected by their ids; once many have been, the whole
    column is loaded.
    """

    def __init__(self, snapshot: Snapshot, timeout: float) -> None:
        self._snapshot = snapshot
        self._count: int | None = None
        self._timeout = timeout
        self._columns: dict[str, MetadataColumn] | None = None
        self._loaded: dict[str, list[Any]] = {}
        self._lookups: dict[str, int] = {}

    @property
    def columns(self) -> dict[str, MetadataColumn]:
        """Metadata columns by name, without those that are named as a field is."""
        if self._columns is None:
            snapshot = self._snapshot
            found = snapshot.read(
                lambda conn: read_metadata_columns(
                    conn, snapshot.folders, snapshot.packed
                )
            )
            self._columns = {
                name: column
                for name, column in found.items()
                if name not in snapshot.folders
            }
        return self._columns

    def split(self, names: str | Iterable[str] | None) -> tuple[list[str], list[str]]:
        """Return the fields, and the metadata columns, among some names."""
        folders = self._snapshot.folders
        if names is None:
            return list(folders), []
        given = [names] if isinstance(names, str) else list(names)
        fields = [name for name in given if name in folders]
        if len(fields) == len(given):
            return fields, []
        columns = self.columns
        for name in given:
            if name not in folders and name not in columns:
                own = [*folders, *columns]
                near = partial(near_fields, name, own)
                where = f"{self._snapshot.root}, which has {', '.join(own)}"
                raise FieldNotFoundError(name, where, near)
        return fields, [name for name in given if name not in folders]

    def values(self, name: str, samples: ColumnSamples, order: Order) -> ColumnValues:
        """Return the values of a column for samples."""
        column = self.columns[name]
        if self._count is None:
            ((self._count,),) = self._snapshot.select("SELECT COUNT(*) FROM samples")
        is_whole = len(samples) == self._count
        lookups = self._lookups[name] = self._lookups.get(name, 0) + len(order)
        if is_whole and (
            name in self._loaded
            or lookups > max(MIN_ROWS, len(samples) // LOOKUP_RATIO)
        ):
            values = self.load(name)
            found = [values[i] for i in order]
        else:
            keys = samples.keys_of(order)
            rows = query(
                self._snapshot.connect_query(),
                columns=("id", quote_name(name)),
                ids=keys,
                timeout=self._timeout,
            )
            by_id = {row["id"]: row[quote_name(name)] for row in rows}
            found = [by_id[key] for key in keys]
        return ColumnValues(column, found, lambda k: samples.key_at(int(order[k])))

    def load(self, name: str) -> list[Any]:
        """Return the values of a column for all samples, in insertion order."""
        values = self._loaded.get(name)
        if values is None:
            sql = rows_sql(None, (quote_name(name),), None)
            connection = self._snapshot.connect_query()
            rows = select(connection, sql, (), self._timeout)
            values = self._loaded[name] = [value for (value,) in rows]
        return values
