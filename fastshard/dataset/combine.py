"""Datasets made of datasets: mixed in proportions, or joined by key."""

from __future__ import annotations

import threading
from abc import abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from hashlib import blake2b
from itertools import accumulate, islice
from math import ceil, floor
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, cast, overload

from fastshard._core.table.order import Order, Shuffle
from fastshard.dataset.base import BaseDataset, T
from fastshard.dataset.iteration import (
    ErrorHandler,
    SampleIterator,
    T_co,
    enter_exclusively,
)
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

# Attributes that have other names in pickles of version 0.1.
RENAMED = {"_found": "_cached_order", "_known": "_cached_identity"}


class CombinedDataset(BaseDataset[T_co]):
    """Base class of `Mix` and `Zip`: an order of its own over items of other datasets.

    A base position is that of an item before selection, shuffle and split. The source
    datasets are not closed with this one.
    """

    def __init__(self, plan: Plan, stages: tuple[Callable[[Any], Any], ...]) -> None:
        self._plan = plan
        self._stages = stages
        self._cached_order: Order | None = None  # once counted; None: base positions
        self._count: int | None = None
        self._cached_identity: Identity | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = {RENAMED.get(name, name): state[name] for name in state}

    @abstractmethod
    def _copy(
        self, plan: Plan, stages: tuple[Callable[[Any], Any], ...]
    ) -> CombinedDataset[Any]:
        """Return a copy with another plan and other stages."""

    @abstractmethod
    def _identify(self) -> Identity:
        """Compute the identity of the data, independent of its order."""

    def _identity(self) -> Identity:
        if self._cached_identity is None:
            self._cached_identity = self._identify()
        return self._cached_identity

    @abstractmethod
    def _read(self, base_positions: Iterable[int]) -> list[Any]:
        """Return unmapped items by base position."""

    def _with_plan(self, plan: Plan) -> Self:
        return cast(Self, self._copy(plan, self._stages))

    def __len__(self) -> int:
        if self._count is None:
            total = self._total()
            self._cached_order = order = self._plan.order(total)
            self._count = total if order is None else order.count
        return self._count

    def _order(self) -> Order | None:
        len(self)
        return self._cached_order

    @overload
    def __getitem__(self, key: int | np.integer[Any]) -> T_co: ...
    @overload
    def __getitem__(self, key: slice | Sequence[int] | NDArray[Any]) -> Self: ...
    def __getitem__(self, key: Any) -> Any:
        """Return an item by position, or a dataset of several.

        Parameters
        ----------
        key : int, slice, sequence of int, or array
            As for a `Dataset`, except that there are no keys.

        Returns
        -------
        object
            A sample, a pair of samples, or their mapped value; for a slice, positions
            or a mask a dataset of the same type.

        Raises
        ------
        IndexError
            A position is out of range.
        FormatError, OSError
            A sample cannot be read.

        Examples
        --------
        >>> mixed = fastshard.mix([ds, ds])
        >>> mixed[0].text("txt"), len(mixed[10:20])
        ('text ...', 10)
        """
        if getattr(key, "ndim", 0) == 0 and hasattr(key, "__index__"):
            return self.get_many([key])[0]
        return self._select(key)

    def get_many(self, positions: Iterable[int]) -> list[T_co]:
        """Return items by position, in the given order.

        Parameters
        ----------
        positions : iterable of int, or array
            Negative ones count from the end.

        Returns
        -------
        list

        Raises
        ------
        IndexError
            A position is out of range.
        FormatError, OSError
            A sample cannot be read.

        Examples
        --------
        >>> [sample.key for sample in fastshard.mix([ds, ds]).get_many([0, -1])]
        ['0000...', '0000...']
        """
        numbers = range(len(self))
        resolved = [numbers[i] for i in positions]  # counted from the start
        order = self._cached_order
        items = self._read(resolved if order is None else [order[i] for i in resolved])
        return self._map_items(items, resolved) if self._stages else items

    def map(self, fn: Callable[[T_co], T]) -> CombinedDataset[T]:
        """Return a dataset of ``fn(item)``, called on access.

        Parameters
        ----------
        fn : callable
            Takes a sample, or a pair of samples; or what the previous `map` returned.

        Returns
        -------
        Mix or Zip

        Examples
        --------
        >>> pairs = fastshard.zip_by_key(ds, ds)
        >>> pairs.map(lambda pair: pair[0].key == pair[1].key)[7]
        True
        """
        return self._copy(self._plan, (*self._stages, fn))

    def _iterator(
        self, window: int, on_error: ErrorHandler | None
    ) -> SampleIterator[T_co]:
        return CombinedIterator(self, max(window, 1), on_error)


