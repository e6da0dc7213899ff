"""Datasets put together: samples that come from several datasets."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Self, overload

from fastshard._core.orders import Order
from fastshard.batches import alone
from fastshard.iteration import ErrorHandler, Iteration
from fastshard.ordered import Ordered
from fastshard.plan import Plan, describe
from fastshard.state import Identity

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Combined"]


class Combined(Ordered):
    """The base of datasets whose samples come from others; it has an order of its own.

    Shuffled, split, resumed, mapped and batched as a `Dataset`. The others stay as
    they are: close them when they are no longer needed.
    """

    def __init__(self, plan: Plan, stages: tuple[Callable[[Any], Any], ...]) -> None:
        self._plan = plan
        self._stages = stages
        self._found: Order | None = None  # the plan's order, once it is known
        self._count: int | None = None
        self._known: Identity | None = None

    @abstractmethod
    def _again(self, plan: Plan, stages: tuple[Callable[[Any], Any], ...]) -> Self:
        """Return the same with another plan and other stages."""

    @abstractmethod
    def _identify(self) -> Identity:
        """Say what dataset it is."""

    def _identity(self) -> Identity:
        if self._known is None:
            self._known = self._identify()
        return self._known

    @abstractmethod
    def _items(self, places: Iterable[int]) -> list[Any]:
        """Return items by their places, before they are mapped."""

    def _planned(self, plan: Plan) -> Self:
        return self._again(plan, self._stages)

    def __len__(self) -> int:
        if self._count is None:
            total = self._total()
            self._found = self._plan.order(total)
            self._count = total if self._found is None else self._found.count
        return self._count

    def _order(self) -> Order | None:
        len(self)
        return self._found

    @overload
    def __getitem__(self, key: int) -> Any: ...
    @overload
    def __getitem__(self, key: slice | Sequence[int] | NDArray[Any]) -> Self: ...
    def __getitem__(self, key: Any) -> Any:
        """Return an item by position, or a dataset of some, as `Dataset` does."""
        if getattr(key, "ndim", 0) == 0 and hasattr(key, "__index__"):
            return self.get_many([key])[0]
        return self._some(key)

    def get_many(self, positions: Iterable[int]) -> list[Any]:
        """Return items by position, in the order given, as a list.

        Raises
        ------
        IndexError
            There is no such position.
        FormatError, OSError
            A sample cannot be read.
        """
        numbers = range(len(self))
        asked = [numbers[i] for i in positions]
        places = asked
        if self._found is not None:
            places = [self._found[place] for place in asked]
        items = self._items(places)
        if not self._stages:
            return items
        return self._all_staged(items, asked)

    def map(self, fn: Callable[[Any], Any]) -> Self:
        """Return a dataset of ``fn(item)``, called when an item is asked for."""
        return self._again(self._plan, (*self._stages, fn))

    def _steps(self, window: int, on_error: ErrorHandler | None) -> Iteration:
        return Steps(self, max(window, 1), on_error)


class Failure:
    """What stands for an item that could not be read."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class Steps(Iterator[Any]):
    """An iterator that reads some items at a time; see `Iteration`."""

    def __init__(
        self, items: Combined, window: int, on_error: ErrorHandler | None
    ) -> None:
        self._items = items
        self._window = window
        self._on_error = on_error
        self._waiting: list[Any] = []  # what was read, the next one last
        self._entered = threading.Lock()
        self._closed = False
        self.position = 0
        self.skipped = items._plan.skipped

    def __length_hint__(self) -> int:
        return 0 if self._closed else len(self._items) - self.position

    def __next__(self) -> Any:
        with alone(self._entered):
            while True:
                if self._closed:
                    raise StopIteration
                if not self._waiting:
                    self._fill()
                item = self._waiting.pop()
                self.position += 1
                if not isinstance(item, Failure):
                    return item
                error = item.error.with_traceback(None)
                told = self._on_error
                if told is None or not told(error, self.position - 1):
                    raise error
                self.skipped += 1

    def _fill(self) -> None:
        """Read a window: all at once, or one by one where something is wrong."""
        places = range(
            self.position, min(self.position + self._window, len(self._items))
        )
        if not places:
            raise StopIteration
        try:
            found = self._items.get_many(places)
        except Exception:
            found = [self._one(place) for place in places]
        self._waiting = found[::-1]

    def _one(self, place: int) -> Any:
        try:
            return self._items.get_many([place])[0]
        except Exception as error:
            return Failure(error)

    def state_dict(self) -> dict[str, Any]:
        """Return what `resume` goes on from: all so far is done, or skipped."""
        return self.state_after(self.position, self.skipped)

    def state_after(self, done: int, skipped: int) -> dict[str, Any]:
        """Return the state after some items, and so many skipped in all."""
        return self._items._state_after(done, skipped)

    def close(self) -> None:
        """End the iteration."""
        self._closed = True
        self._waiting = []


def combined(
    join: str, datasets: Sequence[Ordered], samples: int, *how: object
) -> Identity:
    """Return the identity of datasets put together in some way."""
    parts = []
    for part in datasets:
        identity = part._identity()
        order = describe(part._order())
        parts.append((identity.samples, identity.digest, order))
    digest = blake2b(repr((how, parts)).encode(), digest_size=8).hexdigest()
    name = join.join(part._identity().name for part in datasets)
    return Identity(name, samples, digest)
