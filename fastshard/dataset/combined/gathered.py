"""Datasets of windows; a batch is one gather by window number."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

from fastshard.dataset.combined.base import CombinedDataset
from fastshard.dataset.sequence.batch import Collation
from fastshard.dataset.sequence.iteration import ErrorHandler, SampleIterator, T_co

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fastshard.dataset.sequence.base import BaseDataset
    from fastshard.dataset.sequence.loading import LoadedDataset
    from fastshard.formats.layout import Allocate
    from fastshard.loader.buffers import BufferSet

__all__ = ["GatheredDataset"]

WINDOW = "window"  # the name of an array without a field


class GatheredDataset(CombinedDataset[T_co]):
    """Base class of datasets of windows: batches are gathered by window number."""

    @abstractmethod
    def _gather(self, numbers: NDArray[np.int64], allocate: Allocate) -> Any:
        """Return windows by base position as a batch, on memory of `allocate`.

        An array, or a dict of arrays and lists; None if the windows differ in dtype or
        shape.
        """

    @abstractmethod
    def _page_in(self, numbers: NDArray[np.int64]) -> None:
        """Bring the bytes of windows into memory."""

    def _parts(self) -> Sequence[BaseDataset[Any]]:
        return ()

    def _finish_parts(self, items: list[Any]) -> list[Any]:
        return items

    def _base_numbers(self, positions: Sequence[int]) -> NDArray[np.int64]:
        """Return the base positions of windows."""
        import numpy as np

        order = self._order()
        start, stop = positions[0], positions[-1] + 1
        if stop - start != len(positions):  # some were skipped
            return np.array(self._base_positions(list(positions)), np.int64)
        return np.arange(start, stop) if order is None else order.positions(start, stop)

    def _batch_parts(
        self, collate: Callable[[list[Any]], Any], on_error: ErrorHandler | None
    ) -> tuple[SampleIterator[Any], Callable[[list[Any]], Any]]:
        if self._stages or not isinstance(collate, Collation):
            return super()._batch_parts(collate, on_error)
        return WindowNumbers(self), WindowCollation(self, collate)

    def _loaded_parts(
        self, collate: Callable[[list[Any]], Any]
    ) -> tuple[LoadedDataset, Callable[[list[Any]], Any]]:
        if self._stages or not isinstance(collate, Collation):
            return super()._loaded_parts(collate)
        return LoadedWindows(self), WindowCollation(self, collate)


class WindowNumbers(Iterator[int]):
    """Iterator over window positions, for batches made by one gather.

    Implements `SampleIterator`.
    """

    def __init__(self, dataset: GatheredDataset[Any]) -> None:
        self._dataset = dataset
        self._count = len(dataset)
        self.position: int = 0
        self.skipped: int = dataset._plan.skipped

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> int:
        position = self.position
        if position >= self._count:
            raise StopIteration
        self.position = position + 1
        return position

    def take(self, count: int) -> Iterable[tuple[int, int]]:
        """Return the next `count` windows with their positions, fewer at the end."""
        start = self.position
        self.position = stop = max(start, min(start + count, self._count))
        return zip(range(start, stop), range(start, stop), strict=True)

    def __length_hint__(self) -> int:
        return self._count - self.position

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the windows so far."""
        return self.state_after(self.position, self.skipped)

    def state_after(self, done: int, skipped: int) -> dict[str, Any]:
        """Return the state after `done` windows, with `skipped` skipped in total."""
        return self._dataset._state_after(done, skipped)

    def close(self) -> None:
        """End the iteration."""
        self._count = 0


class LoadedWindows:
    """Loader source of window positions; collation gathers the windows.

    Implements `LoadedDataset`.
    """

    _is_finished = True
    _has_images = False

    def __init__(self, dataset: GatheredDataset[Any]) -> None:
        self._dataset = dataset
        self._plan = dataset._plan
        self._is_remote: bool = dataset._is_remote

    def __len__(self) -> int:
        return len(self._dataset)

    def _fetch(self, positions: Sequence[int]) -> list[Any]:
        """Return positions whose bytes are in memory, or the remote windows."""
        if self._is_remote:
            return self._dataset.get_many(positions)
        self._dataset._page_in(self._dataset._base_numbers(positions))
        return list(positions)

    def _finish(self, items: list[Any], positions: Sequence[int]) -> list[Any]:
        return items

    def _name_at(self, position: int) -> str:
        return self._dataset._name_at(position)

    def _state_after(self, done: int, skipped: int | None = None) -> dict[str, Any]:
        return self._dataset._state_after(done, skipped)


class WindowCollation(Collation):
    """Collate windows in one gather, on the memory of another collation."""

    def __init__(self, dataset: GatheredDataset[Any], inner: Collation) -> None:
        vars(self).update(vars(inner))
        self._dataset = dataset
        self._inner = inner

    def on_buffers(self, buffers: BufferSet) -> Self:
        copied = super().on_buffers(buffers)
        copied._inner = self._inner.on_buffers(buffers)
        return copied

    def __call__(self, samples: Sequence[Any]) -> Any:
        """Return the batch of some windows, or of their positions."""
        if not isinstance(samples[0], int):
            return self._stack(samples, WINDOW)
        numbers = self._dataset._base_numbers(samples)
        batch = self._dataset._gather(numbers, self._allocate)
        if batch is None:
            return self._inner(self._dataset.get_many(samples))
        return self._wrap_windows(batch)

    def check(self, sample: Any) -> None:
        """Read a window, to raise its errors."""
        if isinstance(sample, int):
            self._dataset.get_many([sample])

    def _stack(self, windows: Sequence[Any], field: str) -> Any:
        """Return a batch of windows that are in memory."""
        import numpy as np

        first = windows[0]
        if isinstance(first, dict):
            return {
                name: self._stack([window[name] for window in windows], name)
                for name in first
            }
        out = self._allocate(field, (len(windows), len(first)), first.dtype)
        return self._inner.wrap_stack(np.stack(windows, out=out))

    def _wrap_windows(self, batch: Any) -> Any:
        wrap = self._inner.wrap_stack
        if isinstance(batch, dict):
            return {
                name: value if isinstance(value, list) else wrap(value)
                for name, value in batch.items()
            }
        return wrap(batch)

    def _allocate(self, field: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Return C-contiguous memory for a stack."""
        array: NDArray[Any] = self._inner._output(field, shape, dtype)
        if not array.flags.c_contiguous:
            raise ValueError(f"out[{field!r}] must be C-contiguous")
        return array
