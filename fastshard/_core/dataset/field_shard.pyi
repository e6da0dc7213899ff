from typing import Any, Self, final, overload

from typing_extensions import disjoint_base

from fastshard._core.dataset.shard import Shard

@disjoint_base
class FieldShard(Shard):
    @property
    def names(self) -> Any: ...
    def __copy__(self) -> Self: ...

@final
class MemberNames:
    def __new__(cls, shard: Shard) -> Self: ...
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, key: int, /) -> str: ...
    @overload
    def __getitem__(self, key: slice, /) -> list[str]: ...
