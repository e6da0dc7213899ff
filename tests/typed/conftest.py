"""Fixtures of typed samples: the library that decodes them, and a server."""

from collections.abc import Iterator

import pytest

from support.servers.atproto.pds import FakePds


@pytest.fixture(scope="session", autouse=True)
def msgspec():
    """Return the library; it has no wheel for some Pythons."""
    return pytest.importorskip("msgspec", reason="no msgspec for this Python")


@pytest.fixture
def fake_pds() -> Iterator[FakePds]:
    """Run a personal data server with the account ``alice.test``, "password"."""
    with FakePds() as server:
        server.create_account("alice.test")
        yield server
