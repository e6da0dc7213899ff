from typing import Any, final

from fastshard._core.feeds import Feed

@final
class Descriptor: ...

@final
class Waiting: ...

@final
class Ahead:
    def __new__(
        cls,
        feed: Feed,
        window: int,
        window_bytes: int,
        *,
        drops: bool = False,
        forgets: bool = False,
    ) -> Ahead: ...
    def __iter__(self) -> Ahead: ...
    def __length_hint__(self) -> int: ...
    def __next__(self) -> Any: ...
    @property
    def buffered(self) -> int: ...
    def close(self) -> None: ...
