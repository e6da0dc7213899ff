"""Readers of a dataset that a module writes once, in both layouts."""

from __future__ import annotations

import shutil

import pytest

from fastshard.columnar import ShardedDatasetReader


@pytest.fixture(scope="module", params=[False, True], ids=["members", "packed"])
def written(request, tmp_path_factory):
    """Return the root of a dataset that `write_series` of the module has written."""
    root = tmp_path_factory.mktemp("written") / "series"
    request.module.write_series(root, pack=request.param)
    return root


@pytest.fixture
def root(written, tmp_path):
    """Return the root of a copy, which a test may change."""
    return shutil.copytree(written, tmp_path / "series")


@pytest.fixture(params=["mmap", "pread"])
def reader(request, root):
    with ShardedDatasetReader(root, mode=request.param) as reader:
        yield reader
