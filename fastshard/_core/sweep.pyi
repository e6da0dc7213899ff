from typing import Self, final

import numpy as np
from numpy.typing import NDArray

from fastshard._core.pagering import PageRing
from fastshard._core.rows import Rows

LAST: int

@final
class Batch: ...

@final
class Sweep:
    def __new__(
        cls,
        columns: list[Rows],
        order: NDArray[np.int64],
        step: int,
        window_bytes: int,
        *,
        ring: PageRing | None,
        whole: bool,
    ) -> Self: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> NDArray[np.int64]: ...
    @property
    def is_sure(self) -> bool: ...
    def close(self) -> None: ...

def file_order(columns: list[Rows], order: NDArray[np.int64]) -> NDArray[np.int64]: ...
