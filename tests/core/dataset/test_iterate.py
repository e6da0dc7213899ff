"""Prefetching iterators: items, errors, and the end of their threads."""

import copy
import errno
import gc
import os
import random
import shutil
import subprocess
import sys
import threading
import time
import traceback

import numpy as np
import pytest

import fastshard
from fastshard import ClosedError, FormatError
from fastshard.dataset.tarset import TarSet
from support.inside.datasets import shards_of
from support.memory import cached, evict, is_cached
from support.tars import write_tar
from support.threads import started_since, thread_ids

SHARDS, EACH = 4, 60
WINDOWS = [0, 1, 2, 7, 32, 1000]


def payload(i, field):
    rng = random.Random(f"{i}{field}")
    return rng.randbytes(rng.choice([0, 3, 700, 9000, 90_000]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cold")
    for k in range(SHARDS):
        data = {
            f"{i:04d}.{field}": payload(i, field)
            for i in range(k * EACH, (k + 1) * EACH)
            for field in ("a", "b")
        }
        write_tar(folder / f"s-{k}.tar", data)
    fastshard.build_index(folder)  # so that no header is scanned
    return folder


@pytest.fixture
def cold(folder):
    """Return the folder with its files evicted from the page cache."""
    gc.collect()
    paths = sorted(folder.glob("*.tar"))
    evict(*paths)
    assert sum(map(cached, paths)) == 0
    return folder


def descriptors():
    return set(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("mode", ["mmap", "private", "pread"])
def test_a_scan_yields_all_samples_in_order(cold, mode, window):
    ds = fastshard.open(cold, mode=mode)
    found = [(s.key, bytes(s["a"]), bytes(s["b"])) for s in ds.iter(window=window)]
    assert found == [
        (f"{i:04d}", payload(i, "a"), payload(i, "b")) for i in range(SHARDS * EACH)
    ]


@pytest.mark.parametrize("order", [None, range(SHARDS * EACH)])
def test_a_shard_that_does_not_open_ahead_is_opened_in_its_turn(
    cold, monkeypatch, order
):
    open_shard, keys, failed_after = TarSet.open_shard, [], []

    def failing(self, k):
        if k == 1 and len(keys) < EACH:
            failed_after.append(len(keys))
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return open_shard(self, k)

    monkeypatch.setattr(TarSet, "open_shard", failing)
    for sample in fastshard.open(cold).iter(order=order):
        assert bytes(sample["a"]) == payload(int(sample.key), "a")
        keys.append(sample.key)

    assert keys == [f"{i:04d}" for i in range(SHARDS * EACH)]
    assert failed_after  # tried ahead of its turn
    assert len(failed_after) < EACH / 2  # but not again until its turn


def test_failed_openings_skip_one_sample_each(folder, monkeypatch):
    open_shard, failures = TarSet.open_shard, [True] * 3

    def failing(self, k):
        if k == 1 and failures:
            failures.pop()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return open_shard(self, k)

    monkeypatch.setattr(TarSet, "open_shard", failing)
    items = fastshard.open(folder, prefetch=False).iter(on_error="skip")
    keys = [sample.key for sample in items]

    assert items.skipped == 3
    assert keys == [
        f"{i:04d}" for i in range(SHARDS * EACH) if not EACH <= i < EACH + 3
    ]


@pytest.mark.parametrize("window", WINDOWS)
def test_a_scan_follows_any_order(cold, window):
    ds = fastshard.open(cold)
    order = random.Random(window).choices(range(-len(ds), len(ds)), k=200)
    found = [(s.key, bytes(s["b"])) for s in ds.iter(order=order, window=window)]
    positions = [i % len(ds) for i in order]
    assert found == [(f"{i:04d}", payload(i, "b")) for i in positions]


@pytest.mark.parametrize("bound", [1, 4096, "1MB", "1GiB"])
@pytest.mark.parametrize("keep_cache", [True, False])
def test_a_memory_limit_does_not_change_the_samples(cold, bound, keep_cache):
    ds = fastshard.open(cold, max_memory=bound, keep_cache=keep_cache)
    for order in (None, range(len(ds) - 1, -1, -1)):
        found = [(s.key, bytes(s["a"])) for s in ds.iter(order=order)]
        positions = range(len(ds)) if order is None else order
        assert found == [(f"{i:04d}", payload(i, "a")) for i in positions]


@pytest.mark.parametrize("window", WINDOWS)
def test_a_shard_is_scanned(cold, window):
    path = cold / "s-1.tar"
    names = [f"{i:04d}.{f}" for i in range(EACH, 2 * EACH) for f in "ab"]
    data = [payload(int(name[:4]), name[5:]) for name in names]
    with fastshard.open_shard(path) as shard:
        assert [bytes(view) for view in shard.scan(window=window)] == data
    evict(path)
    with fastshard.open_shard(path) as shard:
        order = np.array([5, -1, 7, 7, 0])
        found = [bytes(view) for view in shard.scan(order, window)]
        assert found == [data[i] for i in order]
        with pytest.raises(IndexError, match="range"):
            shard.scan([len(shard)])
        with pytest.raises(TypeError):
            shard.scan([1.5])


def test_only_selected_fields_are_prefetched(tmp_path):
    data = {f"{i:03d}.{f}": random.randbytes(300_000) for i in range(40) for f in "ab"}
    path = write_tar(tmp_path / "two.tar", data)
    ds = fastshard.open(path)
    assert len(ds) == 40
    evict(path)
    found = [
        bytes(s["b"]) for s in ds.select_fields("b").iter(order=list(range(39, -1, -1)))
    ]
    assert found == [data[f"{i:03d}.b"] for i in range(39, -1, -1)]
    del ds
    assert cached(path) < 0.8 * path.stat().st_size


def test_samples_are_in_memory_before_they_are_yielded(cold):
    ds = fastshard.open(cold)
    for sample in ds.iter(order=list(range(len(ds) - 1, -1, -3)), window=4):
        shard = sample.shard
        for field in sample:
            offset, size = shard.parts()[1].extent(sample.member(field))
            assert is_cached(shard.path, offset, size)


def test_a_single_read_populates_a_cold_member(cold):
    path = cold / "s-0.tar"
    with fastshard.open_shard(path) as shard:
        i = int(np.argmax(shard.sizes))
        offset, size = int(shard.offsets[i]), int(shard.sizes[i])
        assert not is_cached(path, offset, size)
        shard[i]  # not touched
        assert is_cached(path, offset, size)


def test_a_batch_is_populated_when_requested(cold):
    ds = fastshard.open(cold)
    samples = ds.get_many([200, 3, 77])
    for sample in samples:
        for field in sample:
            offset, size = sample.shard.parts()[1].extent(sample.member(field))
            assert size == 0 or is_cached(sample.shard.path, offset, size)
    assert [s.key for s in samples] == ["0200", "0003", "0077"]
    views = ds.members.get_many([0, 399])
    assert [bytes(v) for v in views] == [payload(0, "a"), payload(199, "b")]


def test_prefetch_false_starts_no_thread_and_populates_nothing(cold):
    before = thread_ids()
    ds = fastshard.open(cold, prefetch=False)
    iteration = ds.iter()
    next(iteration)
    ds.get_many([100])
    assert not thread_ids() - before
    path = cold / "s-3.tar"
    with fastshard.open_shard(path, prefetch=False) as shard:
        i = int(np.argmax(shard.sizes))
        shard[i]
        assert not is_cached(path, int(shard.offsets[i]), int(shard.sizes[i]))


def test_the_thread_ends_with_the_iteration(cold):
    before = thread_ids()
    ds = fastshard.open(cold)
    iteration = ds.iter(order=list(range(len(ds))))
    next(iteration)
    assert len(thread_ids() - before) == 1
    for _ in iteration:
        pass
    assert not started_since(before)


@pytest.mark.parametrize("how", ["drop", "close", "raise", "cycle"])
def test_an_iteration_that_stops_early_ends_its_thread(cold, how):
    before, files = thread_ids(), descriptors()
    ds = fastshard.open(cold)
    iteration = ds.iter(order=[7, 200, 3, 150] * 50)
    next(iteration)
    assert len(thread_ids() - before) == 1
    if how == "close":
        iteration.close()
        with pytest.raises(StopIteration):
            next(iteration)
    elif how == "raise":
        with pytest.raises(ZeroDivisionError):
            [len(sample) / 0 for sample in iteration]
        del iteration
    elif how == "cycle":
        loop = [iteration]
        loop.append(loop)
        del iteration, loop
        gc.collect()
    else:
        del iteration
    assert not started_since(before)
    del ds
    gc.collect()
    assert not descriptors() - files


def test_many_iterations_leave_nothing(cold):
    ds = fastshard.open(cold)
    before = thread_ids()
    for k in range(100):
        iteration = ds.iter(order=[(7 * k) % 240, 200, 3], window=2)
        assert next(iteration).key == f"{(7 * k) % 240:04d}"
        if k % 20 == 0:
            del ds, iteration
            gc.collect()
            evict(*cold.glob("*.tar"))
            ds = fastshard.open(cold)
    del iteration, ds
    gc.collect()
    assert not started_since(before)


@pytest.mark.parametrize("window", [1, 32])
def test_a_dataset_closed_under_a_scan(cold, window):
    ds = fastshard.open(cold)
    iteration = ds.iter(window=window)
    kept = next(iteration)["a"]
    ds.close()
    with pytest.raises(ClosedError):
        for _ in iteration:
            pass
    assert kept == payload(0, "a")


def test_a_shard_closed_under_a_scan(cold):
    shard = fastshard.open_shard(cold / "s-0.tar")
    iteration = iter(shard)
    kept = next(iteration)
    shard.close()
    with pytest.raises(ClosedError):
        next(iteration)
    assert kept == payload(0, "a")


def test_errors_are_raised_at_the_positions_of_their_samples(cold, tmp_path):
    data = {"a.x": b"1", "b.x": b"2", "c.x": b"3", "c.X": b"twice", "d.x": b"4"}
    ds = fastshard.open(write_tar(tmp_path / "twice.tar", data))
    evict(tmp_path / "twice.tar")
    iteration = ds.iter()
    assert [next(iteration).key, next(iteration).key] == ["a", "b"]
    with pytest.raises(FormatError, match="twice"):
        next(iteration)
    assert next(iteration).key == "d"
    skipping = ds.iter(on_error="skip", order=[3, 2, 0])
    assert [s.key for s in skipping] == ["d", "a"]
    assert (skipping.skipped, skipping.position) == (1, 3)


def test_a_missing_field_is_an_error_at_the_position_of_its_sample(cold, tmp_path):
    ds = fastshard.open(write_tar(tmp_path / "m.tar", {"a.x": b"1", "b.y": b"2"}))
    iteration = ds.select_fields("x").iter()
    assert bytes(next(iteration)["x"]) == b"1"
    with pytest.raises(fastshard.FieldNotFoundError):
        next(iteration)


def test_stages_run_when_their_sample_is_yielded(cold):
    ran = []
    ds = fastshard.open(cold).map(lambda s: ran.append(s.key) or s.key)
    iteration = ds.iter(window=50)
    assert (next(iteration), ran) == ("0000", ["0000"])
    assert list(ds.iter(order=[3, 1])) == ["0003", "0001"]


def test_threads_that_share_an_iterator_lose_no_sample(cold):
    iteration = fastshard.open(cold).iter(order=[*range(240)] * 20)
    seen, unexpected = [], []

    def run():
        while True:
            try:
                seen.append(next(iteration).key)
            except StopIteration:
                return
            except ValueError as error:
                assert "another thread" in str(error)
            except BaseException as error:
                unexpected.append(error)
                raise

    workers = [threading.Thread(target=run) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not unexpected
    assert len(seen) == 240 * 20


def test_iterations_side_by_side(cold):
    ds = fastshard.open(cold)
    for one, other in zip(
        ds.iter(window=3), ds.iter(order=range(len(ds))), strict=True
    ):
        assert one.key == other.key
        assert one["a"] == other["a"]


def test_handles_in_threads_scan_at_once(cold):
    shard = fastshard.open_shard(cold / "s-2.tar")
    expected = [bytes(view) for view in fastshard.open_shard(cold / "s-2.tar")]
    results = []

    def run():
        results.append([bytes(view) for view in copy.copy(shard).scan(window=3)])

    workers = [threading.Thread(target=run) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert results == [expected] * 8


def test_a_bad_window_is_refused(folder):
    with pytest.raises(ValueError, match="window"):
        fastshard.open(folder).iter(window=-1)


def test_a_length_is_hinted(folder):
    ds = fastshard.open(folder)
    assert ds.iter(order=[1, 2, 3]).__length_hint__() == 3
    with fastshard.open_shard(folder / "s-0.tar") as shard:
        iteration = iter(shard)
        next(iteration)
        assert iteration.__length_hint__() == len(shard) - 1


def test_the_gil_is_free_while_a_scan_waits(tmp_path):
    data = {f"{i:04d}.bin": random.randbytes(400_000) for i in range(150)}
    path = write_tar(tmp_path / "large.tar", data)
    ds = fastshard.open(path)
    evict(path)
    ticks, stop = 0, threading.Event()

    def tick():
        nonlocal ticks
        while not stop.is_set():
            ticks += 1
            time.sleep(0.0002)

    ticker = threading.Thread(target=tick)
    ticker.start()
    total = sum(len(s["bin"]) for s in ds)
    stop.set()
    ticker.join()
    assert total == 150 * 400_000
    assert ticks > 1


def test_without_a_thread_the_consumer_does_the_work(cold):
    """If no thread can be started, the consumer's thread does the work."""
    code = (
        "import resource, sys, numpy, fastshard\n"
        "ds = fastshard.open(sys.argv[1])\n"
        "assert [len(shard) for shard in ds.shards]\n"
        "lines = [l.split() for l in open('/proc/self/status')]\n"
        "size = next(int(l[1]) << 10 for l in lines if l[0] == 'VmSize:')\n"
        "size += 6 << 20\n"  # less than the stack of a thread
        "resource.setrlimit(resource.RLIMIT_AS, (size, size))\n"
        "order = list(range(len(ds) - 1, -1, -1))\n"
        "found = [(s.key, len(bytes(s['a']))) for s in ds.iter(order=order)]\n"
        "assert [key for key, _ in found] == [f'{i:04d}' for i in order]\n"
        "print(sum(size for _, size in found))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, cold], capture_output=True, text=True
    )
    total = sum(len(payload(i, "a")) for i in range(SHARDS * EACH))
    assert (done.stdout, done.stderr) == (f"{total}\n", "")


def test_an_interrupted_opening_loses_no_shard(folder, monkeypatch):
    ds = fastshard.open(folder)
    open_shard = shards_of(ds).open_shard
    calls = []

    def interrupted(k):
        calls.append(k)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return open_shard(k)

    monkeypatch.setattr(shards_of(ds), "open_shard", interrupted)
    iteration = ds.iter(window=0)
    found = []

    def read():
        for sample in iteration:
            found.append(sample.key)

    with pytest.raises(KeyboardInterrupt):
        read()
    assert found == [f"{i:04d}" for i in range(EACH)]
    found += [sample.key for sample in iteration]
    assert found == [f"{i:04d}" for i in range(SHARDS * EACH)]


def test_tracebacks_of_repeated_errors_do_not_grow(cold, tmp_path):
    ds = fastshard.open(shutil.copytree(cold, tmp_path / "gone"))
    assert len(ds) == SHARDS * EACH
    (tmp_path / "gone" / "s-1.tar").unlink()
    lengths = []

    def note(error, position):
        lengths.append(len(list(traceback.walk_tb(error.__traceback__))))

    iteration = ds.iter(on_error=note)
    assert len(list(iteration)) == (SHARDS - 1) * EACH
    assert iteration.skipped == EACH
    assert lengths[0] == lengths[-1] < 10
