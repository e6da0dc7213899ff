"""Indexes that atdata wrote, each in a store of its kind."""

import shutil

import pytest

from fastshard import typed


@pytest.fixture(params=["sqlite"])
def store(request):
    """Return the name of a kind of store."""
    return request.param


@pytest.fixture
def connect(store, index_data, tmp_path):
    """Return the arguments of `Index` with which it reads what atdata wrote."""
    path = shutil.copy(index_data.sqlite, tmp_path)
    return {"path": path}


@pytest.fixture
def old_index(store, connect, index_data):
    """Return an index that atdata wrote, and what atdata answers."""
    index = typed.Index(store, atmosphere=None, **connect)
    yield index, index_data.expected(store)
    index.provider.close()
