"""Publishing of samples, datasets, and entries of an index, under a name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from fastshard._util.paths.urls import is_remote, scheme_of
from fastshard.atmosphere.loading.shards import is_public_url
from fastshard.atmosphere.publishing.dataset import EntryFields, content_of
from fastshard.atmosphere.publishing.steps import (
    PublishedShards,
    SchemaWanted,
    publish_steps,
)
from fastshard.atmosphere.publishing.storage import (
    blob_storage,
    check_public,
    storage_of_urls,
)
from fastshard.atmosphere.records.checksum import ShardChecksum
from fastshard.typed.checksums import checksums_of
from fastshard.typed.descriptions.json_schema import from_schema
from fastshard.typed.dict_sample import DictSample
from fastshard.typed.stores.disk import LocalDiskStore
from fastshard.typed.stores.protocol import AbstractDataStore

if TYPE_CHECKING:
    from fastshard.atmosphere.at_uri import AtUri
    from fastshard.atmosphere.client import Atmosphere
    from fastshard.typed.dataset import Dataset
    from fastshard.typed.descriptions.structure import Structure

__all__ = [
    "promote_to_atmosphere",
    "publish_dataset",
    "publish_entry",
    "publish_samples",
]

OWN_KEYS = ("checksums", "tags", "license")  # of metadata: fields of a record


class LocalEntry(Protocol):
    """An entry of an index, as it is published."""

    @property
    def name(self) -> str:
        """The name in its repository."""
        ...

    @property
    def schema_ref(self) -> str:
        """Reference of the schema."""
        ...

    @property
    def data_urls(self) -> list[str]:
        """Paths, URLs or patterns of the shards."""
        ...

    @property
    def metadata(self) -> dict[str, Any] | None:
        """Metadata, with checksums of the shards."""
        ...

    def open(self, sample_type: Any = None, **options: Any) -> Dataset[Any]:
        """Return the dataset."""
        ...


class SchemaIndex(Protocol):
    """An index, for the schemas of its entries."""

    def get_schema(self, ref: str, /) -> Mapping[str, Any]:
        """Return a schema as JSON; raise KeyError for an unknown one."""
        ...


def publish_samples(
    client: Atmosphere,
    samples: Iterable[Any],
    fields: EntryFields,
    *,
    schema_uri: str | None = None,
    version: str | None = None,
    data_store: AbstractDataStore | None = None,
    force: bool = False,
    **options: Any,
) -> AtUri:
    """Write samples to public shards, and publish their dataset."""
    check_store(data_store)
    iterator = iter(samples)
    try:
        first = next(iterator)
    except StopIteration:
        raise ValueError("samples must be non-empty") from None
    sample_type = type(first)
    schema = SchemaWanted(schema_uri, sample_type)
    if schema_uri is None:
        check_type(sample_type)
    given = {name: value for name, value in options.items() if value is not None}
    number = 0

    def counted() -> Iterator[Any]:
        nonlocal number
        for number, sample in enumerate(chain([first], iterator), 1):  # noqa: B007
            yield sample

    def store() -> PublishedShards:
        from fastshard.atmosphere.blobs.store import PDSBlobStore
        from fastshard.typed.stores.writing import write_to_store

        every = counted()
        if data_store is None or isinstance(data_store, PDSBlobStore):
            blobs = data_store or PDSBlobStore(client)
            check_account(client, blobs)
            written: Any = blobs.write_shards(every, force=force, **given)
        else:
            written = write_to_store(data_store, every, prefix=fields.name, **given)
        return shards_of(written, data_store)._replace(samples=number)

    return publish_steps(client, fields, schema, store, version)


def publish_dataset(
    client: Atmosphere,
    ds: Dataset[Any],
    fields: EntryFields,
    *,
    schema: SchemaWanted | None = None,
    version: str | None = None,
    data_store: AbstractDataStore | None = None,
    default_store: AbstractDataStore | None = None,
    copy: bool = False,
    force: bool = False,
    **options: Any,
) -> AtUri:
    """Publish a dataset: its URLs, or its shards in a store that others can read."""
    check_store(data_store or default_store)
    if schema is None or (schema.uri is None and schema.sample_type is None):
        schema = SchemaWanted(None, ds.sample_type, schema.version if schema else None)
    if isinstance(schema.sample_type, type):
        check_type(schema.sample_type)
    content, content_type = content_of(ds.content_metadata)
    if fields.content_metadata is None and content is not None:
        fields = fields._replace(content_metadata=content)
    if content is None or fields.metadata_schema_ref is not None:
        content_type = None
    if fields.metadata is None:
        fields = fields._replace(metadata=ds.metadata)
    fields, checksums = split_metadata(fields)
    urls = None
    if not copy and data_store is None:
        urls = _public_urls(ds)

    def store() -> PublishedShards:
        if urls is not None:
            return PublishedShards(storage_of_urls(urls, checksums))
        target = data_store or default_store
        return _copy(client, ds, fields.name, target, force, options)

    return publish_steps(client, fields, schema, store, version, content_type)


def publish_entry(
    client: Atmosphere,
    entry: LocalEntry,
    structure: Structure,
    fields: EntryFields,
    *,
    version: str | None = None,
    data_store: AbstractDataStore | None = None,
    force: bool = False,
) -> AtUri:
    """Publish an entry of an index."""
    check_store(data_store)
    if not entry.data_urls:
        raise ValueError(f"Local entry {entry.name!r} has no data URLs")
    if fields.metadata is None:
        fields = fields._replace(metadata=entry.metadata)
    fields, checksums = split_metadata(fields)
    if data_store is None:
        for url in entry.data_urls:
            check_public(url)
    schema = SchemaWanted(None, structure, structure.version)

    def store() -> PublishedShards:
        if data_store is None:
            return PublishedShards(storage_of_urls(entry.data_urls, checksums))
        ds = entry.open(DictSample)
        return _copy(client, ds, f"promoted/{fields.name}", data_store, force, {})

    return publish_steps(client, fields, schema, store, version)


def promote_to_atmosphere(
    local_entry: LocalEntry,
    local_index: SchemaIndex,
    atmosphere_client: Atmosphere,
    *,
    data_store: AbstractDataStore | None = None,
    name: str | None = None,
    version: str | None = None,
    description: str | None = None,
    tags: Sequence[str] | None = None,
    license: str | None = None,  # noqa: A002  atdata's name
) -> str:
    """Publish an entry of an index: its schema, its record and a label.

    Existing records are not published again: an equal schema, an equal record, the
    label.

    Parameters
    ----------
    local_entry : DatasetEntry
    local_index : Index
        Knows the entry's schema.
    atmosphere_client : Atmosphere
        Logged in.
    data_store : AbstractDataStore, optional
        Where to copy the shards, byte by byte: `PDSBlobStore`, `S3DataStore`.
    name : str, optional
        By default that of the entry.
    version : str, optional
        Of the label.
    description : str, optional
    tags : sequence of str, optional
    license : str, optional

    Returns
    -------
    str
        Address of the dataset's record.

    Raises
    ------
    KeyError
        The index has no such schema.
    ValueError
        The entry has no shards; one is a local path and there is no `data_store`; the
        client is not logged in; or a value cannot be in a record.
    PublishError
        A step failed after another one made something. The next call continues.
    RemoteError
        The first step failed.

    Examples
    --------
    >>> from fastshard import typed
    >>> index = typed.Index(path="index.db", atmosphere=None)
    >>> class Caption(typed.PackableSample):
    ...     text: str
    >>> entry = index.insert_dataset(
    ...     typed.Dataset[Caption]("https://data.example/{0..3}.tar"), name="captions"
    ... )
    >>> uri = typed.promote_to_atmosphere(entry, index, client)
    >>> typed.DatasetLoader(client).get(uri)["name"]
    'captions'
    """
    structure = from_schema(
        local_index.get_schema(local_entry.schema_ref), local_entry.schema_ref
    )
    fields = EntryFields(name or local_entry.name, description, tags, license)
    return str(
        publish_entry(
            atmosphere_client,
            local_entry,
            structure,
            fields,
            version=version,
            data_store=data_store,
        )
    )


def split_metadata(fields: EntryFields) -> tuple[EntryFields, dict[str, str]]:
    """Split metadata into public fields and the digests of shards.

    Paths of this machine stand among the checksums: a record has them by shard. Tags
    and a license of the metadata become those of the record.
    """
    metadata = dict(fields.metadata or {})
    checksums = checksums_of(metadata)
    tags, license_ = metadata.get("tags"), metadata.get("license")
    if fields.tags is None and isinstance(tags, list):
        fields = fields._replace(tags=[tag for tag in tags if isinstance(tag, str)])
    if fields.license is None and isinstance(license_, str):
        fields = fields._replace(license=license_)
    for key in OWN_KEYS:
        metadata.pop(key, None)
    return fields._replace(metadata=metadata or None), checksums


def check_store(store: AbstractDataStore | None) -> None:
    """Raise for a store of this machine, before anything is written."""
    if isinstance(store, LocalDiskStore):
        raise ValueError(
            "a local folder is not public: give an S3DataStore, or a PDSBlobStore"
        )


def check_account(client: Atmosphere, store: Any) -> None:
    """Raise for a store of blobs of another account."""
    if store.client.did != client.did:
        raise ValueError(
            f"blobs of {store.client.did} cannot be in a record of {client.did}"
        )


def check_type(sample_type: type) -> None:
    """Raise for samples without a schema."""
    from fastshard.typed.descriptions.structure import describe

    if issubclass(sample_type, DictSample):
        raise TypeError(
            "samples of DictSample have no schema: give the dataset a sample type, or "
            "schema_ref"
        )
    describe(sample_type)


def shards_of(written: Any, store: AbstractDataStore | None) -> PublishedShards:
    """Return the storage of shards written to a store."""
    checksums: Mapping[str, str] = getattr(written, "checksums", None) or {}
    urls = list(written)
    refs = getattr(written, "blob_refs", None)
    if refs:
        sums = [
            ShardChecksum("sha256", checksums[url]) if url in checksums else None
            for url in urls
        ]
        return PublishedShards(blob_storage(refs, sums), urls)
    credentials = getattr(store, "credentials", None) or {}
    storage = storage_of_urls(
        urls,
        checksums,
        region=credentials.get("AWS_REGION"),
        endpoint=getattr(store, "_endpoint", None),
    )
    return PublishedShards(storage, urls)


def _copy(
    client: Atmosphere,
    ds: Dataset[Any],
    prefix: str,
    data_store: AbstractDataStore | None,
    force: bool,
    options: Mapping[str, Any],
) -> PublishedShards:
    """Copy the shards of a dataset to a store."""
    from fastshard.atmosphere.blobs.store import PDSBlobStore

    store = data_store or PDSBlobStore(client)
    if isinstance(store, PDSBlobStore):
        check_account(client, store)
        options = {**options, "force": force}
    return shards_of(store.write_shards(ds, prefix=prefix, **options), store)


def _public_urls(ds: Dataset[Any]) -> list[str] | None:
    """Return the URLs of a dataset's shards; None for local files, which are copied."""
    from fastshard.typed.stores.writing import whole_source

    source = whole_source(ds)
    if source is None:
        raise ValueError(
            "the dataset filters, maps, reorders or selects samples of its shards: an "
            "entry would name all of them. Give copy=True or data_store"
        )
    urls = ds.list_shards()
    if all(scheme_of(url) in ("", "file") for url in urls):
        return None
    if getattr(source, "access_key", None) is not None:
        raise ValueError(
            "the shards are read with credentials, which others do not have: give "
            "copy=True or data_store"
        )
    if not all(is_remote(url) and is_public_url(url) for url in urls):
        raise ValueError(
            "a shard is neither a local file nor a URL that others can read: give "
            "copy=True or data_store"
        )
    return urls
