from typing import Literal

from fastshard._core.pagering import PageRing
from fastshard._core.source import LocalFile, Source

def source_of(
    file: LocalFile,
    mode: Literal["mmap", "private", "pread"],
    *,
    prefetch: bool = True,
    check_size: bool = False,
    ring: PageRing | None = None,
) -> Source: ...
