"""Samples as tables: of Apache Arrow, and of pandas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastshard.codecs.libraries import import_library
from fastshard.errors import FastshardError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fastshard._core.columnar.rows import ColumnSamples, Rows
    from fastshard.columnar.read.stacks.metadata import MetadataTable
    from fastshard.columnar.read.stacks.stacking import Order

__all__ = ["TableBuilder"]

ID = "id"
ARROW_KINDS = "biufmMUS"  # of dtypes that have an Arrow type
SERIES_KINDS = "biufcmMU"  # of dtypes of which a pandas column may be
ARROW_TYPES = {"INTEGER": "int64", "REAL": "double", "TEXT": "string"}


class TableBuilder:
    """Builder of a table with a row for each of some samples."""

    def __init__(
        self,
        samples: ColumnSamples,
        order: Order,
        table: MetadataTable,
        fields: list[str],
        metadata: list[str],
        names: list[str],
    ) -> None:
        import numpy as np

        self._samples = samples
        self._order = np.asarray(order, np.int64)
        self._table = table
        self._fields = fields
        self._metadata = metadata
        self._names = names

    def to_arrow(self) -> Any:
        """Return a ``pyarrow.Table``; see `ShardedDatasetReader.to_arrow`."""
        pa = import_library("pyarrow", "to_arrow needs pyarrow", "pyarrow")
        columns: dict[str, Any] = {ID: pa.array(self._keys(), pa.string())}
        found: dict[str, Any] = {}
        for rows in self._samples.columns_of(self._fields):
            stack, has = self._stack(rows)
            try:
                found[rows.field] = _arrow_column(pa, stack, has)
            except (pa.ArrowException, TypeError, ValueError) as error:
                raise FastshardError(
                    f"field {rows.field!r} does not fit an Arrow column: {error}"
                ) from error
        for name in self._metadata:
            values = self._table.values(name, self._samples, self._order)
            declared = values.column.type.upper()
            try:
                found[name] = pa.array(values.values, ARROW_TYPES.get(declared))
            except pa.ArrowException as error:
                raise FastshardError(
                    f"the metadata column {name!r} does not fit an Arrow column of "
                    f"{declared or 'one type'}: {error}"
                ) from error
        return pa.table(columns | {name: found[name] for name in self._names})

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame``; see `ShardedDatasetReader.to_pandas`."""
        pd = import_library("pandas", "to_pandas needs pandas", "pandas")
        found: dict[str, Any] = {}
        for rows in self._samples.columns_of(self._fields):
            stack, has = self._stack(rows)
            found[rows.field] = _pandas_column(pd, stack, has)
        for name in self._metadata:
            values = self._table.values(name, self._samples, self._order)
            declared = values.column.type.upper()
            dtype: Any = {"INTEGER": "int64", "REAL": "float64"}.get(declared, object)
            if declared == "INTEGER" and None in values.values:
                dtype = "Int64"
            try:
                found[name] = pd.array(values.values, dtype=dtype)
            except (TypeError, ValueError) as error:
                raise FastshardError(
                    f"the metadata column {name!r} holds values that are not "
                    f"{declared}: {error}"
                ) from error
        index = pd.Index(self._keys(), name=ID, dtype=object)
        return pd.DataFrame({name: found[name] for name in self._names}, index=index)

    def _keys(self) -> list[str]:
        return self._samples.keys_of(self._order)

    def _stack(
        self, rows: Rows
    ) -> tuple[NDArray[Any] | list[NDArray[Any]], NDArray[np.bool_]]:
        """Return the arrays of the samples that have a field, and which have it."""
        import numpy as np

        from fastshard.columnar.read.batch import stack_columns

        has = np.frombuffer(self._samples.having((rows.field,)), bool)[self._order]
        order = self._order if has.all() else self._order[has]
        return stack_columns(self._samples, order, [rows])[rows.field], has


def _arrow_column(
    pa: Any, stack: NDArray[Any] | list[NDArray[Any]], has: NDArray[np.bool_]
) -> Any:
    """Return arrays as an Arrow array; null where a sample lacks the field."""
    import numpy as np

    if not has.any():
        return pa.nulls(len(has))
    if isinstance(stack, list):
        found = _arrow_lists(pa, stack)
    elif 0 in stack.shape[1:]:
        found = _arrow_lists(pa, list(stack))
    else:
        flat = _arrow_values(pa, np.ascontiguousarray(stack).reshape(-1))
        shape = stack.shape[1:]
        found = flat
        if shape:
            size = int(np.prod(shape))
            found = pa.FixedSizeListArray.from_arrays(flat, size)
        if len(shape) > 1:
            tensor = pa.fixed_shape_tensor(flat.type, shape)
            found = pa.ExtensionArray.from_storage(tensor, found)
    if has.all():
        return found
    rows = np.cumsum(has) - 1
    indexes = pa.array(rows, pa.int64(), mask=~has)
    if isinstance(found, pa.ExtensionArray):
        storage = found.storage.take(indexes)
        return pa.ExtensionArray.from_storage(found.type, storage)
    return found.take(indexes)


def _arrow_values(pa: Any, values: NDArray[Any]) -> Any:
    """Return an array of one axis as Arrow's; without a copy if it is of numbers."""
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    if values.dtype.kind not in ARROW_KINDS:
        raise TypeError(f"Arrow has no type for values of {values.dtype}")
    return pa.array(values)


def _arrow_lists(pa: Any, arrays: list[NDArray[Any]]) -> Any:
    """Return arrays of equal dtypes as lists of lists, as many as they have axes."""
    import numpy as np

    first = arrays[0]
    for each in arrays:
        if (each.dtype, each.ndim) != (first.dtype, first.ndim):
            raise TypeError(
                f"its arrays differ in dtype or number of axes: {first.dtype} with "
                f"{first.ndim} and {each.dtype} with {each.ndim}"
            )
    found = _arrow_values(pa, np.concatenate([each.reshape(-1) for each in arrays]))
    shapes = np.array([each.shape for each in arrays], np.int64)
    for axis in reversed(range(first.ndim)):
        counts = np.prod(shapes[:, :axis], axis=1)
        lengths = np.repeat(shapes[:, axis], counts)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        if offsets[-1] < 1 << 31:
            found = pa.ListArray.from_arrays(offsets.astype(np.int32), found)
        else:
            found = pa.LargeListArray.from_arrays(offsets, found)
    return found


def _pandas_column(
    pd: Any, stack: NDArray[Any] | list[NDArray[Any]], has: NDArray[np.bool_]
) -> Any:
    """Return a column: of values for arrays without axes, else of arrays."""
    import numpy as np

    at = np.flatnonzero(has)
    if not isinstance(stack, list) and stack.ndim == 1 and len(at):
        if not stack.dtype.isnative:
            stack = stack.astype(stack.dtype.newbyteorder("="))
        if stack.dtype.kind in SERIES_KINDS:
            series = pd.Series(stack, index=at)
            if len(at) < len(has) and stack.dtype.kind in "biu":
                series = series.convert_dtypes()  # to one that has NA
            return series.reindex(range(len(has))).array
    column = np.full(len(has), None, object)
    for i, value in zip(at.tolist(), stack, strict=True):
        column[i] = value
    return column
