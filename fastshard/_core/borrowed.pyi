from typing import final

from fastshard._core.extents import ExtentTable
from fastshard._core.grouping import Grouping
from fastshard._core.io.source import MappedFile

@final
class IndexMemory:
    @property
    def path(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    def __new__(
        cls,
        owner: MappedFile | bytes,
        path: str,
        sums: bytes | None = None,
        start: int = 0,
        end: int = 0,
    ) -> IndexMemory: ...
    def damaged(self) -> list[int]: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def read(self, offset: int, size: int) -> bytes: ...

def borrowed_table(
    memory: IndexMemory,
    count: int,
    offsets: int,
    sizes: int,
    name_ends: int,
    names: int,
    names_size: int,
    info_ends: int,
    infos: int,
    infos_size: int,
) -> ExtentTable: ...
def borrowed_grouping(
    table: ExtentTable,
    memory: IndexMemory,
    samples: int,
    starts: int,
    grouped: int,
    members: int,
    last_dot: bool,
    lower: bool,
    unique: bool,
) -> Grouping: ...
def columns_of(table: ExtentTable) -> dict[str, bytes]: ...
def samples_of(grouping: Grouping) -> tuple[bytes, bytes]: ...
