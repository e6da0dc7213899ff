"""Stores of an index, each empty."""

import pytest

from fastshard.typed.index.providers.create import create_provider


@pytest.fixture(params=["sqlite"])
def kind(request):
    """Return the name of a kind of store."""
    return request.param


@pytest.fixture
def connect(kind, tmp_path):
    """Return a function that makes a provider of one store, and closes it at last."""
    options = {"path": tmp_path / "index.db"}
    made = []

    def make(**more):
        made.append(create_provider(kind, **options, **more))
        return made[-1]

    yield make
    for provider in made:
        provider.close()


@pytest.fixture
def provider(connect):
    """Return a provider of an empty store."""
    return connect()
