"""Files of blobs in the cache: complete, checked, and listed with other objects."""

import hashlib
import os
import time
from pathlib import Path

import pytest

from fastshard.remote.cache import hashed
from fastshard.remote.cache.directory import clear, list_objects
from fastshard.remote.cache.hashed import (
    HashedObject,
    ObjectWriter,
    WrongHashError,
    find_hashed,
    locked,
)
from fastshard.remote.cache.store import RangeCache
from support.inside.remote import before_each_hash, forget_hashed, forget_sweeps

URL = "at://did:plc:abc/blob/cid"
DATA = b"the bytes of a blob" * 1000
WANTED = HashedObject(URL, "cid", hashlib.sha256(DATA).digest())


@pytest.fixture
def cache(tmp_path):
    return RangeCache(str(tmp_path / "cache"))


def write(cache, data=DATA, wanted=WANTED):
    with ObjectWriter(cache, wanted) as writer:
        writer.write(memoryview(data[:100]))
        writer.write(memoryview(data[100:]))
        return writer.commit()


def forget():
    """Forget checks by this process, like a new process."""
    forget_hashed()


def test_written_files_are_found(cache):
    assert find_hashed(cache, WANTED) is None

    path = write(cache)

    assert Path(path).read_bytes() == DATA
    assert find_hashed(cache, WANTED) == path
    assert find_hashed(cache, WANTED, len(DATA)) == path


def test_an_object_gets_its_name_when_it_is_right(cache):
    with ObjectWriter(cache, WANTED) as writer:
        writer.write(memoryview(DATA[:500]))
        assert list_objects(cache.folder) == []
        assert find_hashed(cache, WANTED) is None
        with pytest.raises(WrongHashError):
            writer.commit()

    assert [path for path in Path(cache.folder).rglob("*") if path.is_file()] == []


def test_an_entry_that_another_process_made_meanwhile_stays(cache):
    with ObjectWriter(cache, WANTED) as first, ObjectWriter(cache, WANTED) as second:
        for writer in (first, second):
            writer.write(DATA)
        path = first.commit()
        made = os.stat(path).st_ino
        assert second.commit() == path

    assert os.stat(path).st_ino == made
    assert find_hashed(cache, WANTED) == path
    assert [entry.name for entry in os.scandir(cache.folder) if entry.is_file()] == []
    assert not list(Path(cache.folder).rglob("*.new"))


@pytest.mark.parametrize(
    "data", [DATA[:-1], DATA + b"x", b"y" + DATA[1:], b""], ids=len
)
def test_other_bytes_are_refused(cache, data):
    with pytest.raises(WrongHashError):
        write(cache, data)

    assert find_hashed(cache, WANTED) is None


def test_checked_bytes_are_not_read_again(cache, monkeypatch):
    path = write(cache)
    forget()
    if not hashed.boot_id():
        pytest.skip("the system does not name its last start")
    before_each_hash(monkeypatch, lambda _: pytest.fail("read again"))

    assert find_hashed(cache, WANTED) == path


@pytest.mark.parametrize("size", [0, 5, len(DATA) + 1])
def test_a_file_of_another_size_is_removed(cache, size):
    path = write(cache)
    os.truncate(path, size)
    forget()

    assert find_hashed(cache, WANTED) is None
    assert not os.path.exists(path)
    assert write(cache) == find_hashed(cache, WANTED)


def test_changed_bytes_are_found_out(cache):
    path = write(cache)
    with open(path, "r+b") as file:
        file.write(b"Z")

    assert find_hashed(cache, WANTED) is None


def test_changed_bytes_with_the_same_times_are_found_out(cache):
    path = write(cache)
    before = os.stat(path)
    with open(path, "r+b") as file:
        file.write(b"Z")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    assert find_hashed(cache, WANTED) is None


