from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastshard._core.streaming.reader import OpenRows

def read_columns(
    opened: OpenRows, positions: NDArray[np.int64], fields: Iterable[str] | None
) -> dict[str, NDArray[Any] | list[Any]]: ...
