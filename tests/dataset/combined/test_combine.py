"""Mixes of datasets in proportions, and joins by key."""

import itertools
import json
import pickle
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fastshard
from fastshard.dataset.combine import compute_shares, split_proportionally
from fastshard.errors import FastshardError, SampleNotFoundError, StateError
from support.tars import write_numbers, write_tar


def numbers(samples):
    return [int(sample.text("txt")) for sample in samples]


def of(found, first):
    return [n for n in found if first <= n < first + 1000]


def test_a_mix_has_every_sample_once(parts):
    mixed = fastshard.mix(parts, seed=3)
    found = numbers(mixed)
    assert len(mixed) == len(found) == 147
    for first, part in zip((0, 1000, 2000), parts, strict=True):
        own = of(found, first)
        assert sorted(own) == numbers(part)
    assert found != numbers(fastshard.mix(parts, seed=4))
    assert found == numbers(fastshard.mix(parts, seed=3))
    assert numbers(mixed[10:20]) == found[10:20]
    assert numbers([mixed[-1]]) == found[-1:]
    assert numbers(mixed.get_many([5, 1])) == [found[5], found[1]]


def test_weights_are_proportions(folders, tmp_path):
    root = tmp_path
    many = [
        fastshard.open(write_numbers(root / str(k), 3000, first=k * 10_000, per=3000))
        for k in range(2)
    ]
    mixed = fastshard.mix(many, weights=[3, 1])
    first = [n for n in numbers(mixed) if n < 10_000]
    assert max(abs(n - i) for i, n in enumerate(first)) < 1024  # roughly in order
    found = np.array(numbers(mixed)) // 10_000
    assert len(mixed) == 4000
    for start in range(0, 4000 - 1024, 1024):
        assert abs((found[start : start + 1024] == 0).sum() - 768) <= 1
    runs = np.diff(np.flatnonzero(np.diff(found)))
    assert len(set(runs.tolist())) > 8  # not in turn
    for dataset in many:
        dataset.close()


def test_a_mix_ends_with_the_first_or_the_last_dataset(parts):
    first = fastshard.mix(parts, weights=[1, 1, 1])
    assert first.shares == [7, 7, 7]
    every = fastshard.mix(parts, weights=[1, 1, 1], stop="all")
    assert every.shares == [100, 100, 100]
    found = numbers(every)
    assert sorted(of(found, 0)) == list(range(100))
    assert sorted(of(found, 2000)) == sorted(2000 + i % 7 for i in range(100))
    assert len(fastshard.mix([parts[0][:0], parts[1]], weights=[1, 2])) == 0
    with pytest.raises(ValueError, match="without samples"):
        len(fastshard.mix([parts[0][:0], parts[1]], weights=[1, 2], stop="all"))


@given(
    st.lists(st.integers(0, 10**6), min_size=1, max_size=6),
    st.integers(0, 10**6),
    st.integers(0, 2000),
)
def test_proportional_counts_are_monotonic(sizes, start, more):
    total = sum(sizes)
    start = min(start, total)
    stop = min(start + more, total)
    before, after = (
        split_proportionally(sizes, start),
        split_proportionally(sizes, stop),
    )
    assert sum(before) == start
    assert sum(after) == stop
    assert all(a <= b for a, b in zip(before, after, strict=True))
    assert split_proportionally(sizes, total) == sizes


@given(
    st.lists(
        st.tuples(st.integers(1, 10**9), st.floats(1e-3, 1e3)), min_size=1, max_size=5
    )
)
def test_shares_exhaust_the_first_or_all(pairs):
    sizes = [size for size, _ in pairs]
    weights = [weight for _, weight in pairs]
    first, every = (
        compute_shares(sizes, weights, "first"),
        compute_shares(sizes, weights, "all"),
    )
    assert all(share <= size for share, size in zip(first, sizes, strict=True))
    assert any(share == size for share, size in zip(first, sizes, strict=True))
    assert all(share >= size for share, size in zip(every, sizes, strict=True))
    assert any(share == size for share, size in zip(every, sizes, strict=True))


