from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Literal, Self, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray
from typing_extensions import disjoint_base

from fastshard._core.extents import ExtentTable, Names
from fastshard._core.source import Source

@disjoint_base
class Shard:
    @property
    def path(self) -> str: ...
    @property
    def mode(self) -> Literal["mmap", "private", "pread", "remote"]: ...
    @property
    def closed(self) -> bool: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def names(self) -> Names: ...
    @property
    def offsets(self) -> NDArray[np.uint64]: ...
    @property
    def sizes(self) -> NDArray[np.uint64]: ...
    def __new__(
        cls,
        source: Source,
        table: ExtentTable,
        path: str,
        mode: str,
        *args: Any,
        **kwargs: Any,
    ) -> Self: ...
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, key: int | str, /) -> memoryview: ...
    @overload
    def __getitem__(self, key: slice, /) -> list[memoryview]: ...
    def __contains__(self, name: str, /) -> bool: ...
    def __iter__(self) -> Iterator[memoryview]: ...
    def scan(
        self,
        order: Iterable[int] | NDArray[Any] | None = None,
        window: int = 32,
        *,
        max_memory: int | str | None = None,
        keep_cache: bool = True,
    ) -> Iterator[memoryview]: ...
    def position(self, name: str) -> int: ...
    def read(self, key: int | str) -> bytes: ...
    def array(
        self,
        key: int | str,
        dtype: DTypeLike | None = None,
        shape: int | tuple[int, ...] | None = None,
    ) -> NDArray[Any]: ...
    def read_into(
        self,
        positions: Iterable[int] | NDArray[Any],
        out: Any,
        *,
        threads: int | None = None,
    ) -> NDArray[np.int64]: ...
    def parts(self) -> tuple[Source, ExtentTable]: ...
    def close(self, strict: bool = False) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
