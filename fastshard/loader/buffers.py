"""Pool of batch memory, leased to arrays and reused when they are gone."""

from __future__ import annotations

from math import prod
from threading import Lock
from typing import TYPE_CHECKING, Any

from fastshard._core.loader.threads import MemoryLease, Spares

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fastshard.formats.layout import Allocate

__all__ = ["BufferPool", "BufferSet"]

SMALL = 8 << 10  # bytes: below, malloc is cheaper than a lease


class BufferPool:
    """Memory of a loader's batches by field.

    Each array has a lease of its own: a user who keeps the labels of a batch keeps no
    pictures. Unreferenced memory is reused.
    """

    def __init__(self, spare: int, allocate: Allocate | None = None) -> None:
        self._allocate = allocate
        self._spare = 0 if getattr(allocate, "recycles", False) else spare
        self._spares: dict[str, Spares] = {}  # by field

    def lend(self, field: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Return an uninitialized array on leased memory."""
        import numpy as np

        dtype = np.dtype(dtype)
        nbytes = prod(shape) * dtype.itemsize
        is_small = nbytes < (SMALL if self._allocate is None else 1)
        if not self._spare or is_small or dtype.hasobject:
            return self._new_array(field, shape, dtype)
        spares = self._spares.get(field)
        if spares is None or spares.is_inherited:
            spares = self._spares[field] = Spares(self._spare)
        memory = spares.take(nbytes, dtype.alignment)
        if memory is None and self._allocate is None:
            memory = np.empty(nbytes, "u1")
        elif memory is None:
            memory = self._new_array(field, shape, dtype).reshape(-1).view("u1")
        lease: Any = MemoryLease(memory, spares)
        return np.ndarray(shape, dtype, lease)

    def close(self) -> None:
        """Free unleased memory now, leased memory at its return."""
        self._spare = 0
        for spares in list(self._spares.values()):
            spares.close()

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


class BufferSet:
    """The arrays of one batch by field; threads that prepare its rows share it."""

    def __init__(self, pool: BufferPool) -> None:
        self._pool = pool
        self._arrays: dict[str, NDArray[Any]] = {}
        self._in_rows: set[str] = set()  # fields of which rows are taken one by one
        self._lock = Lock()

    def take(self, field: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Return the memory of a field, ``[rows, *row shape]``, uninitialized.

        Calls for one field return the same memory while `shape` has no more rows than
        before, and the same row shape and dtype; otherwise other memory.
        """
        with self._lock:  # threads that decode rows of one batch get one array
            return self._take(field, shape, dtype)

    def take_row(
        self, field: str, shape: tuple[int, ...], dtype: Any, row: int
    ) -> NDArray[Any] | None:
        """Return the memory of one row of a field, or None.

        All rows of a batch that have memory here are of one shape: that of the first
        one that was requested.
        """
        with self._lock:
            if field in self._in_rows and self._arrays[field].shape[1:] != shape[1:]:
                return None
            found = self._take(field, shape, dtype)
            self._in_rows.add(field)
        taken: NDArray[Any] = found[row]
        return taken

    def renew(self, field: str) -> None:
        """Let the next `take` of a field return new memory."""
        with self._lock:
            self._arrays.pop(field, None)
            self._in_rows.discard(field)

    def _take(self, field: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        found = self._arrays.get(field)
        if (
            found is None
            or found.dtype != dtype
            or found.shape[1:] != shape[1:]
            or len(found) < shape[0]
        ):
            found = self._arrays[field] = self._pool.lend(field, shape, dtype)
        return found if len(found) == shape[0] else found[: shape[0]]


def _describe(value: Any) -> str:
    if not hasattr(value, "dtype"):
        return type(value).__name__
    flags = value.flags
    kind = "" if flags.writeable else "read-only "
    order = "" if flags.c_contiguous else ", not C-contiguous"
    return f"{kind}{value.dtype} {value.shape}{order}"
