from typing import Any, final

from fastshard._core.shard import Shard
from fastshard._core.taking import Taking

@final
class Asked: ...

@final
class Fetched(Taking):
    def __del__(self) -> None: ...

def fetch_samples(
    samples: list[Any], most: int, only: tuple[str, ...] | None = None
) -> None: ...
def fetch_members(shards: list[Shard], members: list[int]) -> list[memoryview]: ...