class Failure:
    """Stand-in for an item that cannot be read."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class CombinedIterator(Iterator[T_co]):
    """Iterator over combined datasets that reads a window at a time.

    Implements `SampleIterator`.
    """

    def __init__(
        self, dataset: CombinedDataset[T_co], window: int, on_error: ErrorHandler | None
    ) -> None:
        self._dataset = dataset
        self._window = window
        self._on_error = on_error
        self._waiting: list[Any] = []  # items read ahead, in reverse order
        self._lock = threading.Lock()
        self._closed = False
        self.position: int = 0
        self.skipped: int = dataset._plan.skipped

    def __iter__(self) -> Self:
        return self

    def __length_hint__(self) -> int:
        return 0 if self._closed else len(self._dataset) - self.position

    def __next__(self) -> T_co:
        with enter_exclusively(self._lock):
            while True:
                if self._closed:
                    raise StopIteration
                if not self._waiting:
                    self._read_window()
                item = self._waiting.pop()
                self.position += 1
                if not isinstance(item, Failure):
                    return cast(T_co, item)
                error = item.error.with_traceback(None)
                handler = self._on_error
                if handler is None or not handler(error, self.position - 1):
                    raise error
                self.skipped += 1

    def _read_window(self) -> None:
        """Read the next window at once, or one by one after an error."""
        end = min(self.position + self._window, len(self._dataset))
        positions = range(self.position, end)
        if not positions:
            raise StopIteration
        try:
            items = self._dataset.get_many(positions)
        except Exception:
            items = [self._read_one(i) for i in positions]
        self._waiting = items[::-1]

    def _read_one(self, position: int) -> Any:
        try:
            return self._dataset.get_many([position])[0]
        except Exception as error:
            return Failure(error)

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the samples so far, skipped ones included."""
        return self.state_after(self.position, self.skipped)

    def state_after(self, done: int, skipped: int) -> dict[str, Any]:
        """Return the state after `done` samples, with `skipped` skipped in total."""
        return self._dataset._state_after(done, skipped)

    def close(self) -> None:
        """End the iteration."""
        self._closed = True
        self._waiting = []


def combine_identities(
    separator: str, datasets: Sequence[BaseDataset[Any]], samples: int, *options: object
) -> Identity:
    """Return the identity of a combination of datasets.

    Parameters
    ----------
    separator : str
        Text between the names in the combined name.
    datasets : sequence of BaseDataset
    samples : int
        The number of items of the combination.
    *options
        Kind and parameters of the combination, hashed by their `repr`.
    """
    parts = []
    for part in datasets:
        identity = part._identity()
        order = order_digest(part._order())
        parts.append((identity.samples, identity.digest, order))
    digest = blake2b(repr((options, parts)).encode(), digest_size=8).hexdigest()
    name = separator.join(part._identity().name for part in datasets)
    return Identity(name, samples, digest)


BLOCK = 1024  # base positions in which the proportions hold
Stop = Literal["first", "all"]


