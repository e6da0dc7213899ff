from typing import Any, final

from fastshard._core.places import Places

@final
class Coming:
    def __new__(
        cls, places: Places, positions: tuple[Any, ...] | None = None
    ) -> Coming: ...
    def every(self) -> list[Any]: ...
