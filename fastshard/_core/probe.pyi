from collections.abc import Sequence

from fastshard._core.extents import ExtentTable
from fastshard._core.source import LocalFile

def first_changed(
    file: LocalFile, table: ExtentTable, positions: Sequence[int]
) -> int: ...
