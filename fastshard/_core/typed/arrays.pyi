from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

@final
class ArrayField:
    @property
    def expected(self) -> np.dtype[Any] | type[np.generic] | None: ...
    def __new__(
        cls, expected: np.dtype[Any] | type[np.generic] | None = None
    ) -> Self: ...

def describe_dtype(data: Buffer) -> str: ...
def unpack_array(
    data: Buffer, *, copy: bool = False, aligned: bool = False
) -> NDArray[Any]: ...
def is_array(data: Buffer) -> bool: ...
