"""Fields that a typed sample lacks, and those that no sample has."""

import pickle

import pytest

import fastshard
from fastshard import FieldNotFoundError, typed
from support.typed.packed import write_shard
from support.typed.photos import Photo, write_photos

COUNT, LACKING = 20, {3, 4, 11}


@pytest.fixture
def ds(tmp_path):
    rows = [{"n": i} | ({} if i in LACKING else {"text": "x"}) for i in range(COUNT)]
    write_shard(tmp_path / "a.tar", rows)
    return typed.Dataset(str(tmp_path / "a.tar"))


def numbers_of(items):
    return {int(item["n"]) for item in items}


STAGES = {
    "select_fields": lambda ds, *fields: ds.select_fields(*fields),
    "decode": lambda ds, *fields: ds.decode(*fields),
    "map": lambda ds, field, _: ds.map(
        lambda sample: {"n": sample["n"], field: sample[field]}
    ),
}


@pytest.mark.parametrize("stage", STAGES)
def test_samples_that_lack_a_field_are_skipped(ds, stage):
    made = STAGES[stage](ds, "text", "n")
    with pytest.raises(FieldNotFoundError, match="text"):
        made[3]
    items = made.iter(on_error="skip")
    assert numbers_of(items) == set(range(COUNT)) - LACKING
    assert items.skipped == len(LACKING)
    batches = made.batches(4, on_error="skip")
    assert {int(n) for batch in batches for n in batch["n"]} == set(
        range(COUNT)
    ) - LACKING
    assert batches.skipped == len(LACKING)
    with made.loader(4, threads=1, on_error="skip") as loader:
        assert sum(len(batch["__skipped__"]) for batch in loader) == len(LACKING)


@pytest.mark.parametrize("stage", STAGES)
def test_a_field_that_no_sample_has_is_not_skipped(ds, stage):
    made = STAGES[stage](ds, "txet", "n")
    for read in (
        lambda: list(made.iter(on_error="skip")),
        lambda: list(made.batches(4, on_error="skip")),
        lambda: list(made.loader(4, threads=1, on_error="mask")),
    ):
        with pytest.raises(FieldNotFoundError, match="txet"):
            read()


@pytest.mark.parametrize("make", [lambda ds: ds, lambda ds: ds.decode()])
def test_batches_of_all_fields_skip_samples_that_lack_one(ds, make):
    batches = make(ds).batches(4, on_error="skip")
    assert {int(n) for batch in batches for n in batch["n"]} == set(
        range(COUNT)
    ) - LACKING
    assert batches.skipped == len(LACKING)
    with make(ds).loader(4, threads=1, on_error="skip") as loader:
        assert sum(len(batch["__skipped__"]) for batch in loader) == len(LACKING)


def test_a_type_refuses_fields_that_it_lacks(tmp_path):
    photos = typed.Dataset[Photo](write_photos(tmp_path))
    for call in (photos.decode, photos.select_fields):
        with pytest.raises(
            FieldNotFoundError, match=r"'lable' in Photo samples.*'label'"
        ):
            call("lable")
        with pytest.raises(TypeError, match="takes names of fields, got a list"):
            call(["label"])
    again = pickle.loads(pickle.dumps(photos.decode("label")))
    assert again[0] == photos.decode("label")[0]
    both = (photos + photos).decode("label")
    assert isinstance(both, fastshard.Concat)
    assert len(both) == 2 * len(photos)
