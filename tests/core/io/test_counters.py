"""Counters in shared memory."""

import mmap
import os
import pickle
import threading

import pytest

from fastshard._core.io.paging import Counters


def test_counters_add_up_over_threads_and_processes():
    memory = mmap.mmap(-1, 4096)
    counters = Counters(memory, 3)
    assert len(counters) == 3

    def count():
        for _ in range(10_000):
            counters.add(1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    child = os.fork()
    if child == 0:
        counters.add(2)
        os._exit(0)
    os.waitpid(child, 0)
    assert [counters[i] for i in range(3)] == [0, 40_000, 1]


def test_counters_check_bounds_and_alignment():
    counters = Counters(bytearray(16), 2)
    for i in (-1, 2, 2**40):
        with pytest.raises(IndexError, match="there are 2 counters"):
            counters.add(i)
        with pytest.raises(IndexError, match="there are 2 counters"):
            counters[i]
    for count in (3, -1, 2**60):
        with pytest.raises(ValueError, match="counters need an aligned buffer of"):
            Counters(bytearray(16), count)
    with pytest.raises(ValueError, match="counters"):
        Counters(memoryview(bytearray(32))[1:25], 1)
    with pytest.raises(BufferError):
        Counters(b"12345678", 1)
    with pytest.raises(TypeError):
        pickle.dumps(counters)
