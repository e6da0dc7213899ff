"""What a dataset does with many samples at a time: batches, copies, iterations."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fastshard._core.ahead import Ahead
from fastshard._core.bring import bring_samples
from fastshard._core.fetched import Fetched, fetch_samples
from fastshard.awaiting import in_thread
from fastshard.batches import Describe, Stateful
from fastshard.gathering import Ragged, column_of, field_types, gather_samples
from fastshard.iteration import Iteration, OnError
from fastshard.memory import memory_info
from fastshard.ordered import Ordered
from fastshard.reading import WINDOW
from fastshard.shardset import ShardSet

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Bulk"]


MOST_FETCHED = 1 << 62  # bytes of a remote batch, without max_memory


class Bulk(Ordered):
    """The part of `Dataset` that reads many samples; it knows no positions."""

    __slots__ = ()

    _set: ShardSet

    @abstractmethod
    def _samples_at(self, positions: Iterable[int]) -> list[Any]:
        """Return samples, narrowed; not mapped."""

    @abstractmethod
    def _ahead(
        self, order: Any, window: int, describe: Describe | None = None
    ) -> Ahead | Fetched:
        """Return an iterator over items; with `describe` it knows its state."""

    @abstractmethod
    def _count_of(self, order: Any) -> int | None:
        """Return how many samples an order has; None if nobody has counted them."""

    def _brought(
        self, positions: Iterable[int], only: tuple[str, ...] | None = None
    ) -> list[Any]:
        """Return samples whose bytes, or those of some fields, are in memory."""
        samples = self._samples_at(positions)
        reading = self._set.reading
        if self._set.remote is not None:
            fetch_samples(samples, reading.max_memory or MOST_FETCHED, only)
        elif reading.prefetch:
            bring_samples(samples, reading.window_bytes)
        return samples

    def get_many(self, positions: Iterable[int]) -> list[Any]:
        """Return samples by position, in the order given, as a list.

        Their bytes are brought into memory together, without the GIL.

        Raises
        ------
        IndexError
            There is no such position.
        FormatError, OSError
            A sample cannot be read.
        """
        items = self._brought(positions)
        return [self._staged(item) for item in items] if self._stages else items

    async def get_many_async(self, positions: Iterable[int]) -> list[Any]:
        """Do what `get_many` does, without holding up the event loop.

        Calls that are awaited together ask for their ranges together. In asyncio's
        loops and trio's.
        """
        wanted = list(positions)
        return await in_thread(lambda: self.get_many(wanted))

    def read_into(
        self,
        positions: Iterable[int],
        out: Any,
        *,
        fields: str | Sequence[str] | None = None,
        threads: int | None = None,
    ) -> NDArray[np.int64]:
        """Copy the stored bytes of many samples into one buffer, without the GIL.

        Parameters
        ----------
        positions : sequence of int, or array
        out : buffer
            As for `Shard.read_into`.
        fields : str or sequence of str, optional
            Which fields of each sample, in this order; otherwise all that it shows.
        threads : int, optional
            As for `Shard.read_into`.

        Returns
        -------
        ndarray of int64 [fields of all samples + 1]
            Where each field begins in `out`, in bytes, and where the last ends.

        Raises
        ------
        FieldNotFoundError
            A sample has no such field.
        ValueError, IndexError, FormatError, OSError
            As for `Shard.read_into`.
        """
        wanted = (fields,) if isinstance(fields, str) else fields
        return gather_samples(self._samples_at(positions), out, wanted, threads)

    def columns(
        self,
        positions: Iterable[int],
        fields: Any,
        *,
        ragged: Ragged = "error",
        threads: int | None = None,
    ) -> dict[str, Any]:
        """Return fields of many samples, each as one array.

        Parameters
        ----------
        positions : sequence of int, or array
        fields : str, sequence of str, or mapping of str
            ``npy`` fields (those whose name ends so) keep their dtype and shape;
            others are raw bytes. A mapping tells the dtype of raw values, or their
            dtype and shape: ``{"vec": "float32", "grid": ("u1", (8, 8))}``.
        ragged : {"error", "list"}
            What of a field whose shape or dtype is not the same in all samples: an
            error; or a list of arrays, without a copy.
        threads : int, optional
            As for `Shard.read_into`.

        Returns
        -------
        dict of str to ndarray [positions, *shape]
            Copies: they are the caller's own.

        Raises
        ------
        RaggedError
            A field is ragged; the error names the sample.
        FieldNotFoundError, FormatError, ValueError, IndexError, OSError
            As for `Sample.array`.
        """
        if ragged not in ("error", "list"):
            raise ValueError(f'ragged is "error" or "list", not {ragged!r}')
        types = field_types(fields)
        samples = self._brought(positions, tuple(types))
        return {
            field: column_of(samples, field, told, ragged, threads)
            for field, told in types.items()
        }

    def _steps(self, window: int, describe: Describe) -> Stateful:
        return self._ahead(None, window, describe)

    def scan(self, order: Any = None, window: int = WINDOW) -> Iterator[Any]:
        """Iterate over samples whose bytes are brought before they are asked for.

        Parameters
        ----------
        order : slice, sequence of int, or array, optional
            Positions, or a mask; all samples in order without it.
        window : int
            How many samples are brought ahead; more of small ones that follow
            each other. 0: none.

        Nothing is brought while all of a shard is in the page cache. A native
        thread does it otherwise; it ends with the iteration. An error comes where
        its sample stands, and does not end the iteration.
        """
        return self._ahead(order, window)

    def iterate(
        self, *, on_error: OnError = "raise", order: Any = None, window: int = WINDOW
    ) -> Iteration:
        """Iterate over the samples, past those that cannot be read.

        Parameters
        ----------
        on_error : {"raise", "skip"} or callable
            What to do with a sample that cannot be read: raise; go on with the
            next; or call ``on_error(error, position)`` and go on. Positions of
            the others do not move. The iterator counts them: ``skipped``.
        order, window
            As for `scan`.

        A shard that cannot be opened counts as one sample.
        """
        items = self._ahead(order, window)
        return Iteration(items, self._count_of(order), on_error)

    def memory_info(self) -> dict[str, int | None]:
        """Say how much memory reading takes now, in bytes.

        Returns
        -------
        dict
            ``mapped``: of the address space, by shards that are open. ``resident``:
            of that, in this process's memory; None where the system does not say.
            ``buffered``: brought ahead by iterations.
        """
        return memory_info(self._set)
