"""The shards of a dataset, as a sequence."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from fastshard.shardset import ShardSet

if TYPE_CHECKING:
    from fastshard.formats.tar import TarShard

__all__ = ["Shards"]


class Shards(Sequence["TarShard"]):
    """The shards of a dataset, opened when they are asked for."""

    def __init__(self, shards: ShardSet) -> None:
        self._set = shards

    @property
    def paths(self) -> list[str]:
        """Their paths, in order."""
        return list(self._set.paths)

    def __len__(self) -> int:
        return len(self._set)

    @overload
    def __getitem__(self, k: int) -> TarShard: ...
    @overload
    def __getitem__(self, k: slice) -> list[TarShard]: ...
    def __getitem__(self, k: int | slice) -> TarShard | list[TarShard]:
        numbers = range(len(self))[k]
        if isinstance(numbers, int):
            return self._set.shard(numbers)
        return [self._set.shard(number) for number in numbers]

    def index(self, shard: Any, start: int = 0, stop: int | None = None) -> int:
        """Return the position of a shard, by its path or the path's last part.

        Raises
        ------
        ValueError
            There is none, or several.
        """
        if isinstance(shard, int):
            return range(len(self))[shard]
        paths = self._set.paths[start:stop]
        found = [k for k, path in enumerate(paths, start) if path == shard] or [
            k for k, path in enumerate(paths, start) if os.path.basename(path) == shard
        ]
        if len(found) != 1:
            raise ValueError(f"{len(found):,} shards are called {shard!r}")
        return found[0]

    def __repr__(self) -> str:
        return f"<{len(self):,} shards below {self._set.root!r}>"
