"""Creation of a store of an index by name."""

from __future__ import annotations

import os
from typing import Any

from fastshard.catalog.providers.protocol import IndexProvider

__all__ = ["create_provider"]

NAMES = ("sqlite", "redis", "postgres")
ARGUMENTS = {"sqlite": "path", "redis": "redis", "postgres": "dsn"}


def create_provider(
    name: str,
    *,
    path: str | os.PathLike[str] | None = None,
    dsn: str | None = None,
    redis: Any = None,
    **options: Any,
) -> IndexProvider:
    """Return a store of an index. No file is opened, no server is contacted.

    Parameters
    ----------
    name : {"sqlite", "redis", "postgres"}
    path : str or path-like, optional
        File of SQLite, by default ``~/.atdata/index.db``.
    dsn : str, optional
        Server of Postgres, ``"postgresql://user@host/database"``.
    redis : redis.Redis or str, optional
        Client of Redis, or a URL; by default one made of `options`.
    **options
        ``timeout=``, in seconds; for Redis also the arguments of `redis.Redis`, such
        as ``host=``, ``port=``, ``password=``.

    Raises
    ------
    ValueError
        There is no store of this name, or Postgres has no `dsn`; or `path` is a URL.
    TypeError
        An argument is that of another store.
    MissingLibraryError
        The library of Redis or Postgres is not installed.

    Examples
    --------
    >>> from fastshard import typed
    >>> typed.create_provider("sqlite", path="index.db")
    SqliteProvider('index.db')
    """
    kind = name.strip().lower()
    kind = "postgres" if kind == "postgresql" else kind
    if kind not in NAMES:
        # An address can contain a password.
        shown = f" {name!r}" if kind.isidentifier() else ""
        raise ValueError(
            f"Unknown provider{shown}, expected one of {', '.join(NAMES)}; an address "
            "is given as dsn= or redis="
        )
    given = {"path": path, "dsn": dsn, "redis": redis}
    for argument, value in given.items():
        if value is not None and argument != ARGUMENTS[kind]:
            raise TypeError(f"the {kind} provider takes no {argument}")
    if kind == "sqlite":
        from fastshard.catalog.providers.sqlite import SqliteProvider

        return SqliteProvider(path, **options)
    if kind == "redis":
        from fastshard.catalog.providers.redis import RedisProvider

        return RedisProvider(redis, **options)
    from fastshard.catalog.providers.postgres import PostgresProvider

    if dsn is None:
        raise ValueError("dsn is required for the postgres provider")
    return PostgresProvider(dsn, **options)
