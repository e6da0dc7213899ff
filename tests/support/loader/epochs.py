"""A source of batches as the only order of every epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["OneEpoch"]


class OneEpoch:
    """Epochs of one source; implements `EpochSource`."""

    def __init__(self, source: Any, number: int = 0) -> None:
        self._source = source
        self.number = number

    def source(self) -> Any:
        return self._source

    def count(self) -> int:
        return len(self._source)

    def at(self, number: int) -> OneEpoch:
        return OneEpoch(self._source, number)

    def resumed(self, state: Mapping[str, Any]) -> OneEpoch:
        raise NotImplementedError
