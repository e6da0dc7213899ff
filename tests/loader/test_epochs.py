"""Epochs of a loader: iterated again, set, abandoned, resumed."""

import itertools
import json
import threading
import warnings

import numpy as np
import pytest

import fastshard
from fastshard.errors import ClosedError, StateError
from support.tars import write_numbers

COUNT, SIZE = 60, 4
BATCHES = COUNT // SIZE


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    with fastshard.open(
        write_numbers(tmp_path_factory.mktemp("n"), COUNT, per=25)
    ) as ds:
        yield ds


def numbers(batches):
    return [int(n) for batch in batches for n in batch["cls"]]


def order(ds, epoch):
    return numbers(ds.shuffle(7, epoch).batches(SIZE))


def test_each_epoch_has_all_samples_in_an_order_of_its_own(ds):
    with ds.shuffle(7).loader(SIZE) as loader:
        found = [numbers(loader) for _ in range(4)]
    assert found == [order(ds, epoch) for epoch in range(4)]


def test_epochs_of_a_dataset_that_is_not_shuffled_are_equal(ds):
    with ds.loader(SIZE) as loader:
        assert [numbers(loader) for _ in range(3)] == [list(range(COUNT))] * 3


def test_an_exhausted_iterator_stays_exhausted(ds):
    batches = iter(ds.loader(SIZE))
    list(batches)
    assert [next(batches, None) for _ in range(3)] == [None] * 3
    assert len(batches) == 0


def test_the_iterator_of_next_stays_exhausted(ds):
    loader = ds.loader(SIZE)
    assert len([next(loader) for _ in range(BATCHES)]) == BATCHES
    assert [next(loader, None) for _ in range(3)] == [None] * 3
    assert numbers(loader) == list(range(COUNT))


def test_iter_begins_nothing(ds):
    before = threading.active_count()
    loader = ds.shuffle(7).decode().loader(SIZE)
    iterators = [iter(loader) for _ in range(3)]
    assert threading.active_count() == before
    loader.set_epoch(2)  # an iterator begins where the loader is at its first next
    assert numbers(iterators[0]) == order(ds, 2)


def test_a_look_at_a_batch_does_not_change_the_epoch(ds):
    with ds.shuffle(7).loader(SIZE) as loader:
        first = next(iter(loader))["cls"]
        assert loader.epoch == 0
        assert numbers(loader) == order(ds, 0)
        assert loader.epoch == 1
    assert first.tolist() == order(ds, 0)[:SIZE]


def test_two_iterators_are_independent(ds):
    loader = ds.shuffle(7).loader(SIZE)
    pairs = [
        (a["cls"].tolist(), b["cls"].tolist())
        for a, b in zip(loader, loader, strict=True)
    ]
    assert all(a == b for a, b in pairs)
    assert len(pairs) == BATCHES
    assert loader.epoch == 1  # both were of epoch 0
    assert numbers(loader) == order(ds, 1)


def test_next_and_for_are_independent(ds):
    loader = ds.shuffle(7).loader(SIZE)
    own = [next(loader) for _ in range(3)]
    assert numbers(loader) == order(ds, 0)
    own += [next(loader) for _ in range(3, BATCHES)]
    assert numbers(own) == order(ds, 0)
    assert next(loader, None) is None
    assert loader.epoch == 1


@pytest.mark.parametrize("epochs", [(3, 3, 0), (1, 5), (0, 0, 1)])
def test_set_epoch_begins_that_epoch(ds, epochs):
    with ds.shuffle(7).loader(SIZE) as loader:
        for epoch in epochs:
            loader.set_epoch(epoch)
            assert loader.epoch == epoch
            assert numbers(loader) == order(ds, epoch)


def test_set_epoch_counts_from_that_of_the_dataset(ds):
    loader = ds.shuffle(7, epoch=3).loader(SIZE)
    assert loader.epoch == 3
    assert numbers(loader) == order(ds, 3)
    assert numbers(loader) == order(ds, 4)
    with pytest.raises(ValueError, match="at least 0"):
        loader.set_epoch(-1)
    with pytest.raises(TypeError):
        loader.set_epoch(1.5)


def test_set_epoch_of_another_epoch_ends_the_iterator_of_next(ds):
    loader = ds.shuffle(7).loader(SIZE)
    next(loader)
    loader.set_epoch(0)  # the same: it goes on
    assert next(loader)["cls"].tolist() == order(ds, 0)[SIZE : 2 * SIZE]
    loader.set_epoch(1)
    assert next(loader)["cls"].tolist() == order(ds, 1)[:SIZE]


