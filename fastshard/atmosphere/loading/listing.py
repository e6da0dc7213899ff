"""Listings of collections, page by page; later only changed pages.

A server lists records from the latest key on, and the keys that it makes grow with
time. So the first page of a later listing has the new records, and shows which of the
latest are gone. All pages are read again once they are `MOST_SECONDS` old.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, MutableMapping
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from fastshard.atmosphere.client import Atmosphere
    from fastshard.atmosphere.stored_record import StoredRecord

__all__ = ["forget_collection", "list_collection"]

PAGE = 100  # records, the maximum of servers
MOST_SECONDS = 300.0


class CollectionListing(NamedTuple):
    """The records of a collection by their keys, from the latest on."""

    records: dict[str, StoredRecord]
    read_at: float


_LISTINGS: MutableMapping[Any, dict[tuple[str, str], CollectionListing]] = (
    WeakKeyDictionary()
)


def list_collection(
    client: Atmosphere, collection: str, repo: str | None = None
) -> list[StoredRecord]:
    """Return all records of a collection, from the latest on.

    One request a page; one request if this client listed them before and no more than
    a page is new.
    """
    owner = client.did if repo is None else client.resolve_did(repo)
    listings = _LISTINGS.setdefault(client, {})
    known = listings.get((collection, owner))
    found = None
    if known is not None and time.monotonic() - known.read_at <= MOST_SECONDS:
        found = _refresh(client, collection, owner, known)
    if found is None:
        records = _by_key(client.iter_records(collection, repo=owner))
        found = CollectionListing(records, time.monotonic())
    listings[collection, owner] = found
    return list(found.records.values())


def forget_collection(client: Atmosphere, collection: str) -> None:
    """Drop the listing of a collection of the own account.

    For a record written under the caller's own key.
    """
    _LISTINGS.get(client, {}).pop((collection, client.did), None)


def _refresh(
    client: Atmosphere, collection: str, owner: str, known: CollectionListing
) -> CollectionListing | None:
    """Return a listing with its first page read again; None if that is too little."""
    page, cursor = client.list_records(collection, repo=owner, limit=PAGE)
    records = _by_key(page)
    if not records or cursor is None:
        return CollectionListing(records, time.monotonic())
    last = min(records)
    before = known.records.get(last)
    if before is None or before.cid != records[last].cid:
        return None  # more than a page is new
    older = {key: each for key, each in known.records.items() if key < last}
    if older and len(records) < PAGE:
        return None  # a short page is the last: the rest is gone
    return CollectionListing({**records, **older}, known.read_at)


def _by_key(records: Iterable[StoredRecord]) -> dict[str, StoredRecord]:
    return {record.uri.rkey: record for record in records}
