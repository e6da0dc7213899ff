"""The samples of a columnar dataset as a sequence of arrays by field."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fastshard._core.rows import ColumnSamples

__all__ = ["ArraySequence"]

Arrays = dict[str, "NDArray[Any]"]


class ArraySequence(Sequence[Arrays]):
    """The samples of a dataset, each as a dict from field to array, as they were added.

    The arrays are views of the shards. `torch.utils.data.DataLoader` takes it as a
    map-style dataset: its default collation stacks the arrays, which copies them.

    Pickled, it takes the dataset's path along.
    """

    def __init__(self, load: Callable[[], ColumnSamples], again: Any) -> None:
        self._samples = load()
        self._again = again

    def __len__(self) -> int:
        return len(self._samples)

    @overload
    def __getitem__(self, i: int) -> Arrays: ...
    @overload
    def __getitem__(self, i: slice) -> list[Arrays]: ...
    def __getitem__(self, i: int | slice) -> Arrays | list[Arrays]:
        """Return the arrays of a sample; those fields that it has.

        Raises
        ------
        IndexError
            There is no such position.
        FormatError, OSError, ClosedError
            An array cannot be read.
        """
        if isinstance(i, slice):
            arrays = self._samples.arrays
            return [arrays(k) for k in range(*i.indices(len(self)))]
        return self._samples.arrays(i)

    def __getitems__(self, positions: Iterable[int]) -> list[Arrays]:
        """Return several: how torch's DataLoader asks for a batch."""
        return self._samples.many(list(positions))

    def __repr__(self) -> str:
        return f"<{len(self):,} samples of {self._samples.owner.path!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self._again,)


def _again(reader: Any) -> ArraySequence:
    samples: ArraySequence = reader.samples
    return samples
