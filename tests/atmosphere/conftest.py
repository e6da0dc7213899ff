"""Fixtures of the AT Protocol: the library that decodes them."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def _needs_msgspec(msgspec):
    """Skip the tests without the library."""
