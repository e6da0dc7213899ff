"""Iterations over typed datasets: filtered, and restartable."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Any, Protocol, Self, TypeVar

from fastshard._core.dataset.shard import add_notes
from fastshard._core.dataset.streams import CallGuard
from fastshard.dataset.sequence.iteration import ErrorHandler, SampleIterator

__all__ = ["FilteredIterator", "Iteration"]

Item = TypeVar("Item", covariant=True)


class SampleFilter(Protocol):
    """Filter of a `FilteredIterator`, which collects the selected positions."""

    fn: Callable[[Any], object]

    def finish(self, positions: array[int]) -> None:
        """Keep the positions that were selected in a whole iteration."""
        ...

    def name_sample(self, position: int) -> str:
        """Return the name of a sample of the unfiltered dataset, for errors."""
        ...


class FilteredIterator(Iterator[Any]):
    """Iterator over the samples that a filter selects, in order.

    Implements `SampleIterator`. Where it reads all samples, the filter needs no other
    evaluation.
    """

    def __init__(
        self,
        selection: SampleFilter,
        stages: tuple[Callable[[Any], Any], ...],
        samples: SampleIterator[Any],
        describe: Callable[[int, int], dict[str, Any]] | None,
        on_error: ErrorHandler | None = None,
    ) -> None:
        self._filter = selection
        self._fn = selection.fn
        self._stages = stages
        self._samples = samples
        self._describe = describe
        self._on_error = on_error
        self._selected = array("q")
        self._skipped = 0
        self._guard = CallGuard()
        self._is_whole = samples.position == 0  # no item was missed so far
        self.position = 0

    def __iter__(self) -> Self:
        return self

    @property
    def skipped(self) -> int:
        """The number of unreadable samples that were skipped."""
        return self._skipped + self._samples.skipped

    def __repr__(self) -> str:
        skipped = f"; {self.skipped:,} skipped" if self.skipped else ""
        return f"{type(self).__name__}(position {self.position:,}{skipped})"

    def __length_hint__(self) -> int:
        return 0  # the number of selected samples is unknown

    def __next__(self) -> Any:
        return self._guard.call(self._advance)

    def _advance(self) -> Any:
        samples = self._samples
        while True:
            try:
                item = next(samples)
            except StopIteration:
                if self._is_whole and not self.skipped:
                    self._is_whole = False
                    self._filter.finish(self._selected)
                raise
            except Exception:
                self._is_whole = False
                raise
            try:
                if not self._fn(item):
                    continue
                at = samples.position - 1
                for stage in self._stages:
                    item = stage(item)
            except Exception as error:
                if not self._is_skipped(error, item):
                    raise
                continue
            self._selected.append(at)
            self.position += 1
            return item

    def _is_skipped(self, error: Exception, item: Any) -> bool:
        """Count and skip an error if the handler says so; else add notes to it."""
        self._is_whole = False
        position = self._samples.position - 1
        if self._on_error is not None and self._on_error(error, position):
            self._skipped += 1
            return True
        where = f"position {position:,} of the unfiltered dataset"
        name = self._filter.name_sample(position)
        failure = add_notes(error, item, f"{name}, {where}" if name else where)
        if failure is not error:
            raise failure from error
        return False

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the samples so far, skipped ones included."""
        return self.state_after(self.position, self.skipped)

    def state_after(self, done: int, skipped: int) -> dict[str, Any]:
        """Return the state after `done` selected samples; evaluates the filter."""
        if self._describe is None:
            raise TypeError("this iteration has no state")
        return self._describe(done, skipped)

    def close(self) -> None:
        """End the iteration and its prefetching thread."""
        self._is_whole = False
        self._samples.close()


class StatefulIterator(Protocol[Item]):
    """Iterator over samples or batches with a state."""

    @property
    def position(self) -> int:
        """The position of the next sample."""
        ...

    def __iter__(self) -> Iterator[Item]: ...
    def __next__(self) -> Item: ...
    def state_dict(self) -> dict[str, Any]:
        """Return the state after the items so far."""
        ...

    def close(self) -> None:
        """End the iteration."""
        ...


class Iteration(Iterator[Item]):
    """Iterable of `Dataset.ordered` and `Dataset.shuffled`; each use begins anew.

    Each ``for`` loop over it reads the dataset from the start. After `next` was called
    on it, it is an iterator that continues.

    Attributes
    ----------
    current : SampleIterator, BatchIterator or None
        The iterator that was begun last, with ``position`` and ``state_dict()``.

    Examples
    --------
    >>> samples = ds.ordered()
    >>> len(list(samples)), len(list(samples))
    (100, 100)
    >>> _ = next(samples)
    >>> len(list(samples))
    99
    """

    def __init__(self, begin: Callable[[], StatefulIterator[Item]]) -> None:
        self._begin = begin
        self._is_iterator = False
        self.current: StatefulIterator[Item] | None = None

    def __iter__(self) -> Iterator[Item]:
        if self._is_iterator:
            assert self.current is not None
            return iter(self.current)
        self.current = self._begin()
        return iter(self.current)

    def __next__(self) -> Item:
        if not self._is_iterator:
            self.current = self._begin()
            self._is_iterator = True
        assert self.current is not None
        return next(self.current)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.current or 'not begun'})"

    @property
    def position(self) -> int:
        """The position of the next sample in the latest iteration."""
        return 0 if self.current is None else self.current.position

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the latest iteration.

        Examples
        --------
        >>> samples = ds.ordered()
        >>> _ = next(samples)
        >>> len(ds.resume(samples.state_dict()))
        99
        """
        if self.current is None:
            self.current = self._begin()
            self._is_iterator = True
        return self.current.state_dict()

    def close(self) -> None:
        """End the latest iteration.

        Examples
        --------
        >>> ds.ordered().close()
        """
        if self.current is not None:
            self.current.close()
