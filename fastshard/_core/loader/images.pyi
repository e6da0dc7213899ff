from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from numpy.typing import NDArray
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

_Picture: TypeAlias = Buffer | NDArray[Any]

def instruction_set() -> Literal["avx2", "sse4.1", "plain"]: ...
def resize_into(
    src: _Picture,
    box: Sequence[float],
    out: _Picture,
    *,
    flip: bool = False,
    level: str | None = None,
) -> None: ...
def orient_into(
    src: _Picture, out: _Picture, orientation: int, flip: bool = False
) -> None: ...
def gray_into(src: _Picture, out: _Picture) -> None: ...
