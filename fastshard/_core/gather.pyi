from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fastshard._core.shard import Shard

@final
class Target:
    def __new__(cls, out: Any) -> Target: ...

def positions_of(positions: Iterable[int] | NDArray[Any], count: int) -> array[int]: ...
def gather(
    shards: list[Shard],
    members: Sequence[int] | NDArray[np.int64],
    out: Any,
    *,
    skips: Sequence[int] | NDArray[np.int64] | None = None,
    threads: int | None = None,
) -> NDArray[np.int64]: ...
def pack(
    shards: list[Shard],
    members: Any,
    allocate: Callable[[int], Any],
    *,
    threads: int | None = None,
) -> tuple[Any, NDArray[np.int64]]: ...
