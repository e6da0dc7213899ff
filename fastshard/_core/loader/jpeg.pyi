from typing import TypeAlias

from typing_extensions import Buffer

_Extent: TypeAlias = tuple[int, int]

def read_jpeg(
    view: Buffer,
) -> tuple[int, int, int, int, int, int, int, tuple[_Extent, ...], _Extent | None]: ...
def count_scans(view: Buffer, start: int, most: int) -> tuple[int, int]: ...
