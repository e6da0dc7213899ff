from collections.abc import Callable

from fastshard._core.extents import ExtentTable
from fastshard._core.io.source import LocalFile
from fastshard.errors import FormatError

KINDS: dict[int, str]
FAULTS: dict[int, str]

def scan_tar(
    file: LocalFile, progress: Callable[[int], object] | None = None
) -> tuple[ExtentTable, dict[str, int], int]: ...
def header_starts(
    file: LocalFile, progress: Callable[[int], object] | None = None
) -> tuple[bytes, int]: ...
def scan_sound(file: LocalFile) -> tuple[ExtentTable, int, FormatError | None]: ...
