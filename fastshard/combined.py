"""Datasets put together: samples that come from several datasets."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Self, overload

from fastshard._core.orders import Order
from fastshard.batches import Describe, Stateful, alone
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
        places: Iterable[int] = [numbers[i] for i in positions]
        if self._found is not None:
            places = [self._found[place] for place in places]
        items = self._items(places)
        return [self._staged(item) for item in items] if self._stages else items

    def map(self, fn: Callable[[Any], Any]) -> Self:
        """Return a dataset of ``fn(item)``, called when an item is asked for."""
        return self._again(self._plan, (*self._stages, fn))

    def _steps(self, window: int, describe: Describe) -> Stateful:
        return Steps(self, max(window, 1), describe)


class Failure:
    """What stands for an item that could not be read."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class Steps(Iterator[Any]):
    """An iterator that reads some items at a time."""

    def __init__(self, items: Combined, window: int, describe: Describe) -> None:
        self._items = items
        self._window = window
        self._describe = describe
        self._waiting: list[Any] = []  # what was read, the next one last
        self._entered = threading.Lock()
        self.taken = 0

    def __length_hint__(self) -> int:
        return len(self._items) - self.taken

    def __next__(self) -> Any:
        with alone(self._entered):
            if not self._waiting:
                self._fill()
            item = self._waiting.pop()
            self.taken += 1
        if isinstance(item, Failure):
            raise item.error.with_traceback(None)
        return item

    def _fill(self) -> None:
        """Read a window: all at once, or one by one where something is wrong."""
        places = range(self.taken, min(self.taken + self._window, len(self._items)))
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
        """Return what `resume` goes on from: all returned so far is done."""
        return self._describe(self.taken)


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
