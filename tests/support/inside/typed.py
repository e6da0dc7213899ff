"""Typed datasets, their index, and clients of the AT Protocol."""

from importlib import import_module

from fastshard import typed


def origin_of(dataset):
    """Return the origin of a typed dataset's samples."""
    return dataset._origin


def packed_of(dataset):
    """Return the dataset of packed shards under a typed dataset."""
    return dataset._packed


def set_metadata(dataset, metadata):
    """Give a dataset metadata, as a loaded one has."""
    dataset._metadata = metadata


def url_source_of_shards(urls):
    """Return a source of shards whose URLs are not expanded."""
    return typed.URLSource._of_shards(urls)


def compare(field, op, value):
    """Return the predicate that compares a field with a value."""
    return field._compare(op, value)


# Index


def entry_of(entry, index):
    """Return an entry as an index returns it."""
    return entry._of(index)


def opener_of(entry):
    """Return the index that opens the dataset of an entry, or None."""
    return entry._opener


def connection_of(provider):
    """Return the connection for own SQL of an SQLite provider."""
    return provider._conn


def idle_of(provider):
    """Return the idle connections of a provider."""
    return provider._idle


def lent_connection(provider):
    """Lend a connection for reads: a context manager."""
    return provider._using(False)


def select(provider, sql):
    """Run a query of a provider."""
    return provider._select(sql)


def replace_connections(monkeypatch, connections):
    """Replace the set of this process's connections to SQLite files."""
    module = import_module("fastshard.catalog.providers.sqlite_file")
    monkeypatch.setattr(module, "_connections", connections)


def set_provider_timeout(provider, seconds):
    """Change how long a Postgres provider waits; return the seconds before."""
    before, provider._timeout = provider._timeout, seconds
    return before


def lock_of_default_index():
    """Return the lock under which the default index is made."""
    return import_module("fastshard.catalog.default")._lock.lock


# Lenses and clients


def lock_of(client):
    """Return the lock of a client's session, or of a network of lenses."""
    return client._lock.lock


def exchange_settings(client):
    """Return the settings of a client's requests."""
    return client._xrpc._exchange.settings


def set_timeout(client, seconds):
    """Change how long a client waits for a server."""
    exchange_settings(client).timeout = seconds
    set_listing_timeout(client, seconds)


def set_listing_timeout(client, seconds):
    """Change how long a client waits for all pages of a listing: a multiple."""
    client._timeout = seconds


def options_of(client):
    """Return the options that a client was made with."""
    return client._options


def session_of(client):
    """Return the session of a client that is logged in."""
    return client._require_session()


def refresh_session(client):
    """Let a client refresh its session now."""
    client._refresh(session_of(client))


def identities_of(client):
    """Return the resolver of a client's identities."""
    return client._identities


def allows_private_hosts(client):
    """Return whether identities may lead to hosts of a private network."""
    return identities_of(client)._private_hosts


def count_kept_identities(client):
    """Return how many identities a client keeps."""
    return len(identities_of(client)._kept)


def count_listings():
    """Return how many clients have a listing that is kept."""
    return len(import_module("fastshard.atmosphere.loading.listing")._LISTINGS)
