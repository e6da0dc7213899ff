from collections.abc import Callable

from fastshard._core.columnfile import ColumnFile
from fastshard._core.extents import ExtentTable
from fastshard._core.rows import Rows

def read_image(
    image: bytes,
    root: int,
    places: list[int],
    fields: list[str],
    bring: Callable[[str], Callable[[int], ColumnFile]],
    path: str,
    most: int,
) -> tuple[list[Rows], ExtentTable] | None: ...
