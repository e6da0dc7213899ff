from collections.abc import Sequence
from typing import Protocol

from fastshard._core.extents import ExtentTable

class _File(Protocol):
    @property
    def nbytes(self) -> int: ...
    def read_many(self, extents: list[tuple[int, int]], /) -> list[bytes]: ...

def differing(
    file: _File, table: ExtentTable, positions: Sequence[int]
) -> list[int]: ...
