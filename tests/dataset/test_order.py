"""Shuffle, split, resume: every sample once an epoch."""

import functools
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fastshard
from fastshard.dataset.order.plan import Plan, Shuffling, Split, Worker
from fastshard.errors import StateError
from support.marks import not_sanitized
from support.paths import DATA
from support.tars import write_numbers, write_tar


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """103 samples in shards of 10."""
    return write_numbers(tmp_path_factory.mktemp("numbers"), 103)


@pytest.fixture
def ds(folder):
    with fastshard.open(folder) as dataset:
        yield dataset


def numbers(samples):
    return [int(sample.text("txt")) for sample in samples]


def test_a_shuffle_is_a_dataset(ds):
    shuffled = ds.shuffle(7)
    assert sorted(numbers(shuffled)) == list(range(103))
    assert numbers(shuffled) == numbers(ds.shuffle(7)) != numbers(ds)
    assert numbers(shuffled) != numbers(ds.shuffle(8)) != numbers(ds.shuffle(7, 1))
    assert numbers([shuffled[5], shuffled[-1]]) == [
        numbers(shuffled)[5],
        numbers(shuffled)[-1],
    ]
    assert numbers(shuffled.get_many([3, 1])) == [
        numbers(shuffled)[3],
        numbers(shuffled)[1],
    ]
    assert numbers(shuffled[10:20]) == numbers(shuffled)[10:20]
    assert numbers(shuffled[::-1]) == numbers(shuffled)[::-1]
    assert shuffled[shuffled.keys().index("000042")].key == "000042"
    assert list(shuffled.keys()) == [sample.key for sample in shuffled]
    assert len(shuffled) == 103


def test_a_shuffle_of_a_selection(ds):
    odd = ds.filter(lambda key, sizes, info: int(key) % 2)
    assert sorted(numbers(odd.shuffle(3))) == list(range(1, 103, 2))
    twice = ds.shuffle(1)[:50].shuffle(2)
    assert sorted(numbers(twice)) == sorted(numbers(ds.shuffle(1))[:50])
    assert sorted(numbers(ds.shuffle(1).exclude([0]))) == list(range(10, 103))
    assert numbers(ds.shuffle(4).select_fields("txt")) == numbers(ds.shuffle(4))
    mapped = ds.decode("txt").shuffle(4).map(lambda sample: int(sample["txt"]))
    assert list(mapped) == numbers(ds.shuffle(4)) == mapped.get_many(range(103))


