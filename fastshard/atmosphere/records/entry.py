"""Records of datasets: name, schema, where the shards are, metadata."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from fastshard.atmosphere.lexicon import ENTRY
from fastshard.atmosphere.records.checked import (
    ABSENT,
    AtRecord,
    RecordFields,
    RecordPart,
)
from fastshard.atmosphere.records.metadata import read_metadata, write_metadata
from fastshard.atmosphere.records.storage import (
    BlobRef,
    Storage,
    read_storage,
)

__all__ = ["DatasetSize", "EntryRecord", "ShardManifestRef"]


@dataclass
class DatasetSize(RecordPart):
    """Size of a dataset.

    Parameters
    ----------
    samples, bytes, shards : int, optional
    extra : dict, optional
        Fields that this version does not know.
    """

    samples: int | None = None
    bytes: int | None = None
    shards: int | None = None

    @classmethod
    def _read(cls, fields: RecordFields) -> DatasetSize:
        return cls(
            fields.count_or_none("samples"),
            fields.count_or_none("bytes"),
            fields.count_or_none("shards"),
            extra=fields.rest(),
        )

    def _write(self) -> dict[str, Any]:
        return {"samples": self.samples, "bytes": self.bytes, "shards": self.shards}


@dataclass
class ShardManifestRef(RecordPart):
    """Blobs with the manifest of a shard.

    Parameters
    ----------
    header : BlobRef
        JSON.
    samples : BlobRef, optional
        Parquet.
    extra : dict, optional
        Fields that this version does not know.
    """

    header: BlobRef
    samples: BlobRef | None = None

    @classmethod
    def _read(cls, fields: RecordFields) -> ShardManifestRef:
        header = BlobRef._read(fields.inside("header"))
        value = fields.mapping_or_none("samples")
        samples = None if value is None else BlobRef._read(fields.of(value, "samples"))
        return cls(header, samples, extra=fields.rest())

    def _write(self) -> dict[str, Any]:
        samples = None if self.samples is None else self.samples.to_record()
        return {"header": self.header.to_record(), "samples": samples}


@dataclass
class EntryRecord(AtRecord):
    """Record of a dataset.

    Parameters
    ----------
    name : str
        At most 200 characters.
    schema_ref : str
        Address of the schema's record.
    storage : StorageHttp, StorageS3, StorageBlobs, StorageExternal or UnknownMember
    created_at : datetime, optional
        By default now.
    description : str, optional
        At most 5,000 characters.
    metadata : dict, optional
        Written as msgpack: floats and bytes are allowed.
    tags : list of str, optional
        At most 30 of 150 characters.
    size : DatasetSize, optional
    license : str, optional
        At most 200 characters.
    metadata_schema_ref : str, optional
        Address of the record of the schema of `content_metadata`.
    content_metadata : dict, optional
        Without floats.
    manifests : list of ShardManifestRef, optional
    extra : dict, optional
        Fields that this version does not know.

    Examples
    --------
    >>> from fastshard.typed import atmosphere
    >>> url = "https://data.example/train.tar"
    >>> entry = atmosphere.EntryRecord(
    ...     "digits",
    ...     "at://did:plc:abc/science.alt.dataset.schema/3n2uxbnbzzs2e",
    ...     atmosphere.StorageHttp([atmosphere.HttpShardEntry(url)]),
    ...     metadata={"rate": 0.5},
    ... )
    >>> entry.to_record()["metadata"]
    {'$bytes': 'gaRyYXRlyz/gAAAAAAAA'}
    >>> atmosphere.EntryRecord.from_record(entry.to_record()).metadata
    {'rate': 0.5}
    """

    name: str
    schema_ref: str
    storage: Storage
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    description: str | None = None
    metadata: dict[str, Any] | None = None
    tags: list[str] | None = None
    size: DatasetSize | None = None
    license: str | None = None
    metadata_schema_ref: str | None = None
    content_metadata: dict[str, Any] | None = None
    manifests: list[ShardManifestRef] | None = None

    TYPE = ENTRY
    FREE = "metadata", "content_metadata"

    @classmethod
    def _read_fields(cls, fields: RecordFields) -> EntryRecord:
        size = fields.mapping_or_none("size")
        manifests = fields.get("manifests")
        return cls(
            name=fields.text("name", 200, shortest=1),
            schema_ref=fields.uri("schemaRef"),
            storage=read_storage(fields.inside("storage")),
            created_at=fields.time("createdAt"),
            description=fields.text_or_none("description", 5000),
            metadata=read_metadata(fields),
            tags=fields.texts_or_none("tags", 150, 30),
            size=None if size is None else DatasetSize._read(fields.of(size, "size")),
            license=fields.text_or_none("license", 200),
            metadata_schema_ref=fields.uri_or_none("metadataSchemaRef"),
            content_metadata=fields.mapping_or_none("contentMetadata"),
            manifests=None if manifests in (ABSENT, None) else _read_manifests(fields),
        )

    def _write(self) -> dict[str, Any]:
        return {
            "$type": ENTRY,
            "name": self.name,
            "schemaRef": self.schema_ref,
            "storage": self.storage.to_record(),
            "createdAt": self._write_time(self.created_at),
            "description": self.description,
            "metadata": self._write_metadata(),
            "tags": None if self.tags is None else list(self.tags),
            "size": None if self.size is None else self.size.to_record(),
            "license": self.license,
            "metadataSchemaRef": self.metadata_schema_ref,
            "contentMetadata": self._check("content_metadata"),
            "manifests": None
            if self.manifests is None
            else [each.to_record() for each in self.manifests],
        }

    def _write_metadata(self) -> Any:
        if self.metadata is None:
            return None
        if self._stored.get("metadata", (ABSENT, None))[0] == self.metadata:
            return self._stored["metadata"][1]
        return write_metadata(self.metadata)


def _read_manifests(fields: RecordFields) -> list[ShardManifestRef]:
    items = fields.items("manifests")
    return [
        ShardManifestRef._read(fields.of(item, f"manifests[{i}]"))
        for i, item in enumerate(items)
    ]
