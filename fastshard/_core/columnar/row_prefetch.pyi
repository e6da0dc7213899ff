from typing import Self, final

import numpy as np
from numpy.typing import NDArray

from fastshard._core.columnar.rows import Rows
from fastshard._core.io.paging import PageRing

NO_SHARD: int

def sort_in_file_order(
    columns: list[Rows], order: NDArray[np.int64]
) -> NDArray[np.int64]: ...

@final
class HeaderCheck: ...

@final
class Batch: ...

@final
class RowPrefetcher:
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
    def is_complete(self) -> bool: ...
    def close(self) -> None: ...
