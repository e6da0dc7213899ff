"""Fixtures for tests of the disk cache."""

import pytest

from fastshard.remote.cache.store import RangeCache
from support.cache import INFO, URL


@pytest.fixture
def folder(tmp_path):
    """Return the path of a cache directory that does not exist yet."""
    return tmp_path / "cache"


@pytest.fixture
def entry(folder):
    """Return the empty entry of `support.cache.OBJECT`."""
    return RangeCache(folder).entry(URL, INFO)
