from array import array
from collections.abc import Callable, Mapping
from typing import Any, Self, final

import numpy as np
from numpy.typing import DTypeLike, NDArray
from typing_extensions import Buffer

from fastshard._core.dataset.shard import Shard
from fastshard._core.table.extents import ExtentTable

@final
class Layout: ...

@final
class LayoutCache: ...

def npy_size(view: bytes | memoryview) -> int: ...

@final
class HeldBuffer:
    def __new__(cls, exporter: Buffer) -> Self: ...

def offsets_of(table: ExtentTable) -> NDArray[np.uint64]: ...
def sizes_of(table: ExtentTable) -> NDArray[np.uint64]: ...
def array_from_bytes(
    data: bytes,
    dtype: DTypeLike | None,
    shape: int | tuple[int, ...] | None,
    path: str,
) -> NDArray[Any]: ...
def array_from_buffer(
    view: Buffer,
    dtype: DTypeLike | None = None,
    shape: int | tuple[int, ...] | None = None,
) -> NDArray[Any]: ...
def read_layouts(
    shards: list[Shard],
    members: array[int],
    dtype: Any,
    shape: Any,
    own: bool = False,
) -> tuple[
    np.dtype[Any],
    tuple[int, ...],
    bool,
    NDArray[np.int64],
    tuple[int, str] | None,
]: ...
def fill_rows(template: bytes, rows: int) -> bytes: ...

@final
class MemberBuffer:
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    number: int
    left: int
    max_end: int
    packs: bool
    has_rows: bool
    @property
    def row(self) -> int: ...
    def __new__(
        cls,
        head: Callable[[bytes, int], bytes],
        encode: Callable[[Any], tuple[bytes, Buffer]],
        encode_row: Callable[[Any], tuple[bytes, Any]] | None = None,
    ) -> Self: ...
    def __len__(self) -> int: ...
    def append(self, name: bytes, array: Any) -> int: ...
    def append_bytes(self, name: bytes, data: Buffer) -> int: ...
    def drop_last(self) -> None: ...
    def end_pack(self) -> int: ...
    def begin(self, start: int) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def append_all(
    buffers: dict[str, MemberBuffer],
    arrays: Mapping[str, Any],
    name: bytes,
    make_room: Callable[[str], object],
) -> tuple[list[Any], int]: ...
def name_member(sample_id: str) -> bytes | None: ...
def keep_for_ever(thing: object) -> None: ...
