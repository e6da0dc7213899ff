"""Schema of a columnar dataset: dtypes and shapes of its fields, metadata columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fastshard._util.terminal import escape_line
from fastshard.columnar.layout.metadata_columns import (
    MetadataColumn,
    read_metadata_columns,
)
from fastshard.columnar.read.batch import stack_columns
from fastshard.errors import FormatError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fastshard._core.columnar.rows import ColumnSamples, Rows
    from fastshard.columnar.read.snapshot import Snapshot

__all__ = ["DatasetSchema", "FieldSchema", "describe_schema", "read_schema"]

FIRST_ROWS = 16
MAX_ROWS = 8192
CHUNK_BYTES = 1 << 20  # of arrays that are stacked to compare their headers
MAX_STACKED = 16 << 10  # bytes of an array; larger ones are compared one by one


@dataclass(frozen=True)
class FieldSchema:
    """Dtype and shape of a field; see `DatasetSchema`.

    Attributes
    ----------
    name : str
    dtype : dtype, "ragged" or None
        Of all arrays, ``"ragged"`` if they differ; None if there are none.
    shape : tuple of int, "ragged" or None
        Of one array, ``"ragged"`` if they differ; None if there are none.
    max_shape : tuple of int or None
        The largest length of each axis, to which ``ragged="pad"`` pads; None if the
        number of axes differs, or there are no arrays.
    samples : int
        Samples that have the field.
    is_packed : bool
        The field may be stored in packs.
    """

    name: str
    dtype: np.dtype[Any] | Literal["ragged"] | None
    shape: tuple[int, ...] | Literal["ragged"] | None
    max_shape: tuple[int, ...] | None
    samples: int
    is_packed: bool

    def __str__(self) -> str:
        if self.dtype is None:
            return "no samples"
        shape = str(self.shape)
        if self.shape == "ragged" and self.max_shape is not None:
            shape = f"ragged, up to {self.max_shape}"
        packed = ", packed" if self.is_packed else ""
        return f"{self.dtype} {shape}, {_count(self.samples)}{packed}"


@dataclass(frozen=True, repr=False)
class DatasetSchema:
    """Schema of a columnar dataset, made by `ShardedDatasetReader.schema`.

    Its ``repr`` is a table.

    Attributes
    ----------
    samples : int
        Number of samples.
    fields : Mapping of str to FieldSchema
        By name, in the order they were added: ``dtype``, ``shape`` (either may be
        ``"ragged"``), ``max_shape``, ``samples``, ``is_packed``.
    columns : Mapping of str to MetadataColumn
        Metadata columns by name: ``path`` in the metadata, declared ``type``.

    Examples
    --------
    >>> import numpy as np
    >>> from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
    >>> with ShardedDatasetWriter("weather") as writer:
    ...     writer.add_fields(["history", "target"])
    ...     for day in range(3):
    ...         arrays = {"history": np.zeros((24, 2), "f4"), "target": np.ones(day)}
    ...         sample_id = writer.add_sample(arrays, metadata={"day": day})
    ...     writer.add_metadata_column("day", "$.day", int)
    >>> schema = ShardedDatasetReader("weather").schema()
    >>> schema
    <schema of 3 samples
      history  float32 (24, 2), 3 samples
      target   float64 ragged, up to (2,), 3 samples
      day      INTEGER, metadata $.day>
    >>> schema.fields["history"].dtype, schema.fields["target"].shape
    (dtype('float32'), 'ragged')
    """

    samples: int
    fields: Mapping[str, FieldSchema]
    columns: Mapping[str, MetadataColumn]

    def __repr__(self) -> str:
        lines = {field.name: str(field) for field in self.fields.values()}
        texts = [*lines.items()]
        for column in self.columns.values():
            path = "" if column.path is None else f" {column.path}"
            kind = column.type or "any type"
            texts.append((column.name, escape_line(f"{kind}, metadata{path}")))
        width = max((len(name) for name, _ in texts), default=0)
        rows = [
            f"\n  {escape_line(name):<{width}}  {text}".rstrip() for name, text in texts
        ]
        return f"<schema of {_count(self.samples)}{''.join(rows)}>"


def _count(samples: int) -> str:
    return f"{samples:,} sample{'s' * (samples != 1)}"


def read_schema(snapshot: Snapshot, samples: ColumnSamples) -> DatasetSchema:
    """Return the schema of a dataset; reads the header of every array."""
    fields = {
        rows.field: read_field(samples, rows, rows.field in snapshot.packed)
        for rows in samples.columns
    }
    return DatasetSchema(len(samples), fields, _read_columns(snapshot))


def _read_columns(snapshot: Snapshot) -> dict[str, MetadataColumn]:
    fields, packed = list(snapshot.folders), snapshot.packed
    return snapshot.read(lambda conn: read_metadata_columns(conn, fields, packed))


def read_field(samples: ColumnSamples, rows: Rows, is_packed: bool) -> FieldSchema:
    """Return the schema of one field; see `read_schema`."""
    import numpy as np

    from fastshard._core.columnar.row_prefetch import sort_in_file_order

    has = np.frombuffer(samples.having((rows.field,)), bool)
    order = sort_in_file_order([rows], np.flatnonzero(has))
    seen = SeenArrays()
    step, start = FIRST_ROWS, 0
    while start < len(order):
        part = order[start : start + step]
        start += step
        step = seen.add_rows(samples, rows, part)
    return FieldSchema(
        rows.field, seen.dtype, seen.shape, seen.max_shape, len(order), is_packed
    )


class SeenArrays:
    """Common dtype and shape of the arrays of a field that were read.

    Attributes
    ----------
    dtype, shape, max_shape
        As of `FieldSchema`.
    """

    def __init__(self) -> None:
        self.dtype: np.dtype[Any] | Literal["ragged"] | None = None
        self.shape: tuple[int, ...] | Literal["ragged"] | None = None
        self.max_shape: tuple[int, ...] | None = None

    def add_rows(
        self, samples: ColumnSamples, rows: Rows, order: NDArray[np.int64]
    ) -> int:
        """Add the arrays of some samples; return how many to add next."""
        largest = 0
        first = samples.arrays(int(order[0]), [rows])[rows.field]
        if first.nbytes <= MAX_STACKED:
            stack = stack_columns(samples, order, [rows], is_resident=True)[rows.field]
            if not isinstance(stack, list):
                # NumPy widens strings of length 0 in a stack.
                self.add(first.dtype, stack.shape[1:])
                largest = first.nbytes
            else:
                for array in stack:
                    self.add(array.dtype, array.shape)
                    largest = max(largest, array.nbytes)
        else:
            for i in order.tolist():
                array = samples.arrays(i, [rows])[rows.field]
                self.add(array.dtype, array.shape)
        return max(FIRST_ROWS, min(MAX_ROWS, CHUNK_BYTES // max(1, largest)))

    def add(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        """Add the dtype and the shape of arrays."""
        if self.dtype is None:
            self.dtype, self.shape, self.max_shape = dtype, shape, shape
            return
        if self.dtype != dtype:
            self.dtype = "ragged"
        if self.shape == shape:
            return
        self.shape = "ragged"
        if self.max_shape is not None and len(self.max_shape) == len(shape):
            self.max_shape = tuple(map(max, self.max_shape, shape))
        else:
            self.max_shape = None


def describe_schema(snapshot: Snapshot, samples: ColumnSamples) -> dict[str, Any]:
    """Return a schema as JSON can represent it; a damaged field has an error."""
    fields: dict[str, dict[str, Any]] = {}
    for rows in samples.columns:
        try:
            field = read_field(samples, rows, rows.field in snapshot.packed)
        except (FormatError, OSError) as error:
            fields[rows.field] = {"error": str(error)}
            continue
        fields[rows.field] = {
            "dtype": None if field.dtype is None else str(field.dtype),
            "shape": field.shape,
            "max_shape": field.max_shape,
            "samples": field.samples,
            "packed": field.is_packed,
        }
    columns = _read_columns(snapshot)
    return {
        "fields": fields,
        "columns": {
            name: {"path": column.path, "type": column.type}
            for name, column in columns.items()
        },
    }
