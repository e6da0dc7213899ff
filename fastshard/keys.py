"""The keys of a dataset's samples, and finding samples by key."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, overload

from fastshard._core.keytable import plain_key
from fastshard._core.orders import Order
from fastshard._util.options import near_names
from fastshard.errors import AmbiguousKeyError, FormatError, SampleNotFoundError
from fastshard.shardset import ShardSet

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["DatasetKeys", "key_table"]

SHARDS_NEAR = 64  # open remote shards in which resembling keys are looked for


def key_table(
    shards: ShardSet, seed: bytes, *, older: bool = False
) -> NDArray[np.uint64]:
    """Return a sorted row for each sample; see `fastshard._core.keytable`.

    Opens every shard, in threads. With `older` a leading ``./`` is part of a key, as
    in the tables of earlier releases.
    """
    import numpy as np

    from fastshard._core.keytable import key_rows

    starts = shards.starts()
    rows = np.empty(starts[-1], np.uint64)

    def fill(k: int) -> None:
        grouping = shards.samples(k).grouping
        part = rows[starts[k] : starts[k + 1]]
        key_rows(grouping, starts[k], seed, part, older=older)

    for _ in shards.each(fill, "reading keys"):
        pass
    rows.sort()
    return rows


class DatasetKeys(Sequence[str]):
    """The keys of a dataset's samples, made when asked for.

    Looking one up takes a table of all keys: ``dataset.fsi`` holds one, else it
    is made on first use (8 bytes a sample), for which every shard is opened.
    """

    def __init__(self, shards: ShardSet, order: Order | None) -> None:
        self._set = shards
        self._order = order
        self._seed = os.urandom(16)
        self._rows: NDArray[np.uint64] | None = None

    def __len__(self) -> int:
        if self._order is None:
            return self._set.starts()[-1]
        return len(self._order)

    @overload
    def __getitem__(self, i: int) -> str: ...
    @overload
    def __getitem__(self, i: slice) -> list[str]: ...
    def __getitem__(self, i: int | slice) -> str | list[str]:
        numbers = range(len(self))[i]
        if isinstance(numbers, int):
            return self._key(numbers)
        return [self._key(number) for number in numbers]

    def __iter__(self) -> Iterator[str]:
        return (self._key(i) for i in range(len(self)))

    def _key(self, i: int) -> str:
        return self._key_of(i if self._order is None else self._order[i])

    def _key_of(self, i: int) -> str:
        starts = self._set.starts()
        k = bisect_right(starts, i) - 1
        return self._set.samples(k).key_at(i - starts[k])

    def find(self, key: str) -> list[int]:
        """Return the positions of all samples of this key.

        Of tars a leading ``./`` is part of no key.
        """
        own = self._set.find_key(key)
        if own is None:
            key = plain_key(key)
            own = self._candidates(key)
        found = [i for i in own if self._key_of(i) == key]
        if self._order is None:
            return found
        places = map(self._order.find, found)  # of a sample chosen twice the first
        return sorted(place for place in places if place >= 0)

    def _candidates(self, key: str) -> list[int]:
        from fastshard.index.dataset_file import candidates

        known = self._set.known
        if known is not None and known.has_keys:
            found = known.candidates(key)
            total = self._set.starts()[-1]
            if max(found, default=0) >= total:
                reason = f"its table of keys has a position beyond {total:,}"
                raise FormatError(reason, known.path, 0)
            return found
        if self._rows is None:
            self._rows = key_table(self._set, self._seed)
        return candidates(self._rows, key, self._seed)

    def _near(self, key: str) -> tuple[str, ...]:
        """Return keys that resemble one that is absent; opens no remote shard."""
        key = plain_key(key)
        if self._set.remote is None:
            return near_names(key, len(self), self._key)
        found: list[str] = []
        for samples in self._set.open[:SHARDS_NEAR]:
            if samples is not None:
                found += near_names(key, len(samples), samples.key_at)
        return near_names(key, len(found), found.__getitem__)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and bool(self.find(key))

    def index(self, key: str, start: int = 0, stop: int | None = None) -> int:
        """Return the position of the one sample of this key.

        Raises
        ------
        SampleNotFoundError
            There is none.
        AmbiguousKeyError
            There are several.
        """
        found = [i for i in self.find(key) if i >= start and (stop is None or i < stop)]
        if not found:
            where = f"the dataset below {self._set.root}"
            raise SampleNotFoundError(key, where, self._near(key))
        if len(found) > 1:
            raise AmbiguousKeyError(key, found)
        return found[0]

    def count(self, key: str) -> int:
        """Return how many samples have this key."""
        return len(self.find(key))

    def __repr__(self) -> str:
        shown = ", ".join(repr(key) for key in self[:3])
        more = ", ..." if len(self) > 3 else ""
        return f"<{len(self):,} keys: [{shown}{more}]>"
