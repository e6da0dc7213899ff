from typing import Any, final

from fastshard._core.dataset.shard import Shard
from fastshard._core.dataset.streams import IteratorBase

@final
class RequestedItem: ...

@final
class ItemBlock: ...

@final
class RemotePrefetchIterator(IteratorBase):
    def __del__(self) -> None: ...

def fetch_samples(
    samples: list[Any], most: int, only: tuple[str, ...] | None = None
) -> None: ...
def fetch_members(shards: list[Shard], members: list[int]) -> list[memoryview]: ...
