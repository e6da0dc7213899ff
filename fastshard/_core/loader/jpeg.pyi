from typing import TypeAlias

from typing_extensions import Buffer

_Extent: TypeAlias = tuple[int, int]

def read_jpeg(
    view: Buffer,
) -> tuple[
    int, int, int, int, int, int, bool, int, tuple[_Extent, ...], _Extent | None
]: ...
def plain_shape(
    view: object, channels: int, max_pixels: int
) -> tuple[int, int, int] | None: ...
def count_scans(view: Buffer, start: int, most: int) -> tuple[int, int]: ...
