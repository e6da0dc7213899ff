from typing import final

from typing_extensions import Buffer, disjoint_base

@final
@disjoint_base
class OffsetTable:
    @property
    def count(self) -> int: ...
    @property
    def wrap_count(self) -> int: ...
    def __len__(self) -> int: ...
    def extent(self, i: int) -> tuple[int, int]: ...

def parse_offsets(
    data: Buffer, count: int, place: int, last: int, path: str
) -> OffsetTable: ...
