"""One shard read by many threads, and by forked and spawned processes."""

import copy
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import fastshard
from fastshard import ClosedError
from support.marks import thin
from support.tars import write_tar
from support.workers import digest

THREADS = 16


@pytest.fixture
def many(tmp_path):
    data = {
        f"{i:05d}.{f}": random.Random(i).randbytes(i % 700)
        for i in range(2000)
        for f in ("a", "b")
    }
    return write_tar(tmp_path / "many.tar", data), data


@pytest.mark.parametrize("mode", ["mmap", "pread"])
def test_threads_read_one_shard_while_another_opens_and_closes(many, mode):
    path, data = many
    names = list(data)
    stop = threading.Event()

    def open_and_close():
        while not stop.is_set():
            with fastshard.open_shard(path, mode=mode) as other:
                view = other[3]
                assert len(other.samples) == 2000
            assert view == data[names[3]]

    def read(seed):
        rng = random.Random(seed)
        for _ in range(1000):
            name = rng.choice(names)
            assert shard[name] == data[name]
            assert shard.samples[name[:5]][name[6:]] == data[name]
        return True

    with fastshard.open_shard(path, mode=mode) as shard, ThreadPoolExecutor(17) as pool:
        churn = pool.submit(open_and_close)
        results = list(pool.map(read, range(THREADS)))
        stop.set()
        churn.result()
    assert results == [True] * THREADS


def test_concurrent_first_uses_agree(many):
    """The first thread builds the hash of names and the grouping."""
    path, data = many
    for _ in range(20):
        shard = fastshard.open_shard(path)
        barrier = threading.Barrier(THREADS)

        def use(name, shard=shard, barrier=barrier):
            handle = copy.copy(shard)
            barrier.wait()
            return handle.position(name), handle.samples.position(name[:5])

        with ThreadPoolExecutor(THREADS) as pool:
            found = list(pool.map(use, list(data)[:THREADS]))
        assert found == [(i, i // 2) for i in range(THREADS)]


def test_a_shard_closed_under_readers_raises_and_leaves_their_views(many):
    path, data = many
    first = next(iter(data.values()))
    for _ in thin(range(20), 4):
        shard = fastshard.open_shard(path)
        kept = []

        def read(shard=shard, kept=kept):
            try:
                while True:
                    kept.append(shard[0])
            except ClosedError:
                return

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.002)
        shard.close()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()
        assert all(view == first for view in kept[:100])


def test_the_scan_runs_without_the_gil(tmp_path):
    """A scan of 400,000 headers releases the GIL for other threads."""
    block = write_tar(tmp_path / "one.tar", {"a": b""}).read_bytes()[:512]
    path = tmp_path / "long.tar"
    path.write_bytes(block * 400_000 + bytes(1024))
    ticks, stop = 0, threading.Event()

    def scan():
        with fastshard.open_shard(path) as shard:
            stop.set()
            return len(shard)

    with ThreadPoolExecutor(1) as pool:
        switch = sys.getswitchinterval()
        sys.setswitchinterval(1e3)  # so that a thread that holds the GIL keeps it
        try:
            future = pool.submit(scan)
            while not stop.is_set():
                ticks += 1
                time.sleep(0)
            assert future.result() == 400_000
        finally:
            sys.setswitchinterval(switch)
    assert ticks > 10


def test_a_long_scan_can_be_interrupted(tmp_path):
    code = (
        "import fastshard, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "print('ready', flush=True)\n"
        "def scan():\n"  # a jump at the end of a try's own loop may lie outside of it
        "    while True: fastshard.open_shard(sys.argv[1])\n"
        "try: scan()\n"
        "except KeyboardInterrupt: print('interrupted')\n"
    )
    block = write_tar(tmp_path / "one.tar", {"a": b""}).read_bytes()[:512]
    path = tmp_path / "long.tar"
    path.write_bytes(block * 400_000 + bytes(1024))
    child = subprocess.Popen(
        [sys.executable, "-c", code, path], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=30)
    assert out == "interrupted\n"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("mode", ["mmap", "pread"])
def test_processes_read_a_pickled_shard(many, method, mode):
    path, _ = many
    with fastshard.open_shard(path, mode=mode) as shard:
        expected = digest(shard)
        with multiprocessing.get_context(method).Pool(2) as pool:
            found = pool.map(digest, [shard] * 4)
    assert {each[:3] for each in found} == {expected[:3]}
    assert expected[3] not in {each[3] for each in found}


@pytest.mark.parametrize("mode", ["mmap", "private", "pread"])
def test_a_forked_child_reads_a_shard_of_its_parent(many, mode):
    path, data = many
    shard = fastshard.open_shard(path, mode=mode)
    view = shard[5]
    expected = list(data.values())
    child = os.fork()
    if child == 0:
        right = [bytes(v) for v in shard] == expected and view == expected[5]
        shard.close()
        os._exit(0 if right and view == expected[5] else 1)
    assert [bytes(v) for v in shard] == expected
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_importing_leaves_the_gil_off():
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("this Python has a GIL")
    code = (
        "import pkgutil, sys, importlib, fastshard._core\n"
        "names = [module.name for module in pkgutil.walk_packages(\n"
        "    fastshard._core.__path__, 'fastshard._core.')]\n"
        "for name in names: importlib.import_module(name)\n"
        "print('fastshard._core.dataset.shard' in names, sys._is_gil_enabled())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True False\n", "")
