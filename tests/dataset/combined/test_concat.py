"""Concatenations of datasets: ``a + b``."""

import itertools
import json
import os
import pickle
import random

import numpy as np
import pytest

import fastshard
from fastshard import AmbiguousKeyError, Concat, SampleNotFoundError, StateError
from fastshard.columnar import ShardedDatasetWriter
from support.inside.datasets import is_counted
from support.servers.forks import run_with_torch
from support.tars import write_tar
from support.threads import started_since, thread_ids

EXPECTED = [*range(100), *range(1000, 1040), *range(2000, 2007)]


def numbers(samples):
    return [int(sample.text("txt")) for sample in samples]


def test_a_sum_has_the_samples_of_one_after_those_of_another(parts):
    a, b, c = parts
    both = a + b + c
    assert isinstance(both, Concat)
    assert len(both) == 147
    assert numbers(both) == numbers(both.get_many(range(147))) == EXPECTED
    assert numbers([both[0], both[99], both[100], both[-1]]) == [0, 99, 1000, 2006]
    assert numbers(both[95:145:7]) == EXPECTED[95:145:7]
    assert numbers(both[[120, 3, -1]]) == [EXPECTED[i] for i in (120, 3, -1)]
    mask = np.arange(147) % 3 == 0
    assert numbers(both[mask]) == EXPECTED[::3]
    assert numbers(both.get_many([140, 0, 140])) == [2000, 0, 2000]
    for position in (147, -148):
        with pytest.raises(IndexError):
            both[position]


def test_sums_are_flat(parts):
    a, b, c = parts
    for both in ((a + b) + c, a + (b + c), sum([a, b, c]), sum([a + b, c])):
        assert both.datasets == [a, b, c]
        assert numbers(both) == EXPECTED
    selected = (a + b)[:10] + c
    assert len(selected.datasets) == 2
    assert numbers(selected) == [*range(10), *range(2000, 2007)]
    doubled = (a + b).map(lambda sample: 2 * int(sample.text("txt"))) + c
    assert doubled[101] == 2002
    assert numbers([doubled[-1]]) == [2006]
    assert sum([a]) is a


def test_only_datasets_are_added(parts):
    for other in ([1], 0, "more", None, fastshard.Dataset):
        with pytest.raises(TypeError):
            parts[0] + other
    for other in ([1], 1, 0.0, False):
        with pytest.raises(TypeError):
            other + parts[0]


def test_parts_may_be_of_any_kind(parts, tmp_path):
    with ShardedDatasetWriter(tmp_path / "c") as writer:
        writer.add_fields(["npy"])
        for i in range(5):
            writer.add_sample({"npy": np.full((2, 3), i, "f4")}, f"id{i}")
    columnar = fastshard.open(tmp_path / "c")
    a, b, c = parts
    mixed = fastshard.mix([b, c], seed=1)
    pairs = fastshard.zip_by_key(c, c)
    both = a.shuffle(3)[:10] + columnar + b.decode("cls") + mixed + pairs
    assert len(both) == 10 + 5 + 40 + 47 + 7
    assert numbers(both.get_many(range(10))) == numbers(a.shuffle(3)[:10])
    assert both[12]["npy"][0, 0] == 2
    assert both[15]["cls"] == 1000
    assert both[60].key == mixed[5].key
    assert both[-1][0].key == "000006"
    arrays = next((a.select_fields("npy") + columnar).batches(105))
    assert arrays["npy"][:, 0, 0].tolist() == [*range(100), *range(5)]


def test_keys_find_samples_of_all_parts(parts, tmp_path):
    a, b, c = parts
    write_tar(tmp_path / "x.tar", {"own.txt": b"5", "000003.txt": b"6"})
    x = fastshard.open(tmp_path / "x.tar")
    both = a + x
    assert numbers([both["own"], both["000050"]]) == [5, 50]
    with pytest.raises(AmbiguousKeyError) as caught:
        both["000003"]
    assert "101" in str(caught.value)
    with pytest.raises(SampleNotFoundError, match="none"):
        both["none"]
    keys = both.keys()
    assert list(keys) == keys[:] == [*a.keys(), *x.keys()]
    assert keys[-1] == "000003"
    assert keys.find("000003") == [3, 101]
    assert keys.index("000003", 50) == 101
    assert "own" in keys
    assert 7 not in keys
    assert "own" in both
    assert "none" not in both
    reversed_ = both[::-1]
    assert reversed_.keys().find("000003") == [0, 98]
    assert reversed_["own"].key == "own"
    assert "own" not in both[:50].keys()  # noqa: SIM118
    assert both[1:].keys().count("000000") == 0
    with pytest.raises(TypeError, match="Mix have no keys"):
        (a + fastshard.mix([b, c]))["000000"]


