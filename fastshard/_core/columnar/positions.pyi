from collections.abc import Callable, Sequence
from typing import Any, Self, TypeAlias, final

from numpy.typing import NDArray

from fastshard._core.dataset.columns import ColumnBatch
from fastshard._core.dataset.locator import SampleLocator
from fastshard._core.dataset.shard import SampleBase

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
