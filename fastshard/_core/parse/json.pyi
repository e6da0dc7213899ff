from typing import Any

from typing_extensions import Buffer

from fastshard._core.table.extents import ExtentTable

FAULTS: dict[int, str]

def parse_index(
    text: Buffer, path: str, nbytes: int | None = None
) -> tuple[ExtentTable, int | None]: ...
def encode_flat(metadata: dict[Any, Any]) -> str | None: ...
