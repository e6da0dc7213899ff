from typing import Any, final

from numpy.typing import NDArray

from fastshard._core.columnar.rows import Rows

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
    columns: list[Rows], positions: Any, *, is_resident: bool = False
) -> dict[str, NDArray[Any]]: ...
