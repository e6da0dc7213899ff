"""Adding of entries: shards are written or copied first, rows last."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from fastshard._util.options import check_names
from fastshard.catalog.entry import DatasetEntry
from fastshard.catalog.providers.rows import check_label, pack_entry
from fastshard.catalog.references import SCHEMA_PREFIXES, parse_schema_ref
from fastshard.catalog.schema_calls import publish_schema
from fastshard.typed.dataset import Dataset
from fastshard.typed.descriptions.local_schema import to_local_json
from fastshard.typed.descriptions.structure import describe
from fastshard.typed.dict_sample import DictSample
from fastshard.typed.stores.disk import LocalDiskStore
from fastshard.typed.stores.protocol import AbstractDataStore
from fastshard.typed.stores.writing import (
    DatasetOptions,
    whole_source,
    write_to_store,
)

if TYPE_CHECKING:
    from fastshard.catalog.providers.protocol import IndexProvider
    from fastshard.catalog.repository import Repository

__all__ = ["EntryDraft", "insert_shards", "urls_of", "write_shards"]


class EntryDraft(NamedTuple):
    """An entry whose shards are not known yet.

    Attributes
    ----------
    name : str
        In its repository.
    schema_ref : str or None
        None: that of the samples' type.
    version, description : str or None
        Of the label that is written with the entry.
    metadata : Mapping or None
    """

    name: str
    schema_ref: str | None = None
    version: str | None = None
    description: str | None = None
    metadata: Mapping[str, Any] | None = None

    def check(self) -> None:
        """Do the checks of stores of rows before shards are written."""
        metadata: Any = self.metadata
        ref = "" if self.schema_ref is None else self.schema_ref
        pack_entry(DatasetEntry(self.name, ref, [], metadata, cid="unknown"))
        check_label(self.name, "", self.version, self.description)


def write_shards(
    repo: Repository,
    samples: Iterable[Any],
    draft: EntryDraft,
    data_store: AbstractDataStore | None,
    **options: Any,
) -> DatasetEntry:
    """Write samples through a data store, once, and add an entry for them."""
    draft.check()
    iterator = iter(samples)
    try:
        first = next(iterator)
    except StopIteration:
        raise ValueError("samples must be non-empty") from None
    schema = store_schema(repo.provider, type(first), draft.schema_ref)
    written = write_to_store(
        data_store or repo.data_store or LocalDiskStore(),
        chain([first], iterator),
        prefix=prefix_of(draft.name),
        **options,
    )
    return add(repo, draft, schema, written)


def insert_shards(
    repo: Repository,
    ds: Dataset[Any],
    draft: EntryDraft,
    data_store: AbstractDataStore | None,
    *,
    copy: bool = False,
    prefix: str | None = None,
    **options: Any,
) -> DatasetEntry:
    """Add an entry for the shards of a dataset, where they are or copied."""
    if not isinstance(ds, Dataset):
        raise TypeError(f"ds must be a typed Dataset, got {type(ds).__name__}")
    if draft.metadata is None:  # those at a URL if they were read: no server is asked
        draft = draft._replace(metadata=ds._metadata)
    draft.check()
    store = data_store or repo.data_store or (LocalDiskStore() if copy else None)
    if store is None:  # that of a store would check them
        check_names("insert_dataset", options, DatasetOptions._fields)
    urls: list[str] = [] if store is not None else urls_of(ds)
    schema = store_schema(repo.provider, ds.sample_type, draft.schema_ref)
    if store is not None:
        prefix = prefix_of(draft.name) if prefix is None else prefix
        urls = store.write_shards(ds, prefix=prefix, **options)
    return add(repo, draft, schema, urls)


def prefix_of(name: str) -> str:
    """Return where in a data store the shards of a name go: never outside."""
    parts = (part.strip(".") for part in name.split("/"))
    return "/".join(part for part in parts if part) or "_"


def urls_of(ds: Dataset[Any]) -> list[str]:
    """Return the URLs of a dataset's shards; a pattern stays one."""
    source = whole_source(ds)
    if source is None:
        raise ValueError(
            "the dataset filters, maps, reorders or selects samples of its shards: an "
            "entry would name all of them. Give copy=True or data_store, or write the "
            "samples: index.write_samples(ds, name=...)"
        )
    url = getattr(source, "url", None)
    return [ds.url] if url is not None and isinstance(url, str) else ds.list_shards()


def store_schema(
    provider: IndexProvider, sample_type: type[Any], schema_ref: str | None
) -> str:
    """Return the reference of the schema of samples; store it if it does not exist."""
    if schema_ref is None:
        if issubclass(sample_type, DictSample):
            raise TypeError(
                "samples of DictSample have no schema: give the dataset a sample type, "
                "or schema_ref"
            )
        return publish_schema(provider, sample_type)
    if schema_ref.startswith(SCHEMA_PREFIXES) and not issubclass(
        sample_type, DictSample
    ):
        name, version = parse_schema_ref(schema_ref)
        if provider.get_schema_json(name, version) is None:
            found = to_local_json(describe(sample_type), version)
            text = json.dumps({**found, "name": name})
            provider.store_schema_version(
                name, lambda known: (version, None if version in known else text)
            )
    return schema_ref


def add(
    repo: Repository, draft: EntryDraft, schema_ref: str, urls: list[str]
) -> DatasetEntry:
    """Store an entry, and the label of its name."""
    metadata = None if draft.metadata is None else dict(draft.metadata)
    checksums = getattr(urls, "checksums", None)
    if checksums:
        metadata = {**(metadata or {}), "checksums": dict(checksums)}
    entry = DatasetEntry(draft.name, schema_ref, urls, metadata)
    repo.provider.store_entry(entry)
    repo.provider.store_label(draft.name, entry.cid, draft.version, draft.description)
    return entry
