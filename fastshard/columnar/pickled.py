"""Arrays of Python objects, for those who trust who wrote them."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from fastshard._core.rowreader import RowReader
from fastshard.errors import FormatError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["arrays_with_objects", "is_of_objects"]


def is_of_objects(error: FormatError) -> bool:
    """Say whether what was wrong with an array is that only a pickle holds it."""
    return "Python objects" in error.reason


def arrays_with_objects(
    reader: RowReader, row: tuple[Any, ...], sample_id: str, copy: bool
) -> dict[str, NDArray[Any]]:
    """Do what `RowReader.arrays` does, and unpickle arrays of Python objects.

    That runs whatever code the data says.

    Raises
    ------
    FormatError
        An array cannot be read, pickled or not.
    """
    found = {}
    for k, field in enumerate(reader.fields):
        offset, shard = row[2 * k : 2 * k + 2]
        if offset is None and shard is None:
            continue
        try:
            found[field] = reader.array_of(k, offset, shard, sample_id, copy)
        except FormatError as error:
            found[field] = _unpickled(reader, k, (offset, shard), sample_id, error)
    return found


def _unpickled(
    reader: RowReader,
    k: int,
    place: tuple[Any, Any],
    sample_id: str,
    error: FormatError,
) -> NDArray[Any]:
    """Return an array of objects; raise what was wrong if it is none."""
    import numpy as np

    member = f"{sample_id}.npy"
    file, offset = reader.file(k, *place, member)
    at, size = file.locate(offset, member)
    data = io.BytesIO(file.source.read(at, size))
    try:
        array: NDArray[Any] = np.lib.format.read_array(data, allow_pickle=True)
    except Exception as unreadable:
        raise FormatError(
            f"not a .npy array: {unreadable}", file.path, at, member
        ) from unreadable
    if not array.dtype.hasobject:
        raise error
    return array
