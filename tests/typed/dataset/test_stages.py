"""Filters and mapped functions: one list, in the order in which they were added."""

import pickle
from collections import Counter

import numpy as np
import pytest

import fastshard
from fastshard import typed
from support.typed.packed import write_shard
from support.typed.photos import Photo, is_odd, label_of, row, write_photos


@pytest.fixture
def photos(tmp_path):
    return typed.Dataset[Photo](write_photos(tmp_path))


class Counted:
    """Filter that counts its calls."""

    def __init__(self, fn):
        self.fn = fn
        self.calls = 0

    def __call__(self, sample):
        self.calls += 1
        return self.fn(sample)


def numbers(samples):
    return [sample.number for sample in samples]


ODD = list(range(1, 30, 2))
# Everything that gives samples, as a function of a dataset.
READS = {
    "iter": list,
    "ordered": lambda ds: list(ds.ordered()),
    "batches": lambda ds: [s for b in ds.ordered(batch_size=4) for s in b.samples],
    "positions": lambda ds: [ds[i] for i in range(len(ds))],
    "head": lambda ds: ds.head(100),
    "select": lambda ds: ds.select(range(len(ds))),
    "get_many": lambda ds: ds.get_many(range(len(ds))),
    "slice": lambda ds: list(ds[:]),
    "pickle": lambda ds: list(pickle.loads(pickle.dumps(ds))),
    "shuffled": lambda ds: sorted(ds.shuffled(seed=1), key=str),
    "shards": lambda ds: [s for part in ds.process_shards(list).values() for s in part],
}


@pytest.fixture(params=READS.values(), ids=READS)
def read(request):
    return request.param


def test_a_filter_selects_for_every_read(photos, read):
    found = read(photos.filter(is_odd))
    assert sorted(numbers(found)) == ODD


def test_a_filter_sees_the_mapped_sample(photos, read):
    mapped = photos.map(label_of).filter(lambda label: label.endswith("7"))
    if read is READS["pickle"]:
        assert mapped[0] == "photo 7"  # evaluated, so that the lambda is not pickled
    assert sorted(read(mapped)) == ["photo 17", "photo 27", "photo 7"]


def test_a_function_after_a_filter_sees_selected_samples(photos, read):
    seen = read(photos.filter(is_odd).map(label_of))
    assert sorted(seen) == sorted(f"photo {i}" for i in ODD)


def test_a_filter_of_a_shuffled_dataset_keeps_its_order(photos):
    order = numbers(photos.shuffle(seed=3))
    kept = photos.shuffle(seed=3).filter(is_odd)
    assert numbers(kept) == [n for n in order if n % 2]
    assert kept[2].number == numbers(kept)[2]


def test_stages_after_a_filter_count_selected_samples(photos):
    odd = photos.filter(is_odd)
    assert len(odd) == 15
    assert odd[7].number == 15
    assert odd[-1].number == 29
    assert numbers(odd[3:5]) == [7, 9]
    assert Counter(numbers(odd.shuffle(seed=7))) == Counter(ODD)
    parts = [numbers(odd.split_by_rank(rank, 2, drop_last=False)) for rank in (0, 1)]
    assert parts == [ODD[::2], ODD[1::2]]
    with pytest.raises(IndexError):
        odd[15]
    assert odd.get("000003").number == 3
    with pytest.raises(typed.SampleKeyError):
        odd.get("000004")


def test_filters_follow_each_other(photos):
    found = photos.filter(is_odd)[2:].filter(lambda photo: photo.number % 5 == 0)
    assert numbers(found) == [5, 15, 25]
    assert numbers(found.shuffle(2).filter(lambda photo: photo.number > 5)[:]) in (
        [15, 25],
        [25, 15],
    )


def test_a_filter_is_lazy_and_evaluated_once(photos):
    fn = Counted(is_odd)
    odd = photos.filter(fn)
    assert fn.calls == 0
    assert numbers(odd.head(2)) == [1, 3]
    assert fn.calls == 4
    assert len(odd) == 15
    calls = fn.calls
    assert calls == 34
    assert odd[3].number == 7
    assert numbers(odd.map(lambda photo: photo)[:2]) == [1, 3]
    assert numbers(odd) == ODD
    assert fn.calls == calls


def test_a_whole_iteration_evaluates_the_filter(photos):
    fn = Counted(is_odd)
    odd = photos.filter(fn)
    assert numbers(odd) == ODD
    assert (len(odd), odd[1].number, numbers(odd)) == (15, 3, ODD)
    assert fn.calls == 30


def test_an_iteration_that_ends_early_does_not_count_as_whole(photos):
    odd = photos.filter(is_odd)
    iterator = odd.iter()
    next(iterator)
    iterator.close()
    assert next(iterator, None) is None
    assert len(odd) == 15


