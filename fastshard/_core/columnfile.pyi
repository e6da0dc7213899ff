from collections.abc import Callable
from typing import Literal, Self, TypeAlias, final

from fastshard._core.extents import ExtentTable
from fastshard._core.pagering import PageRing
from fastshard._core.source import LocalFile, Source
from fastshard.errors import FormatError

_Scan: TypeAlias = Callable[[str], tuple[ExtentTable, FormatError | None]]

@final
class ColumnFile:
    @property
    def source(self) -> Source: ...
    @property
    def path(self) -> str: ...
    @property
    def number(self) -> int: ...
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
        number: int,
        scan: _Scan,
        believed: bool,
        identity: tuple[int, int, int, int],
    ) -> Self: ...
    def let_go(self) -> None: ...
    def locate(self, offset: int, member: str) -> tuple[int, int]: ...

def open_column(
    path: str,
    number: int,
    mode: Literal["mmap", "private", "pread"],
    recorded: int | None,
    believes: Callable[[LocalFile, int], bool],
    scan: _Scan,
    ring: PageRing | None = None,
) -> ColumnFile: ...
