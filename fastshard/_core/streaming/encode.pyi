from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, final

@final
class RowEncoder:
    def __new__(
        cls,
        names: Sequence[str],
        encodings: Sequence[str],
        sizes: Sequence[int | None],
        encoders: Sequence[Callable[[Any], bytes]],
    ) -> Self: ...
    def encode(self, sample: Mapping[str, Any]) -> bytes: ...
