from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fastshard._core.io.source import MappedFile
from fastshard._core.table.extents import ExtentTable

@final
class Grouping:
    def __new__(cls, table: ExtentTable, last_dot: bool, lower: bool) -> Grouping: ...
    @property
    def last_dot(self) -> bool: ...
    @property
    def lower(self) -> bool: ...
    def field_counts(self, limit: int = ...) -> dict[str, int]: ...
    @property
    def may_repeat(self) -> bool: ...
    def having(self, fields: tuple[str, ...]) -> bytearray: ...
    def repeats(self) -> list[int]: ...

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
    def find_damage(self) -> list[int]: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def read(self, offset: int, size: int) -> bytes: ...

def borrow_table(
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
def borrow_grouping(
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
def copy_columns(table: ExtentTable) -> dict[str, bytes]: ...
def copy_keys(table: ExtentTable, suffix: bytes) -> bytes | None: ...
def has_keys(table: ExtentTable, suffix: bytes, text: Any, ends: Any) -> bool: ...
def copy_samples(grouping: Grouping) -> tuple[bytes, bytes]: ...
def write_key_rows(
    grouping: Grouping,
    first: int,
    seed: bytes,
    rows: NDArray[np.uint64],
    *,
    older: bool = False,
) -> Any: ...
def normalize_key(key: str) -> str: ...
def hash_key(key: str, seed: bytes) -> int | None: ...