def test_states_of_a_filtered_dataset_resume(photos):
    iterator = photos.filter(is_odd).iter()
    assert [next(iterator).number for _ in range(4)] == [1, 3, 5, 7]
    state = iterator.state_dict()
    fresh = photos.filter(is_odd)
    assert numbers(fresh.resume(state)) == ODD[4:]
    assert numbers(fresh.iter(state)) == ODD[4:]
    assert fresh.state_dict(4) == state
    with pytest.raises(fastshard.StateError, match="another selection"):
        photos.resume(state)
    batches = fresh.shuffle(5).batches(4)
    first = next(batches)["number"]
    rest = numbers(photos.filter(is_odd).resume(batches.state_dict()))
    assert Counter([*first, *rest]) == Counter(ODD)


def test_a_combination_tells_filters_apart(photos):
    one = fastshard.mix([photos.filter(is_odd), photos])
    other = fastshard.mix([photos.filter(lambda p: not is_odd(p)), photos])
    state = one.state_dict(3)
    assert numbers(fastshard.mix([photos.filter(is_odd), photos]).resume(state))
    with pytest.raises(fastshard.StateError):
        other.resume(state)


def test_an_error_of_a_filter_names_the_sample(photos):
    def fails(photo):
        return photo.number < 12 or photo.missing

    dataset = photos.filter(fails)
    for use in (list, len, lambda ds: ds[0]):
        with pytest.raises(AttributeError) as caught:
            use(dataset)
        notes = caught.value.__notes__
        assert notes == ["sample '000012', position 12 of the unfiltered dataset"]


def test_an_iteration_with_errors_does_not_evaluate_the_filter(photos):
    def fails(photo):
        if photo.number == 12:
            raise ValueError("12")
        return is_odd(photo)

    dataset = photos.filter(fails)
    iterator = dataset.iter(on_error="skip")
    assert numbers(iterator) == ODD
    assert iterator.skipped == 1
    with pytest.raises(ValueError, match="12"):
        len(dataset)
    iterator = dataset.iter()
    with pytest.raises(ValueError, match="12"):
        numbers(iterator)
    assert numbers(iterator) == ODD[6:]
    with pytest.raises(ValueError, match="12"):
        len(dataset)


def test_unreadable_samples_are_skipped_before_a_filter(tmp_path):
    path = tmp_path / "wrong.tar"
    write_shard(path, [row(1), {"number": 1}, row(3), b"\x81", row(4), row(5)])
    skipped = []
    dataset = typed.Dataset[Photo](str(path)).filter(is_odd)
    found = dataset.iter(on_error=lambda error, i: skipped.append(i))
    assert numbers(found) == [1, 3, 5]
    assert skipped == [1, 3]


def test_a_filter_that_ends_an_iteration_is_an_error(photos):
    def ends(photo):
        raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration"):
        list(photos.filter(ends))


def test_a_pickle_holds_the_positions_not_the_function(photos):
    kept = photos.filter(lambda photo: photo.number > 26)  # lambdas do not pickle
    assert numbers(pickle.loads(pickle.dumps(kept.shuffle(1)))) == numbers(
        kept.shuffle(1)
    )


def test_a_dataset_without_selected_samples(photos):
    none = photos.filter(lambda photo: False)
    assert list(none) == list(none.ordered(batch_size=3)) == none.head() == []
    assert len(none) == len(none.shuffle(1)) == 0
    assert none.to_dict() == {}


def test_mapped_samples_have_the_return_type_of_the_function(photos):
    assert photos.map(label_of).sample_type is str
    assert photos.map(lambda photo: photo).sample_type is object
    with pytest.raises(TypeError, match="map needs a function, got str"):
        photos.map("label")
    with pytest.raises(TypeError, match="filter needs a function, got int"):
        photos.filter(1)


def test_batches_of_mapped_samples(photos):
    def brighter(photo: Photo) -> Photo:
        return Photo(photo.number, photo.label, photo.image + 100)

    batch = next(photos.map(brighter).ordered(batch_size=5))
    assert batch.sample_type is Photo
    np.testing.assert_array_equal(
        batch.image, np.stack([row(i)["image"] + 100 for i in range(5)])
    )
    dicts = next(photos.map(lambda p: {"n": p.number}).ordered(batch_size=3))
    assert dicts.n == [0, 1, 2]


def test_batches_after_a_filter_are_filled(photos):
    batches = list(photos.filter(is_odd).ordered(batch_size=4))
    assert [batch.number for batch in batches] == [
        ODD[:4],
        ODD[4:8],
        ODD[8:12],
        ODD[12:],
    ]
