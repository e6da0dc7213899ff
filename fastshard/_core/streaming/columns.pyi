from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from fastshard._core.dataset.locator import SampleLocator

def read_columns(
    locator: SampleLocator,
    positions: Any,
    names: tuple[str, ...],
    allocate: Callable[[str, tuple[int, ...], Any], NDArray[Any]],
) -> dict[str, NDArray[Any]]: ...
def stack_columns(
    samples: list[Any],
    names: tuple[str, ...],
    allocate: Callable[[str, tuple[int, ...], Any], NDArray[Any]],
) -> dict[str, NDArray[Any]]: ...
