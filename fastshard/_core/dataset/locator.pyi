from collections.abc import Callable
from typing import Any, SupportsIndex, final

from fastshard._core.dataset.shard import SampleDecoder, SamplesBase
from fastshard._core.table.order import Order

@final
class SampleLocator:
    @property
    def total(self) -> int: ...
    @property
    def count(self) -> int: ...
    def __new__(
        cls,
        starts: list[int],
        samples: list[Any],
        used: bytearray | None,
        open_shard: Callable[[int], SamplesBase],
    ) -> SampleLocator: ...
    def ordered(self, order: Order) -> SampleLocator: ...
    def decoding(self, decoder: SampleDecoder) -> SampleLocator: ...
    def at(self, i: SupportsIndex) -> Any: ...

@final
class LookaheadRing:
    def __new__(
        cls, locator: SampleLocator, positions: tuple[Any, ...] | None = None
    ) -> LookaheadRing: ...
    def every(self) -> list[Any]: ...