def mix(
    datasets: Sequence[BaseDataset[T]],
    weights: Sequence[float] | None = None,
    seed: int = 0,
    *,
    stop: Stop = "first",
) -> Mix[T]:
    """Mix datasets: interleave their samples at random, in given proportions.

    Each dataset keeps its own order roughly: only blocks of 1,024 samples of the mix
    are shuffled. Shuffle the datasets first, or the mix, for more. The order depends
    on the seed, the weights and the sizes only.

    Parameters
    ----------
    datasets : sequence of datasets
        Results of `open`, `mix` or `zip_by_key`; also mapped, selected or shuffled.
    weights : sequence of float, optional
        Proportions, not necessarily of sum 1. They hold in each block of 1,024 samples,
        up to about one sample a dataset. By default the sizes: every sample comes once.
    seed : int
        Determines the order within the blocks.
    stop : {"first", "all"}
        End of the mix: when the first dataset is exhausted, or when all are, repeating
        exhausted ones.

    Returns
    -------
    Mix
        A sequence of the items. Like a dataset it can be shuffled, split by rank,
        resumed and batched.

    Raises
    ------
    ValueError
        No datasets are given, or weights that are not positive or of another number.
    TypeError
        One of the datasets is not a dataset.

    Examples
    --------
    >>> import fastshard
    >>> web = fastshard.open("data/train-{0000..0002}.tar")
    >>> books = fastshard.open("data/train-0003.tar")
    >>> mixed = fastshard.mix([web, books], weights=[3, 1], seed=5)
    >>> len(mixed), mixed.shares
    (100, [75, 25])
    >>> longer = fastshard.mix([web, books], weights=[1, 1], stop="all")
    >>> longer.shares
    [75, 75]
    """
    datasets = list(datasets)
    if not datasets:
        raise ValueError("expected at least 1 dataset to mix, got none")
    for dataset in datasets:
        if not isinstance(dataset, BaseDataset):
            raise TypeError(f"expected datasets to mix, got {type(dataset).__name__!r}")
    if stop not in ("first", "all"):
        raise ValueError(f'stop must be "first" or "all", got {stop!r}')
    if weights is not None:
        weights = [float(weight) for weight in weights]
        if len(weights) != len(datasets):
            raise ValueError(
                f"expected {len(datasets)} weights, one a dataset, got {len(weights)}"
            )
        if not all(0 < weight < float("inf") for weight in weights):
            raise ValueError(f"weights must be positive and finite, got {weights}")
    return Mix(datasets, weights, check_seed(seed), stop)


class Mix(CombinedDataset[T_co]):
    """Mix of datasets in given proportions; see `mix`.

    Attributes
    ----------
    datasets : list
        The source datasets.

    Examples
    --------
    >>> import fastshard
    >>> ds = fastshard.open("data/")
    >>> mixed = fastshard.mix([ds[:80], ds[80:]], weights=[1, 1])
    >>> mixed.shares, mixed.source_of(0)[0] in (0, 1)
    ([20, 20], True)
    """

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
        self.datasets: list[BaseDataset[Any]] = datasets
        self._options: tuple[list[float] | None, int, Stop] = (weights, seed, stop)
        self._shares: list[int] | None = None  # once counted
        self._blocks: Shuffle | None = None

    def _copy(self, plan: Plan, stages: tuple[Callable[[Any], Any], ...]) -> Mix[Any]:
        return Mix(self.datasets, *self._options, plan, stages)

    if TYPE_CHECKING:

        def map(self, fn: Callable[[T_co], T]) -> Mix[T]: ...

    @property
    def shares(self) -> list[int]:
        """The number of samples from each dataset."""
        if self._shares is None:
            weights, seed, stop = self._options
            sizes = [len(dataset) for dataset in self.datasets]
            self._shares = (
                sizes if weights is None else compute_shares(sizes, weights, stop)
            )
            keys = permutation_keys(seed, 0)
            self._blocks = Shuffle(sum(self._shares), keys, BLOCK, local=True)
        return self._shares

    def _total(self) -> int:
        return sum(self.shares)

    def _identify(self) -> Identity:
        _, seed, stop = self._options
        options = ("mix", self.shares, seed, stop)
        return combine_identities(" + ", self.datasets, self._total(), *options)

    def source_of(self, base_position: int) -> tuple[int, int]:
        """Return the number of a sample's dataset, and its position there.

        Parameters
        ----------
        base_position : int
            Position in the mix before selection, shuffle and split.

        Returns
        -------
        (k, i) : tuple of int
            The sample is ``mixed.datasets[k][i]``.

        Notes
        -----
        The samples of a block are numbered dataset by dataset; the shuffle within the
        block maps base positions to these numbers.

        Examples
        --------
        >>> mixed = fastshard.mix([ds[:80], ds[80:]])
        >>> k, i = mixed.source_of(42)
        >>> mixed.datasets[k][i].key == mixed[42].key
        True
        """
        shares = self.shares
        assert self._blocks is not None
        start = base_position - base_position % BLOCK
        stop = min(start + BLOCK, sum(shares))
        starts = split_proportionally(shares, start)
        stops = split_proportionally(shares, stop)
        counts = [b - a for a, b in zip(starts, stops, strict=True)]
        ends = list(accumulate(counts))
        number = self._blocks[base_position] - start
        k = bisect_right(ends, number)
        before = ends[k - 1] if k else 0
        return k, (starts[k] + number - before) % len(self.datasets[k])

    def _read(self, base_positions: Iterable[int]) -> list[Any]:
        sources = [self.source_of(i) for i in base_positions]
        positions_of: list[list[int]] = [[] for _ in self.datasets]
        for k, position in sources:
            positions_of[k].append(position)
        items = [
            iter(dataset.get_many(positions) if positions else ())
            for dataset, positions in zip(self.datasets, positions_of, strict=True)
        ]
        return [next(items[k]) for k, _ in sources]

    def __repr__(self) -> str:
        return f"<Mix of {self.datasets!r}{self._plan}>"


