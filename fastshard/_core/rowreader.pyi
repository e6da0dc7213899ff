from collections.abc import Callable
from typing import Any, Self, final

from numpy.typing import NDArray

from fastshard._core.columnfile import ColumnFile

@final
class RowReader:
    @property
    def fields(self) -> list[str]: ...
    def __new__(
        cls, fields: list[str], bring: Callable[[str, int], ColumnFile], path: str
    ) -> Self: ...
    def arrays(
        self, row: tuple[Any, ...], sample_id: str, copy: bool = False
    ) -> dict[str, NDArray[Any]]: ...
    def array_of(
        self, k: int, offset: object, shard: object, sample_id: str, copy: bool = False
    ) -> NDArray[Any]: ...
    def file(
        self, k: int, offset: object, shard: object, member: str
    ) -> tuple[ColumnFile, int]: ...
    def let_go(self, file: ColumnFile) -> None: ...
