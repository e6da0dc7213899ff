"""A dataset's shards, members and keys, as sequences; and its key table."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, overload

from fastshard._core.dataset.gather import prefetch_members
from fastshard._core.dataset.remote_prefetch import fetch_members
from fastshard._core.dataset.shard import Shard
from fastshard._core.dataset.streams import MemberStream
from fastshard._core.table.grouping import normalize_key
from fastshard._core.table.order import Order
from fastshard._util.options import near_names
from fastshard.dataset.sequence.iteration import WINDOW
from fastshard.dataset.shardset import ShardSet
from fastshard.dataset.tarset import require_tars
from fastshard.errors import (
    AmbiguousKeyError,
    FastshardError,
    FormatError,
    MemberNotFoundError,
    SampleNotFoundError,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fastshard.formats.tar import TarShard

__all__ = ["DatasetKeys", "Members", "Shards", "build_key_table"]

MAX_SEARCHED = 64  # open remote shards to search for keys similar to an absent one


def _range(count: int, start: int, stop: int | None) -> range:
    """Return the positions from `start` to `stop`, as `list.index` interprets them."""
    return range(*slice(start, stop).indices(count))


class Shards(Sequence["TarShard"]):
    """The shards of a dataset, opened on first use: `Dataset.shards`.

    Examples
    --------
    >>> import fastshard
    >>> shards = fastshard.open("data/").shards
    >>> len(shards), shards[0]
    (4, TarShard('data/train-0000.tar'; 100 members, ... bytes; mmap))
    """

    def __init__(self, shards: ShardSet) -> None:
        self._set = shards

    @property
    def paths(self) -> list[str]:
        """The shards' paths or URLs, in order."""
        return list(self._set.paths)

    def __len__(self) -> int:
        return len(self._set)

    @overload
    def __getitem__(self, k: int) -> TarShard: ...
    @overload
    def __getitem__(self, k: slice) -> list[TarShard]: ...
    def __getitem__(self, k: int | slice) -> TarShard | list[TarShard]:
        """Return a shard by position, or a list of them by a slice.

        Raises
        ------
        IndexError
            The position is out of range.
        FormatError, OSError
            The shard cannot be opened.

        Examples
        --------
        >>> ds.shards[-1].samples[0].key, len(ds.shards[:2])
        ('000075', 2)
        """
        numbers = range(len(self))[k]
        if isinstance(numbers, int):
            shard: TarShard = self._set.shard(numbers)
            return shard
        return [self._set.shard(number) for number in numbers]

    def index(self, shard: str | int, start: int = 0, stop: int | None = None) -> int:
        """Return the position of a shard by its path, file name or position.

        Parameters
        ----------
        shard : str or int
        start, stop : int, optional
            Positions to search from, and up to.

        Raises
        ------
        ValueError
            No shard has this name, or several have.

        Examples
        --------
        >>> ds.shards.index("train-0002.tar")
        2
        """
        if isinstance(shard, int):
            return range(len(self))[shard]
        paths, within = self._set.paths, _range(len(self), start, stop)
        found = [k for k in within if paths[k] == shard] or [
            k for k in within if os.path.basename(paths[k]) == shard
        ]
        if len(found) != 1:
            raise ValueError(
                f"expected one shard of the name {shard!r}, found {len(found):,}"
            )
        return found[0]

    def __repr__(self) -> str:
        return f"<{len(self):,} shards: {self._set.summary().where}>"


class Members(Sequence[memoryview]):
    """The members of a dataset's shards, views by position or name: `Dataset.members`.

    Examples
    --------
    >>> import fastshard
    >>> members = fastshard.open("data/").members
    >>> len(members), bytes(members["000042.txt"]), bytes(members[2])
    (400, b'text 42', b'text 0')
    """

    def __init__(self, shards: ShardSet) -> None:
        self._set = shards

    def __len__(self) -> int:
        return self._set.member_starts()[-1]

    @overload
    def __getitem__(self, key: int | str) -> memoryview: ...
    @overload
    def __getitem__(self, key: slice) -> list[memoryview]: ...
    def __getitem__(self, key: int | str | slice) -> memoryview | list[memoryview]:
        """Return a view by position or name, or a list of them by a slice.

        Parameters
        ----------
        key : int, str or slice
            A name is looked up in every shard.

        Raises
        ------
        IndexError
            The position is out of range.
        MemberNotFoundError
            No shard has a member of this name.
        AmbiguousKeyError
            Several shards have a member of this name.

        Examples
        --------
        >>> bytes(ds.members["000042.txt"]), len(ds.members[:10])
        (b'text 42', 10)
        """
        if isinstance(key, slice):
            return [self._at(i) for i in range(*key.indices(len(self)))]
        if isinstance(key, str):
            return self._at(self.index(key))
        return self._at(range(len(self))[key])

    def _at(self, i: int) -> memoryview:
        shard, member = require_tars(self._set).member(i)
        return shard[member]

    def get_many(self, positions: Sequence[int]) -> list[memoryview]:
        """Return views by position, in the given order.

        Raises
        ------
        IndexError
            A position is out of range.
        FormatError, OSError
            A member cannot be read.

        Examples
        --------
        >>> [bytes(view) for view in ds.members.get_many([2, 398])]
        [b'text 0', b'text 99']
        """
        numbers = range(len(self))
        found = [require_tars(self._set).member(numbers[i]) for i in positions]
        shards: list[Shard] = [shard for shard, _ in found]
        members = [member for _, member in found]
        if not self._set.is_local:
            return fetch_members(shards, members)
        if self._set.reading.prefetch:
            prefetch_members(shards, members, self._set.reading.window_bytes)
        return [shard[member] for shard, member in found]

    __getitems__ = get_many

    def __iter__(self) -> Iterator[memoryview]:
        for k in range(len(self._set)):
            shard = require_tars(self._set).shard(k)
            yield from self._set.iterate(MemberStream(shard, range(len(shard))), WINDOW)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and bool(self.find(name))

    def find(self, name: str) -> list[int]:
        """Return a member's position in each shard that has one of this name.

        In a shard with several, that of the last one. Opens every shard.

        Examples
        --------
        >>> ds.members.find("000042.txt"), ds.members.find("x.txt")
        ([170], [])
        """
        starts = self._set.member_starts()
        shards = (require_tars(self._set).shard(k) for k in range(len(self._set)))
        return [
            start + shard.position(name)
            for start, shard in zip(starts, shards, strict=False)
            if name in shard
        ]

    def index(self, name: str, start: int = 0, stop: int | None = None) -> int:
        """Return the position of the only member of a name.

        Parameters
        ----------
        name : str
        start, stop : int, optional
            Positions to search from, and up to.

        Raises
        ------
        MemberNotFoundError
            No shard has a member of this name.
        AmbiguousKeyError
            Several shards have a member of this name.

        Examples
        --------
        >>> ds.members.index("000042.txt")
        170
        """
        found = self.find(name)
        if start or stop is not None:
            within = _range(len(self), start, stop)
            found = [i for i in found if i in within]
        if not found:
            where = f"the dataset below {self._set.root}"
            raise MemberNotFoundError(name, where, partial(self._similar, name))
        if len(found) > 1:
            raise AmbiguousKeyError(name, found)
        return found[0]

    def _similar(self, name: str) -> tuple[str, ...]:
        """Return names similar to an absent one, in some of the open shards."""
        found: list[str] = []
        for samples in self._set.open_samples[:MAX_SEARCHED]:
            if samples is not None:
                names = samples.shard.names
                found += near_names(name, len(names), names.__getitem__)
        return near_names(name, len(found), found.__getitem__, self.__contains__)

    def keys(self) -> Iterator[str]:
        """Iterate over the members' names.

        Examples
        --------
        >>> list(ds.members.keys())[-1]
        '000099.json'
        """
        for k in range(len(self._set)):
            yield from require_tars(self._set).shard(k).names

    def __repr__(self) -> str:
        return f"<members of {self._set.summary().where}>"


def build_key_table(
    shards: ShardSet, seed: bytes, *, older: bool = False
) -> NDArray[np.uint64]:
    """Return the sorted key rows of all samples; see `fastshard._core.table.grouping`.

    Opens every shard, in threads.

    Parameters
    ----------
    shards : ShardSet
    seed : bytes
        Seed of the keys' hash, 16 bytes.
    older : bool
        Keep a leading ``./`` in keys, as the tables of earlier releases do.
    """
    import numpy as np

    from fastshard._core.table.grouping import write_key_rows

    starts = shards.starts()
    rows = np.empty(starts[-1], np.uint64)

    def fill(k: int) -> None:
        grouping = shards.samples(k).grouping
        part = rows[starts[k] : starts[k + 1]]
        write_key_rows(grouping, starts[k], seed, part, older=older)

    for _ in shards.map_shards(fill, "reading keys"):
        pass
    rows.sort()
    return rows


class DatasetKeys(Sequence[str]):
    """The keys of a dataset's samples: `Dataset.keys`.

    Keys are decoded on access. Look-up uses the key table of ``dataset.fsi``, or one
    built on first use (8 bytes a sample), which opens every shard.

    Examples
    --------
    >>> import fastshard
    >>> keys = fastshard.open("data/").keys()
    >>> keys
    <100 keys: ['000000', '000001', '000002', ...]>
    >>> keys.index("000042"), "000042" in keys, keys[-1]
    (42, True, '000099')
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
        """Return a key by position, or a list of them by a slice.

        Raises
        ------
        IndexError
            The position is out of range.

        Examples
        --------
        >>> ds.keys()[7], ds.keys()[-2:]
        ('000007', ['000098', '000099'])
        """
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
        key: str = self._set.samples(k).key_at(i - starts[k])
        return key

    def find(self, key: str) -> list[int]:
        """Return the positions of all samples with a key.

        For tars a leading ``./`` is ignored.

        Returns
        -------
        list of int
            In increasing order; empty if there is none.

        Raises
        ------
        FormatError, OSError
            A shard or an index cannot be read.

        Examples
        --------
        >>> ds.keys().find("000042"), ds.keys().find("x")
        ([42], [])
        """
        candidates = self._set.find_key(key)
        if candidates is None:
            key = normalize_key(key)
            candidates = self._candidates(key)
        found = [i for i in candidates if self._key_of(i) == key]
        if self._order is None:
            return found
        positions = map(self._order.find, found)  # the first one of a repeated sample
        return sorted(position for position in positions if position >= 0)

    def _candidates(self, key: str) -> list[int]:
        """Return the positions of all samples that may have a key, by its hash."""
        from fastshard.index.dataset_file import candidates

        view = self._set.index_view
        if view is not None and view.has_keys:
            found = view.candidates(key)
            total = self._set.starts()[-1]
            if max(found, default=0) >= total:
                reason = f"its key table has a position above {total - 1:,}"
                raise FormatError(reason, view.path, 0)
            return found
        if self._rows is None:
            self._rows = build_key_table(self._set, self._seed)
        return candidates(self._rows, key, self._seed)

    def _similar(self, key: str) -> tuple[str, ...]:
        """Return keys similar to an absent one, without opening a remote shard."""
        key = normalize_key(key)
        if self._set.remote is None:
            return near_names(key, len(self), self._key, self.__contains__)
        found: list[str] = []
        for samples in self._set.open_samples[:MAX_SEARCHED]:
            if samples is not None:
                found += near_names(key, len(samples), samples.key_at)
        return near_names(key, len(found), found.__getitem__, self.__contains__)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and bool(self.find(key))

    def index(self, key: str, start: int = 0, stop: int | None = None) -> int:
        """Return the position of the only sample with a key.

        Parameters
        ----------
        key : str
        start, stop : int, optional
            Positions to search from, and up to.

        Raises
        ------
        SampleNotFoundError
            No sample has this key.
        AmbiguousKeyError
            Several samples have this key.

        Examples
        --------
        >>> ds.keys().index("000042")
        42
        """
        found = self.find(key)
        if start or stop is not None:
            within = _range(len(self), start, stop)
            found = [i for i in found if i in within]
        if not found:
            where = f"the dataset below {self._set.root}"
            raise SampleNotFoundError(key, where, partial(self._similar, key))
        if len(found) > 1:
            raise AmbiguousKeyError(key, found)
        return found[0]

    def count(self, key: str) -> int:
        """Return the number of samples with a key.

        Examples
        --------
        >>> ds.keys().count("000042")
        1
        """
        return len(self.find(key))

    def __repr__(self) -> str:
        # No preview of remote keys, nor of a closed dataset: it may open shards.
        where = f"<keys of {self._set.summary().where}>"
        if self._set.remote is not None or not self._set.is_counted():
            return where
        try:
            first = ", ".join(repr(key) for key in self[:3])
        except (FastshardError, OSError):
            return where
        more = ", ..." if len(self) > 3 else ""
        return f"<{len(self):,} keys: [{first}{more}]>"
