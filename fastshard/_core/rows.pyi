from collections.abc import Callable
from typing import Any, Self, final

from fastshard._core.columnfile import ColumnFile
from fastshard._core.shard import Shard
from fastshard.errors import FormatError

@final
class Places:
    def __new__(cls, count: int) -> Self: ...

@final
class Cells: ...

@final
class Rows:
    @property
    def field(self) -> str: ...
    @property
    def numbers(self) -> list[int]: ...
    @property
    def count(self) -> int: ...
    unpickle: Callable[[bytes, FormatError], Any] | None
    layout: Any
    def let_go(self, file: ColumnFile) -> None: ...
    def __new__(
        cls, field: str, bring: Callable[[int], ColumnFile], path: str
    ) -> Self: ...
    def data_bytes(self) -> int: ...

@final
class ColumnShard(Shard):
    @property
    def file(self) -> ColumnFile: ...
