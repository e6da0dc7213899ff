from collections.abc import Iterable, Iterator
from typing import Any, final

from numpy.typing import NDArray

from fastshard._core.dataset.shard import Shard
from fastshard._core.dataset.streams import IteratorBase

@final
class MergedExtent: ...

@final
class QueuedItem: ...

@final
class ChunkOwner: ...

@final
class PrefetchIterator(IteratorBase): ...

def scan_members(
    shard: Shard,
    order: Iterable[int] | NDArray[Any] | None,
    window: int,
    max_memory: int | str | None,
    keep_cache: bool,
) -> Iterator[memoryview]: ...
