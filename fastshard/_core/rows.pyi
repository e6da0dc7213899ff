from array import array
from collections.abc import Callable, Iterable
from typing import Any, Self, final

from numpy.typing import NDArray

from fastshard._core.columnfile import ColumnFile
from fastshard._core.extents import ExtentTable
from fastshard._core.samples import SampleBase, SamplesBase
from fastshard._core.shard import Shard

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
    layout: Any
    def __new__(
        cls, field: str, bring: Callable[[int], ColumnFile], path: str
    ) -> Self: ...
    def data_bytes(self) -> int: ...

@final
class ColumnShard(Shard):
    @property
    def file(self) -> ColumnFile: ...

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
