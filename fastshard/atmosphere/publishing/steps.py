"""Publishing of a dataset: shards, schema, entry, label, in this order.

A call finds the results of a failed one, and does not make them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from fastshard.atmosphere.at_uri import AtUri
from fastshard.atmosphere.lexicon import ENTRY, LABEL
from fastshard.atmosphere.loading.listing import list_collection
from fastshard.atmosphere.publishing.dataset import (
    EntryFields,
    check_entry,
    entry_record,
)
from fastshard.atmosphere.publishing.record import check_record, publish_record
from fastshard.atmosphere.publishing.schema import SchemaPublisher
from fastshard.atmosphere.records.entry import EntryRecord
from fastshard.atmosphere.records.label import LabelRecord
from fastshard.atmosphere.records.storage import Storage
from fastshard.errors import FormatError, PublishError

if TYPE_CHECKING:
    from fastshard.atmosphere.client import Atmosphere
    from fastshard.typed.descriptions.structure import Structure

__all__ = ["PublishedShards", "SchemaWanted", "publish_steps"]

PLACEHOLDER = "at://did:plc:placeholder/science.alt.dataset.entry/placeholder"


class SchemaWanted(NamedTuple):
    """The schema of a dataset: the address of a record, or a type to publish.

    Attributes
    ----------
    uri : str or None
    sample_type : type, Structure or None
        If there is no `uri`.
    version : str or None
        The version wanted.
    """

    uri: str | None
    sample_type: type | Structure | None = None
    version: str | None = None


class PublishedShards(NamedTuple):
    """Shards that others can read.

    Attributes
    ----------
    storage : Storage
    made : iterable of str
        URLs of shards that were stored for it.
    samples : int or None
        Their number, if it is known.
    """

    storage: Storage
    made: Iterable[str] = ()
    samples: int | None = None


def publish_steps(
    client: Atmosphere,
    fields: EntryFields,
    schema: SchemaWanted,
    store: Callable[[], PublishedShards],
    version: str | None = None,
    content_type: type | None = None,
) -> AtUri:
    """Publish a dataset; return the address of its entry."""
    did = client.did
    label = LabelRecord(
        fields.name, PLACEHOLDER, version=version, description=fields.description
    )
    check_record(label)
    check_entry(fields, schema.uri or PLACEHOLDER)
    made: list[str] = []
    try:
        shards = store()
        made += shards.made
        storage, number = shards.storage, shards.samples
        check_record(entry_record(fields, PLACEHOLDER, storage, number))
        uri = schema.uri or _publish_schema(client, schema, made)
        if content_type is not None:
            content = _publish_schema(client, SchemaWanted(None, content_type), made)
            fields = fields._replace(metadata_schema_ref=content)
        record = entry_record(fields, uri, storage, number)
        entry = _find(client, record, did)
        if entry is None:
            entry = publish_record(client, record)
            made.append(str(entry))
        label.dataset_uri = str(entry)
        if _find(client, label, did) is None:
            publish_record(client, label)
    except Exception as error:
        if not made:
            raise
        raise PublishError(f"{type(error).__name__}: {error}", tuple(made)) from error
    return entry


def _publish_schema(client: Atmosphere, schema: SchemaWanted, made: list[str]) -> str:
    """Return the address of a schema; append it to `made` if it is new."""
    assert schema.sample_type is not None
    publisher = SchemaPublisher(client)
    uri, is_new = publisher._find_or_publish(schema.sample_type, schema.version, None)
    if is_new:
        made.append(str(uri))
    return str(uri)


def _find(
    client: Atmosphere, record: EntryRecord | LabelRecord, did: str
) -> AtUri | None:
    """Return the address of a record with equal content, apart from its time.

    A label counts only if it is the latest of its name and version.
    """
    collection = ENTRY if isinstance(record, EntryRecord) else LABEL
    wanted = _comparable(record)
    for stored in list_collection(client, collection, did):
        if stored.get("name") != record.name:
            continue
        try:
            found = type(record).from_record(stored, uri=str(stored.uri))
        except FormatError:
            continue
        if isinstance(record, LabelRecord) and isinstance(found, LabelRecord):
            if found.version != record.version:
                continue
            return stored.uri if found.dataset_uri == record.dataset_uri else None
        if _comparable(found) == wanted:
            return stored.uri
    return None


def _comparable(record: EntryRecord | LabelRecord) -> dict[str, Any]:
    """Return a record's content to compare: metadata as a dict, without time."""
    found = record.to_record()
    if isinstance(record, EntryRecord):  # stored in one of several forms
        found["metadata"] = EntryRecord.from_record(found).metadata
    del found["createdAt"]
    return found
