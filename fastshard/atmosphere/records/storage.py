"""Where the shards of a dataset are: HTTP, S3 or blobs, a union by `$type`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastshard.atmosphere.cid import RAW, parse_cid
from fastshard.atmosphere.lexicon import NAMESPACE
from fastshard.atmosphere.records.checked import (
    RecordFields,
    RecordPart,
    UnknownMember,
)
from fastshard.atmosphere.records.checksum import (
    ShardChecksum,
    read_checksum,
    write_checksum,
)

__all__ = [
    "BlobEntry",
    "BlobRef",
    "HttpShardEntry",
    "S3ShardEntry",
    "Storage",
    "StorageBlobs",
    "StorageExternal",
    "StorageHttp",
    "StorageS3",
    "read_storage",
    "storage_from_record",
]

LONGEST_URL = 2000
MOST_SHARDS = 1_000_000  # more than any server's record holds

T = TypeVar("T")


@dataclass
class HttpShardEntry(RecordPart):
    """A shard at a URL.

    Parameters
    ----------
    url : str
        At most 2,000 characters.
    checksum : ShardChecksum, optional
        A record whose checksum says "none" has None.
    extra : dict, optional
        Fields that this version does not know.
    """

    url: str
    checksum: ShardChecksum | None = None

    @classmethod
    def _read(cls, fields: RecordFields) -> HttpShardEntry:
        url = fields.text("url", LONGEST_URL, shortest=1)
        found = cls(url, read_checksum(fields), extra=fields.rest())
        if found.checksum is None:
            found._keep("checksum", fields)
        return found

    def _write(self) -> dict[str, Any]:
        return {"url": self.url, "checksum": write_checksum(self.checksum)}


@dataclass
class StorageHttp(RecordPart):
    """Shards at URLs.

    Parameters
    ----------
    shards : list of HttpShardEntry
    extra : dict, optional
        Fields that this version does not know.
    """

    shards: list[HttpShardEntry]

    @classmethod
    def _read(cls, fields: RecordFields) -> StorageHttp:
        fields.expect_type(HTTP)
        shards = _read_items(fields, "shards", HttpShardEntry._read)
        return cls(shards, extra=fields.rest())

    def _write(self) -> dict[str, Any]:
        return {"$type": HTTP, "shards": [each.to_record() for each in self.shards]}


@dataclass
class S3ShardEntry(RecordPart):
    """A shard in a bucket.

    Parameters
    ----------
    key : str
        At most 1,024 characters.
    checksum : ShardChecksum, optional
        A record whose checksum says "none" has None.
    extra : dict, optional
        Fields that this version does not know.
    """

    key: str
    checksum: ShardChecksum | None = None

    @classmethod
    def _read(cls, fields: RecordFields) -> S3ShardEntry:
        key = fields.text("key", 1024, shortest=1)
        found = cls(key, read_checksum(fields), extra=fields.rest())
        if found.checksum is None:
            found._keep("checksum", fields)
        return found

    def _write(self) -> dict[str, Any]:
        return {"key": self.key, "checksum": write_checksum(self.checksum)}


@dataclass
class StorageS3(RecordPart):
    """Shards in a bucket of S3, or of a server like it.

    Parameters
    ----------
    bucket : str
    shards : list of S3ShardEntry
    region : str, optional
    endpoint : str, optional
        URL of the server, if it is not that of AWS.
    extra : dict, optional
        Fields that this version does not know.
    """

    bucket: str
    shards: list[S3ShardEntry]
    region: str | None = None
    endpoint: str | None = None

    @classmethod
    def _read(cls, fields: RecordFields) -> StorageS3:
        fields.expect_type(S3)
        return cls(
            fields.text("bucket", 255, shortest=1),
            _read_items(fields, "shards", S3ShardEntry._read),
            fields.text_or_none("region", 50),
            fields.text_or_none("endpoint", 500),
            extra=fields.rest(),
        )

    def _write(self) -> dict[str, Any]:
        return {
            "$type": S3,
            "bucket": self.bucket,
            "shards": [each.to_record() for each in self.shards],
            "region": self.region,
            "endpoint": self.endpoint,
        }


@dataclass
class BlobRef(RecordPart):
    """Reference to a blob of a repository.

    Parameters
    ----------
    cid : str
        Of the bytes: ``bafkrei...``.
    mime_type : str
    size : int
        Bytes.
    extra : dict, optional
        Fields that this version does not know.

    Examples
    --------
    >>> from fastshard.typed import atmosphere
    >>> cid = "bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e"
    >>> blob = atmosphere.BlobRef(cid, "application/x-tar", 11)
    >>> blob.to_record()["ref"] == {"$link": cid}
    True
    """

    cid: str
    mime_type: str
    size: int

    @classmethod
    def _read(cls, fields: RecordFields) -> BlobRef:
        fields.expect_type("blob")
        ref = fields.inside("ref")
        cid = ref.text("$link", 200)
        try:
            codec, _ = parse_cid(cid)
        except ValueError as error:
            raise ref.fail(str(error), "$link") from None
        if codec != RAW:
            raise ref.fail("expected the CID of a blob, as bafkrei...", "$link")
        mime_type = fields.text("mimeType", 1000)
        return cls(cid, mime_type, fields.count("size"), extra=fields.rest())

    def _write(self) -> dict[str, Any]:
        return {
            "$type": "blob",
            "ref": {"$link": self.cid},
            "mimeType": self.mime_type,
            "size": self.size,
        }


@dataclass
class BlobEntry(RecordPart):
    """A shard stored as a blob.

    Parameters
    ----------
    blob : BlobRef
    checksum : ShardChecksum, optional
        A record whose checksum says "none" has None.
    extra : dict, optional
        Fields that this version does not know.
    """

    blob: BlobRef
    checksum: ShardChecksum | None = None
    _is_bare: bool = field(default=False, init=False, repr=False, compare=False)

    @classmethod
    def _read(cls, fields: RecordFields) -> BlobEntry:
        if fields.value.get("$type") == "blob":  # older records: the blob itself
            found = cls(BlobRef._read(fields))
            found._is_bare = True
            return found
        blob = BlobRef._read(fields.inside("blob"))
        found = cls(blob, read_checksum(fields), extra=fields.rest())
        if found.checksum is None:
            found._keep("checksum", fields)
        return found

    def to_record(self) -> dict[str, Any]:
        """Return the JSON object of the shard.

        Returns
        -------
        dict
            A checksum that is None is left out: none is required.

        Raises
        ------
        RecordError
            A value is one that a record cannot hold.

        Examples
        --------
        >>> cid = "bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e"
        >>> blob = typed.atmosphere.BlobRef(cid, "application/x-tar", 11)
        >>> typed.atmosphere.BlobEntry(blob).to_record()["blob"]["size"]
        11
        """
        if self._is_bare and self.checksum is None and not self.extra:
            return self.blob.to_record()
        return super().to_record()

    def _write(self) -> dict[str, Any]:
        checksum = None if self.checksum is None else self.checksum.to_record()
        return {"blob": self.blob.to_record(), "checksum": checksum}


@dataclass
class StorageBlobs(RecordPart):
    """Shards stored as blobs of the record's repository.

    Parameters
    ----------
    blobs : list of BlobEntry
    extra : dict, optional
        Fields that this version does not know.
    """

    blobs: list[BlobEntry]

    @classmethod
    def _read(cls, fields: RecordFields) -> StorageBlobs:
        fields.expect_type(BLOBS)
        blobs = _read_items(fields, "blobs", BlobEntry._read)
        return cls(blobs, extra=fields.rest())

    def _write(self) -> dict[str, Any]:
        return {"$type": BLOBS, "blobs": [each.to_record() for each in self.blobs]}


@dataclass
class StorageExternal(RecordPart):
    """Shards at URLs or brace patterns, of older records.

    Parameters
    ----------
    urls : list of str
    extra : dict, optional
        Fields that this version does not know.
    """

    urls: list[str]

    @classmethod
    def _read(cls, fields: RecordFields) -> StorageExternal:
        fields.expect_type(EXTERNAL)
        urls = fields.texts_or_none("urls", LONGEST_URL, MOST_SHARDS)
        if urls is None:
            raise fields.fail("a required field is missing", "urls")
        return cls(urls, extra=fields.rest())

    def _write(self) -> dict[str, Any]:
        return {"$type": EXTERNAL, "urls": list(self.urls)}


Storage = StorageHttp | StorageS3 | StorageBlobs | StorageExternal | UnknownMember
HTTP = f"{NAMESPACE}.storageHttp"
S3 = f"{NAMESPACE}.storageS3"
BLOBS = f"{NAMESPACE}.storageBlobs"
EXTERNAL = f"{NAMESPACE}.storageExternal"
MEMBERS: dict[str, Callable[[RecordFields], Storage]] = {
    HTTP: StorageHttp._read,
    S3: StorageS3._read,
    BLOBS: StorageBlobs._read,
    EXTERNAL: StorageExternal._read,
}


def storage_from_record(record: dict[str, Any], *, uri: str = "") -> Storage:
    """Return the storage that a JSON object of a record describes.

    Parameters
    ----------
    record : dict
        The field `storage` of an entry.
    uri : str, optional
        Address of the entry, for errors.

    Returns
    -------
    StorageHttp, StorageS3, StorageBlobs, StorageExternal or UnknownMember
        By the ``$type``.

    Raises
    ------
    RecordError
        A field is missing, of another type, or too long.

    Examples
    --------
    >>> from fastshard.typed import atmosphere
    >>> atmosphere.storage_from_record(
    ...     {
    ...         "$type": "science.alt.dataset.storageHttp",
    ...         "shards": [{"url": "https://data.example/train.tar"}],
    ...     }
    ... ).shards[0].url
    'https://data.example/train.tar'
    """
    return read_storage(RecordFields(record, uri, "storage"))


def read_storage(fields: RecordFields) -> Storage:
    """Return the member of the union, by the type of the fields."""
    type_id = fields.value.get("$type")
    read = MEMBERS.get(type_id) if isinstance(type_id, str) else None
    return (read or UnknownMember._read)(fields)


def _read_items(
    fields: RecordFields, name: str, read: Callable[[RecordFields], T]
) -> list[T]:
    """Return the parts of a list that is not empty."""
    items = fields.items(name, MOST_SHARDS)
    if not items:
        raise fields.fail("expected a shard or more, got an empty list", name)
    return [read(fields.of(item, f"{name}[{i}]")) for i, item in enumerate(items)]
