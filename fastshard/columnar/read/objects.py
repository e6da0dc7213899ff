"""Arrays of Python objects, unpickled for readers that allow it."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np

from fastshard._core.columnar.column_file import RowReader
from fastshard.columnar.layout.headers import needs_pickle
from fastshard.errors import FormatError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["read_row_with_objects", "unpickle_array"]


def read_row_with_objects(
    reader: RowReader, row: tuple[Any, ...], sample_id: str, copy: bool
) -> dict[str, NDArray[Any]]:
    """Return the arrays of a row as `RowReader.arrays` does, unpickling some.

    Unpickling runs code from the data.
    """
    arrays = {}
    for k, field in enumerate(reader.fields):
        offset, shard = row[2 * k : 2 * k + 2]
        is_packed = reader.is_packed(k, row)
        if offset is None and shard is None and not is_packed:
            continue
        try:
            arrays[field] = reader.array_of(k, row, sample_id, copy)
        except FormatError as error:
            if is_packed:  # packs hold no objects
                raise
            member = f"{sample_id}.npy"
            file, offset = reader.file(k, offset, shard, member)
            data = file.source.read(*file.locate(offset, member))
            arrays[field] = unpickle_array(data, error)
    return arrays


def unpickle_array(data: bytes, error: FormatError) -> NDArray[Any]:
    """Return the array of objects in a member."""
    if not needs_pickle(error.reason):
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
