"""Disk cache: limits, eviction, removal, unwritable disks."""

import contextlib
import errno
import gc
import os
import shutil
import time
from pathlib import Path

import pytest

from fastshard import CacheWarning
from fastshard.remote.cache.directory import clear, list_objects
from fastshard.remote.cache.disk import try_lock_folder
from fastshard.remote.cache.store import RangeCache
from fastshard.remote.transport import ObjectInfo
from support.cache import INFO, OBJECT, URL, add, posix, read, reopen
from support.inside.remote import cache_of, files_of
from support.marks import not_sanitized
from support.processes import run_script
from support.servers.http import Server
from support.tars import write_tar

pytestmark = not_sanitized  # tests no C code


def add_entry(cache, name, nbytes, used_s):
    """Fill an entry, and set the time of its last use."""
    entry = cache.entry(name, ObjectInfo(nbytes, "t", 0))
    os.utime(Path(entry.folder, "used"), (used_s, used_s))
    entry.add(0, os.urandom(nbytes))
    return entry


@posix
def test_the_least_recently_used_entries_are_evicted_first(folder):
    cache = RangeCache(folder)
    for name, used_s in [("a", 30), ("b", 10), ("c", 20), ("d", 40)]:
        add_entry(cache, name, 1 << 20, used_s)
    assert [one.url for one in list_objects(folder)] == ["d", "a", "c", "b"]

    limited = RangeCache(folder, limit=(4 << 20) + (1 << 18))
    add_entry(limited, "e", 1 << 20, 50)

    assert {one.url for one in list_objects(folder)} == {"d", "a", "e"}
    assert sum(one.disk_bytes for one in list_objects(folder)) <= limited.limit * 0.9


@posix
def test_the_growing_entry_is_not_evicted(folder):
    cache = RangeCache(folder, limit=2 << 20)
    add_entry(cache, "b", 1 << 20, 10**9)
    entry = cache.entry(URL, INFO)
    os.utime(Path(entry.folder, "used"), (1, 1))  # the oldest
    add(entry, 0, 1 << 20)
    add(entry, 1 << 20, 1 << 19)

    assert read(entry, 0, 3 << 19) == OBJECT[: 3 << 19]
    assert [one.url for one in list_objects(folder)] == [URL]


@posix
def test_a_single_entry_never_exceeds_the_limit(folder):
    cache = RangeCache(folder, limit=1 << 20)
    entry = cache.entry(URL, INFO)
    for offset in range(0, len(OBJECT), 100_000):
        add(entry, offset, 100_000)

    assert sum(one.disk_bytes for one in list_objects(folder)) <= (1 << 20) + 30_000
    assert read(entry, 0, 500_000) == OBJECT[:500_000]


@posix
def test_a_removed_entry_stays_readable_and_is_recreated_by_add(folder, entry):
    add(entry, 0, 100)
    assert clear(folder) > 0
    assert read(entry, 0, 100) == OBJECT[:100]
    assert not entry.is_whole()

    add(entry, 100, 100)

    assert read(entry, 100, 100) == OBJECT[100:200]
    assert entry.missing(0, 200) == [(0, 100)]
    assert reopen(folder).missing(0, 200) == [(0, 100)]


@posix
def test_a_whole_entry_that_was_replaced_is_no_longer_whole(folder, entry):
    add(entry, 0, len(OBJECT))
    assert entry.is_whole()
    moved = Path(entry.folder).rename(folder / "moved")
    reopen(folder)

    assert moved.exists()
    assert not entry.is_whole()


@posix
def test_removed_files_do_not_stay_open(folder):
    cache = RangeCache(folder, limit=3 << 20)
    entries = [add_entry(cache, str(i), 1 << 20, i) for i in range(8)]

    assert sum(files_of(entry) is not None for entry in entries) <= 3
    assert read(entries[0], 0, 10) is None


