"""Class `Index`: datasets, labels, schemas and lenses under names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from copy import copy as copy_of
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from fastshard.atmosphere.at_uri import is_did, is_handle
from fastshard.catalog.entry import DatasetEntry
from fastshard.catalog.lens_calls import (
    find_lens,
    parse_lenses,
    register_lens,
    store_lens,
)
from fastshard.catalog.opening import EntryShards
from fastshard.catalog.providers.protocol import IndexProvider
from fastshard.catalog.references import (
    LOCAL,
    RECORD,
    DatasetReference,
    parse_dataset_ref,
    shorten,
)
from fastshard.catalog.removal import remove_dataset
from fastshard.catalog.repository import Repository, create_repository
from fastshard.catalog.schema_calls import (
    LocalSchemaRecord,
    SchemaNamespace,
    find_schema,
    iter_schemas,
    publish_schema,
    record_of,
    type_of,
    without_none,
)
from fastshard.catalog.search import (
    ATMOSPHERE,
    Query,
    SearchResult,
    SearchResults,
    merge,
)
from fastshard.catalog.writing import EntryDraft, insert_shards, write_shards
from fastshard.errors import IndexRowError
from fastshard.typed.descriptions.json_schema import from_schema
from fastshard.typed.descriptions.lens_json import from_lens_json
from fastshard.typed.descriptions.stubs import StubFolder

if TYPE_CHECKING:
    from fastshard.atmosphere.client import Atmosphere
    from fastshard.atmosphere.index import AtmosphereIndexEntry
    from fastshard.catalog.network import Network
    from fastshard.typed.dataset import Dataset
    from fastshard.typed.lenses.lens import Lens
    from fastshard.typed.stores.protocol import AbstractDataStore

    _IndexEntry: TypeAlias = DatasetEntry | AtmosphereIndexEntry

__all__ = ["Index"]

T = TypeVar("T")

NETWORK = "_atmosphere"  # atdata's name of the network among repositories


class Anonymous(Enum):
    """Argument of `Index`: a client without a session."""

    CLIENT = "anonymous"


class Index:
    """Datasets under names, with labels, schemas and lenses.

    - Datasets: `write_samples`, `insert_dataset`, `get_dataset`, `list_datasets`,
      `search`, `remove`.
    - Labels name entries, in versions: `label`, `get_label`, `list_labels`.
    - Schemas describe sample types: `publish_schema`, `get_schema`, `get_schema_type`,
      `types`, `list_schemas`.
    - Lenses: `store_lens`, `get_lens`, `load_lens`, `find_lenses`, `list_lenses`.
    - On the network: names of the own account, ``@handle/name``, are published;
      `promote_entry`, `promote_dataset`.

    An index has the repository "local", and others that are mounted. A dataset is
    referred to as ``name``, ``repo/name``, ``@handle/name``, ``@handle/name@version``,
    ``atdata://repo/dataset/name`` or ``at://did/collection/rkey``; a mounted
    repository comes before a handle.

    Parameters
    ----------
    provider : {"sqlite", "redis", "postgres"} or IndexProvider, optional
        Where the rows of "local" are, by default "sqlite", unless `dsn`, `redis` or
        its arguments are given.
    path : str or path-like, optional
        File of SQLite, by default ``~/.atdata/index.db``.
    dsn : str, optional
        Connection string of Postgres.
    redis : redis.Redis, optional
        Client of Redis.
    data_store : AbstractDataStore, optional
        Where shards are written.
    repos : Mapping of str to Repository, optional
        Further repositories by their names.
    atmosphere : Atmosphere, optional
        Client of the network; by default one that is not logged in, made when it is
        needed. None: no network.
    auto_stubs : bool, default False
        Write a module for each requested schema, with a stub for editors.
    stub_dir : str or path-like, optional
        Their folder, by default ``~/.atdata/stubs``; it sets `auto_stubs`.
    **redis_kwargs
        Arguments of a client of Redis, ``host=``, ``port=``, or of the provider.

    Raises
    ------
    TypeError
        `provider`, `atmosphere` or a repository is of another type, or an argument is
        that of another provider.
    ValueError
        The provider is unknown, or the name of a repository cannot be one.
    MissingLibraryError
        The library of the provider is not installed.

    Examples
    --------
    >>> from fastshard import typed
    >>> index = typed.Index(path="own.db")
    >>> entry = index.write_samples([ImageSample(np.zeros(4, "f4"), "a")], name="one")
    >>> index.get_dataset("one").open()[0].label
    'a'
    """

    def __init__(
        self,
        provider: IndexProvider | str | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        dsn: str | None = None,
        redis: Any = None,
        data_store: AbstractDataStore | None = None,
        repos: Mapping[str, Repository] | None = None,
        atmosphere: Atmosphere | Anonymous | None = Anonymous.CLIENT,
        auto_stubs: bool = False,
        stub_dir: str | os.PathLike[str] | None = None,
        **redis_kwargs: Any,
    ) -> None:
        if provider is None or isinstance(provider, str):
            name = provider or _provider_of(dsn, redis, path, redis_kwargs)
            local = create_repository(
                name,
                path=path,
                dsn=dsn,
                redis=redis,
                data_store=data_store,
                **redis_kwargs,
            )
        else:
            given = {"path": path, "dsn": dsn, "redis": redis, **redis_kwargs}
            local = _repository_of(provider, data_store, given)
        self._atmosphere = _check_client(atmosphere)
        self._types = SchemaNamespace()
        has_stubs = auto_stubs or stub_dir is not None
        self._stubs = StubFolder(stub_dir) if has_stubs else None
        self._repos = {LOCAL: local, **_check_repos(repos or {})}

    # -- Repositories

    @property
    def repos(self) -> dict[str, Repository]:
        """The repositories by their names, with "local"."""
        return dict(self._repos)

    @property
    def provider(self) -> IndexProvider:
        """The store of rows of the repository "local"."""
        return self._repos[LOCAL].provider

    @property
    def data_store(self) -> AbstractDataStore | None:
        """Where the repository "local" writes shards, if it is set."""
        return self._repos[LOCAL].data_store

    def with_atmosphere(self, atmosphere: Atmosphere | None) -> Index:
        """Return the same index with another client of the network.

        Raises
        ------
        TypeError
            It is not a client.

        Examples
        --------
        >>> index.with_atmosphere(None).get_dataset("images").name
        'images'
        """
        other = copy_of(self)
        other._atmosphere = _check_client(atmosphere)
        return other

    # -- Datasets

    def write_samples(
        self,
        samples: Iterable[Any],
        *,
        name: str,
        schema_ref: str | None = None,
        version: str | None = None,
        description: str | None = None,
        tags: list[str] | None = None,
        license: str | None = None,  # noqa: A002  atdata's name
        maxcount: int | None = 10_000,
        maxsize: int | str | None = None,
        metadata: dict[str, Any] | None = None,
        manifest: bool = False,
        data_store: AbstractDataStore | None = None,
        force: bool = False,
    ) -> _IndexEntry:
        """Write samples to shards of a data store and add an entry for them.

        The schema is published unless an equal one exists. The entry is added last:
        after a failure no entry names the shards. On the network a label follows, also
        last.

        Parameters
        ----------
        samples : iterable of packable objects
            All of one class. They are taken one by one.
        name : str
            ``name`` or ``repo/name``; ``@handle/name``, of the client's own account, is
            published.
        schema_ref : str, optional
            Schema of the entry; by default that of the samples' class.
        version, description : str, optional
            Of the label that is written with the entry.
        tags : list of str, optional
            Kept as ``metadata["tags"]``; a field of a record.
        license : str, optional
            Kept as ``metadata["license"]``; a field of a record.
        maxcount : int, optional
            Samples in a shard, at most.
        maxsize : int or str, optional
            Size of a shard's file, at most: bytes, ``"500MB"``.
        metadata : dict, optional
            Stored with the entry, with the SHA-256 checksums of the shards as
            ``"checksums"``.
        manifest : bool, default False
            Write a manifest beside each shard, for `Dataset.query`; takes pyarrow.
        data_store : AbstractDataStore, optional
            By default that of the repository, else a `LocalDiskStore` in
            ``~/.atdata/data``; on the network blobs of the account.
        force : bool, default False
            Let blobs have more than 50 MB, and all of them more than 1 GB.

        Raises
        ------
        ValueError
            There are no samples, or samples of two types; the name is invalid, or that
            of another account; a value cannot be stored; a blob is too large; the index
            has no network, or the client is not logged in.
        TypeError
            A sample is not packable, or its type has no description.
        KeyError
            The schema that `schema_ref` names does not exist, to be published.
        PublishError
            A step on the network failed after another one made something.
        OSError
            A shard or the entry cannot be written; a `RemoteError` of a server.

        Examples
        --------
        >>> entry = index.write_samples(images, name="split", maxcount=40)
        >>> len(entry.data_urls), sorted(typed.verify_checksums(entry).values())
        (3, ['ok', 'ok', 'ok'])
        """
        reference = self._parse(name)
        version = _one_version(reference, version)
        if reference.repo is None:
            network = self._network()
            return network.index.write_samples(
                samples,
                name=network.check_own(reference),
                schema_ref=self._network_schema(network, schema_ref),
                version=version,
                description=description,
                tags=tags,
                license=license,
                maxcount=maxcount,
                maxsize=maxsize,
                metadata=metadata,
                manifest=manifest,
                data_store=data_store,
                force=force,
            )
        repo = self._repos[reference.repo]
        draft = EntryDraft(
            reference.name,
            schema_ref,
            version,
            description,
            _updated(metadata, tags=tags, license=license),
        )
        entry = write_shards(
            repo,
            samples,
            draft,
            data_store,
            maxcount=maxcount,
            maxsize=maxsize,
            manifest=manifest,
        )
        return self._adopt(entry, repo)

    def write(self, samples: Iterable[Any], *, name: str, **options: Any) -> Any:
        """Write samples: `write_samples` by a former name.

        Parameters
        ----------
        samples : iterable of packable objects
        name : str
        **options
            As for `write_samples`.

        Raises
        ------
        ValueError, TypeError, KeyError, OSError
            As `write_samples` does.

        Examples
        --------
        >>> index.write(images, name="all").name
        'all'
        """
        return self.write_samples(samples, name=name, **options)

    def insert_dataset(
        self,
        ds: Dataset[Any],
        *,
        name: str,
        schema_ref: str | None = None,
        version: str | None = None,
        description: str | None = None,
        tags: list[str] | None = None,
        license: str | None = None,  # noqa: A002  atdata's name
        data_store: AbstractDataStore | None = None,
        force: bool = False,
        copy: bool = False,
        metadata: dict[str, Any] | None = None,
        prefix: str | None = None,
        **options: Any,
    ) -> _IndexEntry:
        """Add an entry for the shards of a dataset.

        The shards stay where they are, and a brace pattern stays one URL, unless
        `copy`, `data_store` or a data store of the repository says where to: then they
        are copied as they are, byte by byte.

        Parameters
        ----------
        ds : Dataset
            All samples of its shards, as they are stored.
        name : str
            ``name`` or ``repo/name``; ``@handle/name``, of the client's own account, is
            published: public URLs as they are, local shards as blobs.
        schema_ref : str, optional
            Schema of the entry; by default that of the dataset's sample type, which is
            published if there is none like it.
        version, description : str, optional
            Of the label that is written with the entry.
        tags : list of str, optional
            Kept as ``metadata["tags"]``; a field of a record.
        license : str, optional
            Kept as ``metadata["license"]``; a field of a record.
        data_store : AbstractDataStore, optional
            Where to copy the shards.
        force : bool, default False
            Let blobs have more than 50 MB, and all of them more than 1 GB.
        copy : bool, default False
            Copy the shards to the data store of the repository, else to a
            `LocalDiskStore` in ``~/.atdata/data``.
        metadata : dict, optional
            By default those of the dataset.
        prefix : str, optional
            Where in the data store; by default the name.
        **options
            Further arguments of the data store.

        Raises
        ------
        ValueError
            The dataset filters, maps or selects samples and is not copied; the name is
            invalid or of another account; a value cannot be stored; a blob is too
            large; the shards are read with credentials and are to be published; the
            index has no network, or the client is not logged in.
        TypeError
            It is not a dataset; or it has no sample type, or one without a description,
            and no `schema_ref` is given.
        KeyError
            The schema that `schema_ref` names does not exist, to be published.
        PublishError
            A step on the network failed after another one made something.
        ShardNotFoundError
            There is no shard to copy.
        OSError
            A shard or the entry cannot be written; a `RemoteError` of a server.

        Examples
        --------
        >>> ds = typed.Dataset[ImageSample]("splits/t*.tar")
        >>> entry = index.insert_dataset(ds, name="both")  # copied to the store
        >>> len(entry.data_urls), len(entry.open())
        (3, 30)
        """
        reference = self._parse(name)
        version = _one_version(reference, version)
        if reference.repo is None:
            network = self._network()
            return network.index.insert_dataset(
                ds,
                name=network.check_own(reference),
                schema_ref=self._network_schema(network, schema_ref),
                version=version,
                description=description,
                tags=tags,
                license=license,
                metadata=metadata,
                data_store=data_store,
                copy=copy,
                force=force,
                **options,
            )
        repo = self._repos[reference.repo]
        draft = EntryDraft(
            reference.name,
            schema_ref,
            version,
            description,
            _updated(metadata, tags=tags, license=license),
        )
        entry = insert_shards(
            repo, ds, draft, data_store, copy=copy, prefix=prefix, **options
        )
        return self._adopt(entry, repo)

    def add_entry(
        self,
        ds: Dataset[Any],
        *,
        name: str,
        schema_ref: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> DatasetEntry:
        """Add an entry for the shards of a dataset to the repository "local".

        Copies nothing, even with a data store.

        Parameters
        ----------
        ds : Dataset
        name : str
            Slashes are letters of the name.
        schema_ref : str, optional
        metadata : dict, optional
            As for `insert_dataset`.

        Raises
        ------
        ValueError, TypeError, OSError
            As `insert_dataset` does.

        Examples
        --------
        >>> index.add_entry(typed.Dataset[ImageSample]("data.tar"), name="same").name
        'same'
        """
        repo = self._repos[LOCAL]
        draft = EntryDraft(_check_name(name), schema_ref, None, None, metadata)
        bare = Repository(repo.provider)
        return self._adopt(insert_shards(bare, ds, draft, None), repo)

    def get_dataset(self, ref: str) -> _IndexEntry:
        """Return the entry that a reference names.

        A label of the name is looked for first, then an entry. A dataset of the network
        is read from its owner's server.

        Raises
        ------
        KeyError
            There is no such dataset or version.
        ValueError
            It is not a reference of a dataset; an account is not known; or the index
            has no network.
        FormatError
            The row of the entry, or the record, is damaged; or the entry's CID is not
            that of its content.
        OSError
            The store cannot be read; a `RemoteError` of a server.

        Examples
        --------
        >>> index.get_dataset("images").data_urls
        ['data.tar']
        """
        reference = self._parse(ref)
        if reference.repo is None:
            return self._network().find(reference)
        repo = self._repos[reference.repo]
        entry = _find_label(repo.provider, reference)
        if entry is None:
            entry = repo.provider.get_entry_by_name(reference.name)
        return self._checked(entry, repo)

    @property
    def datasets(self) -> Iterator[DatasetEntry]:
        """An iterator over the entries of all repositories."""
        for repo in self._repos.values():
            for entry in repo.provider.iter_entries():
                yield self._adopt(entry, repo)

    def list_datasets(self, repo: str | None = None) -> list[_IndexEntry]:
        """Return the entries of all repositories, or of one.

        Without `repo` those of the network are not among them.

        Parameters
        ----------
        repo : str, optional
            Name of a repository; ``@handle`` or a DID of an account, ``"_atmosphere"``
            for the own one.

        Returns
        -------
        list of DatasetEntry or AtmosphereIndexEntry
            Those of stores in no order, records the latest first.

        Raises
        ------
        KeyError
            There is no such repository.
        FormatError
            The row of an entry is damaged.
        OSError
            A store cannot be read; a `RemoteError` of a server.
        ValueError
            The index has no network, or the client is not logged in.

        Examples
        --------
        >>> [entry.name for entry in index.list_datasets("local")]
        ['images']
        """
        if repo is None:
            return list(self.datasets)
        if repo not in self._repos:
            owner = self._owner(repo)  # a KeyError before one of no network
            return [*self._network().index.list_datasets(owner)]
        found = self._repos[repo]
        return [self._adopt(entry, found) for entry in found.provider.iter_entries()]

    @property
    def entries(self) -> Iterator[DatasetEntry]:
        """An iterator over the entries of the repository "local"."""
        repo = self._repos[LOCAL]
        for entry in repo.provider.iter_entries():
            yield self._adopt(entry, repo)

    def list_entries(self) -> list[DatasetEntry]:
        """Return the entries of the repository "local".

        Raises
        ------
        FormatError
            The row of an entry is damaged.
        OSError
            The store cannot be read.

        Examples
        --------
        >>> len(index.list_entries())
        1
        """
        return list(self.entries)

    @property
    def all_entries(self) -> list[DatasetEntry]:
        """The entries of the repository "local"; a former name of `list_entries`."""
        return self.list_entries()

    def get_entry(self, cid: str) -> DatasetEntry:
        """Return the entry of the repository "local" with a CID.

        Raises
        ------
        KeyError
            There is none.
        FormatError
            Its row is damaged, or its CID is not that of its content.
        OSError
            The store cannot be read.

        Examples
        --------
        >>> cid = index.get_dataset("images").cid
        >>> index.get_entry(cid).name
        'images'
        """
        repo = self._repos[LOCAL]
        return self._checked(repo.provider.get_entry_by_cid(cid), repo)

    def get_entry_by_name(self, name: str) -> DatasetEntry:
        """Return the entry of a name in the repository "local"; labels are ignored.

        Returns
        -------
        DatasetEntry
            Of several the one written last.

        Raises
        ------
        KeyError
            There is none.
        FormatError
            Its row is damaged, or its CID is not that of its content.
        OSError
            The store cannot be read.

        Examples
        --------
        >>> index.get_entry_by_name("images").data_urls
        ['data.tar']
        """
        repo = self._repos[LOCAL]
        return self._checked(repo.provider.get_entry_by_name(name), repo)

    def remove(self, name: str) -> None:
        """Remove a dataset's entry and labels. Shards stay.

        All entries of the name are removed, all labels of the name, and other labels of
        these entries.

        Parameters
        ----------
        name : str
            ``name`` or ``repo/name``, of an entry or of labels.

        Raises
        ------
        KeyError
            There is neither an entry nor a label of this name, or no such repository.
        ValueError
            It is not a name, or has a version.
        FormatError
            The row of an entry or a label is damaged.
        OSError
            The store cannot be written.

        Examples
        --------
        >>> index.remove("images")
        >>> index.list_datasets(), index.list_labels()
        ([], [])
        """
        reference = self._parse(name)
        if reference.version is not None:
            raise ValueError(
                f"{shorten(name)} names a version; all of a name is removed"
            )
        if reference.repo is None:
            raise ValueError(
                f"{shorten(name)} is of the network, whose records "
                "Atmosphere.delete_record removes"
            )
        provider = self._repos[reference.repo].provider
        if not remove_dataset(provider, reference.name):
            raise KeyError(f"No dataset with name: {shorten(name)}")

    # -- Labels

    def label(
        self,
        name: str,
        cid: str,
        *,
        version: str | None = None,
        description: str | None = None,
    ) -> None:
        """Name an entry; a label of the same name and version is replaced.

        Parameters
        ----------
        name : str
            ``name`` or ``repo/name``; ``@handle/name``, of the client's own account, is
            published.
        cid : str
            Of the entry; address of the record for a label that is published.
        version : str, optional
        description : str, optional

        Raises
        ------
        KeyError
            There is no such entry.
        ValueError
            The name is invalid, or that of another account; the index has no network,
            or the client is not logged in.
        OSError
            The store cannot be written; a `RemoteError` of a server.

        Examples
        --------
        >>> index.label("best", index.get_dataset("images").cid, version="1.0.0")
        >>> index.get_dataset("best").name
        'images'
        """
        reference = self._parse(name)
        version = _one_version(reference, version)
        if reference.repo is None:
            network = self._network()
            name = network.check_own(reference)
            network.index.label(name, cid, version=version, description=description)
            return
        provider = self._repos[reference.repo].provider
        provider.get_entry_by_cid(cid)
        provider.store_label(reference.name, cid, version, description)

    def get_label(self, name: str, version: str | None = None) -> _IndexEntry:
        """Return the entry that a label names.

        Parameters
        ----------
        name : str
            ``name``, ``repo/name`` or another reference.
        version : str, optional
            By default the latest: by the order of semantic versions where all are such,
            else the one written last. "" is the label without a version.

        Raises
        ------
        KeyError
            There is no such label, or its entry was removed.
        ValueError
            It is not a name, or has another version.
        FormatError
            The row of the label or the entry, or a record, is damaged; or the entry's
            CID is not that of its content.
        OSError
            The store cannot be read; a `RemoteError` of a server.

        Examples
        --------
        >>> index.label("best", index.get_dataset("images").cid, version="1.0.0")
        >>> index.get_label("best", "1.0.0").name
        'images'
        """
        reference = self._parse(name)
        version = _one_version(reference, version)
        if reference.repo is None:
            reference = reference._replace(version=version or None)
            return self._network().find_label(reference)
        repo = self._repos[reference.repo]
        cid, _ = repo.provider.get_label(reference.name, version)
        return self._checked(repo.provider.get_entry_by_cid(cid), repo)

    @property
    def labels(self) -> Iterator[tuple[str, str, str | None]]:
        """An iterator over name, CID and version of the labels of all repositories."""
        for repo in self._repos.values():
            yield from repo.provider.iter_labels()

    def list_labels(self, repo: str | None = None) -> list[tuple[str, str, str | None]]:
        """Return the labels of all repositories, or of one.

        Parameters
        ----------
        repo : str, optional
            Name of a repository; ``@handle`` or a DID of an account, ``"_atmosphere"``
            for the own one.

        Returns
        -------
        list of (str, str, str or None)
            Name, CID and version; of an account the address of the record in place of
            the CID.

        Raises
        ------
        KeyError
            There is no such repository.
        FormatError
            The row of a label is damaged.
        OSError
            A store cannot be read; a `RemoteError` of a server.
        ValueError
            The index has no network, or the client is not logged in.

        Examples
        --------
        >>> index.label("best", index.get_dataset("images").cid, version="1.0.0")
        >>> sorted((name, version) for name, _, version in index.list_labels())
        [('best', '1.0.0'), ('images', None)]
        """
        if repo is None:
            return list(self.labels)
        if repo not in self._repos:
            owner = self._owner(repo)
            return list(self._network().labels(owner))
        return list(self._repos[repo].provider.iter_labels())

    # -- Schemas

    @property
    def types(self) -> SchemaNamespace:
        """Types that `get_schema_type` made, as attributes: ``index.types.Name``."""
        return self._types

    @property
    def schemas(self) -> Iterator[LocalSchemaRecord]:
        """Iterate over the schemas of the repository "local"."""
        return map(record_of, iter_schemas(self.provider))

    @property
    def stub_dir(self) -> Path | None:
        """Folder of generated modules for editors; None without ``auto_stubs``."""
        return None if self._stubs is None else self._stubs.path

    def publish_schema(
        self,
        sample_type: type[Any],
        *,
        version: str | None = None,
        description: str | None = None,
    ) -> str:
        """Store the schema of a sample type, unless an equal one exists.

        Parameters
        ----------
        sample_type : type
            A packable class.
        version : str, optional
            A semantic version. By default that of the schema with the same name and
            equal fields, else the latest one's patch + 1; ``"1.0.0"`` is the first.
        description : str, optional
            By default the class's docstring.

        Returns
        -------
        str
            Reference of the schema.

        Raises
        ------
        TypeError
            The class is not packable, or a field cannot be described; names both.
            `version` is not a str.
        ValueError
            `version` is not a semantic version, or that version has other fields.
        OSError
            The store cannot be written.

        Examples
        --------
        >>> index.publish_schema(Caption)
        'atdata://local/schema/Caption@1.0.0'
        >>> index.publish_schema(Caption)  # equal fields make no new version
        'atdata://local/schema/Caption@1.0.0'
        """
        return publish_schema(
            self.provider, sample_type, version=version, description=description
        )

    def get_schema(self, ref: str) -> dict[str, Any]:
        """Return a schema as it is stored.

        Parameters
        ----------
        ref : str
            ``atdata://local/schema/Name@1.0.0``, or the older
            ``local://schemas/module.Name@1.0.0``; of the network
            ``at://did/collection/rkey`` or ``@handle/Name@1.0.0``.

        Returns
        -------
        dict
            ``name``, ``version``, ``fields``, ``description``, ``createdAt`` and
            ``$ref``, its reference; of the network the record's value.

        Raises
        ------
        KeyError
            There is no such schema.
        ValueError
            `ref` is not a reference of a schema, or the index has no network.
        DescriptionError
            The stored text is not a schema.
        OSError
            The store or a server cannot be read.

        Examples
        --------
        >>> schema = index.get_schema(index.publish_schema(Caption, version="1.0.0"))
        >>> schema["name"], [field["name"] for field in schema["fields"]]
        ('Caption', ['text', 'score'])
        """
        schema = self._find_schema(ref, self.provider)
        if self._stubs is not None:
            self._stubs.write(from_schema(schema, ref), schema["$ref"])
        return schema

    def get_schema_record(self, ref: str) -> LocalSchemaRecord:
        """Return a schema as an object with attributes.

        Parameters
        ----------
        ref : str
            As of `get_schema`.

        Raises
        ------
        KeyError, ValueError, DescriptionError, OSError
            As `get_schema`; also if the stored text is not a schema.

        Examples
        --------
        >>> ref = index.publish_schema(Caption, version="1.0.0")
        >>> [str(field.type) for field in index.get_schema_record(ref).fields]
        ['str', 'float']
        """
        return record_of(self.get_schema(ref))

    def get_schema_type(self, ref: str, register: bool = True) -> type[Any]:
        """Return the sample type made of a stored schema.

        Parameters
        ----------
        ref : str
            As of `get_schema`.
        register : bool, default True
            Set it as an attribute of `types`.

        Returns
        -------
        type
            One for each schema of a process. It and its samples pickle by the schema's
            content.

        Raises
        ------
        KeyError
            There is no such schema.
        ValueError
            `ref` is not a reference of a schema.
        DescriptionError
            The stored text is not a schema, or has names that a class cannot have.
        OSError
            The store cannot be read, or the folder of stubs not be written.

        Examples
        --------
        >>> Made = index.get_schema_type(index.publish_schema(Caption))
        >>> Made(text="a cat", score=0.5), Made is index.types.Caption
        (Caption(text='a cat', score=0.5), True)
        """
        made = type_of(self.get_schema(ref))
        if register:
            self._types._register(made)
        return made

    # Names that atdata deprecates for `get_schema_type`.
    load_schema = decode_schema = get_schema_type

    def decode_schema_as(self, ref: str, type_hint: type[T]) -> type[T]:
        """Return the sample type of a schema, to type checkers as another type.

        Parameters
        ----------
        ref : str
            As of `get_schema`.
        type_hint : type
            The static type of the result.

        Returns
        -------
        type
            As of `get_schema_type`.

        Raises
        ------
        KeyError
            There is no such schema.

        Examples
        --------
        >>> ref = index.publish_schema(Caption, version="1.0.0")
        >>> index.decode_schema_as(ref, Caption) is index.get_schema_type(ref)
        True
        """
        made: type[T] = self.get_schema_type(ref)
        return made

    def list_schemas(self) -> list[dict[str, Any]]:
        """Return all schemas of the repository "local", as `get_schema` does each.

        Raises
        ------
        DescriptionError
            The stored text is not a schema; names its row.
        OSError
            The store cannot be read.

        Examples
        --------
        >>> ref = index.publish_schema(Caption, version="1.0.0")
        >>> ref in [schema["$ref"] for schema in index.list_schemas()]
        True
        """
        return [without_none(schema) for schema in iter_schemas(self.provider)]

    def get_import_path(self, ref: str) -> str | None:
        """Return the module that has the type of a schema, for ``import``.

        The folder `stub_dir` has to be in ``sys.path``.

        Parameters
        ----------
        ref : str
            As of `get_schema`.

        Returns
        -------
        str or None
            None without ``auto_stubs``.

        Raises
        ------
        KeyError, ValueError, DescriptionError, OSError
            As `get_schema` does.

        Examples
        --------
        >>> index.get_import_path(index.publish_schema(Caption)) is None
        True
        """
        if self._stubs is None:
            return None
        schema = self.get_schema(ref)
        return self._stubs.import_path(from_schema(schema, ref), schema["$ref"])

    def clear_stubs(self) -> int:
        """Remove the generated modules for editors.

        Returns
        -------
        int
            How many; 0 without ``auto_stubs``.

        Raises
        ------
        OSError
            A file cannot be removed.

        Examples
        --------
        >>> index.clear_stubs()
        0
        """
        return 0 if self._stubs is None else self._stubs.clear()

    # -- Lenses

    @property
    def lenses(self) -> Iterator[dict[str, Any]]:
        """Iterate over the lenses of the repository "local", as `get_lens` has each."""
        return parse_lenses(self.provider, self.provider.iter_lenses())

    def store_lens(
        self,
        lens: Lens[Any, Any],
        *,
        name: str,
        version: str | None = None,
        description: str | None = None,
        source_schema: str | None = None,
        view_schema: str | None = None,
    ) -> str:
        """Store a lens.

        A lens that is known to copy fields, and to do nothing else, is stored as a
        mapping of fields; another one as a reference to its code where a module has it;
        else as opaque, which cannot be loaded.

        Parameters
        ----------
        lens : Lens
        name : str
        version : str, optional
            A semantic version; by default the latest one's patch + 1, else ``"1.0.0"``.
        description : str, optional
        source_schema, view_schema : str, optional
            By default the names of the lens's types.

        Returns
        -------
        str
            Reference of the lens.

        Raises
        ------
        TypeError
            `lens` is not a lens, or has no types; `name` or `version` is not a str.
        ValueError
            `name` is empty or too long, or `version` is not a semantic version.
        OSError
            The store cannot be written.

        Examples
        --------
        >>> index.store_lens(caption_of, name="caption_of", version="1.0.0")
        'atdata://local/lens/caption_of@1.0.0'
        """
        return store_lens(
            self.provider,
            lens,
            name=name,
            version=version,
            description=description,
            source_schema=source_schema,
            view_schema=view_schema,
        )

    def get_lens(self, ref: str) -> dict[str, Any]:
        """Return a lens as it is stored.

        Parameters
        ----------
        ref : str
            ``atdata://local/lens/name@1.0.0``

        Returns
        -------
        dict
            With ``$ref``, its reference.

        Raises
        ------
        KeyError
            There is no such lens.
        ValueError
            `ref` is not a reference of a lens.
        DescriptionError
            The stored text is not a lens.
        OSError
            The store cannot be read.

        Examples
        --------
        >>> ref = index.store_lens(caption_of, name="caption_of", version="1.0.0")
        >>> index.get_lens(ref)["view_schema"], index.get_lens(ref)["getter"]["kind"]
        ('Caption', 'field_mapping')
        """
        return find_lens(self.provider, ref)

    def load_lens(
        self,
        ref: str,
        *,
        source_type: type[Any] | None = None,
        view_type: type[Any] | None = None,
        allow_code: bool = False,
    ) -> Lens[Any, Any]:
        """Return a usable lens, made of the stored one.

        It is registered for `Dataset.as_type`, unless there is one of the same types.

        Parameters
        ----------
        ref : str
            As of `get_lens`.
        source_type, view_type : type, optional
            Needed where fields are mapped.
        allow_code : bool, default False
            Import the module that the lens names. The record may name any module.

        Raises
        ------
        KeyError
            There is no such lens.
        ValueError
            `ref` is not a reference of a lens.
        DescriptionError
            The stored text is not a lens, is opaque, or is code that is not allowed;
            the types are missing, or have not its fields.
        TypeError
            `source_type` or `view_type` is not a packable class, or the code has no
            annotations and they are not given.
        ImportError
            The module of the lens cannot be imported.
        OSError
            The store cannot be read.

        Examples
        --------
        >>> ref = index.store_lens(caption_of, name="caption_of", version="1.0.0")
        >>> lens = index.load_lens(ref, source_type=ImageSample, view_type=Caption)
        >>> lens(ImageSample(image=np.zeros(4), label="a cat"))
        Caption(text='a cat', score=0.0)
        """
        lens = from_lens_json(
            self.get_lens(ref),
            source_type=source_type,
            view_type=view_type,
            allow_code=allow_code,
            where=ref,
        )
        register_lens(lens)
        return lens

    def list_lenses(self) -> list[dict[str, Any]]:
        """Return all lenses of the repository "local", as `get_lens` does each.

        Raises
        ------
        DescriptionError
            The stored text is not a lens; names its row.
        OSError
            The store cannot be read.

        Examples
        --------
        >>> ref = index.store_lens(caption_of, name="caption_of", version="1.0.0")
        >>> ref in [lens["$ref"] for lens in index.list_lenses()]
        True
        """
        return list(self.lenses)

    def find_lenses(
        self, source_schema: str, view_schema: str | None = None
    ) -> list[dict[str, Any]]:
        """Return the lenses from one schema, or from one to another.

        Parameters
        ----------
        source_schema : str
            As it is stored: the name of a type, unless `store_lens` was given another.
        view_schema : str, optional
            By default any.

        Returns
        -------
        list of dict
            As `get_lens` returns each.

        Raises
        ------
        DescriptionError
            The stored text is not a lens; names its row.
        OSError
            The store cannot be read.

        Examples
        --------
        >>> ref = index.store_lens(caption_of, name="caption_of", version="1.0.0")
        >>> ref in [lens["$ref"] for lens in index.find_lenses("ImageSample")]
        True
        """
        rows = self.provider.find_lenses_by_schemas(source_schema, view_schema)
        return list(parse_lenses(self.provider, rows))

    # -- Publishing

    @property
    def atmosphere(self) -> Atmosphere | None:
        """The client of the network; None without one."""
        return None if self._atmosphere is None else self._client()

    def promote_entry(
        self,
        entry_name: str,
        *,
        name: str | None = None,
        version: str | None = None,
        description: str | None = None,
        tags: list[str] | None = None,
        license: str | None = None,  # noqa: A002  atdata's name
        data_store: AbstractDataStore | None = None,
        force: bool = False,
    ) -> str:
        """Publish an entry of a repository: its schema, a record, a label.

        Existing records are not published again.

        Parameters
        ----------
        entry_name : str
            ``name`` or ``repo/name`` of the entry.
        name : str, optional
            On the network; by default that of the entry.
        version : str, optional
            Of the label.
        description : str, optional
        tags : list of str, optional
            By default those of the metadata.
        license : str, optional
            By default that of the metadata.
        data_store : AbstractDataStore, optional
            Where to copy the shards, byte by byte: `PDSBlobStore`, `S3DataStore`. By
            default their URLs are published.
        force : bool, default False
            Let blobs be larger than most servers take.

        Returns
        -------
        str
            Address of the dataset's record, ``at://...``.

        Raises
        ------
        KeyError
            There is no such entry, or its schema is not in the index.
        ValueError
            The index has no network, or the client is not logged in; the entry has no
            shards; or one has no public URL, and there is no `data_store`.
        PublishError
            A step failed after another one made something: there is no label.
        RemoteError
            The first step failed.
        FormatError, OSError
            The entry or a shard cannot be read.

        Examples
        --------
        >>> index = typed.Index(path="own.db").with_atmosphere(client)
        >>> _ = index.add_entry(ds, name="mine")
        >>> uri = index.promote_entry("mine", data_store=typed.PDSBlobStore(client))
        >>> index.get_dataset("@alice.test/mine").open(cache_dir="blobs")[7].label
        'label 7'
        """
        network = self._network()
        entry = self._entry_of(entry_name)
        return network.promote_entry(
            entry,
            self._find_schema(entry.schema_ref, self.provider),
            name=name or entry.name,
            description=description,
            tags=tags,
            license=license,
            version=version,
            data_store=data_store,
            force=force,
        )

    def promote_dataset(
        self,
        dataset: Dataset[Any],
        *,
        name: str,
        sample_type: type[Any] | None = None,
        schema_version: str | None = None,
        version: str | None = None,
        description: str | None = None,
        tags: list[str] | None = None,
        license: str | None = None,  # noqa: A002  atdata's name
        data_store: AbstractDataStore | None = None,
        force: bool = False,
    ) -> str:
        """Publish a dataset: its schema, a record, a label.

        Existing records are not published again.

        Parameters
        ----------
        dataset : Dataset
            All samples of its shards, as they are stored.
        name : str
            On the network.
        sample_type : type, optional
            By default that of the dataset.
        schema_version : str, optional
            Of a schema that is published.
        version : str, optional
            Of the label.
        description : str, optional
        tags : list of str, optional
        license : str, optional
        data_store : AbstractDataStore, optional
            Where to copy the shards; by default their URLs are published.
        force : bool, default False
            Let blobs be larger than most servers take.

        Returns
        -------
        str
            Address of the dataset's record, ``at://...``.

        Raises
        ------
        ValueError
            The index has no network, or the client is not logged in; the dataset
            selects or maps samples; or a shard has no public URL, and there is no
            `data_store`.
        TypeError
            The sample type has no schema.
        PublishError
            A step failed after another one made something: there is no label.
        RemoteError
            The first step failed.
        OSError
            A shard cannot be read.

        Examples
        --------
        >>> index = typed.Index(path="own.db").with_atmosphere(client)
        >>> far = typed.Dataset[ImageSample]("https://data.example/{00..03}.tar")
        >>> uri = index.promote_dataset(far, name="far")
        >>> len(index.get_dataset("@alice.test/far").data_urls)
        4
        """
        return self._network().promote_dataset(
            dataset,
            sample_type,
            schema_version,
            name=name,
            description=description,
            tags=tags,
            license=license,
            version=version,
            data_store=data_store,
            force=force,
        )

    def search(
        self,
        text: str | None = None,
        tags: Iterable[str] | None = None,
        schema_ref: str | None = None,
        repo: str | None = None,
        limit: int = 50,
        include_atmosphere: bool = True,
    ) -> SearchResults:
        """Search for datasets in all repositories.

        Parameters
        ----------
        text : str, optional
            Part of the name, in any case.
        tags : iterable of str, optional
            All of them are in ``metadata["tags"]``.
        schema_ref : str, optional
        repo : str, optional
            Name of a repository, handle or DID of an account, or ``"_atmosphere"`` for
            the own one; only this one is searched.
        limit : int, default 50
            Results, at most.
        include_atmosphere : bool, default True
            Search on the network too, if the client has an AppView, a server that
            indexes records; an account can be searched without one.

        Returns
        -------
        SearchResults
            Each says which repository it is from. A store or a server that fails is
            named in `SearchResults.failed`.

        Raises
        ------
        KeyError
            There is no such repository.
        TypeError
            `tags` is a str, or `text` is not a str.
        ValueError
            `limit` is negative; or the own account is to be searched, and the index has
            no network, or the client is not logged in.

        Examples
        --------
        >>> [(found.name, found.source) for found in index.search("IMAGE")]
        [('images', 'local')]
        """
        if isinstance(tags, str):
            raise TypeError("tags must be a list of str, got a str")
        if not isinstance(text, str | None):
            raise TypeError(f"text must be a str, got {type(text).__name__}")
        if limit < 0:
            raise ValueError(f"limit must not be negative, got {limit}")
        query = Query(text, None if tags is None else frozenset(tags), schema_ref)
        sources: dict[str, Callable[[], Iterable[SearchResult]]] = {
            name: partial(self._search, query, name)
            for name in self._repos
            if repo in (None, name)
        }
        owner = None
        if repo is not None and repo not in self._repos:
            owner = self._owner(repo) or self._client().did
        if include_atmosphere and (owner is not None or self._has_appview(repo)):
            sources[ATMOSPHERE] = partial(self._search_network, query, owner, limit)
        found: list[SearchResult] = []
        failed: dict[str, str] = {}
        for name, search in sources.items():
            try:
                found += search()
            except Exception as error:  # of any library
                failed[name] = f"{type(error).__name__}: {error}"
        return merge(found, limit, failed)

    def _search(self, query: Query, name: str) -> Iterable[SearchResult]:
        return query.search(self._repos[name].provider.iter_entries(), name)

    def _search_network(
        self, query: Query, owner: str | None, limit: int
    ) -> Iterable[SearchResult]:
        return self._network().search(query, owner, limit)

    def _has_appview(self, repo: str | None) -> bool:
        """Return whether to search the whole network, by an AppView."""
        client = self._atmosphere
        if repo is not None or client is None or client is Anonymous.CLIENT:
            return False
        return bool(client.has_appview)

    def __repr__(self) -> str:
        return f"Index({', '.join(map(repr, self._repos))})"

    # -- Shared by calls

    def _parse(self, ref: str) -> DatasetReference:
        return parse_dataset_ref(ref, self._repos)

    def _schema_type(self, ref: str, repo: Repository) -> type[Any]:
        """Return the class of a schema, from a repository or another one."""
        return type_of(self._find_schema(ref, repo.provider))

    def _client(self) -> Atmosphere:
        """Return the client of the network."""
        if self._atmosphere is None:
            raise ValueError(
                "Atmosphere backend required: the index has no client of the network, "
                "atmosphere=None"
            )
        if self._atmosphere is Anonymous.CLIENT:
            from fastshard.atmosphere.client import Atmosphere

            self._atmosphere = Atmosphere()
        client: Atmosphere = self._atmosphere
        return client

    def _network(self) -> Network:
        """Return the network; raises as `_client` does."""
        from fastshard.catalog.network import Network

        return Network(self._client())

    def _network_schema(self, network: Network, ref: str | None) -> str | None:
        """Return the address of a schema's record, published if it is a local one."""
        if ref is None or ref.startswith(RECORD):
            return ref
        schema = self._find_schema(ref, self.provider)
        if ref.startswith("@"):
            return str(schema["$ref"])
        structure = from_schema(schema, ref)
        return network.index.publish_schema(structure, version=structure.version)

    def _entry_of(self, name: str) -> DatasetEntry:
        """Return the entry of a name in a repository, else that of its label."""
        reference = self._parse(name)
        if reference.repo is None:
            raise ValueError(f"{shorten(name)} is of the network already")
        repo = self._repos[reference.repo]
        if reference.version is None:
            with suppress(KeyError):
                entry = repo.provider.get_entry_by_name(reference.name)
                return self._checked(entry, repo)
        cid, _ = repo.provider.get_label(reference.name, reference.version)
        return self._checked(repo.provider.get_entry_by_cid(cid), repo)

    def _owner(self, repo: str) -> str | None:
        """Return the account of a repository of the network; None for one's own."""
        owner = repo.removeprefix("@")
        if repo == NETWORK:
            return None
        if repo.startswith("@") or is_did(owner) or is_handle(owner):
            return owner
        raise KeyError(f"Unknown repository {shorten(repo)!r}")

    def _find_schema(self, ref: str, first: IndexProvider) -> dict[str, Any]:
        """Return a schema of a repository, another one, or the network.

        A reference of the network is ``at://did/collection/rkey`` or
        ``@handle/Name@version``.
        """
        if isinstance(ref, str) and ref.startswith(("at://", "@")):
            from fastshard.atmosphere.loading.schema import SchemaLoader

            record = SchemaLoader(self._client()).get(ref)
            return {**record, "$ref": str(record.uri)}
        others = [each.provider for each in self._repos.values()]
        for provider in dict.fromkeys([first, *others]):
            with suppress(KeyError):
                return find_schema(provider, ref)
        raise KeyError(f"Schema not found: {shorten(ref)}")

    def _checked(self, entry: DatasetEntry, repo: Repository) -> DatasetEntry:
        """Return an entry whose CID matches its content."""
        if not entry.has_own_cid():
            raise IndexRowError(
                "expected the CID of the schema and the URLs",
                repo.provider.location,
                "entry",
                shorten(entry.name),
                "cid",
            )
        return self._adopt(entry, repo)

    def _adopt(self, entry: DatasetEntry, repo: Repository) -> DatasetEntry:
        """Return an entry with this index as its opener."""
        client = self._atmosphere
        if isinstance(client, Anonymous):
            client = None
        return entry._of(EntryShards(repo, self._schema_type, client))


