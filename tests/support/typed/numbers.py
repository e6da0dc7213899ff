"""Small types of samples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastshard import typed


@typed.packable
class Number:
    value: int


@typed.packable
class Vector:
    label: str
    x: NDArray[np.float32]
