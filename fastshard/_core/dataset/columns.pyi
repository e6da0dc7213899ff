from collections.abc import Iterator
from typing import Any, Self, final

from typing_extensions import disjoint_base

from fastshard._core.dataset.shard import SampleBase

@disjoint_base
class ColumnBatch:
    def __new__(cls) -> Self: ...

@final
class SampleList:
    def __new__(cls, samples: list[SampleBase]) -> Self: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __getitem__(self, i: int, /) -> Any: ...

@disjoint_base
class RecordBatch(ColumnBatch):
    def __new__(cls) -> Self: ...