def _find_label(
    provider: IndexProvider, reference: DatasetReference
) -> DatasetEntry | None:
    """Return the entry of a label; None if a dataset may have the name."""
    try:
        cid, _ = provider.get_label(reference.name, reference.version)
        return provider.get_entry_by_cid(cid)
    except KeyError:
        if reference.version is not None:
            raise
        return None


def _provider_of(
    dsn: str | None, redis: Any, path: Any, redis_kwargs: Mapping[str, Any]
) -> str:
    """Return the name of the provider that the arguments select."""
    if dsn is not None:
        return "postgres"
    if redis is not None or (redis_kwargs.keys() - {"timeout"} and path is None):
        return "redis"
    return "sqlite"


def _repository_of(
    provider: object, data_store: AbstractDataStore | None, given: Mapping[str, Any]
) -> Repository:
    """Return the repository of a provider object."""
    if not isinstance(provider, IndexProvider):
        raise TypeError(
            "provider must be an IndexProvider or backend name string, "
            f"got {type(provider).__name__}"
        )
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise TypeError(f"an open provider takes no {', '.join(names)}")
    return Repository(provider, data_store)


def _check_repos(repos: Mapping[str, Repository]) -> dict[str, Repository]:
    """Return the repositories mounted beside "local"."""
    for name, repo in repos.items():
        if name == LOCAL:
            raise ValueError(
                '"local" is reserved for the repository that every index has'
            )
        if not name or "/" in name or "@" in name or name == NETWORK:
            raise ValueError(f"repos[{name!r}]: a name has no / and no @")
        if not isinstance(repo, Repository):
            raise TypeError(
                f"repos[{name!r}] must be a Repository, got {type(repo).__name__}"
            )
    return dict(repos)


