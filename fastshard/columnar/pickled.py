"""Arrays of Python objects, for those who trust who wrote them."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from fastshard._core.rowreader import RowReader
from fastshard.columnar.headers import is_of_objects
from fastshard.errors import FormatError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["arrays_with_objects", "unpickled"]


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
    member = f"{sample_id}.npy"
    file, offset = reader.file(k, *place, member)
    return unpickled(file.source.read(*file.locate(offset, member)), error)


def unpickled(data: bytes, error: FormatError) -> NDArray[Any]:
    """Return the array of objects that a member is.

    Parameters
    ----------
    data : bytes
        The member.
    error : FormatError
        Why it is no other array.

    Raises
    ------
    FormatError
        That error, or what is wrong with the pickle.
    """
    import numpy as np

    if not is_of_objects(error.reason):
        raise error
    try:
        array: NDArray[Any] = np.lib.format.read_array(
            io.BytesIO(data), allow_pickle=True
        )
    except Exception as unreadable:
        reason = f"not a .npy array: {unreadable}"
        raise FormatError(
            reason, error.path, error.offset, error.member
        ) from unreadable
    return array
