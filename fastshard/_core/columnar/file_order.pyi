import numpy as np
from numpy.typing import NDArray

from fastshard._core.columnar.rows import Rows

NO_SHARD: int

def sort_in_file_order(
    columns: list[Rows], order: NDArray[np.int64]
) -> NDArray[np.int64]: ...
