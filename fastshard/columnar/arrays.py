"""The samples of a columnar dataset as a sequence of arrays by field."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, overload

from fastshard._core.gather import positions_of
from fastshard.columnar.stacks import stacks_of
from fastshard.errors import FieldNotFoundError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fastshard._core.columnsamples import ColumnSamples

__all__ = ["ArraySequence"]

Arrays = dict[str, "NDArray[Any]"]


class ArraySequence(Sequence[Arrays]):
    """The samples of a dataset, each as a dict from field to array, as they were added.

    The arrays are views of the shards. `torch.utils.data.DataLoader` takes it as a
    map-style dataset: its default collation stacks the arrays, which copies them.

    Pickled, it takes the dataset's path along.
    """

    def __init__(self, samples: ColumnSamples, again: tuple[Any, ...]) -> None:
        self._samples = samples
        self._at = samples.arrays
        self._again = again  # what a reader is made of

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
        if type(i) is not int and isinstance(i, slice):
            return [self._at(k) for k in range(*i.indices(len(self)))]
        return self._at(i)

    def __getitems__(self, positions: Iterable[int]) -> list[Arrays]:
        """Return several: how torch's DataLoader asks for a batch.

        Their bytes are brought together, and copied into one array a field, which
        the arrays of each sample are rows of: they can be written to.
        """
        samples = self._samples
        order = positions_of(positions, len(samples))
        try:
            stacks = stacks_of(samples, order, samples.columns, "list")
        except FieldNotFoundError:  # not all of them have every field
            return [samples.arrays(i, None, True) for i in order]
        items: list[Arrays] = [{} for _ in order]
        for field, stack in stacks.items():
            ragged = isinstance(stack, list)
            for k, item in enumerate(items):
                item[field] = stack[k].copy() if ragged else stack[k, ...]
        return items

    def __repr__(self) -> str:
        return f"<{len(self):,} samples of {self._samples.owner.path!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _samples_again, (self._again,)


def _samples_again(args: tuple[Any, ...]) -> ArraySequence:
    from fastshard.columnar.reader import ShardedDatasetReader

    root, cache_tars, options = args
    return ShardedDatasetReader(root, cache_tars, **options).samples
