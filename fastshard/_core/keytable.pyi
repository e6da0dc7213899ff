from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastshard._core.grouping import Grouping

def key_rows(
    grouping: Grouping,
    first: int,
    seed: bytes,
    rows: NDArray[np.uint64],
    *,
    older: bool = False,
) -> Any: ...
def plain_key(key: str) -> str: ...
def key_hash(key: str, seed: bytes) -> int | None: ...
