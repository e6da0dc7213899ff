"""Fixtures: columnar datasets of fastshard and of the original package."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
from support.columnar.original import FIELDS, OriginalWriter, arrays_of

MakeOriginal = Callable[..., OriginalWriter]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the path of a dataset that does not exist yet."""
    return tmp_path / "data"


@pytest.fixture
def writer(root: Path) -> Iterator[ShardedDatasetWriter]:
    """Yield the writer of a new dataset of two fields, four samples a shard."""
    with ShardedDatasetWriter(root, samples_per_shard=4) as writer:
        writer.add_fields(["a", "b"])
        yield writer


@pytest.fixture
def make_original(tmp_path: Path) -> Iterator[MakeOriginal]:
    """Open a writer of the original format on ``data`` (or another name).

    Each call is a session of its own. Sessions still open are closed at teardown.
    """
    writers = []

    def make(name: str = "data", **options) -> OriginalWriter:
        writers.append(OriginalWriter(tmp_path / name, **options))
        return writers[-1]

    yield make
    for writer in writers:
        writer.close()


@pytest.fixture
def several(make_original: MakeOriginal) -> tuple[Path, dict[str, dict]]:
    """Return a dataset of three sessions of seven samples, five a shard."""
    put = {}
    for session in range(3):
        with make_original(samples_per_shard=5) as writer:
            writer.add_fields(FIELDS)
            for i in range(7 * session, 7 * session + 7):
                sample_id = writer.add_sample(arrays_of(i), metadata={"n": i})
                put[sample_id] = arrays_of(i)
    return writer.root, put


@pytest.fixture(scope="module", params=[False, True], ids=["members", "packed"])
def written(request, tmp_path_factory) -> Path:
    """Return a dataset that `write_series` of the module has written, in a layout."""
    root = tmp_path_factory.mktemp("written") / "series"
    request.module.write_series(root, pack=request.param)
    return root


@pytest.fixture
def copied(written: Path, tmp_path: Path) -> Path:
    """Return a copy of it, which a test may change."""
    return shutil.copytree(written, tmp_path / "series")


@pytest.fixture(params=["mmap", "pread"])
def reader(request, root: Path) -> Iterator[ShardedDatasetReader]:
    """Yield a reader of the dataset of a test."""
    with ShardedDatasetReader(root, mode=request.param) as reader:
        yield reader
