"""Single samples of an index whose rows were all read: no SQL is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastshard.columnar.schema import parse_metadata
from fastshard.errors import FormatError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fastshard._core.columnar.rows import ColumnSamples, Rows

__all__ = ["Known"]

Found = tuple[dict[str, "NDArray[Any]"], dict[str, Any]]


class Known:
    """Some fields of samples by id; what is wrong with one is for others to say.

    Parameters
    ----------
    samples : ColumnSamples
        With their metadata.
    columns : list of Rows
        Of the fields.
    """

    def __init__(self, samples: ColumnSamples, columns: list[Rows]) -> None:
        self._samples = samples
        self._read = samples.read
        self._columns = columns
        self._path: str = samples.owner.path

    def one(self, sample_id: str, copy: bool) -> Found | None:
        """Return a sample's arrays and metadata; None: look it up by SQL.

        Raises
        ------
        FormatError
            The metadata is no JSON.
        OSError
            A shard cannot be read.
        """
        try:
            found = self._read(sample_id, self._columns, copy)
        except FormatError:
            return None
        if found is None or found[1] is None:
            return None
        return found[0], parse_metadata(found[1], sample_id, self._path)

    def many(self, ids: list[str], copy: bool) -> list[Found] | None:
        """Return the same of many; None: one of them has to be looked up by SQL."""
        try:
            found = self._samples.read_many(ids, self._columns, copy)
        except FormatError:
            return None
        if found is None:
            return None
        samples = []
        for (arrays, text), sample_id in zip(found, ids, strict=True):
            if text is None:
                return None
            samples.append((arrays, parse_metadata(text, sample_id, self._path)))
        return samples
