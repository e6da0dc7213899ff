"""Pytest plugin under which the tests of mosaicml-streaming run, unmodified.

`run.py` loads it with ``-p``. Readers are ours (`fastshard.streaming.install`); with
FASTSHARD_UPSTREAM_NAMES=1 the modules of `upstream_names` are ours, too. The source
distribution lacks the package ``tests.common`` and the fixtures that its tests take;
`upstream_common` stands in for them.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import pytest
import upstream_common


def pytest_configure(config: pytest.Config) -> None:
    for mark in ("world_size(n): processes of a distributed test", "daily", "remote"):
        config.addinivalue_line("markers", mark)
    allow_marks_on_fixtures()
    kind = os.environ["FASTSHARD_UPSTREAM"]
    if kind != "theirs":
        from fastshard.streaming import install

        install()
    if kind == "names":
        import upstream_names

        upstream_names.replace()
    if not Path(os.environ["FASTSHARD_UPSTREAM_TESTS"], "common").is_dir():
        stand_in()


def allow_marks_on_fixtures() -> None:
    """Ignore marks on fixtures, which pytest 9 refuses; the tests are for pytest 8."""
    structures = importlib.import_module("_pytest.mark.structures")
    store_mark = structures.store_mark

    def store(obj, *args, **options):
        if type(obj).__name__ != "FixtureFunctionDefinition":
            store_mark(obj, *args, **options)

    structures.store_mark = store


def stand_in() -> None:
    """Make our modules importable as ``tests.common``."""
    for name in ("tests", "tests.common"):
        sys.modules[name] = ModuleType(name)
    for name in ("datasets", "utils"):
        sys.modules[f"tests.common.{name}"] = upstream_common


@pytest.fixture
def local_remote_dir():
    """Yield paths of two folders that do not exist."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield f"{folder}/local", f"{folder}/remote"


@pytest.fixture
def compressed_local_remote_dir():
    """Yield paths of three folders that do not exist."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield f"{folder}/compressed", f"{folder}/local", f"{folder}/remote"
