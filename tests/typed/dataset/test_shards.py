"""`process_shards`: results by shard, failures, checkpoints."""

import json

import numpy as np
import pytest

from fastshard import typed
from fastshard.errors import FormatError, PartialFailureError
from support.typed.photos import Photo, is_odd, label_of, write_photos


@pytest.fixture
def photos(tmp_path):
    return typed.Dataset[Photo](write_photos(tmp_path))


def numbers(samples):
    return [sample.number for sample in samples]


def test_each_shard_is_given_its_samples(photos):
    found = photos.process_shards(numbers)
    assert list(found) == photos.list_shards()
    assert list(found.values()) == [list(range(k, k + 10)) for k in (0, 10, 20)]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda ds: ds.filter(is_odd), [5, 5, 5]),
        (lambda ds: ds.map(label_of), [10, 10, 10]),
        (lambda ds: ds[5:21], [5, 10, 1]),
        (lambda ds: ds.shuffle(3), [10, 10, 10]),
        (lambda ds: ds[5:].filter(is_odd), [3, 5, 5]),
        (lambda ds: ds.filter(is_odd)[:7], [5, 2, 0]),
    ],
)
def test_stages_and_selections_are_honoured(photos, change, expected):
    dataset = change(photos)
    assert list(dataset.process_shards(len).values()) == expected
    found = dataset.process_shards(list)
    if dataset.sample_type is Photo:
        together = sorted(n for part in found.values() for n in numbers(part))
        assert together == sorted(numbers(dataset))


def test_some_shards(photos):
    last = photos.list_shards()[2:]
    assert photos.process_shards(len, shards=last) == {last[0]: 10}
    with pytest.raises(ValueError, match=r"'x\.tar' is not a shard of"):
        photos.process_shards(len, shards=["x.tar"])


def test_a_failure_keeps_the_other_results(photos):
    shards = photos.list_shards()
    seen = []

    def fails(samples):
        if samples[0].number == 10:
            raise RuntimeError("ten")
        return len(samples)

    with pytest.raises(PartialFailureError, match=r"1/3 shards failed: .*ten") as e:
        photos.process_shards(
            fails, on_shard_error=lambda shard, error: seen.append((shard, str(error)))
        )
    assert e.value.succeeded_shards == [shards[0], shards[2]]
    assert e.value.failed_shards == [shards[1]]
    assert e.value.results == {shards[0]: 10, shards[2]: 10}
    assert seen == [(shards[1], "ten")]
    assert photos.process_shards(len, shards=e.value.failed_shards) == {shards[1]: 10}


def test_a_damaged_shard_does_not_hinder_the_others(photos, tmp_path):
    (tmp_path / "photos-1.tar").write_bytes(b"no tar at all" * 100)
    for dataset in (photos, photos.filter(is_odd)):
        with pytest.raises(PartialFailureError) as caught:
            dataset.process_shards(len)
        (error,) = caught.value.errors.values()
        assert isinstance(error, FormatError)
        assert len(caught.value.results) == 2


def stops_at(number):
    def process(samples):
        if samples[0].number == number:
            raise KeyboardInterrupt
        return samples[0].number

    return process


def test_a_checkpoint_is_gone_on_from(photos, tmp_path):
    path = tmp_path / "progress.json"
    shards = photos.list_shards()
    with pytest.raises(KeyboardInterrupt):
        photos.process_shards(stops_at(20), checkpoint=path)
    assert json.loads(path.read_text()) == {shards[0]: 0, shards[1]: 10}

    seen = []

    def rest(samples):
        seen.append(samples[0].number)
        return samples[0].number

    found = photos.process_shards(rest, checkpoint=path)
    assert found == dict(zip(shards, (0, 10, 20), strict=True))
    assert seen == [20]
    assert not path.exists()


def test_a_checkpoint_stays_after_a_failure(photos, tmp_path):
    path = tmp_path / "progress.json"

    def fails(samples):
        if samples[0].number == 10:
            raise ValueError
        return 1

    with pytest.raises(PartialFailureError):
        photos.process_shards(fails, checkpoint=path)
    assert len(json.loads(path.read_text())) == 2


def test_results_that_json_cannot_hold_are_made_again(photos, tmp_path):
    path = tmp_path / "progress.json"
    calls = []

    def fn(samples):
        calls.append(samples[0].number)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return (1, 2)  # JSON would give a list

    with (
        pytest.warns(RuntimeWarning, match="of type tuple"),
        pytest.raises(KeyboardInterrupt),
    ):
        photos.process_shards(fn, checkpoint=path)
    with pytest.warns(RuntimeWarning):
        found = photos.process_shards(fn, checkpoint=path)
    assert list(found.values()) == [(1, 2)] * 3


def test_numbers_of_numpy_are_kept(photos, tmp_path):
    path = tmp_path / "progress.json"

    def fn(samples):
        if samples[0].number:
            raise KeyboardInterrupt
        return np.float64(2.5)

    with pytest.raises(KeyboardInterrupt):
        photos.process_shards(fn, checkpoint=path)
    assert list(json.loads(path.read_text()).values()) == [2.5]


def test_a_checkpoint_of_names_in_lines_is_read(photos, tmp_path):
    path = tmp_path / "progress.txt"
    shards = photos.list_shards()
    path.write_text("\n".join(shards[:2]) + "\n")
    assert photos.process_shards(len, checkpoint=path) == {shards[2]: 10}
    path.write_text("\n".join(shards) + "\n")
    assert photos.process_shards(len, checkpoint=path) == {}


@pytest.mark.parametrize(
    "data", [b"", b"[1]", b"{", b"\xff", b"other.tar\n", b"[" * 100_000, b"1" * 9_999]
)
def test_a_file_that_is_not_a_checkpoint_is_refused(photos, tmp_path, data):
    path = tmp_path / "progress.json"
    path.write_bytes(data)
    with pytest.raises(FormatError, match="checkpoint cannot be read"):
        photos.process_shards(len, checkpoint=path)
    assert path.read_bytes() == data
