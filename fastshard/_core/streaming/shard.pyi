from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import disjoint_base

from fastshard._core.dataset.records import FieldShard
from fastshard._core.dataset.shard import SampleBase, SampleDecoder, SamplesBase
from fastshard._core.io.source import Source
from fastshard._core.streaming.plan import RowTable
from fastshard._core.table.extents import ExtentTable

@disjoint_base
class RowShard(FieldShard):
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
    def extents(self) -> NDArray[np.uint64]: ...
    def with_source(self, source: Source) -> RowShard: ...

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
    def search_all(self, key: str) -> list[int]: ...

@final
class RowDecoder(SampleDecoder):
    def __call__(self, sample: SampleBase) -> dict[str, Any]: ...

decode_sample: RowDecoder

def make_row_shard(
    source: Source, path: str, mode: str, rows: RowTable, facts: Any
) -> RowShard: ...
def decode_fields(sample: SampleBase, fields: tuple[str, ...]) -> dict[str, Any]: ...
def decode_member(sample: SampleBase, field: str, copy: bool = True) -> Any: ...
