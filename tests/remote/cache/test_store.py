"""Disk cache: stored bytes are found in all threads and processes."""

import os
import random
import subprocess
import sys
import threading
import time
import warnings
from itertools import pairwise
from pathlib import Path

import pytest

from fastshard.remote.cache.ranges import PIECE, Ranges
from fastshard.remote.cache.store import RangeCache
from fastshard.remote.transport import ObjectInfo
from support.cache import (
    INFO,
    OBJECT,
    URL,
    add,
    assert_right_or_missing,
    posix,
    random_range,
    read,
    reopen,
)
from support.inside.remote import cache_of, files_of


@pytest.mark.parametrize("seed", range(6))
def test_an_entry_has_exactly_the_stored_bytes(folder, seed):
    rng = random.Random(seed)
    filled = bytearray(len(OBJECT))  # the oracle: 1 where a byte was added
    entry = reopen(folder)
    for step in range(60):
        offset, size = random_range(rng)
        if step % 2:
            add(entry, offset, size)
            filled[offset : offset + size] = b"\1" * size
        offset, size = random_range(rng)
        is_stored = filled[offset : offset + size].count(1) == size
        assert entry.has(offset, size) == is_stored
        assert read(entry, offset, size) == (
            OBJECT[offset : offset + size] if is_stored else None
        )
        present = bytearray(b"\1" * size)
        for start, nbytes in entry.missing(offset, size):
            assert nbytes > 0
            present[start - offset : start - offset + nbytes] = bytes(nbytes)
        assert present == filled[offset : offset + size]
        if rng.random() < 0.1:
            entry = reopen(folder)
    assert entry.is_whole() == (0 not in filled)


def test_random_ranges_merge_as_a_set_does():
    rng = random.Random(3)
    for _ in range(100):
        nbytes = rng.choice([1, 50, PIECE + 50])
        base = max(0, nbytes - 50)
        ranges, oracle = Ranges(nbytes), set()
        for _ in range(20):
            start, end = sorted(rng.choices(range(base, nbytes + 1), k=2))
            if start < end and start // PIECE == (end - 1) // PIECE:
                oracle.update(range(start, end))
                if rng.random() < 0.5:
                    ranges.add_verified(start, end)
                else:
                    ranges.add_unverified((start, end, 0))
        gaps = ranges.gaps(base, nbytes)
        missing = [i for a, b in gaps for i in range(a, b)]
        assert missing == [i for i in range(base, nbytes) if i not in oracle]
        assert all(b < a for (_, b), (a, _) in pairwise(gaps))


def test_an_entry_is_whole_after_the_last_byte(folder, entry):
    add(entry, 0, len(OBJECT) - 1)
    assert not entry.is_whole()
    add(entry, len(OBJECT) - 1, 1)
    assert entry.is_whole()
    assert reopen(folder).is_whole()
    assert Path(entry.path).read_bytes() == OBJECT


def test_an_empty_object_is_whole(folder):
    entry = RangeCache(folder).entry(URL, ObjectInfo(0, "t", 0))

    assert entry.is_whole()
    assert read(entry, 0, 0) == b""
    assert entry.missing(0, 10) == []


@pytest.mark.parametrize(
    ("offset", "size"), [(-1, 2), (len(OBJECT), 1), (0, len(OBJECT) + 1), (2**63, 1)]
)
def test_ranges_outside_the_object_are_never_stored(entry, offset, size):
    entry.add(offset, b"x" * size)

    assert read(entry, offset, size) is None
    assert not entry.has(offset, size)
    assert os.path.getsize(entry.path) == len(OBJECT)


def test_views_of_items_of_several_bytes_are_filled(entry):
    add(entry, 0, 800)
    view = memoryview(bytearray(800)).cast("d")

    assert entry.read_into(0, view)
    assert bytes(view) == OBJECT[:800]


def test_versions_and_equal_basenames_have_entries_of_their_own(folder):
    cache = RangeCache(folder)
    keys = [
        (URL, INFO),
        (URL, INFO._replace(tag='"v2"')),
        (URL, INFO._replace(nbytes=INFO.nbytes + 1)),
        (URL.replace("/a/", "/b/"), INFO),
    ]
    entries = [cache.entry(*key) for key in keys]
    for i, entry in enumerate(entries):
        entry.add(i, bytes([i]) * 10)

    assert len({entry.path for entry in entries}) == len(keys)
    for i, entry in enumerate(entries):
        assert read(entry, i, 10) == bytes([i]) * 10
        assert entry.missing(0, 20) == [
            (j, n) for j, n in [(0, i), (i + 10, 10 - i)] if n
        ]


def test_invalid_objects_and_limits_are_refused(folder):
    cache = RangeCache(folder)
    with pytest.raises(ValueError, match="cannot tell versions"):
        cache.entry(URL, ObjectInfo(10, "", 0))
    for nbytes in (-1, 2**63):
        with pytest.raises(ValueError, match="must be 0 to"):
            cache.entry(URL, ObjectInfo(nbytes, "t", 0))
    with pytest.raises(ValueError, match="must be positive"):
        RangeCache(folder, limit=0)


