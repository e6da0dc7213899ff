"""Several datasets as one, in given proportions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import accumulate
from math import ceil, floor
from typing import Any, Literal

from fastshard._core.orders import Shuffle
from fastshard.combined import Combined, combined
from fastshard.ordered import Ordered
from fastshard.plan import Plan, checked_seed, keys_of
from fastshard.state import Identity

__all__ = ["Mix", "mix"]

BLOCK = 1024  # places in which the proportions hold
Stop = Literal["first", "all"]


def mix(
    datasets: Sequence[Ordered],
    weights: Sequence[float] | None = None,
    seed: int = 0,
    *,
    stop: Stop = "first",
) -> Mix:
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
        if not isinstance(dataset, Ordered):
            raise TypeError(f"datasets are mixed, not {type(dataset).__name__}")
    if stop not in ("first", "all"):
        raise ValueError(f'stop is "first" or "all", not {stop!r}')
    if weights is not None:
        weights = [float(weight) for weight in weights]
        if len(weights) != len(datasets):
            raise ValueError(f"{len(weights)} weights for {len(datasets)} datasets")
        if not all(0 < weight < float("inf") for weight in weights):
            raise ValueError(f"weights are positive, not {weights}")
    return Mix(datasets, weights, checked_seed(seed), stop)


class Mix(Combined):
    """Datasets mixed in given proportions; see `mix`."""

    def __init__(
        self,
        datasets: list[Ordered],
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

    def _again(self, plan: Plan, stages: tuple[Callable[[Any], Any], ...]) -> Mix:
        return Mix(self.datasets, *self._options, plan, stages)

    @property
    def shares(self) -> list[int]:
        """How many samples come from each dataset."""
        if self._shares is None:
            weights, seed, stop = self._options
            sizes = [len(dataset) for dataset in self.datasets]
            self._shares = sizes if weights is None else shares(sizes, weights, stop)
            keys = keys_of(seed, 0)
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
