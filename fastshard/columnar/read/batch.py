"""Batches of rows: one array a field, or an iteration in file order."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fastshard.errors import FastshardError, FieldNotFoundError
from fastshard.formats.stacking.padding import MAX_AXES, Padding

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fastshard._core.columnar.rows import ColumnSamples, Rows
    from fastshard._core.io.paging import PageRing
    from fastshard.formats.layout import Allocate

__all__ = ["LIST", "scan_samples", "stack_columns", "stack_equal"]

SAMPLES_PER_PREFETCH = 256  # by an iteration without batches
LIST = Padding("list")


def stack_columns(
    samples: ColumnSamples,
    order: array[int] | NDArray[np.int64],
    columns: list[Rows],
    padding: Padding = LIST,
    *,
    is_resident: bool = False,
) -> dict[str, NDArray[Any] | list[NDArray[Any]]]:
    """Return fields of samples, each as one array, or as a list if it is ragged."""
    from fastshard._core.columnar.batch import stack_rows

    stacks: dict[str, Any] = {}
    try:
        if len(order):  # the layouts of the batch before usually hold
            stacks = stack_rows(columns, order, is_resident=is_resident)
        if len(stacks) < len(columns):
            stacks = {rows.field: stacks.get(rows.field) for rows in columns}
            for rows in columns:
                if stacks[rows.field] is None:
                    stacks[rows.field] = _stack(
                        rows, order, samples, padding, is_resident
                    )
    except FieldNotFoundError as error:
        where = f"{error.where} of {samples.owner.path}"
        raise FieldNotFoundError(error.name, where) from None
    return stacks


def _stack(
    rows: Rows,
    order: array[int] | NDArray[np.int64],
    samples: ColumnSamples,
    padding: Padding,
    is_resident: bool,
) -> NDArray[Any] | list[NDArray[Any]]:
    """Return one field as `stack_columns` does."""
    import numpy as np

    from fastshard._core.columnar.batch import fill_rows, read_row_layout

    if not len(order):
        return np.empty((0,))
    rows.layout = layout = read_row_layout(rows, order[0])
    dtype, shape, fortran, header, size, tag = layout
    axes = shape[::-1] if fortran else shape
    if header is None or len(axes) >= MAX_AXES:
        return _stack_arrays(rows, order, samples, padding)
    stack = np.empty((len(order), *axes), dtype)
    if stack.dtype != dtype:  # NumPy widens strings of length 0
        return _stack_arrays(rows, order, samples, padding)
    to = _bytes_of(stack)
    if fill_rows(rows, order, to, header, size, tag, is_resident=is_resident) is None:
        return stack.transpose(0, *range(stack.ndim - 1, 0, -1)) if fortran else stack
    return _stack_arrays(rows, order, samples, padding)


def stack_equal(
    samples: ColumnSamples,
    order: array[int],
    names: tuple[str, ...],
    allocate: Allocate | None,
) -> dict[str, NDArray[Any]]:
    """Return the fields whose arrays have one layout, each as one array.

    Other fields are left out, also absent and unreadable ones, whose errors single
    reads raise.
    """
    stacks: dict[str, NDArray[Any]] = {}
    if not len(order):
        return stacks
    columns = {rows.field: rows for rows in samples.columns}
    for name in names:
        if name in columns:
            try:
                stack = _stack_equal(columns[name], order, allocate)
            except (FastshardError, OSError):
                continue
            if stack is not None:
                stacks[name] = stack
    return stacks


def _stack_equal(
    rows: Rows,
    order: array[int],
    allocate: Allocate | None,
) -> NDArray[Any] | None:
    """Return a field with the layout of its first row; None: another row has another.

    Also None if rows cannot be copied as they are.
    """
    import numpy as np

    from fastshard._core.columnar.batch import fill_rows, read_row_layout

    rows.layout = layout = read_row_layout(rows, order[0])
    dtype, shape, fortran, header, size, tag = layout
    if header is None or fortran or len(shape) >= MAX_AXES:
        return None
    whole = (len(order), *shape)
    stack = np.empty(whole, dtype) if allocate is None else None
    if allocate is not None:
        stack = allocate(rows.field, whole, dtype)
    assert stack is not None
    is_direct = stack.flags.c_contiguous
    to = stack if is_direct else np.empty(whole, dtype)
    if to.dtype != dtype:  # NumPy widens strings of length 0
        return None
    if fill_rows(rows, order, _bytes_of(to), header, size, tag) is not None:
        return None
    if not is_direct:
        stack[...] = to
    return stack


def _bytes_of(stack: NDArray[Any]) -> Any:
    """Return a writable buffer of a new array's bytes, whatever its dtype."""
    return stack.reshape(-1).view("u1") if stack.nbytes else bytearray()


def _stack_arrays(
    rows: Rows,
    order: array[int] | NDArray[np.int64],
    samples: ColumnSamples,
    padding: Padding,
) -> NDArray[Any] | list[NDArray[Any]]:
    """Return a field whose headers differ, perhaps only in their spelling."""
    positions = order.tolist()
    arrays = [samples.arrays(i, [rows])[rows.field] for i in positions]
    stack: NDArray[Any] | list[NDArray[Any]] = padding.stack(
        arrays, rows.field, key_at=lambda k: samples.key_at(positions[k])
    )
    return stack


def scan_samples(
    samples: ColumnSamples,
    fields: Sequence[str],
    positions: Sequence[int] | NDArray[np.int64] | None,
    batch_size: int | None,
    window_bytes: int,
    ring: PageRing | None,
    stack: Callable[[NDArray[np.int64], bool], dict[str, Any]],
    complete: Callable[[int, dict[str, Any]], dict[str, Any]] | None,
) -> Iterator[dict[str, Any]]:
    """Iterate over samples or batches in file order, prefetching their bytes."""
    import numpy as np

    from fastshard._core.columnar.row_prefetch import RowPrefetcher, sort_in_file_order

    count = len(samples)
    order = np.arange(count) if positions is None else np.asarray(positions, np.int64)
    columns = samples.columns_of(fields)
    if columns:
        order = sort_in_file_order(columns, order)
    by_runs = (
        ring is None and complete is None and any(rows.has_packs for rows in columns)
    )
    prefetcher = RowPrefetcher(
        columns,
        order,
        batch_size or SAMPLES_PER_PREFETCH,
        window_bytes,
        ring=ring,
        whole=batch_size is not None,
    )
    try:
        for part in prefetcher:
            keys = samples.keys_of(part)
            if batch_size is not None:
                yield {"__key__": keys} | stack(part, prefetcher.is_complete)
                continue
            if by_runs:
                try:
                    items = samples.keyed_arrays(part, columns, keys)
                except (FastshardError, OSError):  # raised when its sample is reached
                    pass
                else:
                    yield from items
                    continue
            for i, key in zip(part.tolist(), keys, strict=True):
                arrays: dict[str, Any] = samples.arrays(i, columns)
                if complete is not None:
                    arrays = complete(i, arrays)
                yield {"__key__": key} | arrays
    finally:
        prefetcher.close()
