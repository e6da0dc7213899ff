"""Sequence of the samples of a columnar dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias, overload

from fastshard._core.dataset.gather import resolve_positions
from fastshard.columnar.read.batch import stack_columns
from fastshard.dataset.sequence.torch_base import Dataset as TorchDataset
from fastshard.errors import FieldNotFoundError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fastshard._core.columnar.rows import ColumnSamples

__all__ = ["ArraySequence", "Arrays"]

Arrays: TypeAlias = dict[str, "NDArray[Any]"]  # by field


class ArraySequence(Sequence[Arrays], TorchDataset[Arrays]):
    """All samples of a dataset, each a dict from field to array, in insertion order.

    Made by `ShardedDatasetReader.samples`. The arrays are views of the shards.
    `torch.utils.data.DataLoader` takes the sequence as a map-style dataset; its default
    collation stacks the arrays, which copies them.

    Parameters
    ----------
    samples : ColumnSamples
        The table of rows.
    reduction : tuple
        The result of `__reduce__`: a function and arguments that open the dataset
        again, by its path.

    Examples
    --------
    >>> import numpy as np
    >>> from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
    >>> with ShardedDatasetWriter("weather") as writer:
    ...     writer.add_field("history")
    ...     for day in range(3):
    ...         sample_id = writer.add_sample({"history": np.full(4, day)})
    >>> samples = ShardedDatasetReader("weather").samples
    >>> samples[-1]
    {'history': array([2, 2, 2, 2])}
    """

    def __init__(
        self,
        samples: ColumnSamples,
        reduction: tuple[Callable[..., ArraySequence], tuple[Any, ...]],
    ) -> None:
        self._samples = samples
        self._read = samples.arrays
        self._reduction = reduction

    def __len__(self) -> int:
        return len(self._samples)

    @overload
    def __getitem__(self, i: SupportsIndex) -> Arrays: ...
    @overload
    def __getitem__(self, i: slice) -> list[Arrays]: ...
    def __getitem__(self, i: SupportsIndex | slice) -> Arrays | list[Arrays]:
        """Return the arrays of a sample, or of a slice of samples.

        Fields that a sample lacks are left out.

        Parameters
        ----------
        i : int or slice
            Position in insertion order; negative ones count from the end.

        Returns
        -------
        dict of str to ndarray, or list of them
            Views of the shards, valid for as long as they are referenced.

        Raises
        ------
        IndexError
            The position is out of range.
        FormatError, OSError, ClosedError
            An array cannot be read.

        Examples
        --------
        >>> reader.samples[1]
        {'history': array([1, 1, 1, 1]), 'target': array([1., 1.])}
        >>> len(reader.samples[1:])
        2
        """
        if type(i) is not int and isinstance(i, slice):
            return [self._read(k) for k in range(*i.indices(len(self)))]
        return self._read(i)  # type: ignore[arg-type]  # takes any integer

    def __getitems__(self, positions: Iterable[int]) -> list[Arrays]:
        """Return several samples: torch's DataLoader fetches a batch by this method.

        Their bytes are prefetched together and copied into one array a field; the
        arrays of a sample are rows of it, and writable.
        """
        samples = self._samples
        order = resolve_positions(positions, len(samples))
        try:
            stacks = stack_columns(samples, order, samples.columns)
        except FieldNotFoundError:  # a sample lacks a field
            return [samples.arrays(i, None, True) for i in order]
        items: list[Arrays] = [{} for _ in order]
        for field, stack in stacks.items():
            if isinstance(stack, list):  # of a ragged field
                for item, array in zip(items, stack, strict=True):
                    item[field] = array.copy()
            else:
                for k, item in enumerate(items):
                    item[field] = stack[k, ...]  # a view, also of a 0-d array
        return items

    def __repr__(self) -> str:
        return f"<{len(self):,} samples of {self._samples.owner.path!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduction
