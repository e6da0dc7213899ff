"""A dataset at the level of members."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

from fastshard._core.bring import bring_members
from fastshard._core.feeds import MemberFeed
from fastshard._core.fetched import fetch_members
from fastshard._core.shard import Shard
from fastshard.errors import AmbiguousKeyError, MemberNotFoundError
from fastshard.reading import WINDOW
from fastshard.shardset import ShardSet

__all__ = ["Members"]


class Members(Sequence[memoryview]):
    """The members of a dataset's shards: views by position or name."""

    def __init__(self, shards: ShardSet) -> None:
        self._set = shards

    def __len__(self) -> int:
        return self._set.member_starts()[-1]

    @overload
    def __getitem__(self, key: int | str) -> memoryview: ...
    @overload
    def __getitem__(self, key: slice) -> list[memoryview]: ...
    def __getitem__(self, key: Any) -> Any:
        """Return a view by position or name, or a list of them by a slice.

        Raises
        ------
        IndexError
            There is no such position.
        MemberNotFoundError
            No shard has a member of this name.
        AmbiguousKeyError
            Several shards have.
        """
        if isinstance(key, slice):
            return [self._at(i) for i in range(*key.indices(len(self)))]
        if isinstance(key, str):
            return self._at(self.index(key))
        return self._at(range(len(self))[key])

    def _at(self, i: int) -> memoryview:
        shard, member = self._set.member(i)
        return shard[member]

    def get_many(self, positions: Sequence[int]) -> list[memoryview]:
        """Return views by position, in the order given, as a list."""
        numbers = range(len(self))
        found = [self._set.member(numbers[i]) for i in positions]
        shards: list[Shard] = [shard for shard, _ in found]
        members = [member for _, member in found]
        if self._set.remote is not None:
            return fetch_members(shards, members)
        if self._set.reading.prefetch:
            bring_members(shards, members, self._set.reading.window_bytes)
        return [shard[member] for shard, member in found]

    __getitems__ = get_many

    def __iter__(self) -> Iterator[memoryview]:
        for k in range(len(self._set)):
            shard = self._set.shard(k)
            yield from self._set.iterate(MemberFeed(shard, range(len(shard))), WINDOW)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and bool(self.find(name))

    def find(self, name: str) -> list[int]:
        """Return a position for each shard that has a member of this name.

        Of several in one shard it is the last. Opens every shard.
        """
        starts = self._set.member_starts()
        shards = (self._set.shard(k) for k in range(len(self._set)))
        return [
            start + shard.position(name)
            for start, shard in zip(starts, shards, strict=False)
            if name in shard
        ]

    def index(self, name: Any, start: int = 0, stop: int | None = None) -> int:
        """Return the position of the one member of this name."""
        found = [
            i for i in self.find(name) if i >= start and (stop is None or i < stop)
        ]
        if not found:
            raise MemberNotFoundError(name, f"the dataset below {self._set.root}")
        if len(found) > 1:
            raise AmbiguousKeyError(name, found)
        return found[0]

    def keys(self) -> Iterator[str]:
        """Iterate over the members' names."""
        for k in range(len(self._set)):
            yield from self._set.shard(k).names

    def __repr__(self) -> str:
        return f"<{len(self):,} members of {len(self._set):,} shards>"
