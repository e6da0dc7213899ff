"""Records of lenses: two schemas and a reference to code, never fetched."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from fastshard.atmosphere.lexicon import LENS
from fastshard.atmosphere.records.checked import (
    AtRecord,
    RecordFields,
    RecordPart,
)

__all__ = ["CodeReference", "LensRecord"]


@dataclass
class CodeReference(RecordPart):
    """Reference to code, neither fetched nor imported.

    Parameters
    ----------
    repository : str
        URL; at most 500 characters.
    commit : str
        At most 40 characters.
    path : str
        Such as ``module:function``; at most 500 characters.
    branch : str, optional
        At most 100 characters.
    language : str, optional
        At most 50 characters.
    extra : dict, optional
        Fields that this version does not know.

    Examples
    --------
    >>> from fastshard.typed import atmosphere
    >>> commit = "0" * 40
    >>> code = atmosphere.CodeReference("https://git.example/a", commit, "a:to_name")
    >>> code.to_record()["path"]
    'a:to_name'
    """

    repository: str
    commit: str
    path: str
    branch: str | None = None
    language: str | None = None

    @classmethod
    def _read(cls, fields: RecordFields) -> CodeReference:
        return cls(
            fields.text("repository", 500),
            fields.text("commit", 40),
            fields.text("path", 500),
            fields.text_or_none("branch", 100),
            fields.text_or_none("language", 50),
            extra=fields.rest(),
        )

    def _write(self) -> dict[str, Any]:
        return {
            "repository": self.repository,
            "commit": self.commit,
            "path": self.path,
            "branch": self.branch,
            "language": self.language,
        }


@dataclass
class LensRecord(AtRecord):
    """Record of a lens.

    Parameters
    ----------
    name : str
        At most 100 characters.
    source_schema, target_schema : str
        Addresses of the schemas' records.
    getter_code, putter_code : CodeReference
    created_at : datetime, optional
        By default now.
    description : str, optional
        At most 1,000 characters.
    language : str, optional
        At most 50 characters.
    metadata : dict, optional
        Without floats.
    source_schema_version, target_schema_version : str, optional
        A version, or a range; at most 100 characters.
    extra : dict, optional
        Fields that this version does not know.
    """

    name: str
    source_schema: str
    target_schema: str
    getter_code: CodeReference
    putter_code: CodeReference
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    description: str | None = None
    language: str | None = None
    metadata: dict[str, Any] | None = None
    source_schema_version: str | None = None
    target_schema_version: str | None = None

    TYPE = LENS
    FREE = ("metadata",)

    @classmethod
    def _read_fields(cls, fields: RecordFields) -> LensRecord:
        return cls(
            name=fields.text("name", 100, shortest=1),
            source_schema=fields.uri("sourceSchema"),
            target_schema=fields.uri("targetSchema"),
            getter_code=CodeReference._read(fields.inside("getterCode")),
            putter_code=CodeReference._read(fields.inside("putterCode")),
            created_at=fields.time("createdAt"),
            description=fields.text_or_none("description", 1000),
            language=fields.text_or_none("language", 50),
            metadata=fields.mapping_or_none("metadata"),
            source_schema_version=fields.text_or_none("sourceSchemaVersion", 100),
            target_schema_version=fields.text_or_none("targetSchemaVersion", 100),
        )

    def _write(self) -> dict[str, Any]:
        return {
            "$type": LENS,
            "name": self.name,
            "sourceSchema": self.source_schema,
            "targetSchema": self.target_schema,
            "getterCode": self.getter_code.to_record(),
            "putterCode": self.putter_code.to_record(),
            "createdAt": self._write_time(self.created_at),
            "description": self.description,
            "language": self.language,
            "metadata": self._check("metadata"),
            "sourceSchemaVersion": self.source_schema_version,
            "targetSchemaVersion": self.target_schema_version,
        }
