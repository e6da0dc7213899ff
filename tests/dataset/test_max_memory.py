"""`max_memory`: the limit of resident bytes, for every way of reading."""

import gc
import json
import os
import random
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

import fastshard
from fastshard._core.io.paging import PageRing
from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
from support.inside.datasets import ring_of
from support.marks import not_sanitized
from support.memory import cached, evict, resident
from support.processes import environment
from support.tars import write_tar
from support.threads import in_threads

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="pages are released on Linux"
)
MB = 1 << 20
SIZE, COUNT = 200_000, 1000  # 200 MB
BOUND, SLACK = 24 * MB, 16 * MB
TAR_WAYS = [
    "single",
    "kept",
    "array",
    "copied",
    "shards",
    "members",
    "get_many",
    "many_larger",
    "getitems",
    "batches",
    "columns",
    "read_into",
    "into_all",
    "iterate",
    "scan",
]
COLUMNAR_WAYS = [
    "get_sample",
    "sample_many",
    "sequence",
    "sequence_items",
    "stacks",
    "swept",
    "swept_batches",
    "dataset",
]
OWN = {  # bytes: the maximum of the copies that these ways return
    "batches": 32 * SIZE,
    "columns": 2 * 32 * SIZE,
    "read_into": 64 * SIZE,
    "sequence_items": 2 * 32 * SIZE,
    "stacks": 2 * 32 * SIZE,
    "swept_batches": 2 * 32 * SIZE,
    "many_larger": COUNT // 4 * SIZE,
}


