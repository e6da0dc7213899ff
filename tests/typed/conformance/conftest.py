"""Indexes that atdata wrote, each in a store of its kind."""

import shutil

import pytest

from fastshard import typed
from support.typed.index_data import STORES


@pytest.fixture(params=STORES)
def store(request):
    """Return the name of a kind of store."""
    return request.param


@pytest.fixture
def options(store, index_data, tmp_path, request):
    """Return the arguments of `Index` for stores written by atdata."""
    if store == "sqlite":
        return {"path": shutil.copy(index_data.sqlite, tmp_path)}
    options = request.getfixturevalue(f"{store}_server").new()
    FILL[store](options, index_data)
    return options


def fill_redis(options, index_data):
    """Store the keys that atdata wrote, without this package."""
    import redis

    with redis.Redis(**options) as client:
        for key, value in index_data.redis().items():
            if isinstance(value, bytes):
                client.set(key, value)
            else:
                client.hset(key, mapping=value)


def fill_postgres(options, index_data):
    """Make the tables and rows that atdata wrote, without this package."""
    import psycopg

    with psycopg.connect(options["dsn"], autocommit=True) as connection:
        connection.execute(index_data.postgres())


FILL = {"redis": fill_redis, "postgres": fill_postgres}


@pytest.fixture
def old_index(store, options, index_data):
    """Return an index written by atdata, and atdata's answers."""
    index = typed.Index(store, atmosphere=None, **options)
    yield index, index_data.expected(store)
    index.provider.close()
