"""Structures as the JSON that an index stores: ``local#`` field types."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from fastshard.errors import DescriptionError
from fastshard.typed.descriptions.structure import Structure, StructureField
from fastshard.typed.kinds.arrays import is_claimed
from fastshard.typed.kinds.base import dimensions_json
from fastshard.typed.kinds.registry import BY_SCHEMA_NAME
from fastshard.typed.kinds.scalars import PRIMITIVES
from fastshard.typed.kinds.value_type import (
    MAX_DEPTH,
    ValueType,
    list_of,
    map_of,
    shorten,
    text_of,
)

__all__ = ["from_local_json", "to_local_json"]

# With this key the schema's dtypes are exact: atdata claims float32 for
# arrays of any.
EXACT_KEY = "exactDtypes"


def to_local_json(
    structure: Structure, version: str, created_at: str | None = None
) -> dict[str, Any]:
    """Return the JSON of a structure, as an index stores it."""
    found: dict[str, Any] = {
        "name": structure.name,
        "version": version,
        "fields": [
            {
                "name": each.name,
                "fieldType": field_type(each.type),
                "optional": each.optional,
            }
            for each in structure.fields
        ],
        "description": structure.description,
        "createdAt": created_at or datetime.now(UTC).isoformat(),
    }
    if any(
        is_claimed(inner) and inner.is_exact
        for each in structure.fields
        for inner in nested(each.type)
    ):
        found[EXACT_KEY] = True
    return found


def nested(value: ValueType | None) -> list[ValueType]:
    """Return a type, and the types of its items."""
    found = []
    while value is not None:
        found.append(value)
        value = value.items
    return found


def field_type(value: ValueType) -> dict[str, Any]:
    if value.kind in PRIMITIVES:
        return {"$type": "local#primitive", "primitive": value.kind}
    found: dict[str, Any] = {"$type": f"local#{value.kind}"}
    if value.kind == "ndarray" or value.dtype is not None:
        found["dtype"] = value.dtype
    found |= dimensions_json(value)
    if value.items is not None:
        found["items"] = field_type(value.items)
    return found


def from_local_json(data: object, where: str = "schema") -> Structure:
    """Return the structure described by an index's JSON."""
    schema = map_of(data, "a schema", where)
    name = text_of(schema, "name", where)
    version = schema.get("version")
    if version is not None and not isinstance(version, str):
        raise DescriptionError(
            f"'version' must be a str, is {shorten(version)}", f"{where} {name}"
        )
    where = where if name in where else f"{where} {shorten(name)}"
    is_exact = schema.get(EXACT_KEY) is True
    fields = []
    for i, each in enumerate(list_of(schema.get("fields", []), "'fields'", where)):
        field = map_of(each, f"field {i}", where)
        field_name = text_of(field, "name", f"{where}, field {i}")
        place = f"{where}, field {shorten(field_name)}"
        optional = field.get("optional", False)
        if not isinstance(optional, bool):
            raise DescriptionError(
                f"'optional' must be a bool, is {shorten(optional)}", place
            )
        value = parse_field_type(field.get("fieldType"), place, is_exact)
        fields.append(StructureField(field_name, value, optional))
    description = schema.get("description")
    # Before 0.7 the name in a schema is `module.Class`.
    return Structure(
        name.rpartition(".")[2] if "." in name else name,
        tuple(fields),
        version,
        description if isinstance(description, str) else None,
    )


def parse_field_type(
    data: object, where: str, is_exact: bool, depth: int = 0
) -> ValueType:
    """Return the type of a ``fieldType``."""
    found = map_of(data, "'fieldType'", where)
    if depth > MAX_DEPTH:
        raise DescriptionError(f"lists are nested deeper than {MAX_DEPTH}", where)
    kind = kind_of(found, where)
    if kind == "primitive":
        primitive = found.get("primitive")
        if primitive not in PRIMITIVES:
            raise DescriptionError(
                f"Unknown primitive type: {shorten(primitive)}", where
            )
        return ValueType(primitive)
    if kind == "ref":
        raise DescriptionError(
            "Schema references ('ref') are not yet supported: a field refers to "
            f"{shorten(found.get('ref'))}",
            where,
        )
    known = BY_SCHEMA_NAME.get(kind)
    if known is None or kind in PRIMITIVES:
        raise DescriptionError(f"Unknown field type kind: {shorten(kind)}", where)
    value = known.from_local(
        found, where, lambda inner: parse_field_type(inner, where, is_exact, depth + 1)
    )
    return value._replace(is_exact=is_exact or not is_claimed(value))


def kind_of(found: Mapping[str, Any], where: str) -> str:
    """Return the kind of a field type: the text after the ``#`` of its type."""
    name = found.get("$type", "")
    if not isinstance(name, str):
        raise DescriptionError(f"'$type' must be a str, is {shorten(name)}", where)
    if "#" in name:
        return name.rpartition("#")[2]
    kind = found.get("kind", "")
    if not isinstance(kind, str):
        raise DescriptionError(f"'kind' must be a str, is {shorten(kind)}", where)
    return kind
