"""Stores of an index, each empty."""

import pytest

from fastshard.catalog.providers.create import create_provider


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def kind(request):
    """Return the name of a kind of store."""
    return request.param


@pytest.fixture
def options(kind, tmp_path, request):
    """Return the arguments of `create_provider` for a new store."""
    if kind == "sqlite":
        return {"path": tmp_path / "index.db"}
    return request.getfixturevalue(f"{kind}_server").new()


@pytest.fixture
def connect(kind, options):
    """Return a function that makes a provider of one store, and closes it at last."""
    made = []

    def make(**more):
        made.append(create_provider(kind, **options | more))
        return made[-1]

    yield make
    for provider in made:
        provider.close()


@pytest.fixture
def provider(connect):
    """Return a provider of an empty store."""
    return connect()
