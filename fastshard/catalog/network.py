"""Network calls of an index: references, publishing, search."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fastshard.atmosphere.index import AtmosphereIndex, AtmosphereIndexEntry
from fastshard.atmosphere.loading.label import LabelLoader
from fastshard.atmosphere.promotion import publish_dataset, publish_entry
from fastshard.atmosphere.publishing.dataset import EntryFields
from fastshard.atmosphere.publishing.steps import SchemaWanted
from fastshard.atmosphere.publishing.storage import storage_of_urls
from fastshard.atmosphere.records.label import LabelRecord
from fastshard.catalog.search import ATMOSPHERE, search_network
from fastshard.typed.descriptions.json_schema import from_schema

if TYPE_CHECKING:
    from fastshard.atmosphere.client import Atmosphere
    from fastshard.catalog.entry import DatasetEntry
    from fastshard.catalog.references import DatasetReference
    from fastshard.catalog.search import Query, SearchResult
    from fastshard.typed.dataset import Dataset
    from fastshard.typed.stores.protocol import AbstractDataStore

__all__ = ["Network"]


class Network:
    """The repositories of accounts, for an index."""

    def __init__(self, client: Atmosphere) -> None:
        self.client = client
        self.index = AtmosphereIndex(client)

    def find(self, reference: DatasetReference) -> AtmosphereIndexEntry:
        """Return the entry of a reference, by label or else by dataset name."""
        if reference.authority is None:
            return self.index.get_dataset(reference.name)
        try:
            return self.find_label(reference)
        except KeyError:
            entry = self.find_name(reference)
            if entry is None:
                raise
            return entry

    def find_name(self, reference: DatasetReference) -> AtmosphereIndexEntry | None:
        """Return the latest dataset of a name without a version, or None."""
        if reference.version is not None:
            return None
        for entry in self.index.list_datasets(reference.authority):
            if entry.record.get("name") == reference.name:
                return entry
        return None

    def find_label(self, reference: DatasetReference) -> AtmosphereIndexEntry:
        """Return the entry that a label names."""
        if reference.authority is None:
            return self.index.get_dataset(reference.name)
        uri = LabelLoader(self.client).resolve(
            reference.authority, reference.name, reference.version
        )
        return self.index.get_dataset(uri)

    def labels(self, owner: str | None) -> Iterator[tuple[str, str, str | None]]:
        """Yield name, address of the dataset and version of an account's labels."""
        for record in LabelLoader(self.client).list_all(owner):
            label = LabelRecord.from_record(record, uri=str(record.uri))
            yield label.name, label.dataset_uri, label.version

    def check_own(self, reference: DatasetReference) -> str:
        """Return the name of a dataset to publish."""
        own = (self.client.did, self.client.handle)
        if reference.authority is None:
            raise ValueError(
                f"{reference.name} is an address, which the server chooses: give "
                f"@{own[1]}/name"
            )
        if reference.authority.lower() not in own:
            raise ValueError(
                f"@{reference.authority}/{reference.name} is of another account than "
                f"that of the client, {own[1]}"
            )
        return reference.name

    def promote_entry(
        self,
        entry: DatasetEntry,
        schema: Mapping[str, Any],
        *,
        version: str | None,
        data_store: AbstractDataStore | None,
        force: bool,
        **fields: Any,
    ) -> str:
        """Publish an entry of a repository; return the address of its record."""
        structure = from_schema(schema, entry.schema_ref)
        return str(
            publish_entry(
                self.client,
                entry,
                structure,
                EntryFields(**fields),
                version=version,
                data_store=data_store,
                force=force,
            )
        )

    def promote_dataset(
        self,
        ds: Dataset[Any],
        sample_type: type[Any] | None,
        schema_version: str | None,
        *,
        version: str | None,
        data_store: AbstractDataStore | None,
        force: bool,
        **fields: Any,
    ) -> str:
        """Publish a dataset; return the address of its record."""
        if data_store is None:
            storage_of_urls(ds.list_shards())  # local shards are copied only on request
        return str(
            publish_dataset(
                self.client,
                ds,
                EntryFields(**fields),
                schema=SchemaWanted(None, sample_type, schema_version),
                version=version,
                data_store=data_store,
                force=force,
            )
        )

    def search(
        self, query: Query, owner: str | None, limit: int
    ) -> Iterable[SearchResult]:
        """Return an AppView's results, or else those from an account's records."""
        if self.client.has_appview:
            return search_network(self.client, query, owner, limit)
        if owner is None:
            return []
        entries = self.index.list_datasets(owner)
        return list(query.search(map(FoundRecord, entries), ATMOSPHERE))


class FoundRecord:
    """A record in a search; fields of wrong types are ignored."""

    def __init__(self, entry: AtmosphereIndexEntry) -> None:
        record = entry.record
        self.cid = entry.uri
        self.name = str(record.get("name") or "")
        self.schema_ref = str(record.get("schemaRef") or "")
        self.metadata = {name: record.get(name) for name in ("description", "tags")}
