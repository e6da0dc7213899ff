from typing import Any, final

from fastshard._core.rows import Rows

@final
class Filling: ...

def layout_of_row(
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
    brought: bool = False,
) -> int | None: ...
