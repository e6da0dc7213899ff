"""Table of the kinds of fields: the one place that lists them."""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any

from fastshard.typed.kinds.annotations import show, split_metadata
from fastshard.typed.kinds.base import EncodedKind, Kind
from fastshard.typed.kinds.value_type import ValueType

__all__ = [
    "BY_SCHEMA_NAME",
    "FORMATS",
    "KINDS",
    "describe",
    "kind_of_type",
    "kind_of_value",
]

# A line for each module, which has `KINDS`. The first kind that accepts an annotation,
# or a property of a schema, counts: special ones stand before general ones.
MODULES = (
    "fastshard.typed.kinds.arrays",
    "fastshard.typed.kinds.libraries.sparse",
    "fastshard.typed.kinds.libraries.safetensors",
    "fastshard.typed.kinds.libraries.arrow_tensor",
    "fastshard.typed.kinds.libraries.dataframe",
    "fastshard.typed.kinds.scalars",
    "fastshard.typed.kinds.containers",
)
KINDS: tuple[type[Kind], ...] = tuple(
    kind for module in MODULES for kind in import_module(module).KINDS
)
BY_SCHEMA_NAME = {
    kind.schema_name: kind for kind in reversed(KINDS) if kind.schema_name is not None
}
FORMATS = {name: kind for name, kind in BY_SCHEMA_NAME.items() if kind.is_format}
ENCODED = [kind for kind in KINDS if issubclass(kind, EncodedKind)]


def describe(hint: Any) -> Kind:
    """Return the kind of the values of an annotation."""
    hint, _ = split_metadata(hint)
    for kind in KINDS:
        found = kind.of(hint, describe)
        if found is not None:
            return found
    raise TypeError(f"{show(hint)} cannot be a field of a sample")


def kind_of_type(value: ValueType) -> type[Kind]:
    """Return the kind of values that a schema describes."""
    return BY_SCHEMA_NAME[value.kind]


def kind_of_value(value: object) -> type[EncodedKind] | None:
    """Return the kind that encodes a value by itself, without importing.

    None for values that msgpack has, and for arrays.
    """
    found = (kind_of_class(c.__module__, c.__name__) for c in type(value).__mro__)
    return next(filter(None, found), None)


@functools.lru_cache(1024)
def kind_of_class(module: str, name: str) -> type[EncodedKind] | None:
    return next((kind for kind in ENCODED if kind.holds(module, name)), None)
