from collections.abc import Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

@final
class DocumentLengths:
    @property
    def dtype(self) -> np.dtype[Any] | None: ...
    @property
    def lengths(self) -> Any: ...
    @property
    def members(self) -> Any: ...
    def __new__(
        cls,
        samples: Any,
        positions: Sequence[int] | NDArray[np.int64],
        field: str,
        dtype: np.dtype[Any] | None,
    ) -> DocumentLengths: ...
    def read_raw(self) -> None: ...
    def read_arrays(self) -> None: ...
    def read_headers(self) -> None: ...
