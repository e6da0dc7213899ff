from array import array
from collections.abc import Callable
from typing import Any, Self, final

from numpy.typing import NDArray

from fastshard._core.columnar.rows import Rows

def count_steps(rows: Rows) -> array[int]: ...

@final
class WindowReader:
    def __new__(cls, rows: Rows, samples: Any, starts: Any, length: int) -> Self: ...
    def views(self) -> list[NDArray[Any]]: ...
    def copy(
        self, allocate: Callable[[tuple[int, ...], Any], NDArray[Any]]
    ) -> NDArray[Any] | None: ...
    def page_in(self) -> None: ...
