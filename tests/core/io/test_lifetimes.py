"""Lifetimes of shards, views and mappings."""

import copy
import gc
import os
import pickle
import resource
import subprocess
import sys
import weakref

import numpy as np
import pytest

import fastshard
from fastshard._core.io.source import MappedFile, View
from support.marks import not_sanitized
from support.memory import mappings_of
from support.tars import write_tar

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


@linux
@pytest.mark.parametrize("mode", ["mmap", "private"])
def test_the_last_view_unmaps(shard_path, members, mode):
    gc.disable()  # reference counts alone must unmap
    try:
        shard = fastshard.open_shard(shard_path, mode=mode)
        views = [shard[0], shard.array("000.jpg", "u1"), np.frombuffer(shard[5], "u1")]
        views.append(shard.samples["000"]["json"][2:5])
        assert mappings_of(shard_path) == 1
        shard.close()
        assert mappings_of(shard_path) == 1
        assert views[0] == members["000.jpg"]
        while views:
            assert mappings_of(shard_path) == 1
            views.pop()
        assert mappings_of(shard_path) == 0
    finally:
        gc.enable()


@linux
def test_an_unreferenced_shard_unmaps(shard_path):
    gc.disable()
    try:
        shard = fastshard.open_shard(shard_path)
        assert shard.samples["000"].key == "000"
        assert next(iter(shard)) is not None
        assert next(iter(shard.samples)) is not None
        weak = weakref.ref(shard)
        del shard
        assert weak() is None
        assert mappings_of(shard_path) == 0
    finally:
        gc.enable()


@linux
def test_mapped_shards_keep_no_descriptor(shard_path):
    before = os.listdir("/proc/self/fd")
    with (
        fastshard.open_shard(shard_path),
        fastshard.open_shard(shard_path, mode="private"),
    ):
        assert len(os.listdir("/proc/self/fd")) == len(before)


@linux
def test_a_pread_shard_keeps_one_descriptor_and_no_mapping(shard_path):
    before = len(os.listdir("/proc/self/fd"))
    shard = fastshard.open_shard(shard_path, mode="pread")
    assert len(os.listdir("/proc/self/fd")) == before + 1
    assert mappings_of(shard_path) == 0
    shard.close()
    assert len(os.listdir("/proc/self/fd")) == before


@linux
def test_copies_share_one_mapping(shard_path, members):
    shard = fastshard.open_shard(shard_path)
    others = [copy.copy(shard) for _ in range(5)]
    assert mappings_of(shard_path) == 1
    shard.close()
    assert others[-1][0] == members["000.jpg"]
    for other in others:
        other.close()
    assert mappings_of(shard_path) == 0


def test_a_view_outlives_shard_and_file(shard_path, members):
    with fastshard.open_shard(shard_path) as shard:
        view = shard["000.jpg"]
        weak = weakref.ref(view)
    del shard
    shard_path.unlink()
    assert view == members["000.jpg"]
    del view
    assert weak() is None


@pytest.mark.parametrize("mode", ["mmap", "private"])
def test_a_strict_close_refuses_while_views_are_alive(shard_path, mode):
    shard = fastshard.open_shard(shard_path, mode=mode)
    alive = {"view": shard[0], "array": shard.array(1, "u1")}
    alive["part"] = shard[0][1:2]
    for name, count in [("view", 3), ("array", 2), ("part", 1)]:
        with pytest.raises(BufferError, match=f"has {count} live view"):
            shard.close(strict=True)
        assert not shard.closed
        del alive[name]
    shard.close(strict=True)
    assert shard.closed


def test_a_strict_close_counts_the_views_of_its_own_handle(shard_path):
    shard = fastshard.open_shard(shard_path)
    other = copy.copy(shard)
    view = other[0]
    shard.close(strict=True)
    with pytest.raises(BufferError):
        other.close(strict=True)
    del view
    other.close(strict=True)


def test_a_strict_close_succeeds_if_views_are_copies(shard_path):
    shard = fastshard.open_shard(shard_path, mode="pread")
    view = shard[0]
    shard.close(strict=True)
    assert view.nbytes > 0


def test_an_exception_in_a_with_block_closes(shard_path):
    with pytest.raises(ZeroDivisionError), fastshard.open_shard(shard_path) as shard:
        _ = 1 / 0
    assert shard.closed


def test_views_and_mappings_have_no_constructor():
    with pytest.raises(TypeError):
        View()
    with pytest.raises(BufferError):
        memoryview(View.__new__(View))
    with pytest.raises(TypeError):
        MappedFile()


def resident():
    """Return the resident bytes of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@linux
@not_sanitized
def test_repeated_opens_and_views_leak_no_memory(shard_path):
    """100,000 opens, closes and views, after some that fill the allocators' pools."""

    def churn(rounds):
        for _ in range(rounds):
            with fastshard.open_shard(shard_path) as shard:
                view = shard["000.jpg"]
                assert shard.samples["000"]["json"] is not None
                assert shard.array(0, "u1") is not None
                assert shard.offsets is not None
            del view

    churn(2_000)
    gc.collect()
    before = resident()
    churn(100_000)
    with fastshard.open_shard(shard_path) as shard:
        for _ in range(100_000):
            shard[0]
            shard["001.json"]
    gc.collect()
    assert resident() - before < 2 << 20


@linux
def test_failed_opens_leak_nothing(shard_path):
    data = shard_path.read_bytes()
    shard_path.write_bytes(data[:700])

    def churn(rounds):
        for _ in range(rounds):
            with pytest.raises(fastshard.FormatError):
                fastshard.open_shard(shard_path)

    churn(500)
    gc.collect()
    before = sys.getallocatedblocks()
    churn(500)
    gc.collect()
    assert sys.getallocatedblocks() - before < 100


CLOSES = """
import gc, sys
import fastshard
from fastshard._core.io.source import MappedFile

shard = fastshard.open_shard(sys.argv[1], prefetch=False)
for _ in range(int(sys.argv[2])):
    bytes(shard[0])  # without a round, the first view runs the collection
kept = []


class Closer:
    def __init__(self):
        self.me = self

    def __del__(self):
        shard.close()
        size = MappedFile.__basicsize__ - 33
        kept.extend(bytes([65 + i % 7]) * size for i in range(2000))


gc.collect()
gc.disable()
garbage = [[] for _ in range(1000)]
Closer()
gc.set_threshold(100)
gc.enable()
view = shard[0]
print(bytes(view).decode())
"""


@pytest.mark.parametrize("before", [0, 2])
def test_a_collection_may_close_the_shard_while_a_view_is_made(tmp_path, before):
    path = write_tar(tmp_path / "a.tar", {"a.txt": b"right"})
    command = [sys.executable, "-c", CLOSES, str(path), str(before)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


@pytest.mark.parametrize("before", [0, 2])
def test_every_object_over_a_view_blocks_a_strict_close(tmp_path, before):
    path = write_tar(tmp_path / "a.tar", {"a.bin": bytes(range(100))})
    holds = [
        lambda view: np.ndarray(10, "u1", view),
        lambda view: np.frombuffer(view, "u1"),
        lambda view: view[10:20],
        lambda view: memoryview(view.obj),
        pickle.PickleBuffer,
    ]
    for hold in holds:
        shard = fastshard.open_shard(path)
        for _ in range(before):
            bytes(shard[0])
        held = hold(shard[0])
        with pytest.raises(BufferError):
            shard.close(strict=True)
        del held
        shard.close(strict=True)
