from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fastshard._core.dataset.shard import Shard

@final
class Pieces:
    def __new__(cls) -> Pieces: ...

@final
class Target:
    def __new__(cls, out: Any) -> Target: ...

def resolve_positions(
    positions: Iterable[int] | NDArray[Any], count: int
) -> array[int]: ...
def gather(
    shards: list[Shard],
    members: Sequence[int] | NDArray[np.int64],
    out: Any,
    *,
    skips: Sequence[int] | NDArray[np.int64] | None = None,
    sizes: Sequence[int] | NDArray[np.int64] | None = None,
    threads: int | None = None,
) -> NDArray[np.int64]: ...
def pack(
    shards: list[Shard],
    members: Any,
    allocate: Callable[[int], Any],
    *,
    threads: int | None = None,
) -> tuple[Any, NDArray[np.int64]]: ...
def read_members(
    shard: Shard, positions: Iterable[int] | NDArray[Any], out: Any, threads: int | None
) -> NDArray[np.int64]: ...
def copy_members(
    shards: list[Shard], positions: list[int]
) -> list[bytes | Exception]: ...
def prefetch_samples(samples: list[Any], most: int) -> None: ...
def count_bytes(samples: Sequence[Any]) -> int: ...
def prefetch_members(shards: list[Shard], members: list[int], most: int) -> None: ...
