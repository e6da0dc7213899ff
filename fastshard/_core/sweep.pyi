from array import array
from typing import Self, final

from fastshard._core.rows import ColumnSamples, Rows

@final
class Batch: ...

@final
class Sweep:
    def __new__(
        cls,
        columns: list[Rows],
        order: array[int],
        step: int,
        window_bytes: int,
        *,
        drops: bool,
    ) -> Self: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> array[int]: ...
    def close(self) -> None: ...

def file_order(samples: ColumnSamples, rows: Rows, order: array[int]) -> array[int]: ...
