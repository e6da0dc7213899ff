"""Structures as the JSON Schema of records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastshard.errors import DescriptionError
from fastshard.typed.descriptions.local_schema import from_local_json
from fastshard.typed.descriptions.structure import Structure, StructureField
from fastshard.typed.kinds.registry import KINDS, kind_of_type
from fastshard.typed.kinds.value_type import (
    MAX_DEPTH,
    MAX_FIELDS,
    ValueType,
    list_of,
    map_of,
    shorten,
    text_of,
)

__all__ = ["from_json_schema", "from_schema", "to_json_schema"]

SCHEMA_TYPE = "science.alt.dataset.schema#jsonSchemaFormat"
DRAFT = "http://json-schema.org/draft-07/schema#"
RECORD_VERSION = 1  # of records of schemas


def to_json_schema(structure: Structure) -> dict[str, Any]:
    """Return the JSON Schema of a structure, the value of a record's ``schema``."""
    found: dict[str, Any] = {
        "$type": SCHEMA_TYPE,
        "$schema": DRAFT,
        "type": "object",
        "properties": {each.name: to_property(each.type) for each in structure.fields},
    }
    required = [each.name for each in structure.fields if not each.optional]
    if required:
        found["required"] = required
    used = {kind_of_type(innermost(each.type)) for each in structure.fields}
    versions = {k.lexicon: "1.0.0" for k in KINDS if k in used and k.lexicon}
    if versions:
        found["arrayFormatVersions"] = versions
    return found


def innermost(value: ValueType) -> ValueType:
    while value.items is not None:
        value = value.items
    return value


def to_property(value: ValueType) -> dict[str, Any]:
    return kind_of_type(value).to_property(value, to_property)


def from_schema(schema: object, where: str = "schema") -> Structure:
    """Return the structure of a schema, a record's or an index's."""
    found = map_of(schema, "a schema", where)
    version = found.get("atdataSchemaVersion", found.get("$atdataSchemaVersion", 1))
    if type(version) is not int or version < 1:
        raise DescriptionError(
            f"'atdataSchemaVersion' must be a positive int, is {version!r:.60}", where
        )
    if version > RECORD_VERSION:
        raise DescriptionError(
            f"Unsupported schema record version: {version}; the newest that is known "
            f"is {RECORD_VERSION}",
            where,
        )
    if "schemaType" not in found and "schema" not in found:
        return from_local_json(found, where)
    kind = found.get("schemaType", "jsonSchema")
    if kind != "jsonSchema":
        raise DescriptionError(f"unknown schemaType {shorten(kind)}", where)
    name = text_of(found, "name", where)
    description = found.get("description")
    structure = from_json_schema(found.get("schema"), name, where)
    return structure._replace(
        version=text_of(found, "version", where),
        description=description if isinstance(description, str) else None,
    )


def from_json_schema(schema: object, name: str, where: str = "schema") -> Structure:
    """Return the structure described by a record's JSON Schema.

    Required fields come first, in the order of ``required``: a server keeps that, but
    not the order of ``properties``. References to other schemas are not followed.
    """
    body = map_of(schema, "'schema'", where)
    where = where if name in where else f"{where} {shorten(name)}"
    if "schemaBody" in body:  # of versions before 0.3
        body = map_of(body["schemaBody"], "'schemaBody'", where)
    if body.get("type", "object") != "object":
        raise DescriptionError("the schema's 'type' must be 'object'", where)
    properties = map_of(body.get("properties", {}), "'properties'", where)
    if len(properties) > MAX_FIELDS:
        raise DescriptionError(
            f"has {len(properties):,} properties, more than {MAX_FIELDS:,}", where
        )
    required = list_of(body.get("required", []), "'required'", where)
    for each in required:
        if not isinstance(each, str) or each not in properties:
            raise DescriptionError(
                f"'required' has {shorten(each)}, which is not a property", where
            )
    order = list(dict.fromkeys([*required, *properties]))
    needed = set(required)
    fields = []
    for each in order:
        if not isinstance(each, str):
            raise DescriptionError("the name of a property must be a str", where)
        place = f"{where}, field {shorten(each)}"
        value, is_nullable = parse_property(properties[each], place)
        fields.append(StructureField(each, value, is_nullable or each not in needed))
    return Structure(name, tuple(fields))


def parse_property(data: object, where: str, depth: int = 0) -> tuple[ValueType, bool]:
    """Return the type of a property, and whether it may be null."""
    found = map_of(data, "a property", where)
    if depth > MAX_DEPTH:
        raise DescriptionError(f"lists are nested deeper than {MAX_DEPTH}", where)
    if "$ref" in found:
        return parse_reference(found, where), False
    kind = found.get("type")
    is_nullable = False
    if isinstance(kind, list) and len(kind) == 2 and "null" in kind:
        kind = next((each for each in kind if each != "null"), None)
        is_nullable = True
    known = {**found, "type": kind}
    for each in KINDS:
        value = each.from_property(
            known, lambda items: parse_property(items, where, depth + 1)
        )
        if value is not None:
            return value, is_nullable
    raise DescriptionError(f"Unknown type of a property: {shorten(kind)}", where)


def parse_reference(found: Mapping[str, Any], where: str) -> ValueType:
    """Return the type of a property that refers to a known format."""
    reference = found["$ref"]
    if not isinstance(reference, str):
        raise DescriptionError(f"'$ref' must be a str, is {shorten(reference)}", where)
    text = reference.lower() if not reference.startswith("#") else ""
    kind = next((k for k in KINDS if any(word in text for word in k.words)), None)
    if kind is None:
        raise DescriptionError(
            "Schema references are not yet supported: a field refers to "
            f"{shorten(reference)}",
            where,
        )
    return kind.from_reference(found, where)
