"""Schemas of sample types: canonical JSON of their fields, and its hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from fastshard.typed.fields import declared_fields
from fastshard.typed.kinds.annotations import Kind

__all__ = ["describe_schema", "fingerprint", "hash_schema", "schema_of"]


def schema_of(cls: type) -> str:
    """Return the schema of a sample type as canonical JSON.

    Names, kinds and dtypes of the fields, in their order, and whether they may be
    None. Names of classes, defaults and aliases are no part of it, so that equal
    fields give equal text.

    Parameters
    ----------
    cls : type
        A packable class.

    Returns
    -------
    str
        JSON without spaces, keys sorted. The dtype of an array is null where any is
        allowed.

    Raises
    ------
    TypeError
        The class is not packable, or a field cannot be one.

    Examples
    --------
    >>> from fastshard import typed
    >>> class Caption(typed.PackableSample):
    ...     text: str
    >>> typed.schema_of(Caption)
    '{"fields":[{"kind":"str","name":"text","optional":false}]}'
    """
    return encode_schema(describe_schema(cls))


def fingerprint(cls: type) -> str:
    """Return the SHA-256 of a sample type's `schema_of`, in hexadecimal.

    Parameters
    ----------
    cls : type
        A packable class.

    Returns
    -------
    str
        64 digits.

    Raises
    ------
    TypeError
        The class is not packable, or a field cannot be one.

    Examples
    --------
    >>> from fastshard import typed
    >>> class Caption(typed.PackableSample):
    ...     text: str
    >>> typed.fingerprint(Caption)[:16]
    '94d18c452cfafc10'
    """
    return hash_schema(describe_schema(cls))


def encode_schema(schema: Mapping[str, Any]) -> str:
    """Return the canonical JSON of a schema."""
    return json.dumps(schema, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def hash_schema(schema: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a schema's canonical JSON, in hexadecimal."""
    return hashlib.sha256(encode_schema(schema).encode()).hexdigest()


def describe_schema(cls: type, within: tuple[type, ...] = ()) -> dict[str, Any]:
    """Return the value of `schema_of`; `within` are the classes that this is in."""
    within = (*within, cls)
    fields = [
        {"name": each.name, **describe_kind(each.kind, within)}
        for each in declared_fields(cls)
    ]
    return {"fields": fields}


def describe_kind(kind: Kind, within: tuple[type, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": kind.name, "optional": kind.optional}
    if kind.name == "array":
        found["dtype"] = name_dtype(kind)
    elif kind.name == "sample":
        if kind.cls in within:  # how many classes up
            found["recursion"] = within[::-1].index(kind.cls)
        else:
            assert kind.cls is not None
            found |= describe_schema(kind.cls, within)
    elif kind.name == "enum":
        assert kind.cls is not None
        values = (member.value for member in kind.cls.__members__.values())  # type: ignore[attr-defined]
        found["values"] = sorted(map(repr, values))
    elif kind.name == "literal":
        found["values"] = sorted(map(repr, kind.values))
    elif kind.items:
        items = [describe_kind(item, within) for item in kind.items]
        if kind.name == "union":  # the order of alternatives has no meaning
            items.sort(key=lambda item: json.dumps(item, sort_keys=True))
        found["items"] = items
    if kind.is_variadic:
        found["variadic"] = True
    return found


def name_dtype(kind: Kind) -> str | list[str] | None:
    """Return the name of an array's dtype, without byte order."""
    import numpy as np

    names = sorted(
        np.dtype(scalar).name if scalar.__module__ != "numpy" else scalar.__name__
        for scalar in kind.scalars
    )
    if len(names) > 1:
        return names
    return names[0] if names else None
