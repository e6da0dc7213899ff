from collections.abc import Callable
from typing import Self, final

from fastshard._core.extents import ExtentTable
from fastshard._core.source import Source

@final
class ColumnFile:
    @property
    def source(self) -> Source: ...
    @property
    def path(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def believed(self) -> bool: ...
    @property
    def identity(self) -> tuple[int, int, int, int]: ...
    @property
    def was_scanned(self) -> bool: ...
    def __new__(
        cls,
        source: Source,
        path: str,
        scan: Callable[[], ExtentTable],
        *,
        believed: bool,
        identity: tuple[int, int, int, int],
    ) -> Self: ...
    def let_go(self) -> None: ...
    def locate(self, offset: int, member: str) -> tuple[int, int]: ...
