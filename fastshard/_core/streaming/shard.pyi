from typing import Any, Self, final

from typing_extensions import disjoint_base

from fastshard._core.dataset.shard import SampleBase, SamplesBase, Shard
from fastshard._core.io.source import Source
from fastshard._core.streaming.plan import RowTable
from fastshard._core.table.extents import ExtentTable

@disjoint_base
class RowShard(Shard):
    @property
    def rows(self) -> RowTable: ...
    @property
    def facts(self) -> Any: ...
    def __init__(
        self,
        source: Source,
        table: ExtentTable,
        path: str,
        mode: str,
        rows: RowTable,
        facts: Any,
    ) -> None: ...
    def with_source(self, source: Source) -> RowShard: ...
    def __copy__(self) -> RowShard: ...

@final
class RowSamples(SamplesBase):
    @property
    def first(self) -> int: ...
    @property
    def names(self) -> list[str]: ...
    def __new__(
        cls, shard: RowShard, sample_type: type, first: int, key_column: int
    ) -> Self: ...
    def having(self, fields: tuple[str, ...]) -> bytearray: ...
    def search_key(self, key: str) -> int: ...

def make_row_shard(
    source: Source, path: str, mode: str, rows: RowTable, facts: Any
) -> RowShard: ...
def decode_fields(sample: SampleBase, fields: tuple[str, ...]) -> dict[str, Any]: ...
def decode_member(sample: SampleBase, field: str, copy: bool = True) -> Any: ...
