"""Conformance of formats: the same tests for every format, with a builder each."""

import copy
import gc
import os
import pickle
import random

import numpy as np
import pytest

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


def lacking(form):
    """Return the samples without the field y."""
    return LACKING if form.may_lack else ()


def arrays_of(i, form):
    names = "x" if i in lacking(form) else "xy"
    return {name: value(i, name) for name in names}


def samples_of(form):
    return [(key_of(i), arrays_of(i, form)) for i in range(COUNT)]


def test_every_format_is_built_here():
    built = {form.format for form in BUILDERS.values()}
    stored = [form for form in formats() if form.mark or form.reads_tars]
    assert built == {"tar", *(form.name for form in stored)}


@pytest.fixture(scope="module", params=BUILDERS)
def form(request):
    """Return how a format stores the samples."""
    return BUILDERS[request.param]


@pytest.fixture(scope="module")
def built(form, tmp_path_factory):
    """Return a dataset's path."""
    folder = tmp_path_factory.mktemp("formats") / "data"
    form.build(folder, samples_of(form))
    return folder


@pytest.fixture(params=["mmap", "private", "pread"])
def opened(request, form, built):
    with form.open(built, mode=request.param) as ds:
        yield ds, form.name("x"), form.name("y")


@pytest.fixture
def assert_is(form):
    """Return a check of a sample against the built values."""

    def check(sample, i):
        assert sample.key == key_of(i)
        arrays = arrays_of(i, form)
        assert list(sample) == [form.name(name) for name in arrays]
        for field, (name, array) in zip(sample, arrays.items(), strict=True):
            assert_same(form.read(sample, field), form.value(array, name))

    return check


@pytest.fixture
def assert_are(assert_is):
    def check(samples, positions):
        for sample, i in zip(samples, positions, strict=True):
            assert_is(sample, i)

    return check


def assert_same(found, expected):
    """Check a value, an array with its dtype and shape."""
    if isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(found, expected, strict=True)
    else:
        assert type(found) is type(expected)
        assert found == expected


def assert_column(found, values):
    """Check values of many samples: a stack, or a list of texts."""
    if isinstance(values[0], str):
        assert found == values
    else:
        np.testing.assert_array_equal(found, np.stack(values), strict=True)


def positions_in(samples):
    return [int(sample.key[1:]) for sample in samples]


# ------------------------------------------------------------- samples


def test_a_dataset_is_a_sequence(opened, assert_is, assert_are):
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


def test_keys(opened, assert_is):
    ds, *_ = opened
    assert list(ds.keys()) == [key_of(i) for i in range(COUNT)]
    assert_is(ds[key_of(77)], 77)
    assert key_of(3) in ds
    assert "k9999" not in ds
    for key in ("k9999", "", "k0001\0", "\ud800"):
        with pytest.raises(SampleNotFoundError):
            ds[key]


def test_fields(form, opened):
    ds, x, y = opened
    assert list(ds[3]) == [x, y]
    assert list(ds[4]) == ([x] if form.may_lack else [x, y])
    for field, name in ((x, "x"), (y, "y")):
        assert bytes(ds[3].view(field)) == form.stored(value(3, name), name)
    assert ds[3].open(y).read() == bytes(ds[3].view(y))
    assert {x, y} | {"__key__"} == ds[3].decode().keys()
    assert_same(ds[3].decode(y)[y], form.value(value(3, "y"), "y"))
    absent = y if form.may_lack else form.name("z")
    for call in (ds[4].__getitem__, ds[4].view, ds[4].array, ds[4].open, ds[4].decode):
        with pytest.raises(FieldNotFoundError, match=rf"{absent}.*k0004"):
            call(absent)


def test_narrowing(form, opened):
    ds, x, y = opened
    whole = [i for i in range(COUNT) if i not in lacking(form)]
    both = ds.select_fields(y, x, missing="skip")
    assert [sample.key for sample in both] == [key_of(i) for i in whole]
    assert list(both[0]) == [y, x]
    absent = y if form.may_lack else form.name("z")
    with pytest.raises(FieldNotFoundError):
        ds.select_fields(absent)[4].array(absent)
    few = ds.filter(lambda key, sizes, info: key < key_of(10) and y in sizes)
    assert [sample.key for sample in few] == [key_of(i) for i in whole if i < 10]
    assert list(ds[:3].map(lambda sample: sample.key)) == [key_of(i) for i in range(3)]
    stats = ds.stats()
    members = COUNT + len(whole) if form.members is None else COUNT * form.members
    assert (stats["samples"], stats["members"]) == (COUNT, members)
    assert ds.verify() == []


def test_sizes_are_those_of_the_stored_bytes(form, opened):
    ds, *_ = opened
    found = {}
    ds.filter(lambda key, sizes, info: bool(found.update({key: dict(sizes)})))
    for i in (3, 4, COUNT - 1):
        assert found[key_of(i)] == {
            form.name(name): len(form.stored(array, name))
            for name, array in arrays_of(i, form).items()
        }


# ------------------------------------------------------------- orders


def test_orders(opened, assert_are):
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
def test_iterating_with_little_memory(form, built, assert_are, options):
    with form.open(built, keep_cache=False, max_mapped=1, **options) as ds:
        for _ in range(2):
            assert_are(ds, range(COUNT))
            assert_are(ds.shuffle(3).iter(), positions_in(ds.shuffle(3)))
        assert ds.memory_info()["buffered"] == 0


