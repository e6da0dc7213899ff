from array import array
from collections.abc import Callable, Iterable
from typing import Any, Self, final

from numpy.typing import NDArray

from fastshard._core.columnar.column_file import ColumnFile
from fastshard._core.dataset.shard import SampleBase, SamplesBase, Shard
from fastshard._core.table.extents import ExtentTable
from fastshard.errors import FormatError

@final
class ShardMappings:
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
    def forget(self, file: ColumnFile) -> None: ...
    def __new__(
        cls, field: str, open_file: Callable[[int], ColumnFile], path: str
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
    def has_metadata(self) -> bool: ...
    @property
    def field_names(self) -> list[str]: ...
    def __new__(
        cls,
        columns: list[Rows],
        names: ExtentTable,
        sample_type: type[SampleBase],
        owner: object,
        has_metadata: bool = False,
    ) -> Self: ...
    def having(self, fields: tuple[str, ...]) -> bytearray: ...
    def find_keys(self, keys: list[str]) -> array[int]: ...
    def search_key(self, key: str) -> int: ...
    def keys_of(self, positions: Iterable[int]) -> list[str]: ...
    def arrays(
        self, i: int, columns: list[Rows] | None = None, copy: bool = False
    ) -> dict[str, NDArray[Any]]: ...
    def read(
        self, key: str, columns: list[Rows], copy: bool = False
    ) -> tuple[dict[str, NDArray[Any]], str | None] | None: ...
    def read_many(
        self, keys: list[str], columns: list[Rows], copy: bool = False
    ) -> list[tuple[dict[str, NDArray[Any]], str | None]] | None: ...
    def metadata_text(self, i: int) -> str | None: ...
    def columns_of(self, fields: Iterable[str]) -> list[Rows]: ...

def read_rows(
    chunks: Iterable[list[tuple[Any, ...]]],
    fields: list[str],
    opener: Callable[[str], Callable[[int], ColumnFile]],
    path: str,
) -> tuple[list[Rows], ExtentTable]: ...
def read_image(
    image: bytes,
    root: int,
    numbers: list[int],
    fields: list[str],
    opener: Callable[[str], Callable[[int], ColumnFile]],
    path: str,
    max_bytes: int,
) -> tuple[list[Rows], ExtentTable] | None: ...
