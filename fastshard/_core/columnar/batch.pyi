from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from fastshard._core.columnar.rows import Rows
from fastshard._core.io.page_ring import PageRing

@final
class HeaderCheck: ...

@final
class RowCopy: ...

def read_row_layout(
    rows: Rows, i: int
) -> tuple[Any, tuple[int, ...], bool, bytes | None, int, int]: ...
def fill_rows(
    rows: Rows,
    positions: Any,
    out: Any,
    header: bytes,
    size: int,
    tag: int,
    *,
    is_resident: bool = False,
) -> int | None: ...
def stack_rows(
    rows: Rows, positions: Any, *, is_resident: bool = False
) -> NDArray[Any] | None: ...

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
