from collections.abc import Iterable
from typing import Self, final

from typing_extensions import Buffer

from fastshard._core.streaming.plan import RowSchema, RowTable

@final
class JsonSchema(RowSchema):
    @property
    def newline(self) -> str: ...
    def __new__(
        cls, names: Iterable[str], encodings: Iterable[str], newline: str
    ) -> Self: ...
    def __init__(
        self, names: Iterable[str], encodings: Iterable[str], newline: str
    ) -> None: ...

@final
class XsvSchema(RowSchema):
    @property
    def newline(self) -> str: ...
    @property
    def separator(self) -> str: ...
    @property
    def lenient(self) -> bool: ...
    def __new__(
        cls,
        names: Iterable[str],
        encodings: Iterable[str],
        newline: str,
        separator: str,
        *,
        lenient: bool = False,
    ) -> Self: ...
    def __init__(
        self,
        names: Iterable[str],
        encodings: Iterable[str],
        newline: str,
        separator: str,
        *,
        lenient: bool = False,
    ) -> None: ...

@final
class JsonRows(RowTable):
    def __init__(
        self,
        path: str,
        schema: JsonSchema,
        meta_path: str,
        meta: Buffer,
        nbytes: int,
        samples: int,
    ) -> None: ...

@final
class XsvRows(RowTable):
    def __init__(
        self,
        path: str,
        schema: XsvSchema,
        meta_path: str,
        meta: Buffer,
        nbytes: int,
        samples: int,
        head: Buffer | None = None,
    ) -> None: ...