def write_sparse(path, count):
    """Write a tar of sparse members; their pages become resident as others do."""
    with open(path, "wb") as file:
        for i in range(count):
            member = tarfile.TarInfo(f"{i:05d}.bin")
            member.size = SIZE
            file.write(member.tobuf(tarfile.USTAR_FORMAT))
            file.seek(-(-SIZE // 512) * 512, os.SEEK_CUR)
        file.truncate(file.tell() + 1024)


@pytest.fixture(scope="module")
def tars(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tars")
    for k in range(2):
        write_sparse(folder / f"s-{k}.tar", COUNT // 2)
    fastshard.build_index(folder)
    return folder


@pytest.fixture(scope="module")
def columns(tmp_path_factory):
    root = tmp_path_factory.mktemp("columns") / "d"
    with ShardedDatasetWriter(root, samples_per_shard=COUNT // 2) as writer:
        writer.add_field("x")
        for i in range(COUNT):
            writer.add_sample({"x": np.full(SIZE, i % 256, "u1")})
    return root


def peaks(kind, folder, mode, ways, bound=BOUND):
    """Return the peak memory in bytes of each way, each in its own process."""
    arguments = [kind, os.fspath(folder), mode, str(bound), *ways]
    done = subprocess.run(
        [sys.executable, "-m", "support.memory_peaks", *arguments],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_bounded(found):
    limits = {way: BOUND + SLACK + OWN.get(way, 0) for way in found}
    assert {way: most for way, most in found.items() if most > limits[way]} == {}


@not_sanitized  # sanitizers keep freed memory
@pytest.mark.parametrize("mode", ["mmap", "private"])
def test_every_way_of_reading_tars_holds_the_bound(tars, mode):
    assert_bounded(peaks("tar", tars, mode, TAR_WAYS))


@not_sanitized  # sanitizers keep freed memory
@pytest.mark.parametrize("mode", ["mmap", "private"])
def test_every_way_of_reading_columns_holds_the_bound(columns, mode):
    assert_bounded(peaks("columnar", columns, mode, COLUMNAR_WAYS))


@not_sanitized  # sanitizers keep freed memory
def test_a_shard_by_itself_is_scanned_within_a_bound(tars):
    assert_bounded(peaks("tar", tars, "mmap", ["of_shard"]))


def test_without_a_limit_memory_is_exceeded(tars):
    """Check the measurement: without a limit all bytes stay resident."""
    found = peaks("tar", tars, "private", ["single"], 1 << 40)
    assert found["single"] > 0.9 * COUNT * SIZE


@pytest.fixture
def folder(tmp_path):
    pool = random.Random(0).randbytes(2 * SIZE)
    data = {f"{i:04d}.bin": pool[i : i + 50_000] for i in range(200)}
    write_tar(tmp_path / "s.tar", data)
    fastshard.build_index(tmp_path)
    return tmp_path


def content(folder):
    with fastshard.open(folder) as ds:
        return [bytes(sample["bin"]) for sample in ds]


def test_written_samples_are_never_lost(folder):
    before = content(folder)
    expected = [bytearray(data) for data in before]
    rng = random.Random(1)
    ds = fastshard.open(folder, mode="private", max_memory="256KiB")
    kept = {}
    for turn in range(5):
        for i in rng.sample(range(200), 60):
            view = ds[i]["bin"]
            at = rng.randrange(len(view))
            view[at] = expected[i][at] = rng.randrange(256)
            if turn == 0 and i % 4 == 0:
                kept[i] = view
        for i in rng.sample(range(200), 200):
            assert ds[i]["bin"] == expected[i]
        for i, sample in enumerate(ds):
            assert sample["bin"] == expected[i]
        ds.read_into(range(200), bytearray(200 * 50_000), fields="bin")
    assert all(view == expected[i] for i, view in kept.items())
    assert content(folder) == before


def test_writes_beside_readers_are_never_lost(folder):
    ds = fastshard.open(folder, mode="private", max_memory="128KiB")
    len(ds)

    def write(thread):
        rng = random.Random(thread)
        mine = range(thread, 200, 4)
        expected = {i: {} for i in mine}
        for _ in range(400):
            i = rng.choice(mine)
            view = ds[i]["bin"]
            for at, value in expected[i].items():
                assert view[at] == value
            at, value = rng.randrange(len(view)), rng.randrange(256)
            view[at] = expected[i][at] = value
            del view
            bytes(ds[rng.randrange(200)]["bin"][::4096])

    in_threads(write)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_keeps_its_writes_and_the_bound(folder):
    ds = fastshard.open(folder, mode="private", max_memory="256KiB")
    mine = ds[3]["bin"]
    mine[:4] = b"both"
    for sample in ds:
        bytes(sample["bin"])
    child = os.fork()
    if child == 0:
        good = False
        try:
            ds[5]["bin"][:4] = b"mine"
            for _ in range(3):
                for sample in ds:
                    bytes(sample["bin"])
            good = ds[5]["bin"][:4] == b"mine" and ds[3]["bin"][:4] == b"both"
            good = good and ds.shards[0].path and ds[3]["bin"] == mine
        finally:
            os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert ds[5]["bin"][:4] != b"mine"


def test_pages_written_by_the_caller_stay(folder):
    """Private pages stay; the limit is for the other pages."""
    ds = fastshard.open(folder, mode="private", max_memory="256KiB")
    for i in range(100):
        ds[i]["bin"][:] = bytes(50_000)
    for i in range(100, 200):
        bytes(ds[i]["bin"])
    assert 100 * 48_000 < resident(folder / "s.tar") < 100 * 58_000 + MB


def test_views_that_are_kept_stay_valid_and_are_released(folder):
    expected = content(folder)
    ds = fastshard.open(folder, max_memory="512KiB")
    views = [ds[i]["bin"] for i in range(200)]
    assert views == expected
    for i in range(200):  # each evicts others
        bytes(ds[i]["bin"])
    assert resident(folder / "s.tar") < 5 * MB
    assert views == expected
    del views
    for i in range(150):
        bytes(ds[i]["bin"])
    assert resident(folder / "s.tar") < 1 * MB


def test_a_view_outlives_the_dataset_and_its_bound(folder):
    expected = content(folder)
    ds = fastshard.open(folder, max_memory="128KiB")
    views = [ds[i]["bin"] for i in range(0, 200, 10)]
    ds.close()
    del ds
    gc.collect()
    assert views == expected[::10]


def test_single_reads_leave_the_page_cache_as_small(folder):
    path = folder / "s.tar"
    ds = fastshard.open(folder, max_memory="512KiB", keep_cache=False)
    for i in range(200):
        bytes(ds[i]["bin"])
    del ds
    gc.collect()
    assert cached(path) < 5 * MB
    evict(path)


def test_a_sample_larger_than_the_bound_is_there_whole(folder):
    big = folder / "more" / "big.tar"
    big.parent.mkdir()
    data = {"0.bin": bytes(8 * MB), "1.bin": b"x" * 100_000, "2.bin": b"y" * 100_000}
    write_tar(big, data)
    ds = fastshard.open(big, max_memory="1MiB")
    view = ds[0]["bin"]
    assert view == data["0.bin"]
    assert resident(big) >= 8 * MB
    del view
    for _ in range(10):
        for i in (1, 2):
            assert ds[i]["bin"] == data[f"{i}.bin"]
    assert resident(big) <= MB + 128 * 1024


def test_handles_and_threads_share_a_bound(folder):
    ds = fastshard.open(folder, max_memory="512KiB")
    most = []

    def read(thread):
        shard = ds.shards[0]
        for i in random.Random(thread).sample(range(200), 200):
            bytes(shard[i])
            if i % 16 == 0:
                most.append(resident(folder / "s.tar"))

    in_threads(read)
    assert max(most) < 2 * MB


def test_a_ring_drops_unmapped_ranges(folder):
    ds = fastshard.open(folder, max_memory="1MiB")
    ring = ring_of(ds)
    for i in range(100):
        bytes(ds[i]["bin"])
    assert 0 < ring.nbytes <= MB
    ds.close()
    gc.collect()
    assert ring.nbytes == 0
    assert PageRing(1).nbytes == 0


def test_dropped_iterations_are_freed(folder):
    with fastshard.open_shard(folder / "s.tar") as shard:
        for _ in range(20):
            iteration = shard.scan(max_memory="256KiB")
            bytes(next(iteration))
            del iteration
        assert shard[5] == content(folder)[5]


def test_a_bounded_dataset_without_a_bound_on_its_index(folder):
    """The limit is pickled with a reader; each process has its own ring."""
    import pickle

    ds = pickle.loads(pickle.dumps(fastshard.open(folder, max_memory="512KiB")))
    for i in range(200):
        bytes(ds[i]["bin"])
    assert resident(folder / "s.tar") < MB


def test_a_reader_pickles_with_its_bound(columns):
    import pickle

    with ShardedDatasetReader(columns, max_memory="2MiB") as first:
        reader = pickle.loads(pickle.dumps(first))
    for i in range(0, COUNT, 4):
        assert reader.samples[i]["x"][-1] == i % 256
    assert sum(resident(path) for path in Path(columns).rglob("*.tar")) < 3 * MB
    reader.close()
