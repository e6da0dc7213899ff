from array import array
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeAlias, final

from numpy.typing import NDArray

from fastshard._core.columnar.rows import Rows
from fastshard._core.dataset.records import ColumnBatch
from fastshard._core.dataset.shard import SampleBase
from fastshard._core.dataset.streams import SampleLocator

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
def count_steps(rows: Rows) -> array[int]: ...

@final
class WindowReader:
    def __new__(cls, rows: Rows, samples: Any, starts: Any, length: int) -> Self: ...
    def views(self) -> list[NDArray[Any]]: ...
    def copy(
        self, allocate: Callable[[tuple[int, ...], Any], NDArray[Any]]
    ) -> NDArray[Any] | None: ...
    def page_in(self) -> None: ...

_StackRows: TypeAlias = Callable[..., dict[str, NDArray[Any]]]

@final
class PositionBatch(ColumnBatch):
    def __new__(cls, stack_rows: _StackRows) -> Self: ...

def read_fields(
    locator: SampleLocator,
    positions: Sequence[int] | NDArray[Any],
    names: tuple[str, ...],
    stack_rows: _StackRows,
) -> dict[str, NDArray[Any]]: ...
def stack_samples(
    samples: list[SampleBase],
    names: tuple[str, ...],
    allocate: Callable[[str, tuple[int, ...], Any], NDArray[Any]],
    stack_rows: _StackRows,
) -> dict[str, NDArray[Any]]: ...
