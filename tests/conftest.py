"""Fixtures of all tests, and the reasons for which a test may be skipped."""

from __future__ import annotations

import gc
import os
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from support.marks import LONG, is_allowed
from support.paths import TESTS
from support.streaming.expected import Expected, unpack
from support.tars import MakeTar, write_tar
from support.typed import expected as typed
from support.typed import index_data as indexes

if TYPE_CHECKING:
    from support.servers.atproto.pds import FakePds
    from support.servers.databases.postgres import PostgresServer
    from support.servers.databases.redis import RedisServer

hypothesis.settings.register_profile("untimed", deadline=None)  # machines are shared
hypothesis.settings.load_profile("untimed")

pytest.register_assert_rewrite("support.columnar.checks")

# Type checkers take half a minute a test. They begin first: at the end of a run one
# process would have them all while the others wait.
FIRST = ("test_typing.py", "test_snippet_types.py", "test_public.py")

# Folders whose samples are decoded by msgspec, which is an optional library.
NEED_MSGSPEC = {"atmosphere", "catalog", "typed", "where"}

os.environ["FASTSHARD_CACHE"] = ""  # no test writes into the user's cache


def pytest_configure(config: pytest.Config) -> None:
    """Give each process a run of tests, which share fixtures, not every third one."""
    if getattr(config.option, "dist", "no") == "load":
        config.option.dist = "worksteal"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Run a process more than there are processors: some tests wait."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    return (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Leave slow tests to long runs, and to runs of single files or tests.

    Tests of the files `FIRST` come first.
    """
    items.sort(key=lambda item: item.path.name not in FIRST)
    named = all(arg.split("::")[0].endswith(".py") for arg in config.args)
    if LONG or named:
        return
    left_out = [item for item in items if item.get_closest_marker("slow")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep libraries and items out of the collections that tests ask for."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the tests of folders whose library is not installed."""
    if item.path.relative_to(TESTS).parts[0] in NEED_MSGSPEC:
        pytest.importorskip("msgspec")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that skipped required tests."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("FASTSHARD_STRICT_SKIPS") != "1" or reporter is None:
        return
    for report in reporter.getreports("skipped"):
        if not is_allowed(str(report.longrepr)):
            reporter.write_line(f"not on the list of skips: {report.longrepr}")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def make_tar(tmp_path: Path) -> MakeTar:
    """Make ``shard.tar`` (or another name) of members given as a dict."""

    def make(members: Mapping[str, bytes], name: str = "shard.tar", **options) -> Path:
        return write_tar(tmp_path / name, members, **options)

    return make


@pytest.fixture
def members() -> dict[str, bytes]:
    """Three samples of two fields, and a member outside of samples."""
    return {
        "000.jpg": b"\xff\xd8" + bytes(range(256)) * 3,
        "000.json": b'{"caption": "one"}',
        "001.jpg": b"",
        "001.json": b'{"caption": "two"}',
        "README": b"no sample",
        "sub/002.jpg": b"x" * 512,
        "sub/002.json": b"[]",
    }


@pytest.fixture
def shard_path(make_tar: MakeTar, members: dict[str, bytes]) -> Path:
    return make_tar(members)


@pytest.fixture(scope="session")
def streaming_data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Expected]:
    """Return datasets by mosaicml-streaming, by name. Tests do not change them.

    A reader of a compressed shard may write the raw file beside it: such tests take
    `copy_streaming`.
    """
    return unpack(tmp_path_factory.mktemp("streaming"))


@pytest.fixture
def copy_streaming(
    streaming_data: dict[str, Expected], tmp_path: Path
) -> Callable[[str], Expected]:
    """Return a dataset of `streaming_data` copied into ``tmp_path``, by name."""

    def copy(name: str) -> Expected:
        known = streaming_data[name]
        root = tmp_path / "streaming" / name.partition("#")[0]
        shutil.copytree(known.root, root, dirs_exist_ok=True)
        return known.moved(root)

    return copy


@pytest.fixture(scope="session")
def typed_data(tmp_path_factory: pytest.TempPathFactory) -> typed.TypedData:
    """Return shards of typed samples that atdata wrote. Tests do not change them.

    Tests that write beside a shard take `copy_typed`.
    """
    return typed.unpack(tmp_path_factory.mktemp("typed"))


@pytest.fixture
def copy_typed(typed_data: typed.TypedData, tmp_path: Path) -> typed.TypedData:
    """Return the shards of `typed_data` copied into ``tmp_path``."""
    root = tmp_path / "typed data"
    shutil.copytree(typed_data.root, root)
    return replace(typed_data, root=root)


@pytest.fixture(scope="session")
def index_data(tmp_path_factory: pytest.TempPathFactory) -> indexes.IndexData:
    """Return indexes and records that atdata wrote. Tests do not change them.

    A reader of an SQLite file may write beside it: such tests take `copy_index`.
    """
    return indexes.unpack(tmp_path_factory.mktemp("typed index"))


@pytest.fixture
def copy_index(index_data: indexes.IndexData, tmp_path: Path) -> indexes.IndexData:
    """Return `index_data` copied into ``tmp_path``."""
    root = tmp_path / "typed index"
    shutil.copytree(index_data.root, root)
    return indexes.IndexData(root)


@pytest.fixture
def loopback(monkeypatch, tmp_path):
    """Allow connections to this machine only; hide the user's tokens."""
    constants = pytest.importorskip("huggingface_hub.constants")
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no token"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))
    connect = socket.socket.connect

    def guarded(self, address):
        assert address[0] == "127.0.0.1"
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)


@pytest.fixture(scope="session")
def msgspec():
    """Return the library, or skip the test."""
    return pytest.importorskip("msgspec")


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Run a Redis server."""
    from support.servers.databases.redis import serve_redis

    with serve_redis(str(tmp_path_factory.mktemp("redis"))) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """Run a Postgres server."""
    from support.servers.databases.postgres import serve_postgres

    with serve_postgres() as server:
        yield server


@pytest.fixture
def fake_pds() -> Iterator[FakePds]:
    """Run a personal data server with the account ``alice.test``, "password"."""
    from support.servers.atproto.pds import FakePds

    with FakePds() as server:
        server.create_account("alice.test")
        yield server
