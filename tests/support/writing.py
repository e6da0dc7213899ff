"""Helpers for tests of the tar writer."""

import os
from pathlib import Path

import pytest

import fastshard
from fastshard.formats.writer import ShardWriter


def write(pattern, *samples, **options):
    """Write samples to shards; return the writer."""
    options = {"index": None} | options
    with ShardWriter(pattern, **options) as writer:
        for sample in samples:
            writer.write(sample)
    return writer


def write_one(path, *samples, **options):
    """Write samples to one shard; return its path."""
    (path,) = write(path, *samples, **options).shards
    return Path(path)


def numbered(i, **fields):
    return {"__key__": f"{i:06d}", **(fields or {"txt": b"x"})}


def read_back(path, **options):
    """Return the keys, and for each the bytes of its fields."""
    with fastshard.open_shard(path, **options) as shard:
        return [(s.key, {f: bytes(s[f]) for f in s.keys()}) for s in shard.samples]  # noqa: SIM118


def names_in(folder):
    return sorted(os.listdir(folder))


def refused(tmp_path, sample, error, match, **options):
    """Check that a refused sample changes neither the shard nor later samples."""
    good = [numbered(1), numbered(2)]
    expected = write_one(tmp_path / "good.tar", *good, **options)
    with ShardWriter(tmp_path / "s.tar", index=None, **options) as writer:
        writer.write(good[0])
        with pytest.raises(error, match=match):
            writer.write(sample)
        assert writer.count == 1
        writer.write(good[1])
    assert Path(writer.shards[0]).read_bytes() == expected.read_bytes()
