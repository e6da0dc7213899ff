"""Disk cache with damaged files: right bytes or none."""

import os
import random
import shutil
import time
from pathlib import Path

import pytest

from fastshard.remote.cache.directory import clear, list_objects
from fastshard.remote.cache.ranges import PIECE, decode, encode
from fastshard.remote.cache.store import RangeCache
from fastshard.remote.cache.version import read_version
from fastshard.remote.transport import ObjectInfo
from support.cache import (
    FILES,
    INFO,
    OBJECT,
    URL,
    add,
    assert_right_or_missing,
    fill,
    only_entry,
    posix,
    random_range,
    read,
    reopen,
)
from support.marks import not_sanitized
from support.threads import HANG

pytestmark = not_sanitized  # tests no C code


def damage(path, rng):
    """Flip bytes of a file, truncate, extend, empty, remove or replace it."""
    data = bytearray(path.read_bytes())
    kind = rng.randrange(7)
    if kind <= 1 and data:
        for _ in range(rng.choice([1, 20])):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == 2:
        del data[rng.randrange(len(data) + 1) :]
    elif kind == 3:
        data += rng.randbytes(rng.randrange(100))
    elif kind == 4 and data:
        at = rng.randrange(len(data))
        data[at : at + 5000] = bytes(len(data[at : at + 5000]))
    path.unlink()
    if kind == 5:
        path.mkdir()
    elif kind != 6:
        path.write_bytes(data)


@pytest.mark.parametrize("name", FILES)
def test_damaged_files_give_right_bytes_or_none(folder, tmp_path, name):
    fill(reopen(folder), count=10)
    good = folder.rename(tmp_path / "good")
    for seed in range(25):
        rng = random.Random(seed)
        shutil.copytree(good, folder)
        damage(only_entry(folder) / name, rng)
        assert RangeCache(folder).latest_info(URL) in (INFO, None)
        assert all(one.url in (URL, "") for one in list_objects(folder))

        entry = reopen(folder)
        assert_right_or_missing(entry, rng, 8)
        offset, size = random_range(rng)
        add(entry, offset, size)

        assert read(entry, offset, size) == OBJECT[offset : offset + size]
        assert read(reopen(folder), offset, size) == OBJECT[offset : offset + size]
        shutil.rmtree(folder)


@posix
@pytest.mark.parametrize("name", FILES)
def test_damage_to_an_open_entry_gives_right_bytes_or_none(folder, name):
    """Except bytes that change after their check, as in any file."""
    for seed in range(25):
        rng = random.Random(seed)
        entry = reopen(folder)
        fill(entry, seed, 8)
        assert_right_or_missing(entry, rng, 4)
        path = only_entry(folder) / name
        if rng.random() < 0.5:
            os.truncate(path, rng.randrange(path.stat().st_size + 1))
        else:
            path.unlink()
        for _ in range(6):
            entry = reopen(folder) if rng.random() < 0.2 else entry
            assert_right_or_missing(entry, rng, 3)
            add(entry, *random_range(rng))
        assert_right_or_missing(reopen(folder), rng, 4)
        shutil.rmtree(folder)


@posix
def test_a_truncated_data_file_is_never_extended(folder, entry):
    """Otherwise bytes verified before would be read as zeros."""
    add(entry, 0, 100)
    os.truncate(entry.path, 0)
    add(entry, 1000, 100)

    assert read(entry, 0, 100) is None
    assert read(entry, 1000, 100) == OBJECT[1000:1100]
    os.truncate(entry.path, len(OBJECT) + 5)
    assert reopen(folder).missing(1000, 100) == [(1000, 100)]
    assert os.path.getsize(entry.path) == len(OBJECT)


@posix
@pytest.mark.parametrize("name", FILES)
def test_links_and_pipes_are_never_followed(folder, tmp_path, name):
    precious = tmp_path / "precious"
    precious.write_bytes(bytes(len(OBJECT)))
    os.utime(precious, ns=(5, 5))
    for make in (lambda path: path.symlink_to(precious), os.mkfifo):
        for _ in range(2):
            path = only_entry(folder) / name if folder.exists() else None
            if path is not None:
                path.unlink()
                make(path)
            entry = reopen(folder)
            add(entry, 0, 5000)
            assert read(entry, 0, 5000) == OBJECT[:5000]
            list_objects(folder)
    assert precious.read_bytes() == bytes(len(OBJECT))
    assert precious.stat().st_mtime_ns == 5


