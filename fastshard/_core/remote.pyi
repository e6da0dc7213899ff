from typing import Any, final

from fastshard._core.samples import SampleBase
from fastshard._core.source import Source

@final
class RemoteSource(Source):
    @property
    def file(self) -> Any: ...
    def __new__(
        cls, file: Any, staged: dict[int, bytes] | None = None
    ) -> RemoteSource: ...
    def has_staged(self, offset: int, size: int) -> bool: ...

@final
class Room:
    def __buffer__(self, flags: int, /) -> memoryview: ...

def stage(sample: SampleBase, staged: dict[int, bytes]) -> None: ...
def room_for(size: int) -> tuple[bytes, memoryview]: ...
