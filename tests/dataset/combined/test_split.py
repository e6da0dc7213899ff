"""First items and parts of datasets: `head`, `take`, `split`."""

import json
import random
import threading
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fastshard
from fastshard import FormatError, StateError
from fastshard.dataset.order.plan import split_sizes
from support.inside.datasets import is_counted, plan_of
from support.servers.http import Server
from support.tars import write_numbers, write_tar
from support.threads import started_since, thread_ids


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_numbers(tmp_path_factory.mktemp("split") / "n", 101)


@pytest.fixture
def ds(folder):
    with fastshard.open(folder) as dataset:
        yield dataset


def numbers(samples):
    return [int(sample.text("txt")) for sample in samples]


def test_the_head_is_a_list(ds):
    assert isinstance(ds.head(), list)
    assert numbers(ds.head()) == [0, 1, 2, 3, 4]
    assert numbers(ds.head(1000)) == list(range(101))
    assert ds.head(0) == []
    assert numbers(ds.shuffle(3).head(7)) == numbers(ds.shuffle(3))[:7]
    assert numbers(ds[::-1].head(2)) == [100, 99]
    assert ds.map(lambda sample: sample.key).head(2) == ["000000", "000001"]
    for n in (-1, -100):
        with pytest.raises(ValueError, match="negative"):
            ds.head(n)
    with pytest.raises(TypeError):
        ds.head(2.5)
    mixed = fastshard.mix([ds, ds])
    assert numbers(mixed.head(4)) == numbers(mixed)[:4]


def test_the_head_opens_no_later_shard_and_leaves_no_thread(tmp_path):
    for k in range(4):
        write_tar(
            tmp_path / f"{k}.tar", {f"{i}.txt": b"%d" % (k * 3 + i) for i in range(3)}
        )
    (tmp_path / "2.tar").write_bytes(b"no tar" * 1000)
    ds = fastshard.open(tmp_path, index="none")
    before = threading.active_count()
    native = thread_ids()
    assert numbers(ds.head(5)) == [0, 1, 2, 3, 4]
    assert numbers(ds.head(0)) == []
    assert not is_counted(ds)
    assert threading.active_count() == before
    assert not started_since(native)
    with pytest.raises(FormatError):
        ds.head(7)
    with pytest.raises(FormatError):
        len(ds)


def test_the_head_of_a_remote_dataset_asks_for_one_shard(folder):
    files = {f"/{path.name}": path.read_bytes() for path in folder.glob("*.tar")}
    with Server(files) as server:
        ds = fastshard.open(f"{server.url}/n-{{000..010}}.tar")
        assert numbers(ds.head(3)) == [0, 1, 2]
        shards = {path for path in requested(server) if path.startswith("/n-")}
        assert {path.partition(".")[0] for path in shards} == {"/n-000"}
        assert numbers(ds.head(12)) == list(range(12))
        assert "/n-002.tar" not in requested(server)


def requested(server):
    return {request.path for request in server.requests}


def test_take_is_a_dataset_of_the_first(ds):
    taken = ds.shuffle(3).take(10)
    assert isinstance(taken, fastshard.Dataset)
    assert numbers(taken) == numbers(ds.shuffle(3))[:10]
    assert numbers(ds.take(1000)) == list(range(101))
    assert len(ds.take(0)) == 0
    assert numbers(ds.take(10).shuffle(1).take(3)) == numbers(ds[:10].shuffle(1))[:3]
    assert ds.take(np.int64(3))[-1].key == "000002"
    with pytest.raises(ValueError, match="negative"):
        ds.take(-1)
    both = (ds + ds).take(102)
    assert isinstance(both, fastshard.Concat)
    assert len(both) == 102


