"""Tables of several indexes as one, for datasets in a row."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastshard._core.streaming.index import ShardTable

__all__ = ["JoinedTable"]


class JoinedTable:
    """Tables of several indexes as one; see `ShardTable`."""

    def __init__(
        self,
        tables: Sequence[ShardTable],
        folders: Sequence[str],
        schemas: Sequence[Sequence[int]],
        configs: list[Any],
    ) -> None:
        self._tables = tables
        self._folders = folders
        self._schemas = schemas
        self.configs = configs
        self._firsts = list(accumulate(map(len, tables), initial=0))
        self.has_odd_names = any(table.has_odd_names for table in tables)

    def __len__(self) -> int:
        return self._firsts[-1]

    def find(self, k: int) -> tuple[int, int]:
        """Return the table of shard `k`, and the number of the shard in it."""
        part = bisect_right(self._firsts, k) - 1
        return part, k - self._firsts[part]

    def starts(self) -> array[int]:
        """Return the position of each shard's first sample, then the total."""
        found = array("q", [0])
        for table in self._tables:
            first = found.pop()
            found.extend(first + start for start in table.starts())
        return found

    def samples(self, k: int) -> int:
        """Return the number of samples of shard `k`."""
        part, k = self.find(k)
        return self._tables[part].samples(k)

    def schema(self, k: int) -> int:
        """Return the number of the schema of shard `k`."""
        part, k = self.find(k)
        return self._schemas[part][self._tables[part].schema(k)]

    def where(self, k: int) -> int:
        """Return the byte offset of shard `k`'s object in its own index."""
        part, k = self.find(k)
        return self._tables[part].where(k)

    def file(self, k: int, which: int) -> tuple[str, int, bytes] | None:
        """Return a file of shard `k`, or None if it has no such file."""
        part, k = self.find(k)
        found = self._tables[part].file(k, which)
        if found is None or not self._folders[part]:
            return found
        return f"{self._folders[part]}/{found[0]}", *found[1:]

    def stored_name(self, k: int) -> str:
        """Return the name of shard `k`'s raw file of rows as its own index has it."""
        part, k = self.find(k)
        found = self._tables[part].file(k, 0)
        assert found is not None
        return found[0]