def test_a_removal_is_atomic(folder, entry, monkeypatch):
    add(entry, 0, 100)
    monkeypatch.setattr(shutil, "rmtree", lambda *args, **options: None)
    clear(folder)
    monkeypatch.undo()
    (left,) = folder.glob("??/.*.gone")

    assert list_objects(folder) == []
    assert reopen(folder).missing(0, 100) == [(0, 100)]
    clear(folder, [])
    assert left.exists()
    clear(folder)
    assert not left.exists()


def test_abandoned_unfinished_entries_are_removed(folder, entry):
    above = Path(entry.folder).parent
    for name, age in [(".old.new", 7200), (".young.new", 60)]:
        (above / name).mkdir()
        os.utime(above / name, (time.time() - age,) * 2)
    clear(folder)

    assert [path.name for path in above.iterdir()] == [".young.new"]


@posix
def test_eviction_does_not_wait_for_another_process(folder):
    folder.mkdir()
    cache = RangeCache(folder, limit=1 << 20)
    with try_lock_folder(folder) as alone, try_lock_folder(folder) as second:
        assert alone
        assert not second
        for name in "abc":
            add_entry(cache, name, 1 << 19, 1)
    assert len(list_objects(folder)) == 3
    add_entry(cache, "d", 1 << 19, 1)
    assert len(list_objects(folder)) == 1


def test_list_objects_tells_whole_ones_and_clear_removes_only_the_given_ones(folder):
    cache = RangeCache(folder)
    assert list_objects(folder) == []
    assert clear(folder) == 0
    add(cache.entry(URL, INFO), 0, len(OBJECT))
    add(cache.entry("part", INFO), 0, 10)
    (folder / "mine.txt").write_text("keep")

    assert {(one.url, one.nbytes, one.whole) for one in list_objects(folder)} == {
        (URL, len(OBJECT), True),
        ("part", len(OBJECT), False),
    }
    assert clear(folder, ["other"]) == 0
    assert clear(folder, [URL]) >= len(OBJECT)
    assert [one.url for one in list_objects(folder)] == ["part"]
    assert clear(folder) > 0
    assert list_objects(folder) == []
    assert (folder / "mine.txt").read_text() == "keep"


# Unwritable disks


def fail(monkeypatch, name, code):
    def failing(*args, **options):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, name, failing)


@posix
@pytest.mark.parametrize("name", ["pwrite", "write"])
def test_a_full_disk_ends_storing_with_one_warning(folder, entry, monkeypatch, name):
    add(entry, 0, 1000)
    fail(monkeypatch, name, errno.ENOSPC)
    with pytest.warns(UserWarning, match="caching in .* has stopped") as caught:
        add(entry, 1000, 1000)
    assert len(caught) == 1
    add(entry, 2000, 1000)
    cache_of(entry).entry("other", INFO).add(0, b"x")
    monkeypatch.undo()
    add(entry, 3000, 1000)

    assert entry.missing(0, 4000) == [(1000, 3000)]
    assert read(entry, 0, 1000) == OBJECT[:1000]
    assert read(reopen(folder), 0, 1000) == OBJECT[:1000]


@posix
def test_a_partly_written_record_hides_no_later_one(folder, entry, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:13]))
    with pytest.warns(UserWarning, match="No space left"):
        add(entry, 0, 100)
    monkeypatch.undo()
    add(reopen(folder), 100, 100)

    assert reopen(folder).missing(0, 200) == [(0, 100)]


FILLS_UP = """
import resource, sys, warnings
from fastshard.remote.cache.store import RangeCache
from fastshard.remote.transport import ObjectInfo
entry = RangeCache(sys.argv[1]).entry("u", ObjectInfo(200_000, "t", 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for offset in range(0, 200_000, 30_000):
        entry.add(offset, b"x" * min(30_000, 200_000 - offset))
print(len(caught), entry.missing(0, 200_000))
"""


@posix
def test_a_file_size_limit_is_a_full_disk(folder, tmp_path):
    printed = run_script(tmp_path, FILLS_UP, folder)

    assert printed.strip() == "1 [(90000, 110000)]"


MAX_NBYTES = """
import resource, sys, warnings
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
import fastshard
url, cache = sys.argv[1:]
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for name in ("large-0", "small-0", "large-1"):
        with fastshard.open(f"{url}/{name}.tar", cache_dir=cache) as ds:
            assert [len(sample["bin"]) for sample in ds] == [90_000] * len(ds)
print([one.category.__name__ for one in caught], caught[0].message)
"""