def test_the_length_is_that_of_the_epoch(ds):
    shuffled = ds.shuffle(7)
    loader = shuffled.loader(SIZE)
    batches = iter(loader)
    for k in range(BATCHES):
        assert (len(loader), len(batches)) == (BATCHES, BATCHES - k)
        next(batches)
    state = shuffled.state_dict(30)
    for resumed in (
        shuffled.loader(SIZE, state=state),
        shuffled.resume(state).loader(SIZE),
    ):
        assert len(resumed) == BATCHES
        assert len(list(resumed)) == -(-(COUNT - 30) // SIZE)
        assert len(list(resumed)) == BATCHES
        assert len(resumed) == BATCHES


def test_a_resumed_epoch_continues_and_the_next_one_is_whole(ds):
    shuffled = ds.shuffle(7)
    for cut in range(BATCHES + 1):
        loader = shuffled.loader(SIZE)
        batches = iter(loader)
        done = [next(batches) for _ in range(cut)]
        state = json.loads(json.dumps(loader.state_dict()))
        assert state == batches.state_dict()

        other = shuffled.loader(SIZE, state=state)
        assert numbers(done) + numbers(other) == order(ds, 0)
        assert numbers(other) == order(ds, 1)

        loaded = ds.loader(SIZE) if cut % 2 else shuffled.loader(SIZE)
        loaded.load_state_dict(state)
        assert loaded.state_dict() == state
        loaded.set_epoch(0)
        assert numbers(done) + numbers(loaded) == order(ds, 0)
        assert numbers(loaded) == order(ds, 1)


def test_the_state_of_an_exhausted_epoch_continues_with_the_next_one(ds):
    shuffled = ds.shuffle(7)
    loader = shuffled.loader(SIZE)
    list(loader)
    state = json.loads(json.dumps(loader.state_dict()))
    assert (state["epoch"], state["position"]) == (0, COUNT)
    assert list(shuffled.batches(SIZE, state=state)) == []
    other = shuffled.loader(SIZE, state=state)
    assert (other.epoch, numbers(other)) == (1, order(ds, 1))
    other.load_state_dict(state)
    other.set_epoch(1)
    assert numbers(other) == order(ds, 1)


def test_another_epoch_than_that_of_the_state_begins_whole(ds):
    shuffled = ds.shuffle(7)
    loader = shuffled.loader(SIZE, state=shuffled.state_dict(20))
    loader.set_epoch(2)
    assert numbers(loader) == order(ds, 2)
    loader.set_epoch(5)
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (5, 0)


def test_a_state_is_that_of_the_iterator_that_gave_a_batch_last(ds):
    loader = ds.shuffle(7).loader(SIZE)
    one, other = iter(loader), iter(loader)
    assert loader.state_dict()["position"] == 0
    next(one), next(one), next(other)
    assert loader.state_dict()["position"] == loader.position == SIZE
    next(one)
    assert loader.state_dict()["position"] == loader.position == 3 * SIZE
    assert (one.position, other.position) == (3 * SIZE, SIZE)
    assert other.state_dict()["position"] == SIZE
    assert loader.stats().batches == 3
    assert other.stats().batches == 1


def test_load_state_dict_refuses_other_states(ds):
    loader = ds.shuffle(7).loader(SIZE)
    with pytest.raises(StateError):
        loader.load_state_dict({})
    with pytest.raises(StateError):
        loader.load_state_dict(ds.shuffle(8).state_dict())
    assert numbers(loader) == order(ds, 0)


def test_ranks_have_epochs_of_their_own_share(ds):
    shares = [ds.shuffle(7).split_by_rank(rank, 3) for rank in range(3)]
    loaders = [share.loader(SIZE) for share in shares]
    for epoch in range(3):
        found = [numbers(loader) for loader in loaders]
        assert sorted(itertools.chain(*found)) == list(range(COUNT))
        expected = ds.shuffle(7, epoch).split_by_rank(1, 3)
        assert found[1] == numbers(expected.batches(SIZE))


def test_a_closed_loader_gives_no_iterator(ds):
    with ds.loader(SIZE) as loader:
        batches = iter(loader)
        next(batches)
    with pytest.raises(ClosedError, match="closed"):
        iter(loader)
    assert next(batches, None) is next(loader, None) is None


def break_after(loader, count):
    for k, _ in enumerate(loader, 1):
        if k == count:
            break


def test_a_second_epoch_that_ends_early_warns_once(ds):
    with ds.shuffle(7).loader(SIZE) as loader:
        break_after(loader, 3)
        with pytest.warns(UserWarning, match=r"epoch 0 .*set_epoch\(n\)"):
            break_after(loader, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            break_after(loader, 3)


@pytest.mark.filterwarnings("error")
def test_looks_and_whole_epochs_do_not_warn(ds):
    with ds.shuffle(7).loader(SIZE) as loader:
        for _ in range(3):
            next(iter(loader))
        list(loader)
        for epoch in (5, 6, 7):
            loader.set_epoch(epoch)
            break_after(loader, 4)
        break_after(ds.loader(SIZE), 4)
        batches = [iter(loader) for _ in range(3)]
        for one in batches:
            next(one), next(one), next(one)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_errors_come_in_every_epoch(ds, on_error):
    def fail(sample):
        n = int(sample.text("txt"))
        if n == 9:
            raise ValueError("nine")
        return {"cls": n}

    with ds.loader(SIZE, map=fail, on_error=on_error) as loader:
        for _ in range(2):
            found, errors = [], 0
            batches = iter(loader)
            while True:
                try:
                    found.append(next(batches))
                except ValueError:
                    errors += 1
                except StopIteration:
                    break
            lost = {"raise": [8, 9, 10, 11], "skip": [9]}[on_error]
            assert numbers(found) == [n for n in range(COUNT) if n not in lost]
            assert errors == (on_error == "raise")
            assert loader.skipped == (on_error == "skip")


def test_a_resumed_dataset_of_windows_is_iterated_again(tmp_path):
    with fastshard.ShardWriter(tmp_path / "t.tar") as writer:
        for i in range(40):
            writer.write({"__key__": f"{i:04}", "npy": np.full(50, i, "u2")})
    windows = fastshard.open(tmp_path / "t.tar").tokens("npy", 64).shuffle(3)
    with windows.loader(4) as loader:
        found = [[batch.tolist() for batch in loader] for _ in range(2)]
    for epoch in range(2):
        again = fastshard.open(tmp_path / "t.tar").tokens("npy", 64).shuffle(3, epoch)
        assert found[epoch] == [batch.tolist() for batch in again.batches(4)]
