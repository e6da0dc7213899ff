from typing import Self

from typing_extensions import disjoint_base

from fastshard._core.samples import SampleBase, SamplesBase
from fastshard._core.shard import Shard
from fastshard._core.table.grouping import Grouping

@disjoint_base
class GroupedSamples(SamplesBase):
    @property
    def shard(self) -> Shard: ...
    @property
    def grouping(self) -> Grouping: ...
    def __new__(
        cls, shard: Shard, grouping: Grouping, sample_type: type[SampleBase]
    ) -> Self: ...
    def having(self, fields: tuple[str, ...]) -> bytearray: ...
    def members_at(self, i: int) -> list[int]: ...
