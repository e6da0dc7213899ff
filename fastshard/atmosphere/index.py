"""The index of a network's repositories: datasets, schemas and labels of accounts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from fastshard._util.paths.urls import redact
from fastshard.atmosphere.at_uri import AtUri, parse_label_ref
from fastshard.atmosphere.loading.dataset import DatasetLoader
from fastshard.atmosphere.loading.label import LabelLoader
from fastshard.atmosphere.loading.schema import SchemaLoader
from fastshard.atmosphere.loading.shards import (
    blob_endpoint_url,
    checksums_of_storage,
    open_storage,
    source_of_storage,
    storage_urls,
)
from fastshard.atmosphere.promotion import publish_dataset, publish_samples
from fastshard.atmosphere.publishing.dataset import EntryFields
from fastshard.atmosphere.publishing.label import LabelPublisher
from fastshard.atmosphere.publishing.schema import SchemaPublisher
from fastshard.atmosphere.publishing.steps import SchemaWanted
from fastshard.atmosphere.records.checked import RecordFields
from fastshard.atmosphere.records.entry import EntryRecord
from fastshard.atmosphere.records.metadata import read_metadata
from fastshard.atmosphere.records.storage import (
    Storage,
    StorageBlobs,
    read_storage,
)

if TYPE_CHECKING:
    from fastshard.atmosphere.client import Atmosphere
    from fastshard.atmosphere.stored_record import StoredRecord
    from fastshard.typed.dataset import Dataset
    from fastshard.typed.descriptions.structure import Structure
    from fastshard.typed.sources.protocol import DataSource
    from fastshard.typed.stores.protocol import AbstractDataStore

__all__ = ["AtmosphereIndex", "AtmosphereIndexEntry"]

T = TypeVar("T")


class AtmosphereIndexEntry:
    """The record of a dataset, as an entry of an index.

    Records are written by strangers: the fields are checked when they are used.

    Parameters
    ----------
    uri : str or AtUri
        Address of the record.
    record : dict
        Its value.
    client : Atmosphere, optional
        Opens the shards.

    Attributes
    ----------
    uri : str
    cid : str
        Of the record; "" if it is not known.

    Examples
    --------
    >>> from fastshard import typed
    >>> entry = typed.AtmosphereIndexEntry(
    ...     "at://did:plc:abc/science.alt.dataset.entry/3n2uxbndfy22e",
    ...     {
    ...         "name": "train",
    ...         "storage": {
    ...             "$type": "science.alt.dataset.storageHttp",
    ...             "shards": [{"url": "https://data.example/train.tar"}],
    ...         },
    ...     },
    ... )
    >>> entry.name, entry.data_urls
    ('train', ['https://data.example/train.tar'])
    """

    def __init__(
        self,
        uri: str | AtUri,
        record: Mapping[str, Any],
        client: Atmosphere | None = None,
    ) -> None:
        self.uri = str(uri)
        self.cid: str = getattr(record, "cid", "")
        self._record = dict(record)
        self._client = client

    @property
    def record(self) -> dict[str, Any]:
        """The value of the record, not checked."""
        return dict(self._record)

    @property
    def _fields(self) -> RecordFields:
        return RecordFields(self._record, self.uri)

    @property
    def name(self) -> str:
        """The dataset's name."""
        return self._fields.text("name", 200)

    @property
    def schema_ref(self) -> str:
        """Address of the schema's record."""
        return self._fields.uri("schemaRef")

    @property
    def metadata(self) -> dict[str, Any] | None:
        """The metadata as a dict, or None."""
        return read_metadata(self._fields)

    @property
    def description(self) -> str | None:
        """The description, or None."""
        return self._fields.text_or_none("description", 5000)

    @property
    def tags(self) -> list[str]:
        """The tags."""
        return self._fields.texts_or_none("tags", 150, 30) or []

    @property
    def license(self) -> str | None:
        """The license, or None."""
        return self._fields.text_or_none("license", 200)

    @property
    def data_urls(self) -> list[str]:
        """URLs of the shards, or patterns of older records; [] if unknown.

        Those of blobs are at the server of their owner, who is looked up; without a
        client ``at://did/blob/cid``.
        """
        storage, did = self._storage
        if not isinstance(storage, StorageBlobs) or self._client is None:
            return storage_urls(storage, did)
        endpoint = self._client.resolve_pds(did)
        return [
            blob_endpoint_url(endpoint, did, each.blob.cid) for each in storage.blobs
        ]

    @property
    def checksums(self) -> dict[str, str]:
        """SHA-256 digests in hexadecimal, by the URLs of `data_urls`."""
        storage, _ = self._storage
        return checksums_of_storage(storage, self.data_urls)

    def _shard_source(self) -> DataSource:
        """Return the source of the shards, in the order of `data_urls`."""
        if self._client is None:
            raise ValueError(f"{self.uri} has no client to open it: use an index")
        storage, did = self._storage
        return source_of_storage(self._client, storage, self.uri, did)

    @property
    def _storage(self) -> tuple[Storage, str]:
        did = AtUri.parse(self.uri).authority
        if self._client is not None:
            did = self._client.resolve_did(did)
        return read_storage(self._fields.inside("storage")), did

    @overload
    def open(self, sample_type: type[T], **options: Any) -> Dataset[T]: ...
    @overload
    def open(self, sample_type: None = None, **options: Any) -> Dataset[Any]: ...
    def open(
        self, sample_type: type[Any] | None = None, **options: Any
    ) -> Dataset[Any]:
        """Open the shards of the dataset.

        Parameters
        ----------
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
            not the URL of a public server; or the entry has no client.
        KeyError
            The schema is gone.
        RemoteError
            A server cannot be asked.

        Examples
        --------
        >>> entry = typed.AtmosphereIndex(client).get_dataset(entry_uri)
        >>> entry.open(cache_dir="blobs")[7].label
        'label 7'
        """
        if self._client is None:
            raise ValueError(f"{self.uri} has no client to open it: use an index")
        entry = EntryRecord.from_record(self._record, uri=self.uri)
        if sample_type is None:
            sample_type = SchemaLoader(self._client).get_type(entry.schema_ref)
        did = self._client.resolve_did(AtUri.parse(self.uri).authority)
        ds = open_storage(
            self._client, entry.storage, self.uri, did, sample_type, **options
        )
        ds.content_metadata = entry.content_metadata
        return ds

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AtmosphereIndexEntry):
            return NotImplemented
        return self.uri == other.uri and self._record == other._record

    def __hash__(self) -> int:
        return hash(self.uri)

    def __repr__(self) -> str:
        name = self._record.get("name")
        shown = repr(name[:200]) if isinstance(name, str) else "no name"
        return f"<AtmosphereIndexEntry {shown} at {redact(self.uri)}>"


