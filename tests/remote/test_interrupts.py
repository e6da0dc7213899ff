"""Ctrl-C during remote reads and downloads: the next caller completes them."""

import sys
import threading
import time
from types import SimpleNamespace

import pytest

from fastshard.remote.cache import hashed
from fastshard.remote.cache.store import RangeCache
from fastshard.remote.scheduler import RangeRead
from support.inside.remote import paths_in_process
from support.threads import interrupt

URL = "https://host.example/x.tar"


class File:
    """A remote file whose bytes are all b"x"."""

    path = URL
    settings = SimpleNamespace(timeout=60.0)

    def read_range(self, start, end, parts, deadline):
        for _, view in parts:
            view[:] = b"x" * len(view)


def begin_read():
    data = bytearray(4)
    read = RangeRead(File(), 0)
    read.add(0, memoryview(data))
    return read, data


def claim_and_read(read):
    if read.claim():
        read.read()


def wait_in_thread(read):
    """Wait for a read, for 30 seconds at most."""
    thread = threading.Thread(target=read.wait, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


def test_a_claimed_read_that_was_interrupted_is_read_by_its_waiter():
    number, was_interrupted = 0, True
    while was_interrupted:
        number += 1
        read, data = begin_read()
        names = {"claim", "claim_and_read"}
        was_interrupted = interrupt(lambda r=read: claim_and_read(r), number, names)
        wait_in_thread(read)
        assert data == b"xxxx" or read.error is not None
    assert number > 3


def download(cache, entered):
    with hashed.locked(cache, URL, time.monotonic() + 60, lambda: False):
        entered.append(True)


@pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="signals come between `with` and its body"
)
def test_a_download_that_is_interrupted_before_it_begins_leaves_its_object_free(
    tmp_path,
):
    cache, entered, number = RangeCache(tmp_path), [], 0
    while not entered:
        number += 1
        interrupt(lambda: download(cache, entered), number, {"locked"})
        assert not paths_in_process()
    assert number > 3


def test_a_read_ends_once():
    read, data = begin_read()
    assert read.claim()
    read.read()
    read.fail(RuntimeError())  # by a thread that found it not begun
    assert read.done
    assert data == b"xxxx"