def test_blocks_of_a_shuffle(ds):
    order = np.array(numbers(ds.shuffle(5, block=10)))
    starts = np.flatnonzero(np.diff(order // 10)) + 1
    assert len(np.split(order, starts)) == 11
    assert sorted(order) == list(range(103))


@pytest.mark.parametrize("rest", [False, True, "pad"])
@pytest.mark.parametrize("world", [1, 2, 3, 8, 103, 104, 250])
def test_ranks_share_an_epoch(ds, world, rest):
    for epoch in range(2):
        whole = numbers(ds.shuffle(7, epoch))
        shares = [
            numbers(ds.shuffle(7, epoch).split_by_rank(rank, world, drop_last=rest))
            for rank in range(world)
        ]
        seen = list(itertools.chain(*shares))
        if rest is False:
            assert sorted(seen) == list(range(103))
            assert max(map(len, shares)) - min(map(len, shares)) <= 1
        else:
            assert len(set(map(len, shares))) == 1
            together = list(itertools.chain(*zip(*shares, strict=True)))
            count = 103 // world * world if rest is True else -(-103 // world) * world
            assert together == list(itertools.islice(itertools.cycle(whole), count))


@pytest.mark.parametrize("world", [2, 3, 8, 250])
def test_shares_are_equal_by_default_and_begin_as_unequal_ones(ds, world):
    part = ds.shuffle(7)
    shares = [part.split_by_rank(rank, world) for rank in range(world)]
    assert {len(share) for share in shares} == {-(-103 // world)}
    assert set(itertools.chain(*map(numbers, shares))) == set(range(103))
    for rank, share in enumerate(shares):
        unequal = numbers(part.split_by_rank(rank, world, drop_last=False))
        assert numbers(share)[: len(unequal)] == unequal


@pytest.mark.parametrize("rest", [False, True, "pad"])
def test_a_state_of_any_split_resumes_in_the_default_one(ds, rest):
    steps = [
        iter(ds.shuffle(7).split_by_rank(rank, 3, drop_last=rest)) for rank in range(3)
    ]
    done = [numbers(itertools.islice(step, 20)) for step in steps]
    state = json.loads(json.dumps(steps[0].state_dict()))
    seen = [n for step in zip(*done, strict=True) for n in step]
    rest_of = [numbers(ds.split_by_rank(r, 4).resume(state)) for r in range(4)]
    assert {len(part) for part in rest_of} == {11}
    seen += [n for step in zip(*rest_of, strict=True) for n in step]
    assert seen[:103] == numbers(ds.shuffle(7))


def test_ranks_are_below_the_world_size(ds):
    for rank, world in ((2, 2), (-1, 2)):
        with pytest.raises(ValueError, match=f"rank must be from 0 to 1, got {rank}"):
            ds.split_by_rank(rank, world)
    with pytest.raises(ValueError, match="world_size"):
        ds.split_by_rank(0, 0)
    with pytest.raises(ValueError, match="drop_last"):
        ds.split_by_rank(0, 1, drop_last="last")
    with pytest.raises(ValueError, match="block"):
        ds.shuffle(1, block=0)
    with pytest.raises(TypeError):
        ds.shuffle("seed")


def test_an_empty_dataset(ds):
    none = ds[:0]
    for part in (none.shuffle(1), none.split_by_rank(1, 3, drop_last="pad")):
        assert list(part) == list(part.batches(4)) == []
        assert list(part.iter(iter(part).state_dict())) == []


@pytest.mark.parametrize("done", [0, 1, 50, 102, 103])
def test_an_iteration_resumes(ds, folder, done):
    part = ds.shuffle(7, epoch=2)
    it = iter(part)
    seen = numbers(itertools.islice(it, done))
    state = json.loads(json.dumps(it.state_dict()))
    assert (state["seed"], state["epoch"], state["position"]) == (7, 2, done)
    rest = numbers(it)
    assert seen + rest == numbers(part)
    with fastshard.open(folder) as again:  # seed and epoch are in the state
        assert numbers(again.iter(state)) == rest
        assert numbers(again.shuffle(7).iter(state)) == rest
        assert numbers(again.resume(state)) == rest
        assert len(again.resume(state)) == len(rest)
        assert again.shuffle(7, 2).state_dict(done) == state


def test_a_state_is_small_and_has_no_path(ds, folder):
    state = ds[list(range(103))].shuffle(2**80).split_by_rank(0, 9).state_dict()
    text = json.dumps(state)
    assert len(text) < 1024
    assert str(folder.parent) not in text


def test_the_world_size_changes_within_an_epoch(ds):
    rng = random.Random(1)
    for _ in range(60):
        world, rest = rng.choice([1, 2, 3, 7]), rng.choice([False, True, "pad"])
        seen, state = [], None
        part = ds.shuffle(rng.randrange(9))
        while True:
            shares = [
                part.split_by_rank(rank, world, drop_last=rest) for rank in range(world)
            ]
            its = [share.iter(state) for share in shares]
            steps = rng.randrange(8)
            found = [numbers(itertools.islice(it, steps)) for it in its]
            seen += [n for step in itertools.zip_longest(*found) for n in step]
            seen = [n for n in seen if n is not None]
            states = [it.state_dict() for it in its]
            if min(map(len, found)) < steps:  # the end
                break
            state = rng.choice(states)
            assert all(s["position"] == state["position"] for s in states)
            world = rng.choice([1, 2, 3, 7])
        whole = numbers(part)
        if rest is False:
            assert seen == whole
        elif rest is True:
            assert seen == whole[: len(seen)]
            assert len(seen) > 103 - 7
        else:
            assert seen == (whole + whole)[: len(seen)]
            assert len(seen) < 103 + 7


def test_a_state_of_another_dataset_is_refused_by_name(ds, tmp_path, folder):
    state = ds.shuffle(7).state_dict(5)
    other = write_numbers(tmp_path / "others", 103, first=1)
    with fastshard.open(other) as another:
        with pytest.raises(StateError, match=rf"'others' .*'{folder.name}'"):
            another.iter(state)
        with pytest.raises(StateError, match="others"):
            ds.resume(another.state_dict())
    with pytest.raises(StateError, match="another selection"):
        ds[1:].iter(state)
    with pytest.raises(StateError, match=r"by seed 8, got one .* seed 7"):
        ds.shuffle(8).iter(state)
    with pytest.raises(StateError, match="blocks of 4"):
        ds.shuffle(7, block=4).iter(state)
    with pytest.raises(StateError, match="shuffled by nothing"):
        ds.shuffle(8).iter(ds.state_dict())
    with pytest.raises(StateError, match="93 samples"):
        ds.iter(ds.exclude([2]).shuffle(1)[5:].state_dict())


def test_a_copied_dataset_resumes(ds, tmp_path, folder):
    state = ds.shuffle(7).state_dict(50)
    copy = shutil.copytree(folder, tmp_path / "elsewhere" / "below")
    with fastshard.open(f"{copy}/n-*.tar") as other:
        assert numbers(other.iter(state)) == numbers(ds.shuffle(7))[50:]
    with fastshard.open(copy, index="none") as other:
        assert numbers(other.iter(state)) == numbers(ds.shuffle(7))[50:]
    for path in copy.glob("*.tar"):  # the identity hashes the first and the last
        os.truncate(path, path.stat().st_size - 1024)
    with fastshard.open(copy, index="none") as other, pytest.raises(StateError):
        other.iter(state)


BROKEN = {
    "version": [0, 2, None, "1", True, 10**5000],
    "dataset": [None, 3],
    "id": [None, "x", 5, ["a"]],
    "samples": [-1, 104, 1.0, True, 2**70, None],
    "base": [None, "00", 7],
    "seed": ["7", 7.0, None, [7], True, 10**5000],
    "epoch": [None, "0", 1.5, 2**200],
    "block": [0, -1, "4", 2**64, 2.0],
    "position": [-1, 104, "5", 5.0, None, 2**64, True],
    "skipped": [-1, "1", 1.0, None],
    "worker": [
        5,
        {},
        {"where": [0, 1, 0, 1], "start": 0, "taken": 0},
        {"where": [0, 1, 0, 1, -1], "start": 0, "taken": 0},
        {"where": [0, 1, 0, 1, 1], "start": 104, "taken": 0},
        {"where": [0, 1, 0, 1, 1], "start": 0, "taken": -1},
        {"where": "abcde", "start": 0, "taken": 0},
    ],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [(k, v) for k, values in BROKEN.items() for v in values],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_modified_state_is_refused(ds, name, value):
    state = ds.shuffle(7).state_dict(5) | {name: value}
    with pytest.raises(StateError):
        ds.shuffle(7).resume(state)
    state.pop(name)
    if name not in ("block", "worker", "skipped"):
        with pytest.raises(StateError):
            ds.resume(state)


def test_a_selection_may_be_larger_or_smaller_than_the_shards(ds):
    thrice = ds[list(range(103)) * 3]
    it = iter(thrice)
    seen = numbers(itertools.islice(it, 250))
    assert seen + numbers(thrice.iter(it.state_dict())) == numbers(thrice)
    part = ds[:5].shuffle(3)
    with pytest.raises(StateError, match="position"):
        part.iter(part.state_dict() | {"position": 9})


def in_worker(monkeypatch, k, workers):
    monkeypatch.setattr(
        "fastshard.dataset.sequence.base.current_worker", lambda: (k, workers)
    )


def test_a_worker_s_state_is_for_the_same_worker(ds, monkeypatch):
    part = ds.shuffle(3)
    in_worker(monkeypatch, 1, 2)
    it = part.batches(4)
    next(it), next(it)
    state = it.state_dict()
    rest = [batch["__key__"] for batch in it]
    assert [batch["__key__"] for batch in part.batches(4, state=state)] == rest
    for other in (
        lambda: part.batches(5, state=state),
        lambda: part.iter(state),
        lambda: part.split_by_rank(0, 2).batches(4, state=state),
    ):
        with pytest.raises(StateError, match="expected a state of the worker"):
            other()
    worker = state["worker"]
    for broken in ({"taken": 2**62}, {"taken": 12}, {"start": 20}, {"start": 103}):
        with pytest.raises(StateError):
            part.batches(4, state=state | {"worker": worker | broken})
    in_worker(monkeypatch, 0, 3)
    with pytest.raises(StateError, match="expected a state of the worker"):
        part.batches(4, state=state)
    begun = part.batches(
        4, state=part.state_dict(8)
    )  # a state from outside workers resumes in any
    assert next(begun)["__key__"] == list(part.keys())[8:12]
    monkeypatch.undo()
    whole = [key for batch in part.batches(4, state=state) for key in batch["__key__"]]
    assert whole == list(part.keys())[16:]  # four batches came in turn


def test_seeds_have_a_bound(ds):
    for call in (
        lambda: ds.shuffle(2**128),
        lambda: ds.shuffle(1, -(2**128)),
        lambda: ds.split_by_rank(0, 10**30),
        lambda: fastshard.mix([ds], seed=2**200),
    ):
        with pytest.raises(ValueError, match=r"128 bits|world_size"):
            call()
    assert sorted(numbers(ds.shuffle(1, block=10**30))) == list(range(103))


def test_keys_of_repeated_samples_are_found_at_the_first_position(ds):
    for part in (
        ds[[0, 0]].shuffle(1)[1:2],
        ds[[0, 0, 1, 1, 2, 2]].shuffle(3),
        ds[:7].split_by_rank(0, 1, drop_last="pad")[::-1],
        ds[:3].split_by_rank(0, 2, drop_last="pad").shuffle(1),
    ):
        keys = list(part.keys())
        for key in keys:
            assert part.keys().index(key) == keys.index(key)
            assert part[key].key == key


def test_nested_selections_have_a_limit(ds):
    for epoch in range(990):
        ds = ds.shuffle(1, epoch)
    assert sorted(numbers(ds)) == list(range(103))
    with pytest.raises(ValueError, match="1000 chained selections"):
        functools.reduce(lambda part, epoch: part.shuffle(1, epoch), range(20), ds)


def test_a_dataset_without_shards_resumes(ds):
    none = ds.exclude(range(11))
    assert list(none.iter(none.state_dict())) == []


@pytest.mark.parametrize("state", [None, [], "state", 5, {}, {"version": 1}])
def test_invalid_states_are_refused(ds, state):
    with pytest.raises(StateError):
        ds.resume(state)


@pytest.fixture
def faulty(tmp_path):
    """Five samples; the second has a field twice."""
    names = ["0.txt", "1.txt", "1.TXT", "2.txt", "3.txt", "4.txt"]
    path = write_tar(tmp_path / "f.tar", {name: name[:1].encode() for name in names})
    with fastshard.open(path) as ds:
        yield ds


def test_errors_are_raised_in_turn(faulty):
    it = iter(faulty)
    assert next(it).key == "0"
    with pytest.raises(fastshard.FormatError, match="twice"):
        next(it)
    state = it.state_dict()
    assert state["position"] == 2
    assert numbers(it) == numbers(faulty.iter(state)) == [2, 3, 4]
    with pytest.raises(fastshard.FormatError):
        list(faulty.resume(it.state_dict() | {"position": 1}))


def test_errors_are_skipped_and_counted(faulty):
    it = faulty.iter(on_error="skip")
    assert numbers(itertools.islice(it, 2)) == [0, 2]
    assert (it.skipped, it.state_dict()["position"]) == (1, 3)
    assert numbers(faulty.iter(it.state_dict(), on_error="skip")) == [3, 4]
    told = []
    shuffled = faulty.shuffle(2)
    it = shuffled.iter(on_error=lambda error, i: told.append(i))
    assert sorted(numbers(it)) == [0, 2, 3, 4]
    assert told == [shuffled.keys().index("1")]


def test_samples_before_an_error_are_in_the_next_batch(faulty):
    it = faulty.batches(2)
    assert len(it) == 3
    with pytest.raises(fastshard.FormatError):
        next(it)
    assert it.state_dict()["position"] == 0  # no batch was returned
    assert [batch["txt"] for batch in it] == [["0", "2"], ["3", "4"]]
    assert it.state_dict()["position"] == 5


@given(
    total=st.integers(0, 200),
    world=st.integers(1, 9),
    rest=st.sampled_from([False, True, "pad"]),
    start=st.integers(0, 210),
    workers=st.integers(1, 5),
    chunk=st.integers(1, 9),
)
def test_workers_share_a_rank_s_samples(total, world, rest, start, workers, chunk):
    start = min(start, total)
    left = total - start
    for rank in range(world):
        plan = Plan(None, Shuffling(1, 2, None), Split(rank, world, rest), start)
        order = plan.order(total)
        share = list(order)
        epoch = list(Plan(None, Shuffling(1, 2, None)).order(total))
        count = {False: -(-(left - rank) // world), True: left // world}.get(
            rest, -(-left // world)
        )
        places = (start + rank + i * world for i in range(max(count, 0)))
        assert share == [epoch[place % total] for place in places]
        pieces = [share[i : i + chunk] for i in range(0, len(share), chunk)]
        for k in range(workers):
            mine = plan._replace(worker=Worker(k, workers, chunk))
            expected = list(itertools.chain(*pieces[k::workers]))
            assert list(mine.order(total)) == expected
            for taken in range(0, len(expected) + 1, chunk):
                later = mine._replace(worker=Worker(k, workers, chunk, taken))
                assert list(later.order(total)) == expected[taken:]
                done = mine.done(total, taken)
                last = len(pieces[: k + 1 + (taken // chunk - 1) * workers]) * chunk
                last = min(last, len(share)) if taken else 0
                assert done == min(start + last * world, total)


KILLED = """
import json, os, sys, fastshard
folder, log = sys.argv[1:]
done = {}
if os.path.exists(log):
    with open(log) as file:
        for line in file:
            if line.endswith("\\n"):
                state = json.loads(line)["state"]
with fastshard.open(folder) as ds, open(log, "a") as file:
    it = ds.shuffle(11).iter(state if "state" in dir() else None)
    for sample in it:
        line = {"key": sample.key, "state": it.state_dict()}
        file.write(json.dumps(line) + "\\n")
        file.flush()
"""


@not_sanitized
def test_nothing_is_lost_when_killed(folder, tmp_path):
    log = tmp_path / "log"
    rng = random.Random(3)
    command = [sys.executable, "-c", KILLED, folder, log]
    rounds = 0
    while True:
        rounds += 1
        child = subprocess.Popen(command)
        try:
            # Longer and longer: a busy machine starts a process late.
            child.wait(rng.uniform(0.1, 0.35) * (1 + rounds / 20))
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            child.wait()
        text = log.read_text() if log.exists() else ""
        whole, newline, _ = text.rpartition("\n")
        log.write_text(whole + newline)  # a torn line was not acknowledged
        if child.returncode == 0 or rounds > 200:
            break
    keys = [json.loads(line)["key"] for line in log.read_text().splitlines()]
    with fastshard.open(folder) as ds:
        assert keys == list(ds.shuffle(11).keys())


OTHER = """
import json, sys, fastshard
with fastshard.open(sys.argv[1]) as ds:
    print([s.key for s in ds.iter(json.loads(sys.argv[2]))])
"""


PINNED = {
    "version": 1,
    "dataset": "pinned",
    "id": "0b01053fdb227f58",
    "samples": 10,
    "base": "a64d22ba628a8a20",
    "seed": 5,
    "epoch": 0,
    "block": None,
    "position": 4,
}


# Saved after 2 samples by an early state of version 0.1.
STATES = json.loads((DATA / "states" / "states.json").read_text())


def fail_at_01_and_11(sample):
    if sample.key in ("01", "11"):
        raise OSError("broken")
    return sample


def key_of(item):
    if isinstance(item, dict):
        return item["__key__"]
    return item.key if not isinstance(item, tuple) else "+".join(s.key for s in item)


VARIANTS = {
    "plain": lambda ds: ds,
    "shuffled": lambda ds: ds.shuffle(7, block=2),
    "selected": lambda ds: ds[::-1],
    "rank": lambda ds: ds.shuffle(1).split_by_rank(0, 2, drop_last="pad"),
    "decoded": lambda ds: ds.decode("txt"),
    "columnar": lambda ds: ds.shuffle(2),
    "mixed": lambda ds: fastshard.mix([ds[:3], ds[3:]], [1, 1], 5),
    "zipped": lambda ds: fastshard.zip_by_key(ds, ds),
    "skipping": lambda ds: ds.map(fail_at_01_and_11),
    "batches": lambda ds: ds.shuffle(7, block=2),
}


@pytest.mark.parametrize("name", STATES)
def test_saved_states_are_resumed(tmp_path, name):
    folder = "columns" if name == "columnar" else "tars"
    shutil.copytree(DATA / "states" / folder, tmp_path / folder)
    state, rest = STATES[name]["state"], STATES[name]["rest"]
    with fastshard.open(tmp_path / folder) as whole:
        ds = VARIANTS[name](whole)
        assert [key_of(item) for item in ds.iter(state, on_error="skip")] == rest
        batches = ds.batches(3, state=state, collate=list, on_error="skip")
        assert [key_of(item) for batch in batches for item in batch] == rest


@not_sanitized
def test_a_state_is_read_in_another_process(ds, folder):
    state = json.dumps(ds.shuffle(7, 5).state_dict(60))
    done = subprocess.run(
        [sys.executable, "-c", OTHER, folder, state], capture_output=True, text=True
    )
    assert done.stdout.strip() == str(list(ds.shuffle(7, 5).keys())[60:]), done.stderr


def test_a_state_never_changes(tmp_path):
    """States saved by other versions of fastshard or Python are equal."""
    folder = write_numbers(tmp_path / "pinned", 10)
    with fastshard.open(folder) as ds:
        state = (
            ds.shuffle(7, 3, block=4)[1:].shuffle(5).split_by_rank(1, 2).state_dict(2)
        )
    assert state == PINNED
