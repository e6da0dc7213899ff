"""Uncommitted tails of shards: open readers do not notice their removal."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

import fastshard
from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
from fastshard.errors import FormatError
from support.processes import environment

pytestmark = pytest.mark.skipif(os.name == "nt", reason="no SIGKILL there")

KILLED = """
import os, signal, sys
import numpy as np
from fastshard.columnar import ShardedDatasetWriter
from support.inside.columnar import transaction_of
writer = ShardedDatasetWriter(sys.argv[1])
for i in range(100):
    writer.add_sample({"a": np.full(5000, -1)})
for column in transaction_of(writer).columns.values():
    column.write()
os.kill(os.getpid(), signal.SIGKILL)
"""
COUNT = 20


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Return a dataset whose writer was killed before it committed 100 samples."""
    root = tmp_path_factory.mktemp("killed") / "data"
    with ShardedDatasetWriter(root) as writer:
        writer.add_field("a")
        for i in range(COUNT):
            writer.add_sample({"a": np.full(50, i)}, f"s{i}")
    done = subprocess.run([sys.executable, "-c", KILLED, root], env=environment())
    assert done.returncode == -signal.SIGKILL
    return root


@pytest.fixture
def root(killed, tmp_path):
    return shutil.copytree(killed, tmp_path / "data")


def size(root):
    return (root / "a_shards" / "shard_0000.tar").stat().st_size


IDS = [f"s{i}" for i in range(COUNT)]
READS = {
    "scan": lambda r: [int(s["a"][0]) for s in r.scan()],
    "batches": lambda r: [int(x) for b in r.scan(batch_size=7) for x in b["a"][:, 0]],
    "get_many": lambda r: [int(a["a"][0]) for a, _ in r.get_many(IDS)],
    "get_sample": lambda r: [int(r.get_sample(i)[0]["a"][0]) for i in IDS],
    "columns": lambda r: r.columns(IDS)["a"][:, 0].tolist(),
    "samples": lambda r: [int(s["a"][0]) for s in r.samples],
}


@pytest.mark.parametrize("mode", ["mmap", "private", "pread"])
@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("way", READS)
def test_a_reader_reads_on_when_a_writer_truncates_a_tail(root, mode, cached, way):
    before = size(root)
    with ShardedDatasetReader(root, cached, mode=mode) as reader:
        assert READS[way](reader) == list(range(COUNT))
        ShardedDatasetWriter(root).close()
        assert size(root) < before - 1_000_000
        for read in READS.values():
            assert read(reader) == list(range(COUNT))


@pytest.mark.parametrize("mode", ["mmap", "pread"])
def test_a_dataset_reads_on_too(root, mode):
    ds = fastshard.open(str(root), mode=mode)
    assert int(ds[3]["a"][0]) == 3
    ShardedDatasetWriter(root).close()
    assert [int(sample["a"][0]) for sample in ds] == list(range(COUNT))
    assert [x for b in ds.batches(6) for x in b["a"][:, 0].tolist()] == [*range(COUNT)]
    ds.close()


def test_a_shard_shorter_than_recorded_is_an_error(root):
    with ShardedDatasetReader(root) as reader:
        os.truncate(root / "a_shards" / "shard_0000.tar", 4096)
        with pytest.raises(FormatError, match="ends inside this member"):
            READS["scan"](reader)
