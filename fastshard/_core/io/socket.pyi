from collections.abc import Sequence
from typing import final

from typing_extensions import Buffer

CAN_RECEIVE: bool

@final
class Scatter:
    @property
    def left(self) -> int: ...
    def __new__(
        cls, start: int, end: int, parts: Sequence[tuple[int, Buffer]]
    ) -> Scatter: ...
    def feed(self, data: Buffer) -> None: ...
    def receive(self, fd: int, until: int) -> tuple[int, bool]: ...
