from collections.abc import Callable, Iterable
from typing import Any, Generic, Self, TypeVar, final

from typing_extensions import Buffer

_T = TypeVar("_T")

@final
class PayloadBuffer:
    def __new__(cls, exporter: Buffer) -> Self: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class TypePlan(Generic[_T]):
    @property
    def cls(self) -> type[_T]: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def strict(self) -> bool: ...
    @property
    def post_init(self) -> bool: ...
    def __new__(
        cls,
        of: type[_T],
        fields: Iterable[Any],
        post_init: bool = False,
        strict: bool = False,
        make: Callable[[type[_T], bool], TypePlan[_T]] | None = None,
    ) -> Self: ...
    def from_buffer(
        self, data: Buffer, copy: bool = False, aligned: bool = False
    ) -> _T: ...
