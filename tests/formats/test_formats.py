"""Conformance of formats: the same tests for every format, with a builder each."""

import copy
import gc
import os
import pickle
import random

import numpy as np
import pytest

import fastshard
from fastshard.errors import (
    ClosedError,
    FieldNotFoundError,
    FormatError,
    SampleNotFoundError,
    StateError,
)
from fastshard.formats.registry import formats
from support.builders import BUILDERS
from support.marks import forks_beside_threads
from support.threads import in_threads

COUNT = 130
LACKING = range(4, COUNT, 10)  # samples without the field y


def value(i, name):
    return (np.arange(40 if name == "x" else 9) + 100 * i).astype(np.float32)


def key_of(i):
    return f"k{i:04d}"


def arrays_of(i):
    return {name: value(i, name) for name in "xy" if name == "x" or i not in LACKING}


SAMPLES = [(key_of(i), arrays_of(i)) for i in range(COUNT)]


def test_every_format_is_built_here():
    assert BUILDERS.keys() == {"tar", *(form.name for form in formats())}


@pytest.fixture(scope="module", params=BUILDERS)
def built(request, tmp_path_factory):
    """Return a dataset's path, and the suffix of its fields' names."""
    build, suffix = BUILDERS[request.param]
    folder = tmp_path_factory.mktemp("formats") / "data"
    build(folder, SAMPLES)
    return folder, suffix


@pytest.fixture(params=["mmap", "private", "pread"])
def opened(request, built):
    folder, suffix = built
    with fastshard.open(folder, mode=request.param) as ds:
        yield ds, f"x{suffix}", f"y{suffix}"


def assert_is(sample, i):
    assert sample.key == key_of(i)
    arrays = arrays_of(i)
    assert [field.partition(".")[0] for field in sample] == list(arrays)
    for field, array in zip(sample, arrays.values(), strict=True):
        np.testing.assert_array_equal(sample.array(field), array, strict=True)


def positions_in(samples):
    return [int(sample.key[1:]) for sample in samples]


def assert_are(samples, positions):
    for sample, i in zip(samples, positions, strict=True):
        assert_is(sample, i)


# ------------------------------------------------------------- samples


def test_a_dataset_is_a_sequence(opened):
    ds, *_ = opened
    assert len(ds) == COUNT
    assert_are(ds, range(COUNT))
    for i in (0, 24, 25, COUNT - 1, -1, -COUNT, np.int64(7)):
        assert_is(ds[i], int(i) % COUNT)
    for i in (COUNT, -COUNT - 1, 10**20, -(10**20)):
        with pytest.raises(IndexError):
            ds[i]
    assert_are(ds[3:100:7], range(3, 100, 7))
    assert_are(ds[::-1], reversed(range(COUNT)))
    assert_are(ds[[5, 5, -1]], [5, 5, COUNT - 1])
    assert_are(ds[np.arange(COUNT) % 2 == 1], range(1, COUNT, 2))
    assert positions_in(ds[10:13]) == [10, 11, 12]


def test_keys(opened):
    ds, *_ = opened
    assert list(ds.keys()) == [key_of(i) for i in range(COUNT)]
    assert_is(ds[key_of(77)], 77)
    assert key_of(3) in ds
    assert "k9999" not in ds
    for key in ("k9999", "", "k0001\0", "\ud800"):
        with pytest.raises(SampleNotFoundError):
            ds[key]


def test_fields(opened):
    ds, x, y = opened
    assert list(ds[3]) == [x, y]
    assert list(ds[4]) == [x]
    assert bytes(ds[3].view(x)[:6]) == b"\x93NUMPY"
    assert ds[3].open(y).read() == bytes(ds[3].view(y))
    assert {x, y} | {"__key__"} == ds[3].decode().keys()
    np.testing.assert_array_equal(ds[3].decode(y)[y], value(3, "y"))
    for call in (ds[4].__getitem__, ds[4].view, ds[4].array, ds[4].open, ds[4].decode):
        with pytest.raises(FieldNotFoundError, match=r"y.*k0004"):
            call(y)


