"""Pytest plugin under which the tests of atdata run, unmodified, on `fastshard.typed`.

`atdata_run.py` loads it with ``-p``. It enters modules under atdata's names when it is
imported, for pytest imports the tests' ``conftest.py`` next. Tests of what
`atdata_lists` has as absent are skipped; those of its `DIFFERENT` have to fail.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SERVERS = ("REDIS_URL", "POSTGRES_DSN", "MINIO_ENDPOINT", "ATDATA_PDS_URL")
OURS = os.environ.get("FASTSHARD_UPSTREAM") != "theirs"
if OURS:
    import atdata_lists
    import atdata_names

    atdata_names.enter()


def enter_redis(url: str) -> None:
    """Make a server the one that `redis.Redis` connects to without arguments."""
    import redis

    connect = redis.Redis.__init__
    default = urlsplit(url).port

    @functools.wraps(connect)
    def made(self: Any, host: str = "127.0.0.1", port: int = 6379, *a: Any, **k: Any):
        connect(self, host, default if port == 6379 else port, *a, **k)

    redis.Redis.__init__ = made


def enter_s3(url: str) -> None:
    """Make an empty server what ``mock_aws()`` stands for: not all use boto3 here."""
    import moto

    @contextlib.contextmanager
    def mock_aws() -> Iterator[None]:
        urllib.request.urlopen(f"{url}/moto-api/reset", data=b"").close()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL", url)
            patch.setenv("AWS_REGION", "us-east-1")
            yield

    moto.mock_aws = mock_aws


if "REDIS_URL" in os.environ:
    enter_redis(os.environ["REDIS_URL"])
if "MINIO_ENDPOINT" in os.environ and OURS:
    enter_s3(os.environ["MINIO_ENDPOINT"])


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "network: tests that need other machines")
    config.addinivalue_line("markers", "slow: tests that take long")
    config.addinivalue_line("markers", "integration: tests that need servers")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not OURS:
        return
    for item in items:
        for name in names_of(item):
            if reason := atdata_lists.ABSENT.get(name):
                item.add_marker(pytest.mark.skip(reason=reason))
            if reason := atdata_lists.DIFFERENT.get(name):
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


def pytest_collection_finish(session: pytest.Session) -> None:
    """End a run that collected fewer test functions than the files have."""
    found: dict[Path, set[str]] = {}
    for item in session.items:
        names = item.nodeid.partition("[")[0].split("::")[1:]
        found.setdefault(item.path, set()).add("::".join(names))
    if session.config.option.keyword:
        return
    for path in {*found, *map(Path, session.config.args)}:
        if missing := functions_of(path) - found.get(path, set()):
            raise pytest.UsageError(f"{path}: not collected: {', '.join(missing)}")


def functions_of(path: Path) -> set[str]:
    """Return the names of a file's test functions, with those of their classes."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        is_class = isinstance(node, ast.ClassDef) and node.name.startswith("Test")
        for each in node.body if is_class else [node]:
            if isinstance(each, FUNCTIONS) and each.name.startswith("test_"):
                names.add(f"{node.name}::{each.name}" if is_class else each.name)
    return names


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run with all servers that skipped a test for a reason of no list."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not OURS or reporter is None or not all(map(os.environ.get, SERVERS)):
        return
    known = {*atdata_lists.ABSENT.values(), *atdata_lists.NAMES, atdata_lists.SDK}
    for report in reporter.getreports("skipped"):
        if report.longrepr[2].removeprefix("Skipped: ") not in known:
            reporter.write_line(f"skipped for a reason of no list: {report.longrepr}")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def names_of(item: pytest.Item) -> list[str]:
    """Return the file's, class's and test's names, without and with parameters."""
    file, *rest = item.nodeid.split("::")
    file = file.rpartition("/")[2]
    whole = "::".join([file, *rest])
    names = [file, "::".join([file, *rest[:-1]]), whole.partition("[")[0], whole]
    return list(dict.fromkeys(names))
