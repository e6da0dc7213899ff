"""Types of values in schemas, and checks of their JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fastshard._util import texts
from fastshard.errors import DescriptionError

__all__ = ["ValueType", "list_of", "map_of", "shorten", "text_of"]

MAX_DEPTH = 32  # of lists in lists
MAX_FIELDS = 4096
MAX_SHOWN = 60  # characters of a value in an error


class ValueType(NamedTuple):
    """Type of the values of a field.

    Attributes
    ----------
    kind : str
        str, int, float, bool, bytes; ndarray; array, a list; object, a dict;
        arrow_tensor, dataframe, safetensors, sparse, structured.
    dtype : str or None
        Of ndarrays, None for any; of structured ones the text of theirs.
    shape : tuple of int or None, or None
        Of ndarrays; a dimension of any size is None. An annotation: not checked.
    dimension_names : tuple of str or None
    items : ValueType or None
        Of lists; None for items of any type.
    is_exact : bool
        False for an ndarray whose dtype is only claimed: atdata writes float32 for
        arrays of any dtype.
    """

    kind: str
    dtype: str | None = None
    shape: tuple[int | None, ...] | None = None
    dimension_names: tuple[str, ...] | None = None
    items: ValueType | None = None
    is_exact: bool = True

    def is_like(self, other: ValueType) -> bool:
        """Return whether values of both types are the same.

        A claimed dtype equals itself, and an absent dtype.
        """
        if self.kind != other.kind:
            return False
        if self.items is not None and other.items is not None:
            return self.items.is_like(other.items)
        if (self.items is None) != (other.items is None):
            return False
        if self[2:4] != other[2:4]:
            return False
        return (
            self.dtype == other.dtype
            or (not self.is_exact and other.dtype is None)
            or (not other.is_exact and self.dtype is None)
        )

    def reads(self, other: ValueType) -> bool:
        """Return whether this type includes all values of another."""
        if self.kind == "array" and other.kind == "array":
            return self.items is None or (
                other.items is not None and self.items.reads(other.items)
            )
        if self.kind == "ndarray" and other.kind == "ndarray":
            return self.dtype in (None, other.dtype) or not self.is_exact
        return self.kind == other.kind or (self.kind, other.kind) == ("float", "int")

    def __str__(self) -> str:
        if self.kind == "array":
            return "list" if self.items is None else f"list[{self.items}]"
        if self.kind == "object":
            return "dict"
        if self.kind != "ndarray":
            return self.kind
        parts = [self.dtype or "any"] if self.is_exact else ["any"]
        if self.shape is not None:
            sizes = ", ".join("?" if n is None else str(n) for n in self.shape)
            parts.append(f"({sizes})")
        if self.dimension_names is not None:
            parts.append(", ".join(self.dimension_names))
        return f"ndarray[{'; '.join(parts)}]"


def shorten(value: object) -> str:
    """Return a value of a description, shortened for errors."""
    if not isinstance(value, str):
        return type(value).__name__
    return repr(texts.shorten(value, MAX_SHOWN))


def text_of(data: Mapping[str, Any], key: str, where: str) -> str:
    """Return a str in a description."""
    value = data.get(key)
    if not isinstance(value, str) or not value:
        raise DescriptionError(f"must have a {key!r} field, a str", where)
    return value


def map_of(data: object, what: str, where: str) -> Mapping[str, Any]:
    """Return a JSON object in a description."""
    if not isinstance(data, Mapping):
        raise DescriptionError(f"{what} must be an object, is {shorten(data)}", where)
    return data


def list_of(data: object, what: str, where: str) -> list[Any]:
    """Return a list of bounded length in a description."""
    if not isinstance(data, list):
        raise DescriptionError(f"{what} must be a list, is {shorten(data)}", where)
    if len(data) > MAX_FIELDS:
        raise DescriptionError(
            f"{what} has {len(data):,} items, more than {MAX_FIELDS:,}", where
        )
    return data
