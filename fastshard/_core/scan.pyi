from collections.abc import Callable

from fastshard._core.extents import ExtentTable
from fastshard._core.source import LocalFile

KINDS: dict[int, str]
FAULTS: dict[int, str]

def scan_tar(
    file: LocalFile, progress: Callable[[int], object] | None = None
) -> tuple[ExtentTable, dict[str, int], int]: ...
def header_starts(file: LocalFile) -> tuple[bytes, int]: ...