def test_latest_info_is_that_of_the_last_opened_version(folder):
    cache = RangeCache(folder)
    assert cache.latest_info(URL) is None
    newer = INFO._replace(tag='"v2"', mtime_ns=10**21)
    for info in (INFO, newer, INFO):
        cache.entry(URL, info)
        time.sleep(0.01)
        assert RangeCache(folder).latest_info(URL) == info
    assert cache.latest_info(URL + "x") is None


def test_another_mtime_of_the_same_version_is_stored(folder, entry):
    add(entry, 0, 10)
    later = INFO._replace(mtime_ns=5)

    again = RangeCache(folder).entry(URL, later)

    assert read(again, 0, 10) == OBJECT[:10]
    assert RangeCache(folder).latest_info(URL) == later


def test_sidecars_are_beside_the_data(entry):
    assert os.path.dirname(entry.sidecar("index.fsi")) == os.path.dirname(entry.path)
    for name in ["", "data", "used", ".x", "a/b", "..", "a\0"]:
        with pytest.raises(ValueError, match="not a name"):
            entry.sidecar(name)


def test_a_closed_entry_is_empty(folder, entry):
    add(entry, 0, 10)
    entry.close()
    add(entry, 10, 10)

    assert read(entry, 0, 10) is None
    assert not entry.is_whole()
    assert entry.missing(5, 10) == [(5, 10)]
    assert reopen(folder).missing(0, 20) == [(10, 10)]


@posix
def test_only_the_owner_may_read(entry):
    for path in [Path(entry.folder), *Path(entry.folder).iterdir()]:
        assert path.stat().st_mode & 0o077 == 0


# Threads and processes


def test_an_entry_sees_bytes_stored_by_another(folder, entry):
    other = reopen(folder)
    for i in range(0, 1000, 10):
        add(other, i, 10)
        assert read(entry, i, 10) == OBJECT[i : i + 10]


def test_threads_fill_one_entry(folder, entry):
    def work(seed):
        rng = random.Random(seed)
        for _ in range(40):
            add(entry, *random_range(rng))
            offset, size = random_range(rng)
            data = read(entry, offset, size)
            right.append(data in (None, OBJECT[offset : offset + size]))

    right = []
    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert right == [True] * 160
    assert_right_or_missing(reopen(folder), random.Random(9))


def test_threads_verify_while_others_close(folder, entry):
    """A descriptor reused by another file would give wrong bytes."""
    add(entry, 0, len(OBJECT))

    def work(seed):
        for step in range(60):
            data = read(entries[0], 1000 * step, 1000)
            right.append(data in (None, OBJECT[1000 * step : 1000 * step + 1000]))

    right = []
    entries = [reopen(folder)]
    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        old, entries[0] = entries[0], reopen(folder)
        old.close()
        with open(sys.executable, "rb") as file:
            file.read(1)
    assert all(right)


FILLS = """
import random, sys
from fastshard.remote.cache.store import RangeCache
from fastshard.remote.transport import ObjectInfo
folder, url, tag, nbytes, seed = sys.argv[1:]
rng = random.Random(1)
data = rng.randbytes(int(nbytes))
entry = RangeCache(folder).entry(url, ObjectInfo(len(data), tag, 0))
rng = random.Random(int(seed))
offsets = list(range(0, len(data), 10_000))
rng.shuffle(offsets)
view = memoryview(bytearray(10_000))
for offset in offsets[: len(offsets) * 2 // 3]:
    entry.add(offset, data[offset : offset + 10_000])
    offset = rng.choice(offsets[:-1])
    if entry.read_into(offset, view[: len(data[offset : offset + 10_000])]):
        assert view[: len(data) - offset] == data[offset : offset + 10_000]
"""


def test_processes_fill_one_entry(folder, tmp_path):
    script = tmp_path / "fills.py"
    script.write_text(FILLS)
    arguments = [sys.executable, script, folder, URL, INFO.tag, str(len(OBJECT))]
    running = [subprocess.Popen([*arguments, str(seed)]) for seed in range(4)]

    assert [one.wait(60) for one in running] == [0] * 4
    rng = random.Random(0)
    expected = set()
    for seed in range(4):
        offsets = list(range(0, len(OBJECT), 10_000))
        random.Random(seed).shuffle(offsets)
        expected.update(offsets[: len(offsets) * 2 // 3])
    entry = reopen(folder)
    for offset in expected:
        data = OBJECT[offset : offset + 10_000]
        assert read(entry, offset, len(data)) == data
    assert_right_or_missing(entry, rng)


def in_child(work):
    with warnings.catch_warnings():
        # Python warns of a fork in a process with threads.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@posix
def test_a_forked_child_uses_the_entry(entry):
    add(entry, 0, 100)

    def work():
        assert read(entry, 0, 100) == OBJECT[:100]
        add(entry, 100, 100)

    assert in_child(work) == 0
    assert read(entry, 0, 200) == OBJECT[:200]


@posix
def test_a_child_forked_while_locks_are_held_uses_the_entry(folder):
    entry = RangeCache(folder, limit="1GB").entry(URL, INFO)
    add(entry, 0, 100)

    def work():
        assert read(entry, 0, 100) == OBJECT[:100]
        add(entry, 100, 100)
        assert read(entry, 0, 200) == OBJECT[:200]

    with files_of(entry).lock, cache_of(entry).lock:
        assert in_child(work) == 0
    assert read(entry, 0, 200) == OBJECT[:200]
