from collections.abc import Callable, Iterable
from typing import Any, Self, final

from numpy.typing import NDArray

from fastshard._core.dataset.records import RecordBatch, SampleList
from fastshard._core.dataset.streams import SampleLocator

@final
class PayloadBatch(RecordBatch):
    def __new__(cls) -> Self: ...

@final
class PayloadColumns:
    def __new__(cls, batch: PayloadBatch, most: int) -> Self: ...

def read_columns(
    locator: SampleLocator,
    positions: Iterable[int] | NDArray[Any],
    names: tuple[str, ...],
    allocate: Callable[[str, tuple[int, ...], Any], NDArray[Any]] | None = None,
) -> dict[str, NDArray[Any]]: ...
def stack_columns(
    samples: list[Any] | SampleList,
    names: tuple[str, ...],
    allocate: Callable[[str, tuple[int, ...], Any], NDArray[Any]] | None = None,
) -> dict[str, NDArray[Any]]: ...
