from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastshard._core.shard import Shard

def layouts(
    shards: list[Shard], members: array[int], dtype: Any, shape: Any
) -> tuple[
    np.dtype[Any],
    tuple[int, ...],
    bool,
    NDArray[np.int64],
    tuple[int, str] | None,
]: ...
