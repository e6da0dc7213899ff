"""Datasets made of datasets: mixed in proportions, or joined by key."""

from __future__ import annotations

import threading
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from hashlib import blake2b
from itertools import accumulate, islice
from math import ceil, floor
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, cast, overload

from fastshard._core.table.order import Order, Shuffle
from fastshard.dataset.base import BaseDataset, T
from fastshard.dataset.iteration import ErrorHandler, SampleIterator, T_co, alone
from fastshard.dataset.order.plan import (
    Plan,
    check_seed,
    order_digest,
    permutation_keys,
)
from fastshard.dataset.order.state import Identity
from fastshard.errors import AmbiguousKeyError, FastshardError, SampleNotFoundError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fastshard.dataset.dataset import Dataset

__all__ = [
    "CombinedDataset",
    "Mix",
    "Zip",
    "mix",
    "zip_by_key",
]


class CombinedDataset(BaseDataset[T_co]):
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
    def _again(
        self, plan: Plan, stages: tuple[Callable[[Any], Any], ...]
    ) -> CombinedDataset[Any]:
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

    def _with_plan(self, plan: Plan) -> Self:
        return cast(Self, self._again(plan, self._stages))

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
    def __getitem__(self, key: int | np.integer[Any]) -> T_co: ...
    @overload
    def __getitem__(self, key: slice | Sequence[int] | NDArray[Any]) -> Self: ...
    def __getitem__(self, key: Any) -> Any:
        """Return an item by position, or a dataset of some, as `Dataset` does."""
        if getattr(key, "ndim", 0) == 0 and hasattr(key, "__index__"):
            return self.get_many([key])[0]
        return self._select(key)

    def get_many(self, positions: Iterable[int]) -> list[T_co]:
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
        return self._map_items(items, asked)

    def map(self, fn: Callable[[T_co], T]) -> CombinedDataset[T]:
        """Return a dataset of ``fn(item)``, called when an item is asked for."""
        return self._again(self._plan, (*self._stages, fn))

    def _iterator(
        self, window: int, on_error: ErrorHandler | None
    ) -> SampleIterator[T_co]:
        return CombinedIterator(self, max(window, 1), on_error)


