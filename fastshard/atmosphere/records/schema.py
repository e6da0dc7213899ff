"""Records of schemas: the JSON Schema of a sample type, its name and version."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from fastshard.atmosphere.lexicon import SCHEMA
from fastshard.atmosphere.records.checked import (
    AtRecord,
    RecordFields,
    RecordPart,
    UnknownMember,
)
from fastshard.errors import SchemaError
from fastshard.typed.descriptions.versions import parse_version

__all__ = ["JSON_SCHEMA", "JsonSchemaFormat", "SchemaRecord"]

RECORD_VERSION = 1  # version of the form of these records
JSON_SCHEMA = "jsonSchema"
FORMAT = f"{SCHEMA}#jsonSchemaFormat"


@dataclass
class JsonSchemaFormat(RecordPart):
    """A JSON Schema of draft 7.

    Parameters
    ----------
    schema_body : dict
        ``$schema``, ``type``, ``properties``, ``required`` and whatever else it has.
    array_format_versions : dict, optional
        Versions of the formats of arrays, by their names.
    extra : dict, optional
        Empty, or fields that are null: `schema_body` has all others.
    """

    schema_body: dict[str, Any]
    array_format_versions: dict[str, str] | None = None

    @classmethod
    def _read(cls, fields: RecordFields) -> JsonSchemaFormat:
        fields.expect_type(FORMAT)
        fields.text("type", 100)
        if fields.mapping_or_none("properties") is None:
            raise fields.fail("a required field is missing", "properties")
        fields.texts_or_none("required", 1000)
        versions = fields.mapping_or_none("arrayFormatVersions")
        for name, version in (versions or {}).items():
            if not isinstance(version, str):
                path = f"arrayFormatVersions.{name}"
                raise fields.fail("expected the text of a version", path)
        names = "$type", "arrayFormatVersions"
        body = {name: fields.get(name) for name in fields.value if name not in names}
        return cls(body, versions, extra=fields.rest())

    def _write(self) -> dict[str, Any]:
        return {
            "$type": FORMAT,
            **self.schema_body,
            "arrayFormatVersions": self.array_format_versions,
        }


@dataclass
class SchemaRecord(AtRecord):
    """Record of a version of a schema.

    Parameters
    ----------
    name : str
        Of the sample type; at most 100 characters.
    version : str
        A semantic version.
    schema_type : str
        ``"jsonSchema"``; others are kept.
    schema : JsonSchemaFormat or UnknownMember
    created_at : datetime, optional
        By default now.
    description : str, optional
        At most 5,000 characters.
    metadata : dict, optional
        Without floats.
    atdata_schema_version : int or None, default 1
        Version of the form of the record; None, as of a record without it, means 1.
    extra : dict, optional
        Fields that this version does not know.

    Examples
    --------
    >>> from fastshard.typed import atmosphere
    >>> body = {"type": "object", "properties": {"text": {"type": "string"}}}
    >>> schema = atmosphere.SchemaRecord(
    ...     "Caption", "1.0.0", "jsonSchema", atmosphere.JsonSchemaFormat(body)
    ... )
    >>> schema.to_record()["schema"]["properties"]
    {'text': {'type': 'string'}}
    """

    name: str
    version: str
    schema_type: str
    schema: JsonSchemaFormat | UnknownMember
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    description: str | None = None
    metadata: dict[str, Any] | None = None
    atdata_schema_version: int | None = RECORD_VERSION

    TYPE = SCHEMA
    FREE = ("metadata",)

    @classmethod
    def _read_fields(cls, fields: RecordFields) -> SchemaRecord:
        check_record_version(fields)
        version = fields.text("version", 100)
        try:
            parse_version(version)
        except ValueError as error:
            raise fields.fail(str(error), "version") from None
        return cls(
            name=fields.text("name", 100, shortest=1),
            version=version,
            schema_type=fields.text("schemaType", 100),
            schema=_read_format(fields.inside("schema")),
            created_at=fields.time("createdAt"),
            description=fields.text_or_none("description", 5000),
            metadata=fields.mapping_or_none("metadata"),
            atdata_schema_version=fields.count_or_none("atdataSchemaVersion", 1),
        )

    def _write(self) -> dict[str, Any]:
        return {
            "$type": SCHEMA,
            "name": self.name,
            "version": self.version,
            "schemaType": self.schema_type,
            "schema": self.schema.to_record(),
            "createdAt": self._write_time(self.created_at),
            "description": self.description,
            "metadata": self._check("metadata"),
            "atdataSchemaVersion": self.atdata_schema_version,
        }


def check_record_version(fields: RecordFields) -> None:
    """Raise for an unknown form of a schema's record."""
    version = fields.count_or_none("atdataSchemaVersion", 1)
    if version is not None and version > RECORD_VERSION:
        reason = (
            f"record version {version} of a schema is not known, only up to "
            f"{RECORD_VERSION}: a later fastshard may read it"
        )
        raise SchemaError(reason, fields.place, 0, field="atdataSchemaVersion")


def _read_format(fields: RecordFields) -> JsonSchemaFormat | UnknownMember:
    """Return the member of the union, by the type of the fields."""
    is_known = fields.value.get("$type") == FORMAT
    return (JsonSchemaFormat if is_known else UnknownMember)._read(fields)
