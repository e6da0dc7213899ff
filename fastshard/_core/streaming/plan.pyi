from collections.abc import Callable, Iterable
from typing import Any, Self, final

from typing_extensions import Buffer, disjoint_base

from fastshard._core.streaming.offsets import OffsetTable

@disjoint_base
class RowSchema:
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def encodings(self) -> tuple[str, ...]: ...
    @property
    def width(self) -> int: ...
    def __new__(
        cls,
        names: Iterable[str],
        encodings: Iterable[str],
        expected: dict[str, Any] | None = None,
    ) -> Self: ...
    def __init__(
        self,
        names: Iterable[str],
        encodings: Iterable[str],
        expected: dict[str, Any] | None = None,
    ) -> None: ...
    def mask(self, fields: str | Iterable[str] | None) -> bytes | None: ...

@final
class RowPlan(RowSchema):
    @property
    def sizes(self) -> tuple[int | None, ...]: ...
    def __new__(
        cls,
        names: Iterable[str],
        encodings: Iterable[str],
        sizes: Iterable[int | None],
        resolver: Callable[[str], Callable[[bytes], Any]],
    ) -> Self: ...
    def __init__(
        self,
        names: Iterable[str],
        encodings: Iterable[str],
        sizes: Iterable[int | None],
        resolver: Callable[[str], Callable[[bytes], Any]],
    ) -> None: ...

@disjoint_base
class RowTable:
    @property
    def path(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def schema(self) -> RowSchema: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def count(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def offsets(self) -> OffsetTable: ...
    def __len__(self) -> int: ...
    def row(self, i: int) -> tuple[int, int]: ...
    def fields(self, i: int, data: Buffer) -> list[tuple[int, int]]: ...
    def decode(
        self,
        data: Buffer,
        i: int = -1,
        mask: bytes | None = None,
        copy: bool = True,
    ) -> dict[str, Any]: ...
    def layout(self, k: int) -> Any: ...

@final
class MdsRows(RowTable):
    def __init__(
        self, path: str, plan: RowPlan, head: Buffer, nbytes: int, samples: int
    ) -> None: ...
