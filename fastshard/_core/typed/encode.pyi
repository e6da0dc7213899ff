from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Self, final

@final
class PayloadEncoder:
    def __new__(
        cls,
        names: Sequence[str],
        convert: Callable[[Any, str | None], object],
        describe: Callable[[Any, bool], tuple[int, bytes]],
        compact: bool,
        own: Collection[str] = ...,
        kinds: Mapping[str, str] | Sequence[Any] = ...,
        dtypes: Mapping[str, Any] | None = ...,
    ) -> Self: ...
    def encode(self, sample: object) -> bytes: ...
    def encode_map(self, values: dict[str, Any]) -> bytes: ...

@final
class ArrayHeader:
    def __new__(cls) -> Self: ...
