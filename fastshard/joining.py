"""Two datasets joined by key."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

from fastshard.combined import Combined, combined
from fastshard.errors import AmbiguousKeyError, FastshardError, SampleNotFoundError
from fastshard.plan import Plan
from fastshard.state import Identity

if TYPE_CHECKING:
    from fastshard.dataset import Dataset

__all__ = ["Zip", "zip_by_key"]

SHOWN = 5  # keys that an error names


def zip_by_key(a: Dataset, b: Dataset, strict: bool = True) -> Zip:
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
    from fastshard.dataset import Dataset

    for dataset in (a, b):
        if not isinstance(dataset, Dataset):
            raise TypeError(f"datasets with keys are joined, not {dataset!r:.60}")
    return Zip(a, b, strict)


class Zip(Combined):
    """Pairs of samples with the same key; see `zip_by_key`."""

    def __init__(
        self,
        a: Dataset,
        b: Dataset,
        strict: bool,
        plan: Plan = Plan(),  # noqa: B008 - immutable
        stages: tuple[Callable[[Any], Any], ...] = (),
        common: Any = None,
    ) -> None:
        super().__init__(plan, stages)
        self.datasets = (a, b)
        self._strict = strict
        self._common = common  # positions in `a` of keys that both have; or None

    def _again(self, plan: Plan, stages: tuple[Callable[[Any], Any], ...]) -> Zip:
        return Zip(*self.datasets, self._strict, plan, stages, self._common)

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
