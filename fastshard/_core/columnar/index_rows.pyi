from collections.abc import Callable, Iterable
from typing import Any

from fastshard._core.columnar.column_file import ColumnFile
from fastshard._core.columnar.rows import Rows
from fastshard._core.table.extents import ExtentTable

def read_rows(
    chunks: Iterable[list[tuple[Any, ...]]],
    fields: list[str],
    opener: Callable[[str], Callable[[int], ColumnFile]],
    path: str,
    packed: dict[str, bool] | None = None,
) -> tuple[list[Rows], ExtentTable]: ...
def read_image(
    image: bytes,
    root: int,
    numbers: list[int],
    fields: list[str],
    opener: Callable[[str], Callable[[int], ColumnFile]],
    path: str,
    max_bytes: int,
    packed: dict[str, bool] | None = None,
) -> tuple[list[Rows], ExtentTable] | None: ...
