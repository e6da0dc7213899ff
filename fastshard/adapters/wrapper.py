"""Loaders whose arrays are converted for another library."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from typing import Self

    from numpy.typing import NDArray

    from fastshard.loader.loader import Loader
    from fastshard.loader.stats import LoaderStats

__all__ = ["LoaderWrapper"]


class LoaderWrapper:
    """Iterator over the batches of a loader, their arrays converted.

    Subclasses convert an array, and wait for the end of asynchronous reads.

    Parameters
    ----------
    loader : Loader
        Closed with this.
    """

    def __init__(self, loader: Loader[Any]) -> None:
        self._loader = loader

    def _convert_array(self, array: NDArray[Any]) -> Any:
        raise NotImplementedError

    def _begin(self) -> None:
        """Wait for reads of the memory that the next batch may overwrite."""

    def _end(self) -> None:
        """Note that a batch was converted: its reads may go on."""

    def _finish(self) -> None:
        """Wait for reads of all batches."""

    def _convert_batch(self, batch: Any) -> Any:
        converted = self._convert(batch)
        self._end()
        return converted

    def _convert(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return self._convert_array(value)
        if isinstance(value, dict):
            return {name: self._convert(each) for name, each in value.items()}
        if isinstance(value, tuple):
            values = [self._convert(each) for each in value]
            return type(value)(*values) if hasattr(value, "_fields") else tuple(values)
        if isinstance(value, list) and any(isinstance(v, np.ndarray) for v in value):
            return [self._convert(each) for each in value]
        return value

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        self._begin()
        return self._convert_batch(next(self._loader))

    def __len__(self) -> int:
        """Return the number of remaining batches.

        Returns
        -------
        int
        """
        return len(self._loader)

    def __length_hint__(self) -> int:
        return 0  # `list` must not count the samples of unread shards

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the batches that were returned.

        Returns
        -------
        dict
            JSON of less than 1 KB; as of `Loader.state_dict` and `Dataset.batches`.
        """
        return self._loader.state_dict()

    def stats(self, since: LoaderStats | None = None) -> LoaderStats:
        """Return the loader's statistics.

        Parameters
        ----------
        since : LoaderStats, optional
            Earlier ones, to be subtracted.

        Returns
        -------
        LoaderStats
            As of `Loader.stats`.
        """
        return self._loader.stats(since)

    def replay(self, n: int) -> Iterator[Any]:
        """Iterate `n` times over the batches that are made ahead, without reading.

        Parameters
        ----------
        n : int

        Yields
        ------
        object
            Converted batches; see `Loader.replay`.
        """
        for batch in self._loader.replay(n):
            yield self._convert_batch(batch)
            self._begin()

    def close(self) -> None:
        """End the loader's threads."""
        self._finish()
        self._loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