def test_a_mix_resumes(parts, folders):
    def mixed(datasets):
        shuffled = [part.shuffle(5, 1) for part in datasets]
        return fastshard.mix(shuffled, weights=[5, 3, 1], seed=2)

    whole = numbers(mixed(parts))
    rng = random.Random(0)
    for world in (1, 3):
        done = rng.randrange(len(whole) // world)
        parts_of_ranks = [mixed(parts).split_by_rank(r, world) for r in range(world)]
        its = [iter(share) for share in parts_of_ranks]
        seen = [numbers(itertools.islice(it, done)) for it in its]
        state = json.loads(json.dumps(its[0].state_dict()))
        again = mixed([fastshard.open(folder) for folder in folders])
        rest = numbers(again.iter(state))
        together = [n for step in zip(*seen, strict=True) for n in step]
        assert together + rest == whole
    with pytest.raises(StateError, match=r"a \+ b \+ c"):
        fastshard.mix(parts, weights=[5, 3, 2], seed=2).iter(state)
    with pytest.raises(StateError):
        fastshard.mix(parts, weights=[5, 3, 1], seed=2).iter(state)


def test_a_mix_is_a_dataset(parts):
    mixed = fastshard.mix([parts[0].decode("cls"), parts[1].decode("cls")])
    labels = [sample["cls"] for sample in mixed.shuffle(9)]
    assert sorted(labels) == [*range(100), *range(1000, 1040)]
    assert [n for batch in mixed.batches(50) for n in batch["cls"]] == [
        sample["cls"] for sample in mixed
    ]
    doubled = mixed.map(lambda sample: 2 * sample["cls"])
    assert doubled[3] == 2 * mixed[3]["cls"]
    nested = fastshard.mix([mixed, mixed[:5]], seed=1)
    assert len(list(nested)) == 145
    again = pickle.loads(pickle.dumps(nested))
    assert [s["cls"] for s in again] == [s["cls"] for s in nested]
    assert repr(again) == repr(nested)
    raw = next(fastshard.mix(parts[:2]).batches(20))
    assert raw["npy"][:, 0, 0].tolist() == raw["cls"].tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": [1]}, "expected 3 weights.*got 1"),
        ({"weights": [1, 0, 1]}, "positive"),
        ({"weights": [1, -1, 1]}, "positive"),
        ({"weights": [1, float("nan"), 1]}, "positive"),
        ({"weights": [1, float("inf"), 1]}, "positive"),
        ({"stop": "never"}, "stop"),
    ],
)
def test_invalid_mixes_raise(parts, options, message):
    with pytest.raises(ValueError, match=message):
        fastshard.mix(parts, **options)
    with pytest.raises(ValueError, match="at least 1 dataset"):
        fastshard.mix([])


def test_a_mix_of_moved_datasets_resumes(folders, tmp_path):
    import shutil

    def mixed(paths):
        return fastshard.mix([fastshard.open(path) for path in paths], seed=1)

    moved = [shutil.copytree(path, tmp_path / f"{path.name}2") for path in folders]
    state = mixed(folders).state_dict(100)
    assert numbers(mixed(moved).iter(state)) == numbers(mixed(folders))[100:]


def test_one_thread_at_a_time(parts):
    import threading

    begun, go_on = threading.Event(), threading.Event()

    def wait(sample):
        begun.set()
        go_on.wait(10)
        return 1

    for it in (
        iter(fastshard.mix(parts).map(wait)),
        parts[0].map(wait).batches(2),
    ):
        begun.clear()
        go_on.clear()
        thread = threading.Thread(target=next, args=(it,))
        thread.start()
        begun.wait(10)
        with pytest.raises(ValueError, match="another thread"):
            next(it)
        go_on.set()
        thread.join()


def test_each_item_is_mapped_once_or_twice(parts):
    calls = []

    def fn(sample):
        calls.append(sample.key)
        if len(calls) == 40:
            raise fastshard.FastshardError("no")
        return sample

    it = fastshard.mix(parts).map(fn).iter(on_error="skip")
    assert len(list(it)) in (146, 147)
    assert len(calls) <= 147 + 64


