"""Iteration in forked processes."""

import gc
import multiprocessing
import os
import random
import subprocess
import sys
import time
import warnings

import pytest

import fastshard
from support.marks import thin
from support.memory import evict
from support.tars import write_tar
from support.workers import keys_and_starts

COUNT, SIZE = 200, 60_000


def payload(i):
    return random.Random(i).randbytes(SIZE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fork")
    for k in range(2):
        data = {f"{i:03d}.bin": payload(i) for i in range(k * 100, k * 100 + 100)}
        write_tar(folder / f"f-{k}.tar", data)
    fastshard.build_index(folder)
    return folder


def in_child(work):
    """Run a function in a forked child; return its exit code, or None if it hangs."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # fork with threads is tested on purpose
        child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return None


def cold(folder, **options):
    gc.collect()
    evict(*folder.glob("*.tar"))
    return fastshard.open(folder, **options)


@pytest.mark.parametrize("options", [{}, {"max_memory": "2MB", "keep_cache": False}])
def test_a_child_continues_its_parents_iteration(folder, options):
    ds = cold(folder, **options)
    order = random.Random(5).sample(range(COUNT), COUNT)
    iteration = ds.iter(order=order, window=8)
    taken = [next(iteration) for _ in range(20)]

    def rest():
        found = [(s.key, bytes(s["bin"])) for s in iteration]
        assert found == [(f"{i:03d}", payload(i)) for i in order[20:]]
        assert [s.key for s in taken] == [f"{i:03d}" for i in order[:20]]

    assert in_child(rest) == 0
    rest()  # the parent's iteration continues


@pytest.mark.parametrize("how", ["drop", "close", "new", "single", "exit"])
def test_a_child_leaves_its_parents_iteration_unchanged(folder, how):
    ds = cold(folder)
    iteration = ds.iter(order=list(range(COUNT - 1, -1, -1)))
    next(iteration)
    holder = [iteration]

    def work():
        if how == "drop":
            holder.clear()
            gc.collect()
        elif how == "close":
            holder[0].close()
        elif how == "new":
            assert [s.key for s in ds.iter(order=[3, 150])] == ["003", "150"]
        elif how == "single":
            assert ds[77]["bin"] == payload(77)

    del iteration
    assert in_child(work) == 0
    assert len(list(holder[0])) == COUNT - 1


def test_many_forks_of_a_process_that_iterates(folder):
    ds = cold(folder)
    codes = []
    order = [(37 * i) % COUNT for i in thin(range(300), 3)]
    for i, sample in zip(order, ds.iter(order=order, window=5), strict=True):

        def work(i=i, sample=sample):
            assert sample["bin"] == payload(i)
            assert ds[(i + 9) % COUNT]["bin"] == payload((i + 9) % COUNT)

        codes.append(in_child(work))
        assert sample["bin"] == payload(i)
        if len(codes) % 50 == 0:
            evict_unmapped(folder)
    assert codes == [0] * len(order)


def evict_unmapped(folder):
    """Evict from the page cache the pages that this process does not map."""
    for path in folder.glob("*.tar"):
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def test_forks_of_forks(folder):
    ds = cold(folder)
    iteration = ds.iter(order=list(range(COUNT)), window=4)
    next(iteration)

    def grandchild():
        assert len([bytes(s["bin"]) for s in iteration]) == COUNT - 2

    def child():
        next(iteration)
        assert in_child(grandchild) == 0
        assert len(list(iteration)) == COUNT - 2

    assert in_child(child) == 0


def test_a_fork_without_an_iteration_causes_no_warning(folder):
    code = (
        "import os, sys, warnings, fastshard\n"
        "warnings.simplefilter('error')\n"
        "ds = fastshard.open(sys.argv[1])\n"
        "for path in ds.shards.paths:\n"
        "    fd = os.open(path, os.O_RDONLY)\n"
        "    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)\n"
        "assert len(list(ds.iter(order=list(range(len(ds)))))) == len(ds)\n"
        "ds.get_many(range(50)); ds[3]['bin']\n"
        "ds.read_into(range(200), bytearray(200 * 60_000), threads=4)\n"
        "child = os.fork()\n"
        "if child == 0: os._exit(len(ds) != 200)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
    )
    gc.collect()
    evict(*folder.glob("*.tar"))
    done = subprocess.run(
        [sys.executable, "-c", code, folder], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("start", ["fork", "forkserver", "spawn"])
def test_pools_of_processes(folder, start):
    ds = cold(folder)
    context = multiprocessing.get_context(start)
    parts = [ds[k::4] for k in range(4)]
    with context.Pool(4) as pool:
        found = pool.map(keys_and_starts, parts)
    assert sorted(pair for part in found for pair in part) == [
        (f"{i:03d}", payload(i)[:9]) for i in range(COUNT)
    ]
