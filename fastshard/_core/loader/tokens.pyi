from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fastshard._core.dataset.streams import SampleLocator
from fastshard._core.loader.documents import PackedRows

@final
class TokenTable:
    @property
    def documents(self) -> int: ...
    @property
    def total(self) -> int: ...
    def __new__(
        cls,
        locator: SampleLocator,
        field: str,
        lengths: NDArray[np.int64],
        members: NDArray[np.uint32],
        itemsize: int,
        separator: bytes,
        raw: bool,
    ) -> TokenTable: ...
    def gather_stream(
        self,
        starts: NDArray[np.int64],
        length: int,
        out: Any,
        documents: Any = None,
        positions: Any = None,
        page_in: bool = False,
    ) -> bool: ...
    def gather_rows(
        self,
        rows: NDArray[np.int64],
        packed: PackedRows,
        out: Any,
        documents: Any = None,
        positions: Any = None,
        page_in: bool = False,
    ) -> bool: ...
    def pack(self, length: int, block: int) -> PackedRows: ...

@final
class WindowBatch:
    def __new__(
        cls,
        table: TokenTable,
        out: Any,
        documents: Any,
        positions: Any,
        page_in: bool,
    ) -> WindowBatch: ...
