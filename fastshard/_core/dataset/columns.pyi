from typing import Self

from typing_extensions import disjoint_base

@disjoint_base
class ColumnBatch:
    def __new__(cls) -> Self: ...
