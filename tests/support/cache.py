"""Helpers for tests of the cache: an object, and reads of it through an entry."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from fastshard.remote.cache.ranges import PIECE
from fastshard.remote.cache.store import RangeCache
from fastshard.remote.transport import ObjectInfo

URL = "https://host/a/train-0.tar"
OBJECT = random.Random(1).randbytes(2 * PIECE + 12_345)
INFO = ObjectInfo(len(OBJECT), '"v1"', 1_700_000_000 * 10**9)
FILES = ["data", "ranges", "object.json", "used"]

posix = pytest.mark.skipif(os.name == "nt", reason="no such thing there")


def reopen(folder):
    return RangeCache(folder).entry(URL, INFO)


def read(entry, offset, size):
    """Return the bytes of a range, or None if the cache does not have it."""
    data = bytearray(b"?" * size)
    return bytes(data) if entry.read_into(offset, memoryview(data)) else None


def add(entry, offset, size):
    entry.add(offset, OBJECT[offset : offset + size])


def random_range(rng):
    offset = rng.randrange(len(OBJECT))
    size = rng.choice([1, 100, 5_000, PIECE, 2 * PIECE])
    return offset, min(rng.randrange(size + 1), len(OBJECT) - offset)


def assert_right_or_missing(entry, rng, count=15):
    for _ in range(count):
        offset, size = random_range(rng)
        data = read(entry, offset, size)
        if data is None:
            assert entry.missing(offset, size)
        else:
            assert data == OBJECT[offset : offset + size]
            assert entry.has(offset, size)


def fill(entry, seed=0, count=20):
    rng = random.Random(seed)
    for _ in range(count):
        add(entry, *random_range(rng))


def only_entry(folder):
    (path,) = (path for path in Path(folder).glob("??/*") if path.is_dir())
    return path
