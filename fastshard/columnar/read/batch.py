"""Batches of rows: stacked, or in the order of their bytes."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fastshard.dataset.batch import Ragged
from fastshard.errors import FieldNotFoundError, RaggedError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fastshard._core.columnar.rows import ColumnSamples, Rows
    from fastshard._core.io.page_ring import PageRing

__all__ = [
    "scan_samples",
    "stack_columns",
]


MOST_AXES = 64  # of an array of NumPy


def stack_columns(
    samples: ColumnSamples,
    order: array[int] | NDArray[np.int64],
    columns: list[Rows],
    ragged: Ragged,
    *,
    brought: bool = False,
) -> dict[str, Any]:
    """Return columns; see `ShardedDatasetReader.columns`.

    Parameters
    ----------
    order : array or ndarray of int64
        Positions of samples that there are.
    columns : list of Rows
    brought : bool
        Whether their bytes were brought into memory just now.
    """
    return {
        rows.field: _stack(rows, order, samples, ragged, brought) for rows in columns
    }


def _stack(
    rows: Rows,
    order: array[int] | NDArray[np.int64],
    samples: ColumnSamples,
    ragged: Ragged,
    brought: bool,
) -> NDArray[Any] | list[NDArray[Any]]:
    """Return one column; a list where it is ragged and that is wanted."""
    import numpy as np

    from fastshard._core.columnar.batch import fill_rows, read_row_layout

    if not len(order):
        return np.empty((0,))
    try:
        for layout in (rows.layout, None):  # most have the one of those before
            if layout is None:
                layout = rows.layout = read_row_layout(rows, order[0])
            dtype, shape, fortran, header, size, tag = layout
            axes = shape[::-1] if fortran else shape
            odd: int | None = 0
            fits = header is not None and len(axes) < MOST_AXES
            stack = np.empty((len(order), *axes) if fits else 0, dtype)
            if fits and stack.dtype == dtype:  # NumPy makes no text of no length
                assert header is not None
                data = _bytes_of(stack)
                odd = fill_rows(rows, order, data, header, size, tag, brought=brought)
            if odd is None:
                break
        else:
            return _odd_stack(rows, order, samples, ragged)
    except FieldNotFoundError as error:
        where = f"{error.where} of {samples.owner.path}"
        raise FieldNotFoundError(error.name, where) from None
    if fortran:
        stack = stack.transpose(0, *range(stack.ndim - 1, 0, -1))
    return stack


def _bytes_of(stack: NDArray[Any]) -> Any:
    """Return the bytes of a new array, whatever its dtype."""
    return stack.reshape(-1).view("u1") if stack.nbytes else bytearray()


def _odd_stack(
    rows: Rows,
    order: array[int] | NDArray[np.int64],
    samples: ColumnSamples,
    ragged: Ragged,
) -> NDArray[Any] | list[NDArray[Any]]:
    """Return a column whose headers differ, if only in how they say the same."""
    import numpy as np

    positions = order.tolist()
    arrays = [samples.arrays(i, [rows])[rows.field] for i in positions]
    first = arrays[0]
    for i, array_ in zip(positions, arrays, strict=True):
        if (array_.dtype, array_.shape) == (first.dtype, first.shape):
            continue
        if ragged == "list":
            return arrays
        raise RaggedError(
            f"field {rows.field!r} of sample {samples.key_at(i)!r} is {array_.dtype} "
            f"{array_.shape}, and of sample {samples.key_at(positions[0])!r} "
            f'{first.dtype} {first.shape}; ragged="list" gives a list of arrays'
        )
    if first.ndim == MOST_AXES:
        if ragged == "list":
            return arrays
        raise RaggedError(f"field {rows.field!r} has {first.ndim} axes: no more fit")
    return np.stack(arrays)


AT_ONCE = 256  # samples that are brought together where no batches are wanted


def scan_samples(
    samples: ColumnSamples,
    fields: Sequence[str],
    chosen: Sequence[int] | None,
    batch_size: int | None,
    window_bytes: int,
    ring: PageRing | None,
    ragged: Ragged,
) -> Iterator[dict[str, Any]]:
    """Yield samples, or batches of them; see `ShardedDatasetReader.scan`."""
    import numpy as np

    from fastshard._core.columnar.batch import RowPrefetcher, sort_in_file_order

    count = len(samples)
    order = np.arange(count) if chosen is None else np.asarray(chosen, np.int64)
    columns = samples.columns_of(fields)
    if columns:
        order = sort_in_file_order(columns, order)
    bringing = RowPrefetcher(
        columns,
        order,
        batch_size or AT_ONCE,
        window_bytes,
        ring=ring,
        whole=batch_size is not None,
    )
    try:
        for part in bringing:
            keys = samples.keys_of(part)
            if batch_size is not None:
                stacks = stack_columns(
                    samples, part, columns, ragged, brought=bringing.is_complete
                )
                yield {"__key__": keys} | stacks
                continue
            for i, key in zip(part.tolist(), keys, strict=True):
                yield {"__key__": key} | samples.arrays(i, columns)
    finally:
        bringing.close()