def compute_shares(
    sizes: Sequence[int], weights: Sequence[float], stop: Stop
) -> list[int]:
    """Return the number of samples from each dataset.

    With ``"first"`` no share exceeds its size; with ``"all"`` none is below it.
    """
    if 0 in sizes:
        if stop == "first":
            return [0] * len(sizes)
        raise ValueError(
            "a dataset without samples cannot be repeated: leave it out, or "
            'pass stop="first"'
        )
    exact = [Fraction(weight) for weight in weights]
    rounds = [size / weight for size, weight in zip(sizes, exact, strict=True)]
    if stop == "first":
        return [floor(min(rounds) * weight) for weight in exact]
    return [ceil(max(rounds) * weight) for weight in exact]


def split_proportionally(shares: Sequence[int], count: int) -> list[int]:
    """Return how many of the first `count` samples come from each dataset.

    Monotonic in `count`. Each dataset in turn takes its part, rounded down, of the
    samples that earlier ones left.
    """
    parts = []
    total = sum(shares)
    for share in shares:
        part = count * share // total if total else 0
        parts.append(part)
        total -= share
        count -= part
    return parts


A = TypeVar("A")
B = TypeVar("B")

MAX_SHOWN = 5  # keys in an error message


def zip_by_key(a: Dataset[A], b: Dataset[B], strict: bool = True) -> Zip[tuple[A, B]]:
    """Join two datasets by key: a sequence of pairs ``(item of a, item of b)``.

    Pairs have the order of `a`. Nothing is read in advance: access to a pair looks up
    its key in `b` (see `Dataset.keys`).

    Parameters
    ----------
    a, b : Dataset
        Also mapped, decoded or selected. The keys of `b` must be unique.
    strict : bool
        Require both datasets to have the same keys; a missing key is an error. If
        False, keys of only one dataset are left out, which takes one look-up of
        all keys of `a`.

    Returns
    -------
    Zip
        A sequence of tuples. Like a dataset it can be shuffled, split by rank, resumed
        and batched.

    Raises
    ------
    TypeError
        One of the arguments is not a `Dataset`.
    FastshardError
        When pairs are counted: the numbers of samples differ.
    SampleNotFoundError
        On access to a pair: `b` lacks its key.
    AmbiguousKeyError
        On access to a pair: its key occurs several times in `b`, or, with `strict`, in
        `a`.

    Examples
    --------
    >>> import fastshard
    >>> ds = fastshard.open("data/")
    >>> pairs = fastshard.zip_by_key(ds.decode("txt"), ds.shuffle(seed=1).decode("cls"))
    >>> pairs[7]
    ({'__key__': '000007', 'txt': 'text 7'}, {'__key__': '000007', 'cls': 7})
    >>> len(fastshard.zip_by_key(ds[:50], ds[25:], strict=False))
    25
    """
    from fastshard.dataset.dataset import Dataset

    for dataset in (a, b):
        if not isinstance(dataset, Dataset):
            raise TypeError(f"expected datasets with keys, got {dataset!r:.60}")
    return Zip(a, b, strict)


