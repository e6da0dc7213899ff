from typing import Any, final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fastshard._core.extents import ExtentTable

@final
class Layout: ...

def offsets_of(table: ExtentTable) -> NDArray[np.uint64]: ...
def sizes_of(table: ExtentTable) -> NDArray[np.uint64]: ...
def array_of(
    data: bytes,
    dtype: DTypeLike | None,
    shape: int | tuple[int, ...] | None,
    path: str,
) -> NDArray[Any]: ...
