from typing import Generic, Self, TypeVar, final

from fastshard._core.dataset.shard import SampleBase, SampleDecoder
from fastshard._core.typed.field_map import FieldMap
from fastshard._core.typed.plan import TypePlan

_T = TypeVar("_T")
_M = TypeVar("_M", bound=FieldMap)

@final
class TypedDecoder(SampleDecoder, Generic[_T]):
    @property
    def plan(self) -> TypePlan[_T]: ...
    @property
    def copy(self) -> bool: ...
    @property
    def aligned(self) -> bool: ...
    def __new__(
        cls, plan: TypePlan[_T], copy: bool = False, aligned: bool = False
    ) -> Self: ...
    def __call__(self, sample: SampleBase) -> _T: ...

@final
class MapDecoder(SampleDecoder, Generic[_M]):
    @property
    def cls(self) -> type[_M]: ...
    @property
    def copy(self) -> bool: ...
    def __new__(cls, of: type[_M], copy: bool = False) -> Self: ...
    def __call__(self, sample: SampleBase) -> _M: ...
