"""What a dataset does with many samples at a time: batches, copies, iterations."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastshard._core.bring import bring_samples
from fastshard._core.fetched import fetch_samples
from fastshard._util.aio import in_thread
from fastshard.collation import column_of
from fastshard.formats.decoders import Decoder
from fastshard.gathering import Ragged, field_types, gather_samples
from fastshard.memory import memory_info
from fastshard.ordered import Ordered
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
    _decoders: Mapping[str, Decoder] | None

    @abstractmethod
    def _samples_at(self, positions: Iterable[int]) -> list[Any]:
        """Return samples, narrowed; not mapped."""

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
        if not self._stages:
            return self._brought(positions)
        asked = list(positions)
        return self._all_staged(self._brought(asked), asked)

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
            By the field's decoder, as in a batch: ``npy`` fields keep their dtype and
            shape; ``cls`` and the like are integers; a decoder of your own gives what
            is stacked, or a list where that cannot be. Others are raw bytes. A
            mapping tells the dtype of raw values, or their dtype and shape:
            ``{"vec": "float32", "grid": ("u1", (8, 8)), "cls": "u1"}``.
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
            field: column_of(samples, field, told, ragged, threads, self._decoders)
            for field, told in types.items()
        }

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
