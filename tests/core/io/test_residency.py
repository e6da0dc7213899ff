"""Limits on the memory and the page cache that reading uses."""

import gc
import os
import random

import pytest

import fastshard
from support.memory import cached, evict, resident
from support.tars import write_tar

MB = 1 << 20
SIZE, COUNT = 100_000, 600


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("memory")
    pool = random.Random(0).randbytes(SIZE + COUNT)
    for k in range(2):
        data = {f"{i:04d}.bin": pool[i : i + SIZE] for i in range(k, COUNT, 2)}
        write_tar(folder / f"m-{k}.tar", data)
    fastshard.build_index(folder)
    return folder


def total(folder, measure):
    return sum(measure(path) for path in folder.glob("*.tar"))


def peaks(folder, order=None, **options):
    """Scan; return the peaks of bytes in memory and in the page cache."""
    ds = fastshard.open(folder, **options)
    most = most_cached = 0
    for i, sample in enumerate(ds.iter(order=order)):
        assert sum(sample["bin"][::4096]) >= 0
        if i % 40 == 0:
            most = max(most, total(folder, resident))
            most_cached = max(most_cached, total(folder, cached))
    return most, most_cached


@pytest.mark.parametrize("is_cold", [True, False])
@pytest.mark.parametrize("shuffled", [True, False])
def test_a_scan_stays_within_max_memory(folder, is_cold, shuffled):
    order = random.Random(1).sample(range(COUNT), COUNT) if shuffled else None
    gc.collect()
    if is_cold:
        evict(*folder.glob("*.tar"))
    unbounded, _ = peaks(folder, order)
    assert unbounded > 50 * MB
    gc.collect()
    if is_cold:
        evict(*folder.glob("*.tar"))
    most, _ = peaks(folder, order, max_memory="16MiB")
    assert most <= 16 * MB


@pytest.mark.parametrize("shuffled", [True, False])
def test_keep_cache_false_bounds_the_page_cache(folder, shuffled):
    order = random.Random(2).sample(range(COUNT), COUNT) if shuffled else None
    gc.collect()
    evict(*folder.glob("*.tar"))
    most, most_cached = peaks(folder, order, max_memory="16MiB", keep_cache=False)
    assert most <= 16 * MB
    assert most_cached <= 45 * MB  # of 60 MB: pieces of 16 MB and their readahead
    gc.collect()
    assert total(folder, cached) <= 8 * MB


def test_a_scan_of_a_shard_stays_within_max_memory(folder):
    path = folder / "m-0.tar"
    gc.collect()
    evict(path)
    with fastshard.open_shard(path) as shard:
        most = 0
        for i, view in enumerate(shard.scan(max_memory="4MiB", keep_cache=False)):
            assert sum(view[::4096]) >= 0
            if i % 20 == 0:
                most = max(most, resident(path))
    assert most <= 4 * MB
    assert cached(path) <= 8 * MB


def test_views_of_released_pages_stay_valid(folder):
    ds = fastshard.open(folder, max_memory="1MB", keep_cache=False)
    kept = [sample["bin"] for sample in ds]
    again = fastshard.open(folder)
    assert all(view == again[i]["bin"] for i, view in enumerate(kept))


def test_writes_to_a_private_mapping_survive_the_release_of_pages(folder):
    ds = fastshard.open(folder, mode="private", max_memory="1MB", keep_cache=False)
    views = []
    for sample in ds:
        view = sample["bin"]
        view[:4] = b"mine"
        views.append(view)
    assert all(view[:4] == b"mine" for view in views)


def test_memory_info_counts_mapped_resident_and_buffered_bytes(folder):
    gc.collect()
    ds = fastshard.open(folder)
    assert ds.memory_info() == {"mapped": 0, "resident": 0, "buffered": 0}
    evict(*folder.glob("*.tar"))
    iteration = ds.iter(order=list(range(COUNT)))
    next(iteration)
    info = ds.memory_info()
    while (before := total(folder, resident)) != info["resident"]:
        info = ds.memory_info()  # the thread has populated more pages
        assert info["resident"] >= before
    assert info["mapped"] >= os.path.getsize(folder / "m-0.tar")
    assert info["resident"] > 0
    assert info["buffered"] >= 16 * SIZE
    del iteration
    assert ds.memory_info()["buffered"] == 0
    pread = fastshard.open(folder, mode="pread")
    pread[0]
    assert pread.memory_info()["mapped"] == 0


def test_bad_memory_bounds_are_refused(folder):
    for bound in (0, -1, "much"):
        with pytest.raises(ValueError, match="size"):
            fastshard.open(folder, max_memory=bound)