class Zip(CombinedDataset[T_co]):
    """Pairs of samples with equal keys; see `zip_by_key`.

    Attributes
    ----------
    datasets : tuple of two Datasets

    Examples
    --------
    >>> import fastshard
    >>> ds = fastshard.open("data/")
    >>> pairs = fastshard.zip_by_key(ds.select_fields("txt"), ds.select_fields("npy"))
    >>> for a, b in pairs.shuffle(seed=1)[:2]:
    ...     a.key == b.key, a.keys(), b.keys()
    (True, ['txt'], ['npy'])
    (True, ['txt'], ['npy'])
    """

    def __init__(
        self,
        a: Dataset[Any],
        b: Dataset[Any],
        strict: bool,
        plan: Plan = Plan(),  # noqa: B008 - immutable
        stages: tuple[Callable[[Any], Any], ...] = (),
        common: array[int] | None = None,
    ) -> None:
        super().__init__(plan, stages)
        self.datasets: tuple[Dataset[Any], Dataset[Any]] = (a, b)
        self._strict = strict
        self._common = common  # positions in `a` of keys in both; None: all

    def _copy(self, plan: Plan, stages: tuple[Callable[[Any], Any], ...]) -> Zip[Any]:
        return Zip(*self.datasets, self._strict, plan, stages, self._common)

    if TYPE_CHECKING:

        def map(self, fn: Callable[[T_co], T]) -> Zip[T]: ...

    def _total(self) -> int:
        a, b = self.datasets
        if self._strict:
            if len(a) != len(b):
                raise FastshardError(self._describe_difference())
            return len(a)
        if self._common is None:
            keys = b.keys()
            self._common = array(
                "q", (i for i, key in enumerate(a.keys()) if key in keys)
            )
        return len(self._common)

    def _describe_difference(self) -> str:
        """Return a message that names keys missing in either dataset."""
        a, b = self.datasets
        parts = [f"the first dataset has {len(a):,} samples, the second {len(b):,}"]
        for name, has, lacks in (("second", a, b), ("first", b, a)):
            keys, others = has.keys(), lacks.keys()
            missing = list(
                islice((key for key in keys if key not in others), MAX_SHOWN + 1)
            )
            if missing:
                more = ", ..." if len(missing) > MAX_SHOWN else ""
                shown = ", ".join(map(repr, missing[:MAX_SHOWN]))
                parts.append(f"the {name} lacks {shown}{more}")
        return "; ".join(parts)

    def _identify(self) -> Identity:
        options = ("zip", self._strict)
        return combine_identities(" & ", self.datasets, self._total(), *options)

    def _read(self, base_positions: Iterable[int]) -> list[Any]:
        a, b = self.datasets
        if self._common is not None:
            base_positions = [self._common[i] for i in base_positions]
        positions = list(base_positions)
        keys, others = [a.keys()[i] for i in positions], b.keys()
        if self._strict:
            # Equal sizes, unique keys in `a`, each found in `b`: the same keys.
            for i, key in zip(positions, keys, strict=True):
                if a.keys().index(key) != i:
                    raise AmbiguousKeyError(key, [a.keys().index(key), i])
        try:
            partners = [others.index(key) for key in keys]
        except SampleNotFoundError:
            missing = [key for key in keys if key not in others]
            where = f"the second dataset of zip_by_key, below {b._set.root}"
            raise SampleNotFoundError(missing[0], where) from None
        return list(zip(a.get_many(positions), b.get_many(partners), strict=True))

    def __repr__(self) -> str:
        return f"<Zip of {self.datasets[0]!r} and {self.datasets[1]!r}{self._plan}>"