def test_only_datasets_are_mixed_and_joined(parts):
    with pytest.raises(TypeError, match="got 'list'"):
        fastshard.mix([[1, 2]])
    with pytest.raises(TypeError, match="datasets with keys"):
        fastshard.zip_by_key(fastshard.mix(parts), parts[0])
    weights = np.array([0.5, 0.25, 0.25], np.float32)
    assert len(fastshard.mix(parts, weights=weights)) == 28


def test_duplicate_keys_raise(two):
    a, b = two
    pairs = fastshard.zip_by_key(a[[0, 0, 1]], b[:3])
    with pytest.raises(fastshard.AmbiguousKeyError):
        list(fastshard.zip_by_key(a[[0, *range(19)]], b))
    assert len(pairs) == 3


def test_an_unreadable_sample_raises_in_its_turn(parts, tmp_path):
    names = ["0.txt", "1.txt", "1.TXT", "2.txt"]
    bad = write_tar(tmp_path / "f.tar", dict.fromkeys(names, b"5000"))
    mixed = fastshard.mix([parts[2], fastshard.open(bad)])
    it = mixed.iter(on_error="skip")
    found = numbers(it)
    assert sorted(found) == [*range(2000, 2007), 5000, 5000]
    assert (it.skipped, it.state_dict()["position"]) == (1, 10)


@pytest.fixture
def two(tmp_path):
    """Two datasets with the same keys in other orders."""
    keys = [f"k{i}" for i in range(20)]
    a = {f"{key}.txt": key.encode() for key in keys}
    b = {f"{key}.cls": key[1:].encode() for key in sorted(keys, reverse=True)}
    paths = write_tar(tmp_path / "a.tar", a), write_tar(tmp_path / "b.tar", b)
    opened = [fastshard.open(path) for path in paths]
    yield opened
    for dataset in opened:
        dataset.close()


def test_pairs_by_key(two):
    a, b = two
    pairs = fastshard.zip_by_key(a, b)
    assert len(pairs) == 20
    for i, (one, other) in enumerate(pairs):
        assert one.key == other.key == f"k{i}"
        assert other.text("cls") == str(i)
    assert pairs[3][1].key == "k3"
    shuffled = fastshard.zip_by_key(a.shuffle(3), b.decode("cls"))
    assert [o["cls"] for _, o in shuffled] == [int(s.key[1:]) for s in a.shuffle(3)]
    sums = pairs.map(lambda pair: int(pair[1].text("cls"))).shuffle(1)
    assert sorted(sums) == list(range(20))
    it = iter(sums)
    seen = list(itertools.islice(it, 6))
    assert seen + list(sums.iter(it.state_dict())) == list(sums)
    again = pickle.loads(pickle.dumps(pairs))
    assert [o.key for o, _ in again] == [o.key for o, _ in pairs]


def test_missing_keys_are_named(two):
    a, b = two
    for one, other, message in (
        (a, b[1:], "second lacks 'k9'"),
        (a[2:], b, "first lacks 'k1', 'k0'"),
        (a[:3], b[:2], "second lacks 'k0', 'k1', 'k2'; the first lacks 'k9', 'k8'"),
    ):
        with pytest.raises(FastshardError, match=message):
            len(fastshard.zip_by_key(one, other))
    pairs = fastshard.zip_by_key(a[:19], b[:19])
    with pytest.raises(SampleNotFoundError, match="'k0' in the second"):
        list(pairs)
    assert pairs[1][1].key == "k1"


def test_only_common_keys(two):
    a, b = two
    pairs = fastshard.zip_by_key(a[5:], b[::2], strict=False)
    keys = sorted(set(a[5:].keys()) & set(b[::2].keys()), key=lambda key: int(key[1:]))
    assert [one.key for one, _ in pairs] == keys
    assert [other.key for _, other in pairs] == keys
    assert list(fastshard.zip_by_key(a[:0], b, strict=False)) == []
