"""Sources of local files, as every format opens them."""

from __future__ import annotations

from typing import Literal

from fastshard._core.localsource import source_of

__all__ = ["Mode", "source_of"]

Mode = Literal["mmap", "private", "pread"]
