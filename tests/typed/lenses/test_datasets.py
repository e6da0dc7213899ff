"""Datasets seen through lenses."""

import pickle

import numpy as np
import pytest
from numpy.typing import NDArray

import fastshard
from fastshard import typed


@typed.packable
class Full:
    name: str
    age: int
    vector: NDArray[np.float32]


@typed.packable
class Profile:
    name: str
    decade: int


@typed.packable
class Initial:
    letter: str


@typed.packable
class Vector:
    vector: NDArray[np.float32]
    note: str = "none"


@typed.lens
def profile(full: Full) -> Profile:
    return Profile(name=full.name, decade=full.age // 10)


@typed.lens
def initial(seen: Profile) -> Initial:
    return Initial(letter=seen.name[0])


def full(i):
    return Full(name="abc"[i % 3] * 3, age=i, vector=np.full(4, i, "f4"))


@pytest.fixture
def ds(tmp_path):
    for k in range(2):
        with fastshard.ShardWriter(tmp_path / f"{k}.tar") as writer:
            for i in range(20 * k, 20 * k + 20):
                writer.write({"__key__": f"{i:06d}", "msgpack": full(i).packed})
    return typed.Dataset(tmp_path, Full)


def test_samples_are_views(ds):
    seen = ds.as_type(Profile)
    assert seen.sample_type is Profile
    assert [each.decade for each in seen.ordered()] == [i // 10 for i in range(40)]
    assert seen[17] == Profile(name="ccc", decade=1)
    assert seen["000017"] == seen.get("000017") == seen[17]
    assert seen.head(1) == [Profile(name="aaa", decade=0)]
    assert seen.get_many([39, 0]) == [profile(full(39)), profile(full(0))]
    found = [each.decade for each in seen.shuffled(seed=3)]
    assert found == [each.age // 10 for each in ds.shuffled(seed=3)]
    assert seen.to_dict(2) == {"name": ["aaa", "bbb"], "decade": [0, 0]}


def test_batches_are_of_views(ds):
    (batch,) = ds.as_type(Profile).ordered(batch_size=40)
    assert batch.sample_type is Profile
    assert batch.decade == [i // 10 for i in range(40)]
    assert not hasattr(batch, "age")
    assert batch.samples[3] == profile(full(3))


def test_a_chain_of_lenses_is_found(ds):
    seen = ds.as_type(Initial)
    assert [each.letter for each in seen.ordered()][:4] == ["a", "b", "c", "a"]
    again = ds.as_type(Profile).as_type(Initial)  # from profiles, not from payloads
    assert list(again.ordered()) == list(seen.ordered())


def test_filters_see_earlier_stages(ds):
    some = ds.filter(lambda sample: sample.age >= 30).as_type(Profile)
    assert [each.decade for each in some.ordered()] == [3] * 10
    assert len(some) == 10
    late = ds.as_type(Profile).filter(lambda seen: seen.decade == 2).as_type(Initial)
    assert len(list(late.ordered())) == 10
    (batch,) = late.ordered(batch_size=10)
    assert batch.letter[0] == "c"
    names = ds.as_type(Profile).map(lambda seen: seen.name).ordered()
    assert list(names)[:2] == ["aaa", "bbb"]


def test_fields_of_the_same_names_need_no_lens(ds):
    seen = ds.as_type(Vector)
    assert seen[3].note == "none"
    np.testing.assert_array_equal(seen[3].vector, np.full(4, 3, "f4"))
    assert next(iter(seen.ordered(batch_size=5))).vector.shape == (5, 4)


def test_untyped_samples_become_typed(ds, tmp_path):
    plain = typed.Dataset(tmp_path)
    assert plain.sample_type is typed.DictSample
    seen = plain.as_type(Full)
    assert seen.sample_type is Full
    assert (seen[7].name, seen[7].age) == ("bbb", 7)
    assert not seen[7].vector.flags.owndata  # read from the shard
    assert seen.as_type(Profile)[7] == profile(full(7))
    some = plain.filter(lambda sample: sample.age < 5).as_type(Full)
    assert [each.age for each in some.ordered()] == [0, 1, 2, 3, 4]
    assert plain.as_type(Vector)[2].note == "none"


def test_a_lens_of_ones_own_from_untyped_samples_is_used(ds, tmp_path):
    @typed.packable
    class Doubled:
        age: int

    @typed.lens
    def doubled(sample: typed.DictSample) -> Doubled:
        return Doubled(age=2 * sample.age)

    assert typed.Dataset(tmp_path).as_type(Doubled)[7] == Doubled(age=14)


def test_types_without_a_lens_list_the_lenses(ds):
    @typed.packable
    class Other:
        missing: int

    with pytest.raises(
        fastshard.LensNotFoundError, match="No lens transforms"
    ) as error:
        ds.as_type(Other)
    assert "Full has lenses to Profile by profile" in str(error.value)
    with pytest.raises(ValueError, match="No lens transforms DictSample to int"):
        typed.Dataset(ds.source).as_type(int)


def test_several_chains_are_an_error(ds):
    @typed.packable
    class Aside:
        name: str

    @typed.packable
    class End:
        name: str

    lenses = []
    for source, view in ((Full, Aside), (Profile, End), (Aside, End)):

        def get(s):
            raise NotImplementedError

        get.__annotations__ = {"s": source, "return": view}
        lenses.append(typed.lens(get))
    try:
        with pytest.raises(fastshard.LensNotFoundError, match="several chains"):
            ds.as_type(End)
    finally:
        for lens in lenses:
            typed.LensNetwork().unregister(lens)


def test_a_dataset_with_a_lens_pickles(ds):
    seen = pickle.loads(pickle.dumps(ds.as_type(Initial)))
    assert [each.letter for each in seen.ordered()][:3] == ["a", "b", "c"]
    assert seen.sample_type is Initial


def test_an_error_of_a_lens_names_the_sample(ds):
    @typed.packable
    class Bad:
        x: int

    @typed.lens
    def bad(sample: Full) -> Bad:
        return Bad(x=1 // (sample.age - 25))

    with pytest.raises(ZeroDivisionError) as caught:
        list(ds.as_type(Bad).ordered())
    assert "000025" in "".join(caught.value.__notes__)
    typed.LensNetwork().unregister(bad)
