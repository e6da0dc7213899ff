from typing import Any

from typing_extensions import Buffer

def unpack_map(data: Buffer) -> dict[str, Any]: ...
def extents_of_fields(
    data: Buffer,
) -> dict[str, tuple[str, int, int, int, int]]: ...
