"""Memory of a loader's batches: the user's until he drops it, then used again."""

import gc
import os
import signal
import threading
import weakref

import numpy as np
import pytest

import fastshard
from fastshard.loader.buffers import BufferPool, BufferSet
from support.loader.batches import assert_same
from support.marks import forks_beside_threads
from support.tars import write_numbers

COUNT, SIZE, WIDTH = 120, 4, 512
SECONDS = 30


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    with fastshard.ShardWriter(folder / "{:04d}.tar", max_count=50) as writer:
        for i in range(COUNT):
            sample = {"npy": np.full(WIDTH, i, "f4"), "cls": i}
            writer.write({"__key__": f"{i:06d}", **sample})
    with fastshard.open(folder) as dataset:
        yield dataset


KINDS = {
    "raw": lambda ds: ds,
    "decoded": lambda ds: ds.decode(),
    "mapped": lambda ds: ds.map(
        lambda s: {"npy": s.array("npy"), "cls": s.text("cls")}
    ),
}


class Allocation:
    """Function for `allocate` that counts the arrays alive of each field."""

    def __init__(self):
        self.made = []

    def __call__(self, field, shape, dtype):
        array = np.empty(shape, dtype)
        self.made.append((field, weakref.ref(array)))
        return array

    def count(self, field):
        return sum(name == field for name, _ in self.made)

    def alive(self, field):
        gc.collect()
        return sum(name == field and ref() is not None for name, ref in self.made)


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_kept_batches_are_not_written_over(ds, kind, threads):
    part = KINDS[kind](ds)
    assert_same(list(part.loader(SIZE, threads=threads)), list(part.batches(SIZE)))


PARTS = {
    "array": lambda a: a,
    "row": lambda a: a[1],
    "slice of a slice": lambda a: a[1:][1:],
    "reshaped": lambda a: a.reshape(-1)[3:],
    "other dtype": lambda a: a.view("u4"),
    "memoryview": memoryview,
    "part of a memoryview": lambda a: memoryview(a)[1:3],
    "DLPack": lambda a: np.from_dlpack(a),
    "DLPack of a row": lambda a: np.from_dlpack(a[2]),
    "broadcast": lambda a: np.broadcast_to(a[0], (3, WIDTH)),
    "array on a buffer": lambda a: np.frombuffer(a, "f4"),
    "transposed": lambda a: a.T[:3],
}


@pytest.mark.parametrize("part", PARTS)
def test_a_kept_part_keeps_the_memory(ds, part):
    expected = [np.array(PARTS[part](b["npy"])) for b in ds.batches(SIZE)]
    kept = [PARTS[part](batch["npy"]) for batch in ds.loader(SIZE, threads=2)]
    for one, other in zip(kept, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(one), other)


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("kind", ["raw", "decoded"])
def test_a_loop_that_keeps_nothing_has_the_memory_of_the_ring(ds, kind, ahead):
    allocate = Allocation()
    with KINDS[kind](ds).loader(
        SIZE, threads=2, ahead=ahead, allocate=allocate
    ) as loader:
        for _ in range(2):
            for batch in loader:
                assert batch["npy"].shape == (SIZE, WIDTH)
            del batch
        assert allocate.count("npy") <= ahead + 2
        assert allocate.count("cls") <= ahead + 2
    del loader
    assert allocate.alive("npy") == allocate.alive("cls") == 0


def test_kept_labels_keep_no_vectors(ds):
    allocate = Allocation()
    with ds.loader(SIZE, threads=2, ahead=1, allocate=allocate) as loader:
        labels = [batch["cls"] for batch in loader]
        assert allocate.count("npy") <= 3
        assert allocate.count("cls") == len(labels)
    assert np.concatenate(labels).tolist() == list(range(COUNT))
    assert allocate.alive("npy") == 0
    del labels[1:]
    assert allocate.alive("cls") == 1


def test_memory_beyond_the_ring_is_freed_when_it_is_dropped(ds):
    allocate = Allocation()
    with ds.loader(SIZE, threads=2, ahead=1, allocate=allocate) as loader:
        kept = list(loader)
        assert allocate.alive("npy") == len(kept)
        kept.clear()
        assert allocate.alive("npy") == 3
    assert allocate.alive("npy") == 0


def test_a_closed_loader_keeps_no_memory(ds):
    allocate = Allocation()
    loader = ds.loader(SIZE, threads=2, allocate=allocate)
    batch = next(loader)
    loader.close()
    assert allocate.alive("npy") == 1
    del batch
    assert allocate.alive("npy") == 0


def test_memory_that_its_library_recycles_is_asked_for_each_time(ds):
    allocate = Allocation()
    allocate.recycles = True
    with ds.loader(SIZE, threads=2, allocate=allocate) as loader:
        for batch in loader:
            del batch
    assert allocate.count("npy") == COUNT // SIZE
    assert allocate.alive("npy") == 0


def test_batches_whose_shapes_change_are_kept_whole(tmp_path):
    path = write_numbers(tmp_path / "n.tar", COUNT)

    def grow(sample):
        n = int(sample.text("txt"))
        kind = ("f4", "f8", "U5", "M8[s]", "O")[n // SIZE % 5]
        return {"x": np.full((1 + n // SIZE % 3, 7), n % 50).astype(kind)}

    for ragged in ("list", "pad"):
        part = fastshard.open(path).map(grow)
        kept = list(part.loader(SIZE, threads=3, ragged=ragged))
        for one, other in zip(kept, part.batches(SIZE, ragged=ragged), strict=True):
            assert one["x"].dtype == other["x"].dtype
            np.testing.assert_array_equal(one["x"], other["x"])


def test_rows_of_a_renewed_field_have_other_memory():
    buffers = BufferSet(BufferPool(spare=2))
    row = buffers.take_row("x", (4, 3), "u1", 1)
    assert buffers.take_row("x", (4, 5), "u1", 0) is None  # of another shape
    buffers.renew("x")
    other = buffers.take_row("x", (4, 5), "u1", 0)
    assert other.shape == (5,)
    assert not np.shares_memory(row, other)


def test_arrays_dropped_by_other_threads_and_collections(ds):
    """Leases end in a thread beside the loader's, and in cycles of garbage."""
    expected = list(ds.batches(SIZE))
    kept, found = [], []
    done = threading.Event()

    def drop():
        while not done.is_set() or kept:
            if kept:
                cycle = [kept.pop()]
                cycle.append(cycle)

    dropper = threading.Thread(target=drop)
    dropper.start()
    try:
        with ds.loader(SIZE, threads=3) as loader:
            for _ in range(5):
                for k, batch in enumerate(loader):
                    assert_same(batch, expected[k])
                    kept.append(batch)
                    found.append(batch["cls"][:2])
    finally:
        done.set()
        dropper.join(SECONDS)
    assert np.concatenate(found).reshape(5, -1, 2)[:, :, 0].tolist() == 5 * [
        list(range(0, COUNT, SIZE))
    ]


@forks_beside_threads
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_drops_batches_and_the_parent_continues(ds):
    expected = list(ds.batches(SIZE))
    batches = iter(ds.loader(SIZE, threads=2))
    kept = [next(batches) for _ in range(3)]
    child = os.fork()
    if not child:
        code = 1
        try:
            signal.alarm(SECONDS)
            assert_same(kept, expected[:3])
            kept.clear()
            assert_same(list(batches), expected[3:])
            code = 0
        finally:
            os._exit(code)
    kept += batches
    assert os.waitpid(child, 0)[1] == 0
    assert_same(kept, expected)
