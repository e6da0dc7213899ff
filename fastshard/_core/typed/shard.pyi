from collections.abc import Iterator
from typing import Any, Self, final

from typing_extensions import Buffer, disjoint_base

from fastshard._core.dataset.records import FieldShard, SampleList
from fastshard._core.dataset.shard import (
    GroupedSamples,
    SampleBase,
    SampleDecoder,
    Shard,
)
from fastshard._core.io.source import Source
from fastshard._core.table.extents import ExtentTable
from fastshard._core.table.grouping import Grouping
from fastshard.errors import FormatError

@final
class PackedTable:
    @property
    def count(self) -> int: ...
    def __new__(cls, tar: Shard, grouping: Grouping) -> Self: ...

@disjoint_base
class PackedShard(FieldShard):
    @property
    def tar(self) -> Any: ...
    def __init__(
        self,
        source: Source,
        table: ExtentTable,
        path: str,
        mode: str,
        tar: Shard,
        packed: PackedTable,
    ) -> None: ...
    def with_source(self, source: Source) -> PackedShard: ...

@disjoint_base
class PackedSamples(GroupedSamples):
    def __new__(
        cls, shard: PackedShard, grouping: Grouping, sample_type: type[SampleBase]
    ) -> Self: ...
    def payload_member(self, i: int) -> int: ...
    def error_of(
        self, error: FormatError, i: int, field: str | None
    ) -> FormatError: ...
    def read_all(self) -> Iterator[Any]: ...

@final
class PackedDecoder(SampleDecoder):
    def __call__(self, sample: SampleBase) -> dict[str, Any]: ...

decode_sample: PackedDecoder

def make_packed_shard(tar: Shard, grouping: Grouping) -> PackedShard: ...
def decode_fields(sample: SampleBase, fields: tuple[str, ...]) -> dict[str, Any]: ...
def decode_member(sample: SampleBase, field: str) -> Any: ...
def decode_columns(
    samples: list[Any] | SampleList, fields: tuple[str, ...]
) -> dict[str, list[Any]]: ...
def kind_of_field(sample: SampleBase, field: str) -> tuple[str, bool]: ...
def copy_payload(sample: SampleBase) -> bytes: ...
def fields_of_payload(payload: bytes) -> dict[str, memoryview]: ...
def decode_payload(
    payload: bytes, fields: tuple[str, ...] | None = None
) -> dict[str, Any]: ...
def unpack_value(data: Buffer) -> Any: ...
def kind_of_value(payload: bytes, field: str) -> tuple[str, bool] | None: ...
def check_payload(samples: PackedSamples, i: int) -> None: ...
