from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

from typing_extensions import disjoint_base

from fastshard._core.places import Places
from fastshard._core.samples import SamplesBase
from fastshard._core.shard import Shard

@disjoint_base
class Feed: ...

@final
class MemberFeed(Feed):
    def __new__(cls, shard: Shard, order: Iterable[int]) -> MemberFeed: ...

@disjoint_base
class SampleFeed(Feed): ...

@final
class PlacesFeed(SampleFeed):
    def __new__(
        cls,
        places: Places,
        only: tuple[str, ...] | None,
        required: bool,
        decoders: Mapping[str, Any] | None,
    ) -> PlacesFeed: ...

@final
class ShardsFeed(SampleFeed):
    def __new__(
        cls,
        sizes: list[int | None],
        bring: Callable[[int], SamplesBase],
        only: tuple[str, ...] | None,
        required: bool,
        decoders: Mapping[str, Any] | None,
    ) -> ShardsFeed: ...
