from collections.abc import Callable
from typing import Any, SupportsIndex, final

from fastshard._core.samples import SamplesBase
from fastshard._core.table.order import Order

@final
class Places:
    @property
    def total(self) -> int: ...
    @property
    def count(self) -> int: ...
    def __new__(
        cls,
        starts: list[int],
        samples: list[Any],
        used: bytearray | None,
        bring: Callable[[int], SamplesBase],
    ) -> Places: ...
    def ordered(self, order: Order) -> Places: ...
    def at(self, i: SupportsIndex) -> Any: ...
