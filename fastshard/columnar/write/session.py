"""The part of a writer that handles and compactions work with."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import AbstractContextManager
from typing import Any, NoReturn, Protocol
from weakref import WeakSet

from fastshard.columnar.write.column import Column, Record
from fastshard.columnar.write.replace import Swap

__all__ = ["Session", "Store"]


class Store(Protocol):
    """The columns of a writer, its connection to the index, its commits."""

    _allow_pickle: bool
    _busy: bool
    _columns: dict[str, Column]
    _conn: Any
    _handles: WeakSet[Any]
    _home: str
    _mutex: threading.RLock

    @property
    def closed(self) -> bool: ...

    def flush(self) -> None: ...

    def check_idle(self) -> None: ...

    def _failed(self, error: OSError | sqlite3.Error) -> NoReturn: ...


class Session(Store, Protocol):
    """A writer to which samples and whole shards are added."""

    def withdrawing(self, column: Column) -> AbstractContextManager[None]: ...

    def adopt(
        self,
        column: Column,
        number: int,
        record: Record,
        rows: dict[str, int],
        swap: Swap | None,
        *,
        existed: bool,
    ) -> None: ...
