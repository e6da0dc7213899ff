"""Memory of batches, reused by later ones."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fastshard.formats.layout import Allocate

__all__ = ["BufferSet"]


class BufferSet:
    """The arrays of one batch by field, reused by a later batch.

    Threads that prepare rows of the batch share it.

    Parameters
    ----------
    allocate : callable, optional
        ``allocate(field, shape, dtype) -> ndarray``, writable and C-contiguous; by
        default `numpy.empty`.
    """

    def __init__(self, allocate: Allocate | None = None) -> None:
        self._allocate = allocate
        self._arrays: dict[str, NDArray[Any]] = {}
        self._in_rows: set[str] = set()  # fields of which rows are taken one by one
        self._lock = Lock()

    def renew(self) -> None:
        """Begin another batch: rows of a field may be of another shape."""
        self._in_rows.clear()

    def take(self, field: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Return the memory of a field, ``[rows, *row shape]``, uninitialized.

        Calls for one field return the same memory while `shape` has no more rows than
        before, and the same row shape and dtype; otherwise memory is allocated anew.

        Parameters
        ----------
        field : str
        shape : tuple of int
        dtype : dtype-like

        Returns
        -------
        ndarray
            The first rows of the field's array.

        Raises
        ------
        ValueError
            `allocate` returned an array of another shape or dtype, read-only, or not
            C-contiguous.
        """
        with self._lock:  # threads that decode rows of one batch get one array
            return self._take(field, shape, dtype)

    def take_row(
        self, field: str, shape: tuple[int, ...], dtype: Any, row: int
    ) -> NDArray[Any] | None:
        """Return the memory of one row of a field, or None.

        All rows of a batch that have memory here are of one shape: that of the first
        one that was asked for.

        Parameters
        ----------
        field : str
        shape : tuple of int
            Of all rows, as for `take`.
        dtype : dtype-like
        row : int

        Returns
        -------
        ndarray or None
            None: another row of the batch is of another shape.

        Raises
        ------
        ValueError
            As for `take`.
        """
        with self._lock:
            if field in self._in_rows and self._arrays[field].shape[1:] != shape[1:]:
                return None
            found = self._take(field, shape, dtype)
            self._in_rows.add(field)
        taken: NDArray[Any] = found[row]
        return taken

    def _take(self, field: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        import numpy as np

        kind = np.dtype(dtype)
        found = self._arrays.get(field)
        if (
            found is None
            or found.dtype != kind
            or found.shape[1:] != shape[1:]
            or len(found) < shape[0]
        ):
            found = self._arrays[field] = self._new_array(field, shape, kind)
        return found[: shape[0]]

    def take_within(
        self, field: str, shape: tuple[int, ...], dtype: Any
    ) -> NDArray[Any]:
        """Return memory of a field whose row shape changes from batch to batch.

        The field's array grows to the largest length of each axis.

        Parameters
        ----------
        field : str
        shape : tuple of int
        dtype : dtype-like

        Returns
        -------
        ndarray
            The first corner of the field's array, not always C-contiguous.

        Raises
        ------
        ValueError
            As for `take`.
        """
        import numpy as np

        found = self._arrays.get(field)
        if found is None or found.dtype != np.dtype(dtype) or found.ndim != len(shape):
            return self.take(field, shape, dtype)
        enough = tuple(map(max, shape, found.shape))
        return self.take(field, enough, dtype)[tuple(map(slice, shape))]

    def _new_array(
        self, field: str, shape: tuple[int, ...], dtype: Any
    ) -> NDArray[Any]:
        import numpy as np

        if self._allocate is None:
            return np.empty(shape, dtype)
        array = self._allocate(field, shape, dtype)
        if (
            not isinstance(array, np.ndarray)
            or array.shape != shape
            or array.dtype != dtype
            or not array.flags.c_contiguous
            or not array.flags.writeable
        ):
            raise ValueError(
                f"allocate({field!r}) must return a writable, C-contiguous array of "
                f"{dtype} {shape}, got {_describe(array)}"
            )
        return array


def _describe(value: Any) -> str:
    if not hasattr(value, "dtype"):
        return type(value).__name__
    flags = value.flags
    kind = "" if flags.writeable else "read-only "
    order = "" if flags.c_contiguous else ", not C-contiguous"
    return f"{kind}{value.dtype} {value.shape}{order}"