def test_a_concatenation_is_a_dataset(parts):
    a, b, _ = parts
    both = a + b
    shuffled = both.shuffle(9)
    assert sorted(numbers(shuffled)) == EXPECTED[:140]
    assert numbers(shuffled) != EXPECTED[:140]
    shares = [both.split_by_rank(r, 3, drop_last=False) for r in range(3)]
    assert [numbers(share) for share in shares] == [EXPECTED[r:140:3] for r in range(3)]
    assert [n for batch in both.batches(32) for n in batch["cls"]] == EXPECTED[:140]
    assert both.map(lambda sample: sample.key)[100] == "000000"
    assert numbers(both.head(3)) == [0, 1, 2]
    assert len(fastshard.mix([both, both])) == 280
    assert numbers((both.take(102) + a.take(1)).head(200))[-3:] == [1000, 1001, 0]


def test_a_concatenation_resumes(parts, folders):
    def whole(datasets):
        a, b, c = datasets
        return (a.shuffle(5) + b + c[::-1]).shuffle(3, 1)

    expected = numbers(whole(parts))
    rng = random.Random(0)
    for world in (1, 3):
        done = rng.randrange(len(expected) // world)
        its = [
            iter(whole(parts).split_by_rank(r, world, drop_last=False))
            for r in range(world)
        ]
        seen = [numbers(itertools.islice(it, done)) for it in its]
        state = json.loads(json.dumps(its[0].state_dict()))
        again = whole([fastshard.open(folder) for folder in folders])
        together = [n for step in zip(*seen, strict=True) for n in step]
        assert together + numbers(again.iter(state)) == expected
    for other in (parts[0] + parts[2] + parts[1], parts[0] + parts[1], parts[0]):
        with pytest.raises(StateError):
            other.shuffle(3, 1).iter(state)


def test_a_concatenation_pickles_and_survives_fork(parts):
    both = (parts[0] + parts[1]).shuffle(4)
    expected = numbers(both)
    again = pickle.loads(pickle.dumps(both))
    assert numbers(again) == expected
    assert repr(again) == repr(both)
    assert again.iter(both.state_dict(7)).state_dict() == both.state_dict(7)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, b"y" if numbers(both) == expected else b"n")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1) == b"y"
    os.close(read), os.close(write)


def test_unreadable_samples_are_skipped(tmp_path, parts):
    write_tar(tmp_path / "x.tar", {"1.cls": b"1", "2.cls": b"bad", "3.cls": b"3"})
    x = fastshard.open(tmp_path / "x.tar")
    both = x.decode() + x.decode()
    it = both.iter(on_error="skip")
    assert [item["cls"] for item in it] == [1, 3, 1, 3]
    assert it.skipped == 2
    with pytest.raises(fastshard.FormatError):
        list(both)


def test_the_head_counts_no_later_part(tmp_path, parts):
    path = write_tar(tmp_path / "x.tar", {"1.txt": b"1"})
    x = fastshard.open(path, index="none")
    both = parts[0] + x
    path.unlink()
    assert numbers(both.head(3)) == [0, 1, 2]
    assert not is_counted(x)


def test_workers_read_a_concatenation(tmp_path, folders):
    pytest.importorskip("torch")
    code = (
        "import sys, fastshard\n"
        "from torch.utils.data import DataLoader\n"
        "if __name__ == '__main__':\n"
        "    a, b = map(fastshard.open, sys.argv[1:])\n"
        "    both = a.decode('cls') + b.decode('cls')\n"
        "    loader = DataLoader(both, 16, num_workers=2)\n"
        "    print([int(n) for batch in loader for n in batch['cls']])\n"
    )
    found = run_with_torch(tmp_path, code, *folders[:2])
    assert json.loads(found) == EXPECTED[:140]


def test_iteration_in_order_has_positions_states_and_errors(parts, tmp_path):
    a, b, c = parts
    both = a + fastshard.mix([b, c]) + c
    expected = numbers(both.get_many(range(len(both))))
    for done in (0, 1, 99, 100, 101, 146, 147, 153, 154):
        it = iter(both)
        seen = numbers(itertools.islice(it, done))
        assert it.position == done
        assert it.__length_hint__() == 154 - done
        state = json.loads(json.dumps(it.state_dict()))
        assert seen + numbers(both.iter(state)) == expected
        assert f"position {done}" in repr(it)
        it.close()
        assert list(it) == []
    write_tar(tmp_path / "x.tar", {"1.cls": b"1", "2.cls": b"bad", "3.cls": b"3"})
    x = fastshard.open(tmp_path / "x.tar").decode()

    def fail_on_3(item):
        if item["cls"] == 3:
            raise ValueError("three")
        return item["cls"]

    seen = []
    it = (x + x).map(fail_on_3).iter(on_error=lambda error, i: seen.append(i))
    assert list(it) == [1, 1]
    assert seen == [1, 2, 4, 5]
    assert it.skipped == 4
    it = iter((x + x).map(fail_on_3))
    assert next(it) == 1
    with pytest.raises(fastshard.FormatError):
        next(it)
    with pytest.raises(ValueError, match="three") as caught:
        next(it)
    assert any("position 2 of the dataset" in note for note in caught.value.__notes__)
    assert next(it) == 1


def test_closing_the_iterator_ends_its_thread(folders):
    both = fastshard.open(folders[0]) + fastshard.open(folders[1])
    before = thread_ids()
    it = iter(both)
    next(it)
    it.close()
    assert not started_since(before)
    with pytest.raises(StopIteration):
        next(it)
    assert it.position == 1