def test_narrowing(opened):
    ds, x, y = opened
    whole = [i for i in range(COUNT) if i not in LACKING]
    both = ds.select_fields(y, x, missing="skip")
    assert [sample.key for sample in both] == [key_of(i) for i in whole]
    assert list(both[0]) == [y, x]
    with pytest.raises(FieldNotFoundError):
        ds.select_fields(y)[4].array(y)
    few = ds.filter(lambda key, sizes, info: key < key_of(10) and y in sizes)
    assert [sample.key for sample in few] == [key_of(i) for i in whole if i < 10]
    assert list(ds[:3].map(lambda sample: sample.key)) == [key_of(i) for i in range(3)]
    assert sum(ds.stats()[what] for what in ("samples", "members")) == 3 * COUNT - 13
    assert ds.verify() == []


# ------------------------------------------------------------- orders


def test_orders(opened):
    ds, *_ = opened
    order = random.Random(1).sample(range(COUNT), COUNT)
    for prefetching in (ds.iter(order=order), ds.get_many(order)):
        assert_are(prefetching, order)
    assert_are(ds.iter(), range(COUNT))
    shuffled = positions_in(ds.shuffle(5, epoch=2))
    assert sorted(shuffled) == list(range(COUNT)) != shuffled
    assert positions_in(ds.shuffle(5, epoch=2).iter()) == shuffled
    for rank in range(3):
        part = ds.shuffle(5, epoch=2).split_by_rank(rank, 3, drop_last=False)
        assert positions_in(part) == shuffled[rank::3]


def test_the_order_is_the_same_in_all_formats(opened):
    ds, *_ = opened
    assert positions_in(ds.shuffle(5, epoch=2)[:5]) == [84, 37, 42, 40, 82]


@pytest.mark.parametrize("options", [{}, {"max_memory": "64KiB"}, {"prefetch": False}])
def test_iterating_with_little_memory(built, options):
    folder, _ = built
    with fastshard.open(folder, keep_cache=False, max_mapped=1, **options) as ds:
        for _ in range(2):
            assert_are(ds, range(COUNT))
            assert_are(ds.shuffle(3).iter(), positions_in(ds.shuffle(3)))
        assert ds.memory_info()["buffered"] == 0


def test_resuming_from_a_state(opened, built, tmp_path):
    ds, *_ = opened
    steps = iter(ds.shuffle(seed=5))
    done = positions_in(next(steps) for _ in range(17))
    state = steps.state_dict()
    with fastshard.open(built[0]) as again:
        rest = positions_in(again.resume(state))
    assert done + rest == positions_in(ds.shuffle(seed=5))
    with pytest.raises(StateError):
        ds[:5].resume(state)


# ------------------------------------------------------------- many at once


def test_columns(opened):
    ds, x, y = opened
    positions = [3, 120, 3, 77]
    found = ds.columns(positions, [x, y])
    for field, name in ((x, "x"), (y, "y")):
        expected = np.stack([value(i, name) for i in positions])
        np.testing.assert_array_equal(found[field], expected, strict=True)
    with pytest.raises(FieldNotFoundError, match="k0004"):
        ds.columns([3, 4], y)
    sizes = [ds[i].view(x).nbytes for i in (0, 1)]
    out = np.zeros((2, max(sizes)), np.uint8)
    ends = ds.read_into([0, 1], out, fields=x)
    assert len(ends) == 3
    assert bytes(out[1, : sizes[1]]) == bytes(ds[1].view(x))


def test_batches(opened):
    ds, x, y = opened
    whole = ds.select_fields(x, y, missing="skip")
    batches = list(whole.batches(16))
    assert [len(batch["__key__"]) for batch in batches] == [16] * 7 + [5]
    keys = [key for batch in batches for key in batch["__key__"]]
    assert keys == [sample.key for sample in whole]
    stacked = np.concatenate([batch[y] for batch in batches])
    np.testing.assert_array_equal(stacked, [s.array(y) for s in whole], strict=True)