def test_resuming_from_a_state(form, opened, built):
    ds, *_ = opened
    steps = iter(ds.shuffle(seed=5))
    done = positions_in(next(steps) for _ in range(17))
    state = steps.state_dict()
    with form.open(built) as again:
        rest = positions_in(again.resume(state))
    assert done + rest == positions_in(ds.shuffle(seed=5))
    with pytest.raises(StateError):
        ds[:5].resume(state)


# ------------------------------------------------------------- many at once


def test_columns(form, opened):
    ds, x, y = opened
    positions = [3, 120, 3, 77]
    found = ds.columns(positions, [x, y])
    for field, name in ((x, "x"), (y, "y")):
        values = [form.value(value(i, name), name) for i in positions]
        assert_column(found[field], values)
    absent = y if form.may_lack else form.name("z")
    with pytest.raises(FieldNotFoundError, match=r"k000[34]"):
        ds.columns([3, 4], absent)
    sizes = [ds[i].view(x).nbytes for i in (0, 1)]
    out = np.zeros(sum(sizes), np.uint8)
    ends = ds.read_into([0, 1], out, fields=x)
    assert ends.tolist() == [0, sizes[0], sum(sizes)]
    assert bytes(out[sizes[0] :]) == bytes(ds[1].view(x))


def test_batches(form, opened):
    ds, x, y = opened
    whole = ds.select_fields(x, y, missing="skip")
    batches = list(whole.batches(16))
    count = len(whole)
    assert [len(batch["__key__"]) for batch in batches] == (
        [16] * (count // 16) + [count % 16]
    )
    keys = [key for batch in batches for key in batch["__key__"]]
    assert keys == [sample.key for sample in whole]
    for field in (x, y):
        values = [form.read(sample, field) for sample in whole]
        for batch in batches:
            assert_column(batch[field], values[: len(batch["__key__"])])
            del values[: len(batch["__key__"])]


# ------------------------------------------------------------- copies and lifetimes


def test_copies(opened, assert_is, assert_are):
    ds, x, _ = opened
    sample = ds[9]
    for copied in (copy.copy(sample), copy.deepcopy(sample)):
        assert_is(copied, 9)
    pickled = pickle.loads(pickle.dumps((ds, sample, ds[3:50].shuffle(2))))
    assert_are(pickled[0].iter(), range(COUNT))
    assert_is(pickled[1], 9)
    assert [s.key for s in pickled[2]] == [s.key for s in ds[3:50].shuffle(2)]
    assert bytes(pickled[1].view(x)) == bytes(sample.view(x))


def test_views_outlive_the_dataset(form, built):
    ds = form.open(built)
    sample, steps = ds[7], iter(ds)
    next(steps)
    x = form.name("x")
    view, found = sample.view(x), form.read(sample, x)
    stored = bytes(view)
    ds.close()
    ds.close()
    for call in (lambda: ds[8], lambda: next(steps), lambda: ds.keys()[0]):
        with pytest.raises(ClosedError):
            call()
    del sample
    gc.collect()
    assert view == stored
    assert_same(found, form.value(value(7, "x"), "x"))


def test_threads_share_a_dataset(form, built, assert_are):
    x = form.name("x")
    with form.open(built, max_mapped=2) as ds:

        def read(seed):
            order = random.Random(seed).sample(range(COUNT), COUNT)
            assert_are((ds[i] for i in order), order)
            assert_are(ds.iter(order=order), order)
            values = [form.value(value(i, "x"), "x") for i in order]
            assert_column(ds.columns(order, x)[x], values)

        in_threads(read, 6)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@forks_beside_threads  # the prefetch threads
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_reads_on(opened, assert_is, assert_are):
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
def test_truncated_shards_are_errors(tmp_path, form, mode):
    """Check that each sample is right or an error that names its shard."""
    folder = tmp_path / "data"
    form.build(folder, samples_of(form))
    cut = form.shard_paths(folder)[1]
    os.truncate(cut, cut.stat().st_size // 2 + 100)  # inside a member
    with form.open(folder, mode=mode) as ds:
        assert any(str(cut) == str(fault.path) for fault in ds.verify())
        if form.counts_shards:
            ds = ds.exclude([str(cut)])
            assert 0 < len(ds) < COUNT
        errors = []
        reading = ds.map(lambda sample: [form.read(sample, field) for field in sample])
        found = list(reading.iter(on_error=lambda error, i: errors.append(error)))
        assert len(found) + len(errors) == len(ds)
        for error in errors:
            assert isinstance(error, FormatError)
            assert error.path == str(cut)
            assert error.member or form.opens_whole
        assert bool(errors) == (not form.counts_shards)


def test_no_samples(tmp_path, form):
    form.build(tmp_path / "data", samples_of(form)[:1])
    with form.open(tmp_path / "data") as ds:
        none = ds[:0]
        assert (len(none), list(none), list(none.iter()), list(none.keys())) == (
            (0, [], [], [])
        )
        assert list(none.shuffle(3).split_by_rank(0, 2)) == []
        assert list(none.batches(4)) == []
        assert none.get_many([]) == []