@posix
@pytest.mark.parametrize("level", [0, 1])
def test_links_in_place_of_folders_are_never_followed(folder, tmp_path, level):
    entry = reopen(folder)
    add(entry, 0, 10)
    path = Path(entry.folder).parents[0] if level else Path(entry.folder)
    target = path.rename(tmp_path / "elsewhere")
    path.symlink_to(target)

    if level:
        with pytest.warns(UserWarning, match="caching in .* has stopped"):
            again = reopen(folder)
        assert read(again, 0, 10) is None
    else:
        again = reopen(folder)
        add(again, 10, 10)
        assert again.missing(0, 20) == [(0, 10)]
    clear(folder)
    assert len(list(target.iterdir())) == (1 if level else 4)


def test_a_torn_record_hides_no_other(folder, entry):
    log = Path(entry.sidecar("x")).with_name("ranges")
    for i in range(40):
        add(entry, 100 * i, 100)
        with open(log, "ab") as file:
            file.write(encode((7, 8, 9))[: i % 32])

    assert reopen(folder).missing(0, 4000) == []
    assert read(reopen(folder), 0, 4000) == OBJECT[:4000]


def test_records_of_lost_data_are_dropped_and_the_data_can_be_stored_again(
    folder, entry
):
    for i in range(10):
        add(entry, 100 * i, 100)
    with open(entry.path, "r+b") as file:  # a power loss keeps the size
        file.seek(250)
        file.write(bytes(10))

    again = reopen(folder)
    assert again.has(0, 1000)
    assert read(again, 0, 1000) is None
    assert again.missing(0, 1000) == [(200, 100)]
    assert not again.is_whole()
    add(again, 200, 100)
    assert read(again, 0, 1000) == OBJECT[:1000]
    assert read(reopen(folder), 0, 1000) == OBJECT[:1000]


def test_invalid_records_are_ignored(folder, entry):
    add(entry, 50, 10)
    impossible = [(0, 0), (9, 3), (0, 2**64 - 1), (2**63, 2**63 + 5), (0, PIECE + 1)]
    impossible += [(len(OBJECT) - 1, len(OBJECT) + 1), (PIECE - 1, PIECE + 1)]
    with open(Path(entry.folder, "ranges"), "ab") as file:
        for start, end in impossible:
            file.write(encode((start, end, 0)))

    again = reopen(folder)

    size = len(OBJECT)
    assert again.missing(0, size) == [(0, 50), (60, size - 60)]


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 100_000, "null", "[]", '{"url": 1}', "1" * 5000, "\xff"]
)
def test_invalid_version_files_are_ignored(folder, entry, text):
    path = Path(entry.folder, "object.json")
    path.write_text(text, "latin-1")

    assert read_version(path) is None
    assert RangeCache(folder).latest_info(URL) is None
    assert [one.url for one in list_objects(folder)] == [""]
    assert reopen(folder).missing(0, 10) == [(0, 10)]
    assert RangeCache(folder).latest_info(URL) == INFO


def test_a_version_file_with_one_changed_character_is_ignored(entry):
    path = Path(entry.folder, "object.json")
    good = path.read_bytes()
    for i in range(len(good)):
        path.write_bytes(good[:i] + bytes([good[i] ^ 1]) + good[i + 1 :])
        known = read_version(path)
        assert known is None or known == (URL, INFO)


def test_garbage_in_a_log_is_skipped_in_linear_time():
    mark = encode((0, 1, 0))[20:28]
    start = time.monotonic()
    for garbage in (bytes(1 << 22), mark * 50_000, os.urandom(1 << 22)):
        found, used = decode(garbage + encode((1, 2, 3)))
        assert found == [(1, 2, 3)]
        assert used == len(garbage) + 32
    assert time.monotonic() - start < HANG


def test_many_small_ranges_are_fast(folder):
    facts = ObjectInfo(10 * PIECE, "t", 0)
    path = RangeCache(folder).entry(URL, facts).path
    offsets = [i for i in range(0, 10 * PIECE, 100) if i % PIECE <= PIECE - 50]
    random.Random(0).shuffle(offsets)
    crc = 0x9C7F1D9A  # of no stored bytes
    with open(Path(path).with_name("ranges"), "ab") as file:
        for offset in offsets:
            file.write(encode((offset, offset + 50, crc)))

    entry = RangeCache(folder).entry(URL, facts)
    start = time.monotonic()

    assert sum(n for _, n in entry.missing(0, 10 * PIECE)) == 10 * PIECE - 50 * len(
        offsets
    )
    assert all(entry.has(offset, 50) for offset in offsets)
    assert time.monotonic() - start < HANG
    assert read(entry, offsets[0], 50) is None