def test_a_copy_of_a_cache_is_hashed_before_its_first_use(cache, tmp_path, monkeypatch):
    import shutil

    write(cache)
    shutil.copytree(cache.folder, tmp_path / "copy")
    copied = RangeCache(str(tmp_path / "copy"))
    hashes = []
    before_each_hash(monkeypatch, hashes.append)

    path = find_hashed(copied, WANTED)
    forget()

    assert path is not None
    assert hashes == [path]
    assert find_hashed(copied, WANTED) == path
    assert len(hashes) == (1 if hashed.boot_id() else 2)


@pytest.mark.parametrize("name", ["data", "object.json", "hashed", "ranges", "used"])
@pytest.mark.parametrize("damage", [b"", b"garbage" * 9000, None])
def test_damaged_entries_are_right_or_made_again(cache, name, damage):
    path = write(cache)
    file = Path(path).with_name(name)
    file.unlink()
    if damage is not None:
        file.write_bytes(damage)
    forget()

    found = find_hashed(cache, WANTED)

    assert found is None or Path(found).read_bytes() == DATA
    assert Path(write(cache)).read_bytes() == DATA
    assert find_hashed(cache, WANTED) == path


def test_links_in_place_of_data_are_not_followed(cache, tmp_path):
    path = Path(write(cache))
    other = tmp_path / "other"
    other.write_bytes(DATA)
    path.unlink()
    path.symlink_to(other)
    forget()

    assert find_hashed(cache, WANTED) is None


def test_objects_are_listed_and_removed_with_others(cache):
    write(cache)

    (found,) = list_objects(cache.folder)

    assert (found.url, found.nbytes, found.whole) == (URL, len(DATA), True)
    assert clear(cache.folder, ["at://did:plc:abc/blob/other"]) == 0
    assert clear(cache.folder, [URL]) >= len(DATA)
    assert find_hashed(cache, WANTED) is None


def test_the_least_recently_used_objects_are_evicted(tmp_path):
    cache = RangeCache(str(tmp_path), limit=100_000)
    objects = []
    for i in range(8):
        data = bytes([i]) * 20_000
        wanted = HashedObject(f"at://did/{i}", str(i), hashlib.sha256(data).digest())
        write(cache, data, wanted)
        objects.append(wanted)
        time.sleep(0.002)

    found = [find_hashed(cache, wanted) is not None for wanted in objects]

    assert found[-1]
    assert not found[0]
    assert sum(f.disk_bytes for f in list_objects(str(tmp_path))) <= 100_000


def test_an_object_above_the_limit_is_refused(tmp_path):
    with pytest.raises(OSError, match="10,000"):
        write(RangeCache(str(tmp_path), limit=10_000))


def test_leftovers_of_a_killed_process_are_removed(tmp_path, monkeypatch):
    cache = RangeCache(str(tmp_path))
    left = tmp_path / "ab" / ".killed.new"
    left.mkdir(parents=True)
    (left / "data").write_bytes(b"x")
    os.utime(left, (1, 1))
    forget_sweeps(monkeypatch)

    write(cache)

    assert not left.exists()


@pytest.mark.skipif(os.name == "nt", reason="open files cannot be removed there")
def test_a_download_of_hours_is_not_removed(cache):
    with ObjectWriter(cache, WANTED) as writer:
        writer.write(memoryview(DATA[:500]))
        for path in [*Path(cache.folder).rglob("*"), Path(cache.folder)]:
            os.utime(path, (1, 1))
        clear(cache.folder)
        writer.write(memoryview(DATA[500:]))
        assert Path(writer.commit()).read_bytes() == DATA


def test_a_lock_that_is_held_for_hours_is_not_removed(cache):
    path = Path(cache.lock_path(URL))
    with locked(cache, URL, time.monotonic() + 60, lambda: False):
        os.utime(path, (1, 1))
        clear(cache.folder)
        assert path.exists()
    path.touch()
    os.utime(path, (1, 1))
    clear(cache.folder)
    assert not path.exists()


def test_a_full_disk_names_the_cache(cache, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hashed.os, "write", fail)
    with pytest.raises(OSError, match="No space left") as caught:
        write(cache)

    assert caught.value.filename == cache.folder
    monkeypatch.undo()
    assert find_hashed(cache, WANTED) is None