@posix
def test_files_that_cannot_be_created_cause_one_warning(folder, tmp_path):
    files = {}
    for name, count in (("large-0", 5), ("small-0", 1), ("large-1", 5)):
        members = {f"{i}.bin": bytes(90_000) for i in range(count)}
        files[f"/{name}.tar"] = write_tar(tmp_path / name, members).read_bytes()
    with Server(files) as server:
        printed = run_script(tmp_path, MAX_NBYTES, server.url, folder)

    assert printed.startswith("['CacheWarning'] http://127.0.0.1:")
    assert "large-0.tar" in printed
    assert "File too large" in printed
    assert [one.url[-11:] for one in list_objects(folder)] == ["small-0.tar"]


@posix
def test_an_exceeded_quota_causes_a_warning(folder, monkeypatch):
    monkeypatch.setattr(os, "ftruncate", no_quota)
    cache = RangeCache(folder)
    with pytest.warns(CacheWarning, match="caching in .* has stopped") as caught:
        entries = [cache.entry(str(i), INFO) for i in range(3)]
    for entry in entries:
        entry.add(0, b"x")
    assert len(caught) == 1


def no_quota(*args):
    raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))


@pytest.fixture
def read_only(monkeypatch):
    """Simulate a read-only file system: root may write to any directory."""

    def refuse(name, when):
        real = getattr(os, name)

        def refusing(path, *args, **options):
            if when(*args):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
            return real(path, *args, **options)

        monkeypatch.setattr(os, name, refusing)

    def start():
        writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT
        refuse("open", lambda flags, *_: flags & writing)
        for name in ("mkdir", "rename", "utime", "unlink", "rmdir"):
            refuse(name, lambda *_: True)

    return start


def test_a_read_only_folder_is_read(folder, entry, read_only):
    add(entry, 0, 1000)
    read_only()
    cache = RangeCache(folder, limit=10**9)
    entry = cache.entry(URL, INFO)

    assert read(entry, 0, 1000) == OBJECT[:1000]
    with pytest.warns(UserWarning, match="caching in .* has stopped") as caught:
        add(entry, 1000, 10)
    assert len(caught) == 1
    add(entry, 2000, 10)
    assert read(cache.entry("other", INFO), 0, 10) is None
    assert cache.latest_info(URL) == INFO


def test_a_folder_that_cannot_be_created_is_not_an_error(tmp_path):
    (tmp_path / "file").write_text("no folder")
    cache = RangeCache(tmp_path / "file" / "cache", limit="1MB")
    with pytest.warns(UserWarning, match="caching in .* has stopped"):
        entry = cache.entry(URL, INFO)
    add(entry, 0, 10)

    assert read(entry, 0, 10) is None
    assert not entry.is_whole()
    assert entry.missing(0, 10) == [(0, 10)]


@posix
def test_too_many_open_files_do_not_stop_the_cache(folder, monkeypatch):
    cache = RangeCache(folder)
    fail(monkeypatch, "open", errno.EMFILE)
    entry = cache.entry(URL, INFO)
    add(entry, 0, 10)
    monkeypatch.undo()
    add(entry, 10, 10)

    assert entry.missing(0, 20) == [(0, 10)]


def file_of(path_or_fd):
    """Return the identity of a file, or None of a closed descriptor."""
    with contextlib.suppress(OSError):
        found = os.stat(path_or_fd)
        return found.st_dev, found.st_ino
    return None


@posix
def test_descriptors_are_closed(folder):
    def count():
        gc.collect()
        files = {file_of(path) for path in folder.rglob("*")}
        return sum(file_of(int(fd)) in files for fd in os.listdir("/dev/fd"))

    entries = [RangeCache(folder).entry(str(i), INFO) for i in range(20)]
    for entry in entries:
        add(entry, 0, 10)
    assert count() >= 20
    entries[0].close()
    del entry, entries
    assert count() == 0
