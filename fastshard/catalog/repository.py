"""Repositories: a store of rows, and a store of their shards."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastshard.catalog.providers.protocol import IndexProvider
    from fastshard.typed.stores.protocol import AbstractDataStore

__all__ = ["Repository", "create_repository"]


@dataclass
class Repository:
    """A store of rows, and a store of shards, of an index.

    Parameters
    ----------
    provider : IndexProvider
        Where entries, labels, schemas and lenses are.
    data_store : AbstractDataStore, optional
        Where shards are written.

    Examples
    --------
    >>> from fastshard import typed
    >>> lab = typed.create_repository("sqlite", path="lab.db")
    >>> index = typed.Index(path="own.db", repos={"lab": lab})
    >>> sorted(index.repos)
    ['lab', 'local']
    """

    provider: IndexProvider
    data_store: AbstractDataStore | None = None


def create_repository(
    provider: str = "sqlite",
    *,
    path: str | os.PathLike[str] | None = None,
    dsn: str | None = None,
    redis: Any = None,
    data_store: AbstractDataStore | None = None,
    **kwargs: Any,
) -> Repository:
    """Return a repository by the name of its store of rows.

    Parameters
    ----------
    provider : {"sqlite", "redis", "postgres"}, default "sqlite"
    path : str or path-like, optional
        File of SQLite, by default ``~/.atdata/index.db``.
    dsn : str, optional
        Connection string of Postgres.
    redis : redis.Redis, optional
        Client of Redis.
    data_store : AbstractDataStore, optional
        Where shards are written.
    **kwargs
        Further arguments of the store: ``host=``, ``port=``, ``timeout=``, ...

    Returns
    -------
    Repository
        No server is contacted.

    Raises
    ------
    ValueError
        The provider is unknown.
    TypeError
        An argument is unknown, or of another type.
    MissingLibraryError
        The library of the provider is not installed.

    Examples
    --------
    >>> from fastshard import typed
    >>> lab = typed.create_repository("sqlite", path="lab.db")
    >>> index = typed.Index(path="own.db", repos={"lab": lab})
    >>> index.insert_dataset(typed.Dataset[ImageSample]("data.tar"), name="lab/a").name
    'a'
    """
    from fastshard.catalog.providers.create import create_provider

    rows = create_provider(provider, path=path, dsn=dsn, redis=redis, **kwargs)
    return Repository(rows, data_store)
