"""Skips of typed samples where the library that decodes them is not installed."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def msgspec():
    """Return the library; it has no wheel for some Pythons."""
    return pytest.importorskip("msgspec", reason="no msgspec for this Python")
