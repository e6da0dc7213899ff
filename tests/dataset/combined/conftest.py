"""Datasets that are combined: mixed, zipped, concatenated."""

import pytest

import fastshard
from support.tars import write_numbers


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Datasets of 100 (0...), 40 (1000...) and 7 (2000...) samples."""
    root = tmp_path_factory.mktemp("parts")
    return [
        write_numbers(root / name, count, first=first)
        for name, count, first in (("a", 100, 0), ("b", 40, 1000), ("c", 7, 2000))
    ]


@pytest.fixture
def parts(folders):
    datasets = [fastshard.open(folder) for folder in folders]
    yield datasets
    for dataset in datasets:
        dataset.close()
