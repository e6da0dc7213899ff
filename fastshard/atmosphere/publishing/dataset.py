"""Publishing of datasets: records of entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from fastshard.atmosphere.at_uri import AtUri
from fastshard.atmosphere.client import MAX_BLOB, Atmosphere
from fastshard.atmosphere.publishing.record import check_record, publish_record
from fastshard.atmosphere.publishing.schema import SchemaPublisher
from fastshard.atmosphere.publishing.storage import (
    blob_storage,
    http_storage,
    s3_storage,
    storage_of_urls,
)
from fastshard.atmosphere.records.checksum import ShardChecksum
from fastshard.atmosphere.records.entry import DatasetSize, EntryRecord
from fastshard.atmosphere.records.storage import (
    BlobRef,
    HttpShardEntry,
    Storage,
    StorageBlobs,
    StorageHttp,
)

if TYPE_CHECKING:
    from fastshard.typed.dataset import Dataset

__all__ = [
    "DatasetPublisher",
    "EntryFields",
    "check_entry",
    "content_of",
    "entry_record",
]

MIME_TYPE = "application/x-tar"


class EntryFields(NamedTuple):
    """Fields of an entry, besides its storage."""

    name: str
    description: str | None = None
    tags: Sequence[str] | None = None
    license: str | None = None
    metadata: Mapping[str, Any] | None = None
    metadata_schema_ref: str | None = None
    content_metadata: Mapping[str, Any] | None = None


def entry_record(
    fields: EntryFields,
    schema_uri: str | AtUri,
    storage: Storage,
    samples: int | None = None,
) -> EntryRecord:
    """Return the record of a dataset; that of blobs has their size, too."""
    if isinstance(fields.tags, str):  # a sequence of its letters
        raise TypeError("tags must be a list of str, got a str")
    size = None if samples is None else DatasetSize(samples)
    if isinstance(storage, StorageBlobs):
        nbytes = sum(each.blob.size for each in storage.blobs)
        size = DatasetSize(samples, nbytes, len(storage.blobs))
    metadata, content = fields.metadata, fields.content_metadata
    return EntryRecord(
        fields.name,
        str(schema_uri),
        storage,
        description=fields.description,
        metadata=None if metadata is None else dict(metadata),
        tags=list(fields.tags or ()),
        size=size,
        license=fields.license,
        metadata_schema_ref=fields.metadata_schema_ref,
        content_metadata=None if content is None else dict(content),
    )


def check_entry(fields: EntryFields, schema_uri: str | AtUri) -> None:
    """Check the fields of an entry before its shards are uploaded."""
    storage = StorageHttp([HttpShardEntry("https://shard.example")])
    check_record(entry_record(fields, schema_uri, storage))


def content_of(value: Any) -> tuple[dict[str, Any] | None, type | None]:
    """Return the content metadata of a dataset as a dict, and their sample type."""
    if value is None:
        return None, None
    if isinstance(value, Mapping):
        return dict(value), None
    if not is_dataclass(value) or isinstance(value, type):
        name = type(value).__name__
        raise TypeError(f"content_metadata must be a dict or a sample, got a {name}")
    return asdict(value), type(value)


class DatasetPublisher:
    """Publishes records of datasets.

    Parameters
    ----------
    client : Atmosphere
        Logged in.

    Examples
    --------
    >>> from fastshard import typed
    >>> uri = typed.DatasetPublisher(client).publish_with_urls(
    ...     ["https://data.example/train.tar"], schema_uri, name="train"
    ... )
    >>> typed.DatasetLoader(client).get_storage_type(uri)
    'http'
    """

    def __init__(self, client: Atmosphere) -> None:
        self.client = client

    def publish(
        self,
        dataset: Dataset[Any],
        *,
        name: str,
        schema_uri: str | AtUri | None = None,
        description: str | None = None,
        tags: Sequence[str] | None = None,
        license: str | None = None,  # noqa: A002  atdata's name
        auto_publish_schema: bool = True,
        schema_version: str | None = None,
        metadata_schema_uri: str | AtUri | None = None,
        auto_publish_metadata_schema: bool = True,
        rkey: str | None = None,
    ) -> AtUri:
        """Publish the record of a dataset whose shards have public URLs.

        Parameters
        ----------
        dataset : Dataset
        name : str
        schema_uri : str or AtUri, optional
            Address of the schema's record.
        description : str, optional
        tags : sequence of str, optional
        license : str, optional
        auto_publish_schema : bool, default True
            Without `schema_uri`, publish the schema of the sample type, unless an equal
            one is there.
        schema_version : str, optional
            The version of a schema that is published.
        metadata_schema_uri : str or AtUri, optional
            Address of the record of the schema of the dataset's `content_metadata`.
        auto_publish_metadata_schema : bool, default True
            Publish the schema of the `content_metadata` if it is a sample.
        rkey : str, optional
            The record's key; by default the server makes one.

        Returns
        -------
        AtUri
            The record's address.

        Raises
        ------
        ValueError
            A shard has no public URL; there is no `schema_uri`, and
            `auto_publish_schema` is False; the client is not logged in; or a value
            cannot be in a record.
        TypeError
            The sample type has no schema.
        RemoteError
            The server refuses a record.

        Examples
        --------
        >>> ds = typed.Dataset[ImageSample]("https://data.example/{00..03}.tar")
        >>> uri = typed.DatasetPublisher(client).publish(ds, name="four shards")
        >>> len(typed.DatasetLoader(client).get_urls(uri))
        4
        """
        if schema_uri is None and not auto_publish_schema:
            raise ValueError("schema_uri is required when auto_publish_schema=False")
        storage = storage_of_urls(dataset.list_shards())
        schemas = SchemaPublisher(self.client)
        if schema_uri is None:
            schema_uri = schemas.find_or_publish(
                dataset.sample_type, version=schema_version
            )
        content, content_type = content_of(dataset.content_metadata)
        if (
            metadata_schema_uri is None
            and content_type is not None
            and auto_publish_metadata_schema
        ):
            metadata_schema_uri = schemas.find_or_publish(content_type)
        fields = EntryFields(
            name,
            description,
            tags,
            license,
            dataset.metadata,
            None if metadata_schema_uri is None else str(metadata_schema_uri),
            content,
        )
        return self._publish(fields, schema_uri, storage, rkey)

    def publish_with_urls(
        self,
        urls: Sequence[str],
        schema_uri: str | AtUri,
        *,
        name: str,
        description: str | None = None,
        tags: Sequence[str] | None = None,
        license: str | None = None,  # noqa: A002  atdata's name
        metadata: Mapping[str, Any] | None = None,
        metadata_schema_ref: str | None = None,
        content_metadata: Mapping[str, Any] | None = None,
        checksums: Sequence[ShardChecksum | None] | None = None,
        rkey: str | None = None,
    ) -> AtUri:
        """Publish the record of shards that URLs name.

        Parameters
        ----------
        urls : sequence of str
            One for each shard, no patterns.
        schema_uri : str or AtUri
            Address of the schema's record.
        name : str
        description : str, optional
        tags : sequence of str, optional
        license : str, optional
        metadata : dict, optional
            Floats and bytes are allowed.
        metadata_schema_ref : str, optional
            Address of the record of the schema of `content_metadata`.
        content_metadata : dict, optional
            Without floats.
        checksums : sequence of ShardChecksum or None, optional
            One for each shard.
        rkey : str, optional
            The record's key; by default the server makes one.

        Returns
        -------
        AtUri
            The record's address.

        Raises
        ------
        ValueError
            A URL is a local path, or holds a password; there are more or fewer
            checksums; the client is not logged in; or a value cannot be in a record.
        RemoteError
            The server refuses the record.

        Examples
        --------
        >>> uri = typed.DatasetPublisher(client).publish_with_urls(
        ...     ["https://data.example/test.tar"], schema_uri, name="test", tags=["a"]
        ... )
        >>> typed.DatasetLoader(client).get(uri)["tags"]
        ['a']
        """
        fields = EntryFields(
            name,
            description,
            tags,
            license,
            metadata,
            metadata_schema_ref,
            content_metadata,
        )
        storage = http_storage(urls, checksums)
        return self._publish(fields, schema_uri, storage, rkey)

    def publish_with_s3(
        self,
        bucket: str,
        keys: Sequence[str],
        schema_uri: str | AtUri,
        *,
        name: str,
        region: str | None = None,
        endpoint: str | None = None,
        description: str | None = None,
        tags: Sequence[str] | None = None,
        license: str | None = None,  # noqa: A002  atdata's name
        metadata: Mapping[str, Any] | None = None,
        metadata_schema_ref: str | None = None,
        content_metadata: Mapping[str, Any] | None = None,
        checksums: Sequence[ShardChecksum | None] | None = None,
        rkey: str | None = None,
    ) -> AtUri:
        """Publish the record of shards in a bucket.

        Parameters
        ----------
        bucket : str
        keys : sequence of str
            One for each shard.
        schema_uri : str or AtUri
            Address of the schema's record.
        name : str
        region : str, optional
        endpoint : str, optional
            URL of the server, if it is not that of AWS.
        description, tags, license, metadata, metadata_schema_ref, content_metadata
        checksums, rkey
            As for `publish_with_urls`.

        Returns
        -------
        AtUri
            The record's address.

        Raises
        ------
        ValueError
            There are more or fewer checksums; the client is not logged in; or a value
            cannot be in a record.
        RemoteError
            The server refuses the record.

        Examples
        --------
        >>> uri = typed.DatasetPublisher(client).publish_with_s3(
        ...     "bucket", ["0.tar"], schema_uri, name="s3", region="us-east-1"
        ... )
        >>> typed.DatasetLoader(client).get_urls(uri)
        ['s3://bucket/0.tar']
        """
        fields = EntryFields(
            name,
            description,
            tags,
            license,
            metadata,
            metadata_schema_ref,
            content_metadata,
        )
        storage = s3_storage(bucket, keys, checksums, region=region, endpoint=endpoint)
        return self._publish(fields, schema_uri, storage, rkey)

    def publish_with_blob_refs(
        self,
        blob_refs: Sequence[BlobRef | Mapping[str, Any]],
        schema_uri: str | AtUri,
        *,
        name: str,
        description: str | None = None,
        tags: Sequence[str] | None = None,
        license: str | None = None,  # noqa: A002  atdata's name
        metadata: Mapping[str, Any] | None = None,
        metadata_schema_ref: str | None = None,
        content_metadata: Mapping[str, Any] | None = None,
        checksums: Sequence[ShardChecksum | None] | None = None,
        rkey: str | None = None,
    ) -> AtUri:
        """Publish the record of shards that were uploaded as blobs.

        Parameters
        ----------
        blob_refs : sequence of dict
            Results of `Atmosphere.upload_blob`, one for each shard.
        schema_uri : str or AtUri
            Address of the schema's record.
        name : str
        description, tags, license, metadata, metadata_schema_ref, content_metadata
        checksums, rkey
            As for `publish_with_urls`.

        Returns
        -------
        AtUri
            The record's address.

        Raises
        ------
        ValueError
            A reference is not that of a blob; there are more or fewer checksums; the
            client is not logged in; or a value cannot be in a record.
        RemoteError
            The server refuses the record, or has no such blob.

        Examples
        --------
        >>> from pathlib import Path
        >>> data = Path("data.tar").read_bytes()
        >>> blob = client.upload_blob(data, "application/x-tar")
        >>> uri = typed.DatasetPublisher(client).publish_with_blob_refs(
        ...     [blob], schema_uri, name="one blob"
        ... )
        >>> typed.DatasetLoader(client).get_storage_type(uri)
        'blobs'
        """
        fields = EntryFields(
            name,
            description,
            tags,
            license,
            metadata,
            metadata_schema_ref,
            content_metadata,
        )
        storage = blob_storage(blob_refs, checksums)
        return self._publish(fields, schema_uri, storage, rkey)

    def publish_with_blobs(
        self,
        blobs: Sequence[bytes],
        schema_uri: str | AtUri,
        *,
        name: str,
        description: str | None = None,
        tags: Sequence[str] | None = None,
        license: str | None = None,  # noqa: A002  atdata's name
        metadata: Mapping[str, Any] | None = None,
        metadata_schema_ref: str | None = None,
        content_metadata: Mapping[str, Any] | None = None,
        mime_type: str = MIME_TYPE,
        rkey: str | None = None,
    ) -> AtUri:
        """Upload shards as blobs, and publish their record.

        For shards that are files see `PDSBlobStore`, which does not load them.

        Parameters
        ----------
        blobs : sequence of bytes
            The shards.
        schema_uri : str or AtUri
            Address of the schema's record.
        name : str
        description, tags, license, metadata, metadata_schema_ref, content_metadata
            As for `publish_with_urls`.
        mime_type : str, default "application/x-tar"
        rkey : str, optional
            The record's key; by default the server makes one.

        Returns
        -------
        AtUri
            The record's address.

        Raises
        ------
        ValueError
            A blob is larger than 50 MiB; the client is not logged in; or a value cannot
            be in a record. Nothing is uploaded.
        RemoteError
            The server refuses a blob or the record.

        Examples
        --------
        >>> from pathlib import Path
        >>> data = Path("data.tar").read_bytes()
        >>> uri = typed.DatasetPublisher(client).publish_with_blobs(
        ...     [data], schema_uri, name="bytes"
        ... )
        >>> loader = typed.DatasetLoader(client)
        >>> loader.to_dataset(uri, ImageSample, cache_dir="blobs")[7].label
        'label 7'
        """
        fields = EntryFields(
            name,
            description,
            tags,
            license,
            metadata,
            metadata_schema_ref,
            content_metadata,
        )
        for i, blob in enumerate(blobs):
            if len(blob) > MAX_BLOB:
                raise ValueError(
                    f"blob {i} has {len(blob):,} bytes, more than the {MAX_BLOB:,} "
                    "that a server takes"
                )
        check_entry(fields, schema_uri)
        refs = [self.client.upload_blob(blob, mime_type) for blob in blobs]
        sums = [ShardChecksum("sha256", sha256(blob).hexdigest()) for blob in blobs]
        return self._publish(fields, schema_uri, blob_storage(refs, sums), rkey)

    def _publish(
        self,
        fields: EntryFields,
        schema_uri: str | AtUri,
        storage: Storage,
        rkey: str | None,
    ) -> AtUri:
        record = entry_record(fields, schema_uri, storage)
        return publish_record(self.client, record, rkey)
