"""ColumnReader for conditions, and plain values to compare with."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pandas

__all__ = ["ColumnReader", "FrameColumns", "add_conversion", "plain_value"]

CONVERSIONS: list[Callable[[Any], Any]] = []


class ColumnReader(Protocol):
    """Rows read by column."""

    def column(self, name: str) -> Sequence[Any]:
        """Return the values of a column; a missing value is None."""


class FrameColumns:
    """ColumnReader of a DataFrame; NaN of columns without a float dtype is None."""

    def __init__(self, frame: pandas.DataFrame) -> None:
        self._frame = frame

    def column(self, name: str) -> list[Any]:
        values: list[Any] = self._frame[name].tolist()
        if self._frame[name].dtype.kind == "f":
            return values
        # NaN and NA stand for None in columns of str and of objects.
        return [None if is_missing(value) else value for value in values]


def is_missing(value: Any) -> bool:
    return value is None or value != value or type(value).__name__ == "NAType"


def plain_value(value: Any) -> Any:
    """Return the plain value of an enum's member, of a scalar, or of a known class."""
    if type(value).__module__ == "builtins":
        return value
    if isinstance(value, enum.Enum):
        return value.value
    if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
        return value.item()
    for convert in CONVERSIONS:
        value = convert(value)
    return value


def add_conversion(convert: Callable[[Any], Any]) -> None:
    """Add a function to `plain_value`; it returns other values unchanged."""
    CONVERSIONS.append(convert)
