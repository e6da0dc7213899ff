"""Loaders and iterators with arrays converted for another library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fastshard._core.dataset.shard import add_notes
from fastshard.dataset.sequence.batch import KEYS, UnusableArrayError, wrap_field

if TYPE_CHECKING:
    from typing import Self

    from numpy.typing import NDArray

    from fastshard.loader.iterator import LoaderIterator
    from fastshard.loader.loader import Loader
    from fastshard.loader.stats import LoaderStats

__all__ = ["ConvertedIterator", "LoaderWrapper"]


class LoaderWrapper:
    """The batches of a loader, with converted arrays.

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

    def _await_reads(self) -> None:
        """Wait for pending reads of converted batches, and drop these."""

    def _convert_batch(self, batch: Any) -> Any:
        try:
            return self._convert(batch)
        except UnusableArrayError as error:
            keys = batch.get(KEYS) if isinstance(batch, dict) else None
            add_notes(error, {KEYS: keys[0]} if keys else None)
            raise

    def _convert(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return self._convert_array(value)
        if isinstance(value, dict):
            convert = self._convert
            return {k: wrap_field(convert, each, k) for k, each in value.items()}
        if isinstance(value, tuple):
            values = [self._convert(each) for each in value]
            return type(value)(*values) if hasattr(value, "_fields") else tuple(values)
        if isinstance(value, list) and any(isinstance(v, np.ndarray) for v in value):
            return [self._convert(each) for each in value]
        return value

    def __iter__(self) -> ConvertedIterator:
        return ConvertedIterator(self, iter(self._loader))

    def __next__(self) -> Any:
        return self._next(self._loader)

    def _next(self, batches: Iterator[Any]) -> Any:
        self._await_reads()
        return self._convert_batch(next(batches))

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch."""
        return len(self._loader)

    def __length_hint__(self) -> int:
        return 0  # `list` must not count the samples of unread shards

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration; see `Loader.epoch`."""
        return self._loader.epoch

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch with the next iteration; see `Loader.set_epoch`.

        Parameters
        ----------
        epoch : int
            At least 0.
        """
        self._loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the batches that were returned.

        Returns
        -------
        dict
            JSON of less than 1 KB; as of `Loader.state_dict` and `Dataset.batches`.
        """
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was saved; see `Loader.load_state_dict`.

        Parameters
        ----------
        state : Mapping
            As for `Dataset.loader`.
        """
        self._loader.load_state_dict(state)

    def stats(self, since: LoaderStats | None = None) -> LoaderStats:
        """Return the loader's statistics.

        Parameters
        ----------
        since : LoaderStats, optional
            Earlier ones, to be subtracted.
        """
        return self._loader.stats(since)

    def replay(self, n: int) -> Iterator[Any]:
        """Iterate `n` times over the batches that are made ahead, without reading.

        Yields
        ------
        object
            Converted batches; see `Loader.replay`.
        """
        for batch in self._loader.replay(n):
            self._await_reads()
            yield self._convert_batch(batch)

    def close(self) -> None:
        """End the loader's iterations and threads."""
        self._await_reads()
        self._loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class ConvertedIterator:
    """Iterator over the batches of one epoch, their arrays converted."""

    def __init__(self, wrapper: LoaderWrapper, batches: LoaderIterator[Any]) -> None:
        self._wrapper = wrapper
        self._batches = batches

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return self._wrapper._next(self._batches)

    def __len__(self) -> int:
        """Return the number of remaining batches."""
        return len(self._batches)

    def __length_hint__(self) -> int:
        return 0  # `list` must not count the samples of unread shards

    @property
    def position(self) -> int:
        """The position of the first sample after the batches so far."""
        return self._batches.position

    @property
    def skipped(self) -> int:
        """The number of samples that were skipped or masked in the batches so far."""
        return self._batches.skipped

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the batches so far; see `Loader.state_dict`."""
        return self._batches.state_dict()

    def stats(self, since: LoaderStats | None = None) -> LoaderStats:
        """Return the statistics of this iteration; see `Loader.stats`."""
        return self._batches.stats(since)

    def close(self) -> None:
        """End the iteration and its threads."""
        self._wrapper._await_reads()
        self._batches.close()
