from collections.abc import Callable
from typing import Any, Self, final

from numpy.typing import NDArray

from fastshard._core.dataset.records import RecordBatch
from fastshard._core.dataset.streams import SampleLocator

@final
class RowBatch(RecordBatch):
    def __new__(cls) -> Self: ...

@final
class Layouts:
    def __new__(cls, asked: tuple[str, ...], most: int) -> Self: ...

@final
class Columns:
    def __new__(cls, batch: RowBatch, most: int) -> Self: ...

def read_columns(
    locator: SampleLocator,
    positions: Any,
    names: tuple[str, ...],
    allocate: Callable[[str, tuple[int, ...], Any], NDArray[Any]] | None = None,
) -> dict[str, NDArray[Any]]: ...
def stack_columns(
    samples: list[Any],
    names: tuple[str, ...],
    allocate: Callable[[str, tuple[int, ...], Any], NDArray[Any]] | None = None,
) -> dict[str, NDArray[Any]]: ...
