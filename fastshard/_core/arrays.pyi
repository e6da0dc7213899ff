from typing import Any, Self, final

import numpy as np
from numpy.typing import DTypeLike, NDArray
from typing_extensions import Buffer

from fastshard._core.table.extents import ExtentTable

@final
class HeldBuffer:
    def __new__(cls, exporter: Buffer) -> Self: ...

def offsets_of(table: ExtentTable) -> NDArray[np.uint64]: ...
def sizes_of(table: ExtentTable) -> NDArray[np.uint64]: ...
def array_of(
    data: bytes,
    dtype: DTypeLike | None,
    shape: int | tuple[int, ...] | None,
    path: str,
) -> NDArray[Any]: ...
def array_on(
    view: Buffer,
    dtype: DTypeLike | None = None,
    shape: int | tuple[int, ...] | None = None,
) -> NDArray[Any]: ...
