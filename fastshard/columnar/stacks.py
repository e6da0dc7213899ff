"""Fields of many samples, each as one array."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from fastshard.errors import FastshardError, FieldNotFoundError
from fastshard.gathering import Ragged

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fastshard._core.rows import ColumnSamples, Rows

__all__ = ["stacks_of"]


def stacks_of(
    samples: ColumnSamples,
    order: array[int],
    columns: list[Rows],
    ragged: Ragged,
    *,
    brought: bool = False,
) -> dict[str, Any]:
    """Return columns; see `ShardedDatasetReader.columns`.

    Parameters
    ----------
    order : array of int64
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
    order: array[int],
    samples: ColumnSamples,
    ragged: Ragged,
    brought: bool,
) -> NDArray[Any] | list[NDArray[Any]]:
    """Return one column; a list where it is ragged and that is wanted."""
    import numpy as np

    from fastshard._core.rowgather import fill_rows, layout_of_row

    if not order:
        return np.empty((0,))
    try:
        dtype, shape, fortran, header, size = layout_of_row(rows, order[0])
        stack = np.empty((len(order), *(shape[::-1] if fortran else shape)), dtype)
        odd: int | None = 0
        if header is not None:
            odd = fill_rows(
                rows, order, _bytes_of(stack), header, size, brought=brought
            )
        if odd is not None:
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
    rows: Rows, order: array[int], samples: ColumnSamples, ragged: Ragged
) -> NDArray[Any] | list[NDArray[Any]]:
    """Return a column whose headers differ, if only in how they say the same."""
    import numpy as np

    arrays = [samples.arrays(i, [rows])[rows.field] for i in order]
    first = arrays[0]
    for i, array_ in zip(order, arrays, strict=True):
        if (array_.dtype, array_.shape) == (first.dtype, first.shape):
            continue
        if ragged == "list":
            return arrays
        raise FastshardError(
            f"field {rows.field!r} of sample {samples.key_at(i)!r} is {array_.dtype} "
            f"{array_.shape}, and of sample {samples.key_at(order[0])!r} {first.dtype} "
            f'{first.shape}; ragged="list" gives a list of arrays'
        )
    return np.stack(arrays)