@pytest.mark.parametrize(
    ("sizes", "total", "expected"),
    [
        ([0.9, 0.1], 10, [9, 1]),
        ([0.9, 0.1], 101, [91, 10]),
        ([0.7, 0.2, 0.1], 10, [7, 2, 1]),
        ([0.5, 0.5], 3, [2, 1]),
        ([1 / 3] * 3, 10, [4, 3, 3]),
        ([0.35, 0.35, 0.3], 10, [4, 3, 3]),
        ([0.1] * 10, 25, [3] * 5 + [2] * 5),
        ([1.0], 7, [7]),
        ([1.0, 0.0], 7, [7, 0]),
        ([0.5, 0.5], 0, [0, 0]),
        ([0.999, 0.001], 10**15 + 1, [999 * 10**12 + 1, 10**12]),
        ([Fraction(1, 7), Fraction(6, 7)], 14, [2, 12]),
        ([3, 4], 7, [3, 4]),
        ([0, 7, 0], 7, [0, 7, 0]),
        (np.array([0.5, 0.5]), 4, [2, 2]),
        (np.array([1, 3]), 4, [1, 3]),
    ],
)
def test_sizes_are_exact(sizes, total, expected):
    assert split_sizes(sizes, total) == expected


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=9), st.integers(0, 10**12))
def test_sizes_differ_from_quotas_by_less_than_one(weights, total):
    whole = sum(weights) or 1
    fractions = [weight / whole for weight in weights]
    if not sum(weights):
        fractions[0] = 1.0
    counts = split_sizes(fractions, total)
    assert sum(counts) == total
    for count, fraction in zip(counts, fractions, strict=True):
        assert abs(count - fraction * total) < 1.001


@pytest.mark.parametrize(
    ("sizes", "error", "words"),
    [
        ([], ValueError, "at least 1"),
        ([0.5, 0.4], ValueError, "add up to 1, got 0.9"),
        ([0.9, 0.2], ValueError, "add up to 1"),
        ([50, 50], ValueError, "add up to 101, got 100"),
        ([1], ValueError, "add up to 101, got 1"),
        ([-1, 102], ValueError, "not negative"),
        ([1.5, -0.5], ValueError, "not negative"),
        ([float("nan"), 1.0], ValueError, "finite"),
        ([float("inf")], ValueError, "finite"),
        ([0.5, 50], TypeError, "got both"),
        ([True, False], TypeError, "numbers"),
        (["0.5", 0.5], TypeError, "numbers"),
        (0.9, TypeError, "iterable"),
    ],
)
def test_wrong_sizes_are_refused(ds, sizes, error, words):
    with pytest.raises(error, match=words):
        ds.split(sizes)


def test_a_split_is_disjoint_whole_and_shuffled(ds):
    parts = ds.split([0.8, 0.1, 0.1], seed=7)
    assert [len(part) for part in parts] == [81, 10, 10]
    found = [numbers(part) for part in parts]
    assert [n for part in found for n in part] == numbers(ds.shuffle(7))
    assert [numbers(part) for part in ds.split([0.8, 0.1, 0.1], seed=7)] == found
    assert [numbers(part) for part in ds.split([0.8, 0.1, 0.1], seed=8)] != found
    assert numbers(ds.split([51, 50], seed=None)[1]) == list(range(51, 101))
    assert numbers(ds.split([51, 50])[0]) == numbers(ds.shuffle(0))[:51]


def test_parts_of_a_split_are_datasets(ds):
    train, val = ds[::-1].split([0.9, 0.1], seed=3)
    epochs = [sorted(numbers(train.shuffle(1, epoch))) for epoch in range(2)]
    assert epochs[0] == epochs[1] == sorted(numbers(train))
    assert set(numbers(val)) == set(range(101)) - set(epochs[0])
    assert train[train.keys()[5]].key == train[5].key
    assert val.keys()[0] not in train.keys()  # noqa: SIM118
    halves = train.split([0.5, 0.5], seed=3)
    assert sorted(numbers(halves[0]) + numbers(halves[1])) == epochs[0]
    both = (ds + ds).split([0.5, 0.5])
    assert sorted(numbers(both[0]) + numbers(both[1])) == sorted([*range(101)] * 2)


def test_parts_of_a_split_resume(ds, folder):
    train = ds.split([0.9, 0.1], seed=3)[0].shuffle(5)
    done = random.Random(0).randrange(len(train))
    it = iter(train)
    seen = [next(it) for _ in range(done)]
    state = json.loads(json.dumps(it.state_dict()))
    assert len(json.dumps(state)) < 1000
    with fastshard.open(folder) as other:
        again = other.split([0.9, 0.1], seed=3)[0].shuffle(5)
        assert numbers(seen) + numbers(again.iter(state)) == numbers(train)
        for wrong in (
            other.split([0.9, 0.1], seed=4)[0],
            other.split([0.9, 0.1], seed=3)[1],
            other.split([0.8, 0.2], seed=3)[0],
        ):
            with pytest.raises(StateError):
                wrong.shuffle(5).iter(state)


def test_a_split_takes_no_memory_per_sample(ds):
    import pickle

    for part in ds.split([0.9, 0.1], seed=3):
        assert len(pickle.dumps(plan_of(part))) < 1000
