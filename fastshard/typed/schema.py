"""Schemas of sample types: canonical JSON of their fields, and its hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from fastshard.typed.fields import declared_fields

__all__ = ["describe_schema", "fingerprint", "hash_schema", "schema_of"]


def schema_of(cls: type) -> str:
    """Return the schema of a sample type as canonical JSON.

    Names, kinds and dtypes of the fields, in their order, and whether they may be
    None. Names of classes, defaults and aliases are not part of it, so that equal
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
    """Return the value of `schema_of`; `within` are the enclosing classes."""
    within = (*within, cls)

    def describe_class(inner: type) -> dict[str, Any]:
        if inner in within:  # how many classes up
            return {"recursion": within[::-1].index(inner)}
        return describe_schema(inner, within)

    fields = [
        {"name": each.name, **each.kind.to_schema(describe_class)}
        for each in declared_fields(cls)
    ]
    return {"fields": fields}