# ------------------------------------------------------------- copies and lifetimes


def test_copies(opened):
    ds, x, _ = opened
    sample = ds[9]
    for copied in (copy.copy(sample), copy.deepcopy(sample)):
        assert_is(copied, 9)
    pickled = pickle.loads(pickle.dumps((ds, sample, ds[3:50].shuffle(2))))
    assert_are(pickled[0].iter(), range(COUNT))
    assert_is(pickled[1], 9)
    assert [s.key for s in pickled[2]] == [s.key for s in ds[3:50].shuffle(2)]
    assert bytes(pickled[1].view(x)) == bytes(sample.view(x))


def test_views_outlive_the_dataset(built):
    folder, suffix = built
    ds = fastshard.open(folder)
    sample, steps = ds[7], iter(ds)
    next(steps)
    view, array = sample.view(f"x{suffix}"), sample.array(f"x{suffix}")
    stored = bytes(view)
    ds.close()
    ds.close()
    for call in (lambda: ds[8], lambda: next(steps), lambda: ds.keys()[0]):
        with pytest.raises(ClosedError):
            call()
    del sample
    gc.collect()
    assert view == stored
    np.testing.assert_array_equal(array, value(7, "x"))


def test_threads_share_a_dataset(built):
    folder, suffix = built
    with fastshard.open(folder, max_mapped=2) as ds:

        def read(seed):
            order = random.Random(seed).sample(range(COUNT), COUNT)
            assert_are((ds[i] for i in order), order)
            assert_are(ds.iter(order=order), order)
            found = ds.columns(order, f"x{suffix}")[f"x{suffix}"]
            assert (found[:, 0] == 100 * np.array(order)).all()

        in_threads(read, 6)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@forks_beside_threads  # the prefetch threads
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_reads_on(opened):
    ds, *_ = opened
    steps = ds.iter()
    assert_is(next(steps), 0)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert_are(steps, range(1, COUNT))
            assert_is(ds[key_of(5)], 5)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert_are(steps, range(1, COUNT))


# ------------------------------------------------------------- damage


@pytest.mark.parametrize("mode", ["mmap", "pread"])
@pytest.mark.parametrize("form", BUILDERS)
def test_truncated_shards_are_errors(tmp_path, form, mode):
    """Check that each sample is right or an error that names its shard."""
    build, _ = BUILDERS[form]
    build(tmp_path / "data", SAMPLES)
    shards = sorted((tmp_path / "data").rglob("*.tar"))
    cut = shards[1]
    os.truncate(cut, cut.stat().st_size // 2)
    with fastshard.open(tmp_path / "data", mode=mode) as ds:
        assert any(str(cut) == str(fault.path) for fault in ds.verify())
        if form == "tar":  # tar shards are scanned whole
            ds = ds.exclude([str(cut)])
            assert len(ds) == COUNT - 25
        errors = []
        reading = ds.map(lambda sample: [sample.array(field) for field in sample])
        found = list(reading.iter(on_error=lambda error, i: errors.append(error)))
        assert len(found) + len(errors) == len(ds)
        for error in errors:
            assert isinstance(error, FormatError)
            assert error.path == str(cut)
            assert error.member
        assert bool(errors) == (form != "tar")


@pytest.mark.parametrize("form", BUILDERS)
def test_no_samples(tmp_path, form):
    build, _ = BUILDERS[form]
    build(tmp_path / "data", SAMPLES[:1])
    with fastshard.open(tmp_path / "data") as ds:
        none = ds[:0]
        assert (len(none), list(none), list(none.iter()), list(none.keys())) == (
            (0, [], [], [])
        )
        assert list(none.shuffle(3).split_by_rank(0, 2)) == []
        assert list(none.batches(4)) == []
        assert none.get_many([]) == []
