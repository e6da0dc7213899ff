from collections.abc import Sequence
from typing import Literal

from typing_extensions import Buffer

def instruction_set() -> Literal["avx2", "sse4.1", "plain"]: ...
def resize_into(
    src: Buffer,
    box: Sequence[float],
    out: Buffer,
    *,
    flip: bool = False,
    level: str | None = None,
) -> None: ...
def orient_into(
    src: Buffer, out: Buffer, orientation: int, flip: bool = False
) -> None: ...
def gray_into(src: Buffer, out: Buffer) -> None: ...
