from array import array
from collections.abc import Callable, Iterable
from typing import Any, Self, final

from numpy.typing import NDArray

from fastshard._core.columnfile import ColumnFile
from fastshard._core.extents import ExtentTable
from fastshard._core.rows import Rows
from fastshard._core.samples import SampleBase, SamplesBase

@final
class ColumnSamples(SamplesBase):
    @property
    def columns(self) -> list[Rows]: ...
    @property
    def names(self) -> ExtentTable: ...
    @property
    def owner(self) -> Any: ...
    @property
    def field_names(self) -> list[str]: ...
    def __new__(
        cls,
        columns: list[Rows],
        names: ExtentTable,
        sample_type: type[SampleBase],
        owner: object,
    ) -> Self: ...
    def having(self, fields: tuple[str, ...]) -> bytearray: ...
    def find_keys(self, keys: list[str]) -> array[int]: ...
    def search_key(self, key: str) -> int: ...
    def keys_of(self, positions: Iterable[int]) -> list[str]: ...
    def arrays(
        self, i: int, columns: list[Rows] | None = None, copy: bool = False
    ) -> dict[str, NDArray[Any]]: ...
    def columns_of(self, fields: Iterable[str]) -> list[Rows]: ...

def read_rows(
    chunks: Iterable[list[tuple[Any, ...]]],
    fields: list[str],
    bring: Callable[[str], Callable[[int], ColumnFile]],
    path: str,
) -> tuple[list[Rows], ExtentTable]: ...