class AtmosphereIndex:
    """Datasets, schemas and labels in the repositories of accounts.

    Parameters
    ----------
    client : Atmosphere
        Logged in, to publish.
    data_store : AbstractDataStore, optional
        Where `write_samples` and `insert_dataset` store shards; by default in blobs.

    Examples
    --------
    >>> from fastshard import typed
    >>> index = typed.AtmosphereIndex(client)
    >>> [entry.name for entry in index.list_datasets("alice.test")]
    ['images']
    """

    def __init__(
        self, client: Atmosphere, *, data_store: AbstractDataStore | None = None
    ) -> None:
        self.client = client
        self.data_store = data_store

    # -- Datasets

    def get_dataset(self, ref: str | AtUri) -> AtmosphereIndexEntry:
        """Return the entry of a dataset.

        Parameters
        ----------
        ref : str or AtUri
            ``at://did/collection/rkey`` of its record, ``@handle/name``, or
            ``@handle/name@version``.

        Raises
        ------
        KeyError
            There is no such record, or no such label.
        ValueError
            The reference is invalid, or the record is not that of a dataset.
        RemoteError
            A server cannot be asked.

        Examples
        --------
        >>> _ = typed.LabelPublisher(client).publish("best", entry_uri, version="1.0.0")
        >>> typed.AtmosphereIndex(client).get_dataset("@alice.test/best@1.0.0").name
        'images'
        """
        if isinstance(ref, str) and ref.startswith("@"):
            ref = LabelLoader(self.client).resolve(*parse_label_ref(ref))
        record = DatasetLoader(self.client).get(ref)
        return AtmosphereIndexEntry(record.uri, record, self.client)

    def list_datasets(self, repo: str | None = None) -> list[AtmosphereIndexEntry]:
        """Return the entries of a repository, the latest first.

        Parameters
        ----------
        repo : str, optional
            DID or handle of its owner; by default the account of the session.

        Raises
        ------
        SessionError
            There is no `repo`, and no session.
        RemoteError
            A server cannot be asked, or its pages do not end.

        Examples
        --------
        >>> len(typed.AtmosphereIndex(client).list_datasets())
        1
        """
        return [
            AtmosphereIndexEntry(record.uri, record, self.client)
            for record in DatasetLoader(self.client).list_all(repo)
        ]

    @property
    def datasets(self) -> Iterator[AtmosphereIndexEntry]:
        """The entries of the session's account, the latest first."""
        return iter(self.list_datasets())

    def write_samples(
        self,
        samples: Iterable[Any],
        *,
        name: str,
        schema_ref: str | None = None,
        version: str | None = None,
        description: str | None = None,
        tags: Sequence[str] | None = None,
        license: str | None = None,  # noqa: A002  atdata's name
        maxcount: int | None = 10_000,
        maxsize: int | str | None = None,
        metadata: Mapping[str, Any] | None = None,
        manifest: bool = False,
        data_store: AbstractDataStore | None = None,
        force: bool = False,
    ) -> AtmosphereIndexEntry:
        """Write samples to shards and publish their dataset, with a label.

        Shards are stored first, then the schema is published unless an equal one is
        there, then the entry, then the label.

        Parameters
        ----------
        samples : iterable of packable objects
            All of one class.
        name : str
            Of the dataset and of the label.
        schema_ref : str, optional
            Address of the schema's record.
        version : str, optional
            Of the label.
        description : str, optional
        tags : sequence of str, optional
        license : str, optional
        maxcount : int, optional
            Samples in a shard, at most.
        maxsize : int or str, optional
            Size of a shard, at most; by default 50 MB for blobs.
        metadata : dict, optional
            Floats and bytes are allowed.
        manifest : bool, default False
            Write a manifest beside each shard, where the store keeps it.
        data_store : AbstractDataStore, optional
            By default that of the index, else blobs.
        force : bool, default False
            Let blobs be larger than most servers take.

        Raises
        ------
        ValueError
            There are no samples; a value cannot be in a record; a blob is too large;
            the store is a local one; or the client is not logged in.
        TypeError
            A sample is not packable, or its type has no schema.
        PublishError
            A step failed after another one made something: there is no label.
        RemoteError
            The first step failed.

        Examples
        --------
        >>> index = typed.AtmosphereIndex(client)
        >>> entry = index.write_samples(images, name="digits", metadata={"rate": 0.5})
        >>> index.get_dataset("@alice.test/digits").metadata
        {'rate': 0.5}
        """
        fields = EntryFields(name, description, tags, license, metadata)
        uri = publish_samples(
            self.client,
            samples,
            fields,
            schema_uri=schema_ref,
            version=version,
            data_store=data_store or self.data_store,
            force=force,
            maxcount=maxcount,
            maxsize=maxsize,
            manifest=manifest,
        )
        return self.get_dataset(uri)

    def insert_dataset(
        self,
        ds: Dataset[Any],
        *,
        name: str,
        schema_ref: str | None = None,
        version: str | None = None,
        schema_version: str | None = None,
        description: str | None = None,
        tags: Sequence[str] | None = None,
        license: str | None = None,  # noqa: A002  atdata's name
        metadata: Mapping[str, Any] | None = None,
        data_store: AbstractDataStore | None = None,
        copy: bool = False,
        force: bool = False,
        **options: Any,
    ) -> AtmosphereIndexEntry:
        """Publish a dataset, with a label.

        Shards with public URLs stay where they are. Local files, and all with `copy` or
        `data_store`, are copied to the store.

        Parameters
        ----------
        ds : Dataset
            All samples of its shards, as they are stored.
        name : str
            Of the dataset and of the label.
        schema_ref : str, optional
            Address of the schema's record.
        version : str, optional
            Of the label.
        schema_version : str, optional
            Of a schema that is published.
        description : str, optional
        tags : sequence of str, optional
        license : str, optional
        metadata : dict, optional
            By default those of the dataset.
        data_store : AbstractDataStore, optional
            By default that of the index, if shards are copied, else blobs.
        copy : bool, default False
        force : bool, default False
            Let blobs be larger than most servers take.
        **options
            Further arguments of the data store.

        Raises
        ------
        ValueError
            The dataset selects or maps samples of its shards, or is read with
            credentials, and is not copied; a value cannot be in a record; a blob is too
            large; the store is a local one; or the client is not logged in.
        TypeError
            The sample type has no schema.
        PublishError
            A step failed after another one made something: there is no label.
        RemoteError
            The first step failed.

        Examples
        --------
        >>> index = typed.AtmosphereIndex(client)
        >>> index.insert_dataset(ds, name="first", tags=["a"]).tags
        ['a']
        """
        fields = EntryFields(name, description, tags, license, metadata)
        uri = publish_dataset(
            self.client,
            ds,
            fields,
            schema=SchemaWanted(schema_ref, None, schema_version),
            version=version,
            data_store=data_store,
            default_store=self.data_store,
            copy=copy,
            force=force,
            **options,
        )
        return self.get_dataset(uri)

    def label(
        self,
        name: str,
        uri: str | AtUri,
        *,
        version: str | None = None,
        description: str | None = None,
    ) -> AtUri:
        """Publish a label of a dataset.

        Parameters
        ----------
        name : str
        uri : str or AtUri
            Address of the dataset's record.
        version : str, optional
        description : str, optional

        Returns
        -------
        AtUri
            Address of the label's record.

        Raises
        ------
        ValueError
            A value cannot be in a record, or the client is not logged in.
        RemoteError
            The server refuses the record.

        Examples
        --------
        >>> index = typed.AtmosphereIndex(client)
        >>> _ = index.label("latest", entry_uri)
        >>> index.get_dataset("@alice.test/latest").name
        'images'
        """
        return LabelPublisher(self.client).publish(
            name, uri, version=version, description=description
        )

    # -- Schemas

    def publish_schema(
        self,
        sample_type: type | Structure,
        *,
        version: str | None = None,
        description: str | None = None,
    ) -> str:
        """Publish the schema of a type, unless an equal one exists.

        Parameters
        ----------
        sample_type : type
            A packable class.
        version : str, optional
            The version wanted; where it has other fields already, and by default, the
            latest one's patch + 1, or 1.0.0.
        description : str, optional
            By default that of the class.

        Returns
        -------
        str
            Address of the schema's record.

        Raises
        ------
        TypeError
            The class is not packable, or has a field that a schema cannot describe.
        ValueError
            The client is not logged in.
        RemoteError
            The server refuses the record.

        Examples
        --------
        >>> index = typed.AtmosphereIndex(client)
        >>> index.publish_schema(ImageSample) == index.publish_schema(ImageSample)
        True
        """
        publisher = SchemaPublisher(self.client)
        return str(
            publisher.find_or_publish(
                sample_type, version=version, description=description
            )
        )

    def get_schema(self, ref: str) -> StoredRecord:
        """Return the record of a schema.

        Parameters
        ----------
        ref : str
            The record's address, or ``@handle/TypeName@version``.

        Returns
        -------
        StoredRecord
            A dict.

        Raises
        ------
        KeyError
            There is no such schema.
        ValueError
            The reference is invalid, or the record is not that of a schema.
        RemoteError
            A server cannot be asked.

        Examples
        --------
        >>> typed.AtmosphereIndex(client).get_schema("@alice.test/Images@1.0.0")["name"]
        'Images'
        """
        return SchemaLoader(self.client).get(ref)

    def get_schema_type(self, ref: str) -> type[Any]:
        """Return the class that a schema describes.

        Parameters
        ----------
        ref : str
            As for `get_schema`.

        Returns
        -------
        type
            A packable class, one for each record.

        Raises
        ------
        KeyError
            There is no such schema.
        ValueError
            The reference is invalid, or the schema cannot be a class.
        RemoteError
            A server cannot be asked.

        Examples
        --------
        >>> index = typed.AtmosphereIndex(client)
        >>> index.get_schema_type("@alice.test/Images@1.0.0").__name__
        'Images'
        """
        return SchemaLoader(self.client).get_type(ref)

    def list_schemas(self, repo: str | None = None) -> list[StoredRecord]:
        """Return the records of the schemas of a repository, the latest first.

        Parameters
        ----------
        repo : str, optional
            DID or handle of its owner; by default the account of the session.

        Raises
        ------
        SessionError
            There is no `repo`, and no session.
        RemoteError
            A server cannot be asked, or its pages do not end.

        Examples
        --------
        >>> [schema["name"] for schema in typed.AtmosphereIndex(client).list_schemas()]
        ['Images']
        """
        return SchemaLoader(self.client).list_all(repo)

    @property
    def schemas(self) -> Iterator[StoredRecord]:
        """The schemas of the session's account, the latest first."""
        return iter(self.list_schemas())

    def __repr__(self) -> str:
        return f"AtmosphereIndex({self.client!r})"
