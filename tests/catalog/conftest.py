"""Indexes of the tests."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fastshard import typed
from support.typed.numbers import Number


@pytest.fixture
def index(tmp_path: Path) -> typed.Index:
    """Return an index on SQLite whose shards are stored in ``store``."""
    store = typed.LocalDiskStore(tmp_path / "store")
    return typed.Index(path=tmp_path / "index.db", data_store=store, atmosphere=None)


@pytest.fixture
def bare_index(tmp_path: Path) -> typed.Index:
    """Return an index on SQLite without a data store."""
    return typed.Index(path=tmp_path / "bare.db", atmosphere=None)


@pytest.fixture
def numbers(tmp_path: Path) -> Callable[..., typed.Dataset[Number]]:
    """Return a function that writes shards of numbers."""

    def write(n: int = 5, name: str = "numbers", **options):
        samples = [Number(value=i) for i in range(n)]
        return typed.write_samples(samples, tmp_path / f"{name}.tar", **options)

    return write
