"""Loading of datasets: records of entries, and the shards that they name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

from fastshard.atmosphere.at_uri import AtUri
from fastshard.atmosphere.loading.record import RecordLoader
from fastshard.atmosphere.loading.schema import SchemaLoader
from fastshard.atmosphere.loading.shards import (
    blob_endpoint_url,
    open_storage,
    s3_urls,
    storage_type,
    storage_urls,
)
from fastshard.atmosphere.records.checked import RecordFields
from fastshard.atmosphere.records.entry import EntryRecord
from fastshard.atmosphere.records.metadata import read_metadata
from fastshard.atmosphere.records.storage import (
    Storage,
    StorageBlobs,
    StorageS3,
    read_storage,
)

if TYPE_CHECKING:
    from fastshard.typed.dataset import Dataset

__all__ = ["DatasetLoader"]

T = TypeVar("T")


class DatasetLoader(RecordLoader[EntryRecord]):
    """Loads records of datasets, and opens their shards.

    Parameters
    ----------
    client : Atmosphere
        Logged in or not.

    Examples
    --------
    >>> from fastshard import typed
    >>> loader = typed.DatasetLoader(client)
    >>> loader.get(entry_uri)["name"]
    'images'
    """

    RECORD = EntryRecord

    def get_storage_type(self, uri: str | AtUri) -> str:
        """Return where the shards of a dataset are.

        Parameters
        ----------
        uri : str or AtUri
            Address of the record.

        Returns
        -------
        str
            "http", "s3", "blobs", or "external" of older records.

        Raises
        ------
        ValueError
            The type is not known, or the record is damaged.
        KeyError
            There is no such record.
        RemoteError
            A server cannot be asked.

        Examples
        --------
        >>> typed.DatasetLoader(client).get_storage_type(entry_uri)
        'blobs'
        """
        return storage_type(self._storage(uri)[0])

    def get_urls(self, uri: str | AtUri) -> list[str]:
        """Return the URLs of shards that are not blobs.

        Parameters
        ----------
        uri : str or AtUri
            Address of the record.

        Returns
        -------
        list of str
            As the record has them: one that is of an older form may be a pattern. Those
            in a bucket are ``s3://``, or of ``https`` if the record names the server.

        Raises
        ------
        ValueError
            The shards are blobs, the type is not known, or the record is damaged.
        KeyError
            There is no such record.
        RemoteError
            A server cannot be asked.

        Examples
        --------
        >>> loader = typed.DatasetLoader(client)
        >>> urls = ["https://data.example/train.tar"]
        >>> publisher = typed.DatasetPublisher(client)
        >>> loader.get_urls(publisher.publish_with_urls(urls, schema_uri, name="a"))
        ['https://data.example/train.tar']
        """
        storage, did = self._storage(uri)
        if isinstance(storage, StorageS3):
            return s3_urls(storage)
        if storage_type(storage) == "blobs":
            raise ValueError(
                "Dataset uses blob storage, not URLs. Use get_blob_urls() instead."
            )
        return storage_urls(storage, did)

    def get_s3_info(self, uri: str | AtUri) -> dict[str, Any]:
        """Return where in S3 the shards are.

        Parameters
        ----------
        uri : str or AtUri
            Address of the record.

        Returns
        -------
        dict
            With ``bucket``, ``keys``, ``region`` and ``endpoint``, which may be None.

        Raises
        ------
        ValueError
            The shards are elsewhere, or the record is damaged.
        KeyError
            There is no such record.
        RemoteError
            A server cannot be asked.

        Examples
        --------
        >>> publisher = typed.DatasetPublisher(client)
        >>> uri = publisher.publish_with_s3("bucket", ["a.tar"], schema_uri, name="b")
        >>> typed.DatasetLoader(client).get_s3_info(uri)["keys"]
        ['a.tar']
        """
        storage, _ = self._storage(uri)
        if not isinstance(storage, StorageS3):
            raise ValueError(
                "Dataset does not use S3 storage. Storage type: "
                f"{storage_type(storage)}"
            )
        return {
            "bucket": storage.bucket,
            "keys": [shard.key for shard in storage.shards],
            "region": storage.region,
            "endpoint": storage.endpoint,
        }

    def get_blobs(self, uri: str | AtUri) -> list[dict[str, Any]]:
        """Return the blobs of the shards, as the record has them.

        Returns
        -------
        list of dict
            With ``blob``, and ``checksum`` if the record has one.

        Raises
        ------
        ValueError
            The shards are elsewhere, or the record is damaged.
        KeyError
            There is no such record.
        RemoteError
            A server cannot be asked.

        Examples
        --------
        >>> typed.DatasetLoader(client).get_blobs(entry_uri)[0]["blob"]["mimeType"]
        'application/x-tar'
        """
        return [each.to_record() for each in self._blobs(uri)[0].blobs]

    def get_blob_urls(self, uri: str | AtUri) -> list[str]:
        """Return the URLs of the shards' blobs at the server of their owner.

        Parameters
        ----------
        uri : str or AtUri
            Address of the record.

        Raises
        ------
        ValueError
            The shards are elsewhere, or the record is damaged.
        KeyError
            There is no such record.
        RemoteError
            A server cannot be asked.

        Examples
        --------
        >>> typed.DatasetLoader(client).get_blob_urls(entry_uri)
        ['http://127.0.0.1:.../xrpc/com.atproto.sync.getBlob?did=did:plc:...&cid=...']
        """
        storage, did = self._blobs(uri)
        endpoint = self.client.resolve_pds(did)
        return [
            blob_endpoint_url(endpoint, did, each.blob.cid) for each in storage.blobs
        ]

    def get_metadata(self, uri: str | AtUri) -> dict[str, Any] | None:
        """Return the metadata of a dataset.

        Parameters
        ----------
        uri : str or AtUri
            Address of the record.

        Raises
        ------
        ValueError
            The record is damaged.
        KeyError
            There is no such record.
        RemoteError
            A server cannot be asked.

        Examples
        --------
        >>> typed.DatasetLoader(client).get_metadata(entry_uri)
        {'rate': 0.5}
        """
        record = self.get(uri)
        return read_metadata(RecordFields(record, str(record.uri)))

    def get_content_metadata(self, uri: str | AtUri) -> dict[str, Any] | None:
        """Return the record's `contentMetadata`.

        Raises
        ------
        ValueError
            The record is damaged.
        KeyError
            There is no such record.
        RemoteError
            A server cannot be asked.

        Examples
        --------
        >>> typed.DatasetLoader(client).get_content_metadata(entry_uri) is None
        True
        """
        record = self.get(uri)
        fields = RecordFields(record, str(record.uri))
        return fields.mapping_or_none("contentMetadata")

    def get_metadata_schema_ref(self, uri: str | AtUri) -> str | None:
        """Return the address of the schema of the content's metadata.

        Raises
        ------
        ValueError
            The record is damaged.
        KeyError
            There is no such record.
        RemoteError
            A server cannot be asked.

        Examples
        --------
        >>> typed.DatasetLoader(client).get_metadata_schema_ref(entry_uri) is None
        True
        """
        record = self.get(uri)
        fields = RecordFields(record, str(record.uri))
        return fields.uri_or_none("metadataSchemaRef")

    @overload
    def to_dataset(
        self, uri: str | AtUri, sample_type: type[T], **options: Any
    ) -> Dataset[T]: ...
    @overload
    def to_dataset(
        self, uri: str | AtUri, sample_type: None = None, **options: Any
    ) -> Dataset[Any]: ...
    def to_dataset(
        self,
        uri: str | AtUri,
        sample_type: type[Any] | None = None,
        **options: Any,
    ) -> Dataset[Any]:
        """Return the dataset of a record.

        Parameters
        ----------
        uri : str or AtUri
            Address of the record.
        sample_type : type, optional
            Class of the samples; by default one made of the schema.
        **options
            Options of `Dataset`, and those of `fastshard.open`.

        Returns
        -------
        Dataset
            Its shards are read or downloaded when samples are.

        Raises
        ------
        ValueError
            The record is damaged, its storage is not known, or the place of a shard is
            not the URL of a public server.
        KeyError
            There is no such record, or its schema is gone.
        RemoteError
            A server cannot be asked.

        Examples
        --------
        >>> loader = typed.DatasetLoader(client)
        >>> loader.to_dataset(entry_uri, cache_dir="blobs")[7].label
        'label 7'
        """
        record = self.get(uri)
        address = str(record.uri)
        entry = EntryRecord.from_record(record, uri=address)
        if sample_type is None:
            sample_type = SchemaLoader(self.client).get_type(entry.schema_ref)
        ds = open_storage(
            self.client,
            entry.storage,
            address,
            record.uri.authority,
            sample_type,
            **options,
        )
        ds.content_metadata = entry.content_metadata
        return ds

    def _storage(self, uri: str | AtUri) -> tuple[Storage, str]:
        """Return the storage of a record, and the DID of its repository."""
        record = self.get(uri)
        fields = RecordFields(record, str(record.uri)).inside("storage")
        return read_storage(fields), record.uri.authority

    def _blobs(self, uri: str | AtUri) -> tuple[StorageBlobs, str]:
        storage, did = self._storage(uri)
        if not isinstance(storage, StorageBlobs):
            raise ValueError(
                "Dataset does not use blob storage. Storage type: "
                f"{storage_type(storage)}. Use get_urls() instead."
            )
        return storage, did
