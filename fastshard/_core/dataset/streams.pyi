from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, Self, SupportsIndex, TypeVar, final

from typing_extensions import disjoint_base

from fastshard._core.dataset.shard import SampleDecoder, SamplesBase, Shard
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

_T = TypeVar("_T")

@disjoint_base
class ItemStream:
    decoder: SampleDecoder | None

@final
class MemberStream(ItemStream):
    def __new__(cls, shard: Shard, order: Iterable[int]) -> MemberStream: ...

@disjoint_base
class SampleStream(ItemStream): ...

@final
class PositionStream(SampleStream):
    def __new__(
        cls,
        locator: SampleLocator,
        only: tuple[str, ...] | None,
        required: bool,
        decoders: Mapping[str, Any] | None,
    ) -> PositionStream: ...

@final
class ShardStream(SampleStream):
    def __new__(
        cls,
        sizes: list[int | None],
        open_shard: Callable[[int], SamplesBase],
        only: tuple[str, ...] | None,
        required: bool,
        decoders: Mapping[str, Any] | None,
    ) -> ShardStream: ...

@final
class CallGuard:
    def call(self, function: Callable[[], _T]) -> _T: ...
    def __reduce__(self) -> NoReturn: ...

@disjoint_base
class IteratorBase:
    def __new__(
        cls,
        stream: ItemStream,
        window: int,
        window_bytes: int,
        *,
        make: Callable[[Any], Any] | None = None,
        describe: Callable[[int, int], dict[str, Any]] | None = None,
        on_error: Callable[[Exception, int], bool] | None = None,
        skipped: int = 0,
        **options: Any,
    ) -> Self: ...
    def __iter__(self) -> Self: ...
    def __length_hint__(self) -> int: ...
    def __next__(self) -> Any: ...
    @property
    def wait_ns(self) -> int: ...
    @property
    def is_mapped(self) -> bool: ...
    @property
    def buffered(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def skipped(self) -> int: ...
    def state_dict(self) -> dict[str, Any]: ...
    def state_after(self, done: int, skipped: int) -> dict[str, Any]: ...
    def invalidate(self) -> None: ...
    def close(self) -> None: ...
