"""Values of metadata columns by position in a table of samples, for datasets."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from fastshard.columnar.layout.schema import quote_name
from fastshard.columnar.read.query import query, rows_sql, select
from fastshard.columnar.read.stacks.metadata import (
    DTYPES,
    LOOKUP_RATIO,
    MetadataTable,
)
from fastshard.errors import FastshardError

if TYPE_CHECKING:
    from fastshard._core.columnar.rows import ColumnSamples
    from fastshard.columnar.read.snapshot import Snapshot

__all__ = ["SampleValues"]

CODES = {"int64": "q", "float64": "d"}  # of arrays
COUNT = "SELECT COUNT(*) FROM samples"


class SampleValues:
    """Values of metadata columns for a table of samples, each loaded at first use."""

    def __init__(self, snapshot: Snapshot, timeout: float) -> None:
        self._snapshot = snapshot
        self._timeout = timeout
        self._table = MetadataTable(snapshot, timeout)
        self._loaded: dict[str, array[Any] | list[Any]] = {}

    def load(self, samples: ColumnSamples, name: str) -> array[Any] | list[Any] | None:
        """Return the values of a column by position; None: there is no such column."""
        found = self._loaded.get(name)
        if found is None:
            column = self._table.columns.get(name)
            if column is None:
                return None
            values = self._select(samples, name)
            dtype = DTYPES.get(column.type.upper())
            found = values
            if dtype is not None:
                found = _pack(values, dtype)
                if found is None:
                    k = _find_odd(values, dtype)
                    raise FastshardError(
                        f"the metadata column {name!r} is {column.type}, but sample "
                        f"{samples.key_at(k)!r} has {values[k]!r:.80}: select the "
                        "other samples by a condition, "
                        f"where=\"typeof({name}) = '{column.type.lower()}'\""
                    )
            self._loaded[name] = found
        return found

    def kind(self, name: str) -> str:
        """Return the kind of a column's values, for `FieldInfo`."""
        kinds = {"INTEGER": "int", "REAL": "float", "TEXT": "text"}
        return kinds.get(self._table.columns[name].type.upper(), "object")

    def _select(self, samples: ColumnSamples, name: str) -> list[Any]:
        """Return the values in the order of the samples."""
        keys = samples.keys_of(array("q", range(len(samples))))
        connection = self._snapshot.connect_query()
        column = quote_name(name)
        ((count,),) = self._snapshot.select(COUNT)
        rows: list[tuple[Any, ...]]
        if len(keys) < count // LOOKUP_RATIO:
            found = query(
                connection, columns=("id", column), ids=keys, timeout=self._timeout
            )
            rows = [(row["id"], row[column]) for row in found]
        else:
            sql = rows_sql(None, ("id", column), None)
            rows = select(connection, sql, (), self._timeout)
        if len(rows) == len(keys) and all(
            row[0] == key for row, key in zip(rows, keys, strict=True)
        ):
            return [value for _, value in rows]
        by_id = dict(rows)
        try:
            return [by_id[key] for key in keys]
        except KeyError as error:
            raise self._snapshot.sample_error(error.args[0]) from None


def _pack(values: list[Any], dtype: str) -> array[Any] | list[Any] | None:
    """Return numbers as an array, or as a list if some are None; None: not numbers."""
    try:
        return array(CODES[dtype], values)
    except TypeError:
        return values if _find_odd(values, dtype) < 0 else None


def _find_odd(values: list[Any], dtype: str) -> int:
    """Return the position of the first value that is not of a dtype, or -1."""
    allowed = {int, type(None)} if dtype == "int64" else {int, float, type(None)}
    odd = (k for k, value in enumerate(values) if type(value) not in allowed)
    return next(odd, -1)