class Failure:
    """What stands for an item that could not be read."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class CombinedIterator(Iterator[T_co]):
    """An iterator that reads some items at a time; see `SampleIterator`."""

    def __init__(
        self, items: CombinedDataset[T_co], window: int, on_error: ErrorHandler | None
    ) -> None:
        self._items = items
        self._window = window
        self._on_error = on_error
        self._waiting: list[Any] = []  # what was read, the next one last
        self._entered = threading.Lock()
        self._closed = False
        self.position = 0
        self.skipped = items._plan.skipped

    def __iter__(self) -> Self:
        return self

    def __length_hint__(self) -> int:
        return 0 if self._closed else len(self._items) - self.position

    def __next__(self) -> T_co:
        with alone(self._entered):
            while True:
                if self._closed:
                    raise StopIteration
                if not self._waiting:
                    self._fill()
                item = self._waiting.pop()
                self.position += 1
                if not isinstance(item, Failure):
                    return cast(T_co, item)
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
    join: str, datasets: Sequence[BaseDataset[Any]], samples: int, *how: object
) -> Identity:
    """Return the identity of datasets put together in some way."""
    parts = []
    for part in datasets:
        identity = part._identity()
        order = order_digest(part._order())
        parts.append((identity.samples, identity.digest, order))
    digest = blake2b(repr((how, parts)).encode(), digest_size=8).hexdigest()
    name = join.join(part._identity().name for part in datasets)
    return Identity(name, samples, digest)


BLOCK = 1024  # places in which the proportions hold
Stop = Literal["first", "all"]


def mix(
    datasets: Sequence[BaseDataset[T]],
    weights: Sequence[float] | None = None,
    seed: int = 0,
    *,
    stop: Stop = "first",
) -> Mix[T]:
    """Mix datasets: their samples take turns at random, in given proportions.

    Each dataset keeps its own order at large: 1,024 neighbours of the mix are shuffled
    among themselves. Shuffle the datasets before, or the mix as a whole, where more is
    wanted. What comes when depends on nothing but the seed, the weights and the sizes.

    Parameters
    ----------
    datasets : sequence of datasets
        Of `open`, `mix` or `zip_by_key`; mapped, selected or shuffled ones too.
    weights : sequence of float, optional
        Their proportions, which need not add up to 1; by their sizes without it,
        so that each sample comes once. In 1,024 places from a multiple of that on
        they hold, but for about one sample a dataset.
    seed : int
    stop : {"first", "all"}
        When to end: when the first dataset is used up; or when all were, those that
        are used up before beginning again.

    Returns
    -------
    Mix
        A sequence of their items. It can be shuffled as a whole, split by rank,
        resumed and batched, as any dataset.

    Raises
    ------
    ValueError
        No datasets, or weights that are not positive or of another number.
    """
    datasets = list(datasets)
    if not datasets:
        raise ValueError("a mix of no datasets")
    for dataset in datasets:
        if not isinstance(dataset, BaseDataset):
            raise TypeError(f"datasets are mixed, not {type(dataset).__name__}")
    if stop not in ("first", "all"):
        raise ValueError(f'stop is "first" or "all", not {stop!r}')
    if weights is not None:
        weights = [float(weight) for weight in weights]
        if len(weights) != len(datasets):
            raise ValueError(f"{len(weights)} weights for {len(datasets)} datasets")
        if not all(0 < weight < float("inf") for weight in weights):
            raise ValueError(f"weights are positive, not {weights}")
    return Mix(datasets, weights, check_seed(seed), stop)


class Mix(CombinedDataset[T_co]):
    """Datasets mixed in given proportions; see `mix`."""

    def __init__(
        self,
        datasets: list[BaseDataset[Any]],
        weights: list[float] | None,
        seed: int,
        stop: Stop,
        plan: Plan = Plan(),  # noqa: B008 - immutable
        stages: tuple[Callable[[Any], Any], ...] = (),
    ) -> None:
        super().__init__(plan, stages)
        self.datasets = datasets
        self._options = (weights, seed, stop)
        self._shares: list[int] | None = None  # samples of each, once counted
        self._blocks: Shuffle | None = None

    def _again(self, plan: Plan, stages: tuple[Callable[[Any], Any], ...]) -> Mix[Any]:
        return Mix(self.datasets, *self._options, plan, stages)

    if TYPE_CHECKING:

        def map(self, fn: Callable[[T_co], T]) -> Mix[T]: ...

    @property
    def shares(self) -> list[int]:
        """How many samples come from each dataset."""
        if self._shares is None:
            weights, seed, stop = self._options
            sizes = [len(dataset) for dataset in self.datasets]
            self._shares = sizes if weights is None else shares(sizes, weights, stop)
            keys = permutation_keys(seed, 0)
            self._blocks = Shuffle(sum(self._shares), keys, BLOCK, local=True)
        return self._shares

    def _total(self) -> int:
        return sum(self.shares)

    def _identify(self) -> Identity:
        _, seed, stop = self._options
        how = ("mix", self.shares, seed, stop)
        return combined(" + ", self.datasets, self._total(), *how)

    def source_of(self, place: int) -> tuple[int, int]:
        """Return which dataset a place of the mix is of, and the position there."""
        left = self.shares
        assert self._blocks is not None
        start = place - place % BLOCK
        stop = min(start + BLOCK, sum(left))
        begins = split(left, start)
        ends = split(left, stop)
        counts = list(accumulate(b - a for a, b in zip(begins, ends, strict=True)))
        rank = self._blocks[place] - start  # of what the block has, dataset by dataset
        k = bisect_right(counts, rank)
        before = counts[k - 1] if k else 0
        return k, (begins[k] + rank - before) % len(self.datasets[k])

    def _items(self, places: Iterable[int]) -> list[Any]:
        wanted = [self.source_of(place) for place in places]
        by_dataset: list[list[int]] = [[] for _ in self.datasets]
        for k, position in wanted:
            by_dataset[k].append(position)
        found = [
            iter(dataset.get_many(positions) if positions else ())
            for dataset, positions in zip(self.datasets, by_dataset, strict=True)
        ]
        return [next(found[k]) for k, _ in wanted]

    def __repr__(self) -> str:
        return f"<Mix of {self.datasets!r}{self._plan}>"


def shares(sizes: Sequence[int], weights: Sequence[float], stop: Stop) -> list[int]:
    """Return how many samples of each dataset are mixed.

    With ``"first"`` none has more than its size; with ``"all"`` none has fewer.
    """
    if 0 in sizes:
        if stop == "first":
            return [0] * len(sizes)
        raise ValueError("a dataset of no samples cannot begin again")
    whole = [Fraction(weight) for weight in weights]
    rounds = [size / weight for size, weight in zip(sizes, whole, strict=True)]
    if stop == "first":
        return [floor(min(rounds) * weight) for weight in whole]
    return [ceil(max(rounds) * weight) for weight in whole]


def split(shares: Sequence[int], count: int) -> list[int]:
    """Return how many of the first `count` places fall to each dataset.

    None has fewer places of more: each in turn takes its part, rounded down, of
    what the ones before left.
    """
    found = []
    total = sum(shares)
    for share in shares:
        part = count * share // total if total else 0
        found.append(part)
        total -= share
        count -= part
    return found


A = TypeVar("A")
B = TypeVar("B")
SHOWN = 5  # keys that an error names


def zip_by_key(a: Dataset[A], b: Dataset[B], strict: bool = True) -> Zip[tuple[A, B]]:
    """Join two datasets by key: a sequence of pairs ``(sample of a, sample of b)``.

    Pairs come in the order of `a`. Nothing is read or looked up before a pair is
    asked for; then `b` is looked up by key (see `Dataset.keys`).

    Parameters
    ----------
    a, b : Dataset
        Mapped or decoded ones too; `b` must not have a key twice.
    strict : bool
        Each must have the keys of the other: what is missing is an error, which
        names it. Otherwise keys that only one has are left out, for which all keys
        of `a` are looked up once.

    Raises
    ------
    FastshardError
        When pairs are counted: the datasets have not as many samples.
    SampleNotFoundError
        When a pair is asked for: `b` has no such key.
    AmbiguousKeyError
        It has several; or, if it must have all, `a` has.
    """
    from fastshard.dataset.dataset import Dataset

    for dataset in (a, b):
        if not isinstance(dataset, Dataset):
            raise TypeError(f"datasets with keys are joined, not {dataset!r:.60}")
    return Zip(a, b, strict)


class Zip(CombinedDataset[T_co]):
    """Pairs of samples with the same key; see `zip_by_key`."""

    def __init__(
        self,
        a: Dataset[Any],
        b: Dataset[Any],
        strict: bool,
        plan: Plan = Plan(),  # noqa: B008 - immutable
        stages: tuple[Callable[[Any], Any], ...] = (),
        common: Any = None,
    ) -> None:
        super().__init__(plan, stages)
        self.datasets = (a, b)
        self._strict = strict
        self._common = common  # positions in `a` of keys that both have; or None

    def _again(self, plan: Plan, stages: tuple[Callable[[Any], Any], ...]) -> Zip[Any]:
        return Zip(*self.datasets, self._strict, plan, stages, self._common)

    if TYPE_CHECKING:

        def map(self, fn: Callable[[T_co], T]) -> Zip[T]: ...

    def _total(self) -> int:
        a, b = self.datasets
        if self._strict:
            if len(a) != len(b):
                raise FastshardError(self._difference())
            return len(a)
        if self._common is None:
            from array import array

            theirs = b.keys()
            places = (i for i, key in enumerate(a.keys()) if key in theirs)
            self._common = array("q", places)
        return len(self._common)

    def _difference(self) -> str:
        """Say which keys one dataset has and the other has not."""
        a, b = self.datasets
        told = [f"the first dataset has {len(a):,} samples, the second {len(b):,}"]
        for name, mine, theirs in (("second", a, b), ("first", b, a)):
            known = theirs.keys()
            own = mine.keys()
            missing = list(islice((key for key in own if key not in known), SHOWN + 1))
            if missing:
                more = ", ..." if len(missing) > SHOWN else ""
                shown = ", ".join(map(repr, missing[:SHOWN]))
                told.append(f"the {name} has no {shown}{more}")
        return "; ".join(told)

    def _identify(self) -> Identity:
        return combined(" & ", self.datasets, self._total(), "zip", self._strict)

    def _items(self, places: Iterable[int]) -> list[Any]:
        a, b = self.datasets
        if self._common is not None:
            places = [self._common[place] for place in places]
        mine, theirs = list(places), b.keys()
        keys = [a.keys()[i] for i in mine]
        if self._strict:  # as many samples, each key once, and each in `b`: all of it
            for i, key in zip(mine, keys, strict=True):
                if a.keys().index(key) != i:
                    raise AmbiguousKeyError(key, [a.keys().index(key), i])
        try:
            others = [theirs.index(key) for key in keys]
        except SampleNotFoundError:
            missing = [key for key in keys if key not in theirs]
            where = f"the second dataset of zip_by_key, below {b._set.root}"
            raise SampleNotFoundError(missing[0], where) from None
        return list(zip(a.get_many(mine), b.get_many(others), strict=True))

    def __repr__(self) -> str:
        return f"<Zip of {self.datasets[0]!r} and {self.datasets[1]!r}{self._plan}>"
