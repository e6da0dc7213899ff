from collections.abc import Sequence
from typing import Any, Self, final

from numpy.typing import NDArray
from typing_extensions import disjoint_base

@disjoint_base
class Order:
    @property
    def count(self) -> int: ...
    @property
    def limit(self) -> int: ...
    name: str | None
    def after(self, first: Order) -> Order: ...
    def __len__(self) -> int: ...
    def __getitem__(self, place: int, /) -> int: ...
    def find(self, position: int) -> int: ...
    def positions(self, start: int, stop: int) -> NDArray[Any]: ...
    def __array__(
        self, dtype: Any = None, copy: bool | None = None
    ) -> NDArray[Any]: ...

@final
class Stride(Order):
    def __new__(
        cls, start: int, step: int, count: int, limit: int, *, wraps: bool = False
    ) -> Self: ...

@final
class Chunks(Order):
    def __new__(cls, size: int, worker: int, workers: int, limit: int) -> Self: ...

@final
class PositionList(Order):
    def __new__(
        cls, numbers: Sequence[int] | NDArray[Any], limit: int, *, owned: bool = False
    ) -> Self: ...

def Listed(  # noqa: N802
    numbers: Sequence[int] | NDArray[Any], limit: int
) -> PositionList: ...

@final
class Shuffle(Order):
    def __new__(
        cls, count: int, keys: tuple[int, ...], block: int = 0, *, local: bool = False
    ) -> Self: ...

@final
class Chain(Order):
    def __new__(cls, first: Order, then: Order) -> Self: ...
