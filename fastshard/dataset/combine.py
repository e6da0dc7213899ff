"""Datasets made of datasets: mixed in proportions, or joined by key."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import partial
from itertools import accumulate, islice
from math import ceil, floor
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

from fastshard._core.table.order import Shuffle
from fastshard._util.options import check_option_names, other_forms
from fastshard.dataset.combined.base import (
    CombinedDataset,
    Concat,
    Getter,
    UnionDataset,
    combine_identities,
    finish_items,
    get_many,
)
from fastshard.dataset.display.text import Description, describe_parts
from fastshard.dataset.order.plan import Plan, check_seed, permutation_keys
from fastshard.dataset.order.state import Identity
from fastshard.dataset.sequence.base import BaseDataset, T
from fastshard.dataset.sequence.iteration import T_co
from fastshard.errors import AmbiguousKeyError, FastshardError, SampleNotFoundError

if TYPE_CHECKING:
    from fastshard.dataset.dataset import Dataset
    from fastshard.dataset.sequence.images import ImageSample
    from fastshard.formats.sample import Sample

__all__ = [
    "Concat",
    "Mix",
    "Zip",
    "mix",
    "zip_by_key",
]

BLOCK = 1024  # base positions in which the proportions hold
Stop = Literal["first", "all"]


@check_option_names("mix")
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
    seed : int, default 0
        Determines the order within the blocks.
    stop : {"first", "all"}, default "first"
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


class Mix(UnionDataset[T_co]):
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

    def tokens(self, field: str, length: int, **options: Any) -> NoReturn:
        """Raise TypeError: token windows need a single dataset.

        Mix datasets of windows instead, each of one dataset's tokens.

        Parameters
        ----------
        field, length, **options
            As for `Dataset.tokens`.

        Raises
        ------
        FastshardError
            Always.

        Examples
        --------
        >>> windows = fastshard.mix([part.tokens("npy", 16) for part in (ds, ds)])
        >>> windows[0].shape
        (16,)
        """
        raise FastshardError(
            "windows of tokens go through the documents of one dataset, not of a mix: "
            f"mix the windows, fastshard.mix([part.tokens({field!r}, {length}), ...])"
        )

    def _copy(self, plan: Plan, stages: tuple[Callable[[Any], Any], ...]) -> Mix[Any]:
        return Mix(self.datasets, *self._options, plan, stages)

    def _with_datasets(self, datasets: list[BaseDataset[Any]]) -> Mix[Any]:
        return Mix(datasets, *self._options, self._plan, self._stages)

    if TYPE_CHECKING:

        def images(
            self,
            field: str | Sequence[str] = "jpg",
            size: int | tuple[int, int] | None = None,
            **options: Any,
        ) -> Mix[ImageSample]: ...
        def decode(self, *fields: str) -> Mix[dict[str, Any]]: ...
        def select_fields(
            self, *fields: str, missing: Literal["raise", "skip"] = "raise"
        ) -> Mix[Sample]: ...
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

    def _description(self) -> Description:
        weights, seed, stop = self._options
        shares = "" if weights is None else f" weights {weights}"
        end = "" if stop == "first" else f" stop {stop}"
        parts = describe_parts(self.datasets)
        return self._describe(f"{parts}; seed {seed}{shares}{end}")


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
    strict : bool, default True
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
        if not isinstance(dataset, Dataset) and not hasattr(type(dataset), "untyped"):
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

    def _parts(self) -> Sequence[BaseDataset[Any]]:
        return self.datasets

    def _read(self, base_positions: Iterable[int], get: Getter = get_many) -> list[Any]:
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
            root = getattr(b, "untyped", b)._set.root  # of typed samples, too
            where = f"the second dataset of zip_by_key, below {root}"
            near = partial(other_forms, missing[0], others.__contains__)
            raise SampleNotFoundError(missing[0], where, near) from None
        first, second = self._read_parts()
        items = get(first, positions), get(second, partners)
        return list(zip(*items, strict=True))

    def _finish_parts(self, items: list[Any]) -> list[Any]:
        # Of each pair the first before the second: the error is that of the first.
        flat = finish_items(item for pair in items for item in pair)
        return list(zip(flat[::2], flat[1::2], strict=True))

    def _name_at(self, position: int) -> str:
        base = self._base_positions([position])[0]
        first = base if self._common is None else self._common[base]
        return self.datasets[0]._name_at(first)

    def _description(self) -> Description:
        loose = "" if self._strict else "; strict=False"
        return self._describe(describe_parts(self.datasets) + loose)
