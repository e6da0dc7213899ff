"""Servers on this machine for the tests of atdata that take them."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator

import pytest

from support.servers.atproto.pds import FakePds
from support.servers.databases.postgres import serve_postgres
from support.servers.databases.redis import serve_redis
from support.servers.s3 import ACCESS, SECRET, serve_s3

Variables = dict[str, str]


@contextlib.contextmanager
def redis() -> Iterator[Variables]:
    with tempfile.TemporaryDirectory() as folder, serve_redis(folder) as server:
        yield {"REDIS_URL": f"redis://127.0.0.1:{server.port}/0"}


@contextlib.contextmanager
def postgres() -> Iterator[Variables]:
    with serve_postgres() as server:
        dsn = server.dsn()
        yield {"POSTGRES_DSN": dsn, "ATDATA_TEST_PG_DSN": dsn}


@contextlib.contextmanager
def s3() -> Iterator[Variables]:
    with serve_s3() as endpoint:
        yield {
            "MINIO_ENDPOINT": endpoint,
            "MINIO_ACCESS_KEY": ACCESS,
            "MINIO_SECRET_KEY": SECRET,
        }


@contextlib.contextmanager
def pds() -> Iterator[Variables]:
    """Run a personal data server of this process, unless a server is given."""
    if "ATDATA_PDS_URL" in os.environ:
        yield {}
        return
    with FakePds() as server:
        account = server.create_account("alice.test", "an app password")
        yield {
            "ATDATA_PDS_URL": server.url,
            "ATDATA_PLC_URL": server.plc.url,
            "ATPROTO_TEST_HANDLE": account.handle,
            "ATPROTO_TEST_PASSWORD": account.password,
        }


SERVERS: tuple[Callable[[], contextlib.AbstractContextManager[Variables]], ...]
SERVERS = (redis, postgres, s3, pds)


@contextlib.contextmanager
def serve() -> Iterator[Variables]:
    """Run the servers that this machine has; yield the variables that name them.

    Tests of the others are skipped.
    """
    with contextlib.ExitStack() as stack:
        variables: Variables = {}
        for server in SERVERS:
            with contextlib.suppress(pytest.skip.Exception):
                variables |= stack.enter_context(server())
        yield variables
