from collections.abc import Callable
from typing import Any, Literal, Self, TypeAlias, final

from numpy.typing import NDArray

from fastshard._core.dataset.npy import LayoutCache
from fastshard._core.io.paging import PageRing
from fastshard._core.io.source import LocalFile, Source
from fastshard._core.table.extents import ExtentTable
from fastshard.errors import FormatError

@final
class Pack: ...

_Scan: TypeAlias = Callable[[str], tuple[ExtentTable, FormatError | None]]

@final
class UnmappedFile: ...

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
    def layouts(self) -> LayoutCache: ...
    @property
    def is_exact(self) -> bool: ...
    @property
    def identity(self) -> tuple[int, int, int, int]: ...
    @property
    def is_scanned(self) -> bool: ...
    def __new__(
        cls,
        source: Source | LocalFile,
        path: str,
        number: int,
        scan: _Scan,
        is_exact: bool,
        identity: tuple[int, int, int, int],
        layouts: LayoutCache | None = None,
    ) -> Self: ...
    def check_same(
        self, identity: tuple[int, int, int, int], was_exact: bool
    ) -> None: ...
    def release(self) -> None: ...
    def locate(self, offset: int, member: str) -> tuple[int, int]: ...

def open_column(
    path: str,
    number: int,
    mode: Literal["mmap", "private", "pread"],
    recorded: int | None,
    is_unmodified: Callable[[LocalFile, int], bool],
    scan: _Scan,
    ring: PageRing | None = None,
    *,
    unmapped: bool = False,
    layouts: LayoutCache | None = None,
) -> ColumnFile: ...

@final
class RowReader:
    @property
    def fields(self) -> list[str]: ...
    def __new__(
        cls,
        fields: list[str],
        open_file: Callable[[str, int], ColumnFile],
        path: str,
        packed: dict[str, bool] | None = None,
    ) -> Self: ...
    def arrays(
        self, row: tuple[Any, ...], sample_id: str, copy: bool = False
    ) -> dict[str, NDArray[Any]]: ...
    def array_of(
        self, k: int, row: tuple[Any, ...], sample_id: str, copy: bool = False
    ) -> NDArray[Any]: ...
    def is_packed(self, k: int, row: tuple[Any, ...]) -> bool: ...
    def file(
        self, k: int, offset: object, shard: object, member: str
    ) -> tuple[ColumnFile, int]: ...
    def forget(self, file: ColumnFile) -> None: ...