def _check_client(atmosphere: object) -> Any:
    """Return the client of a network; raise TypeError for another object."""
    if atmosphere is None or isinstance(atmosphere, Anonymous):
        return atmosphere
    from fastshard.atmosphere.client import Atmosphere

    if not isinstance(atmosphere, Atmosphere):
        raise TypeError(
            f"atmosphere must be an Atmosphere, got {type(atmosphere).__name__}"
        )
    return atmosphere


def _check_name(name: str) -> str:
    """Return the name of a dataset; raise TypeError or ValueError if invalid."""
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, got {type(name).__name__}")
    if not name:
        raise ValueError("name must not be empty")
    return name


def _one_version(reference: DatasetReference, version: str | None) -> str | None:
    """Return the version of a reference or of an argument; they cannot differ."""
    if version is None or reference.version in (None, version):
        return reference.version if version is None else version
    raise ValueError(
        f"the reference has version {reference.version!r}, and version={version!r} is "
        "given"
    )


def _updated(
    metadata: Mapping[str, Any] | None, **more: Any
) -> Mapping[str, Any] | None:
    """Return metadata updated with further ones that are not None."""
    if isinstance(more.get("tags"), str):
        raise TypeError("tags must be a list of str, got a str")
    given = {name: value for name, value in more.items() if value is not None}
    return {**(metadata or {}), **given} if given else metadata
