"""Fixtures of typed samples: the library that decodes them, and servers."""

from collections.abc import Iterator

import pytest

from support.servers.atproto.pds import FakePds
from support.servers.databases.postgres import PostgresServer, serve_postgres
from support.servers.databases.redis import RedisServer, serve_redis


@pytest.fixture(scope="session", autouse=True)
def msgspec():
    """Return the library, or skip the test."""
    return pytest.importorskip("msgspec")


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Run a Redis server."""
    with serve_redis(str(tmp_path_factory.mktemp("redis"))) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """Run a Postgres server."""
    with serve_postgres() as server:
        yield server


@pytest.fixture
def fake_pds() -> Iterator[FakePds]:
    """Run a personal data server with the account ``alice.test``, "password"."""
    with FakePds() as server:
        server.create_account("alice.test")
        yield server
