"""Typed datasets: samples by position and key, order, types, descriptions."""

import asyncio
import pickle
from collections import Counter
from typing import Generic, TypeVar, get_args

import numpy as np
import pytest

import fastshard
from fastshard import typed
from fastshard.errors import FormatError, SampleKeyError, ShardNotFoundError
from support.typed.packed import write_shard
from support.typed.photos import Photo, is_odd, label_of, row, write_photos

msgspec = pytest.importorskip("msgspec")

S = TypeVar("S")


@pytest.fixture
def source(tmp_path):
    return write_photos(tmp_path)


@pytest.fixture
def photos(source):
    return typed.Dataset[Photo](source)


def numbers(samples):
    return [sample.number for sample in samples]


def test_samples_are_objects_of_the_type(photos):
    sample = photos[17]

    assert type(sample) is Photo
    assert (sample.number, sample.label) == (17, "photo 17")
    np.testing.assert_array_equal(sample.image, row(17)["image"])
    assert sample.image.dtype == "f4"


def test_arrays_are_on_the_shard_and_read_only(photos):
    image = photos[17].image
    assert not image.flags.writeable
    assert not image.flags.owndata
    photos.close()
    np.testing.assert_array_equal(image, row(17)["image"])  # it keeps the shard mapped


def test_copied_arrays_are_writable(photos, source):
    for dataset in (photos.copied(), typed.Dataset(source, Photo, copy=True)):
        sample = dataset[3]
        sample.image += 1
        np.testing.assert_array_equal(sample.image, row(3)["image"] + 1)
        np.testing.assert_array_equal(photos[3].image, row(3)["image"])
        assert next(dataset.ordered()).image.flags.writeable


@pytest.mark.parametrize(
    "make",
    [
        lambda source: typed.Dataset[Photo](source),
        lambda source: typed.Dataset(source, Photo),
        lambda source: typed.Dataset(source, sample_type=Photo),
        lambda source: typed.Dataset[Photo](url=source),
        lambda source: typed.Dataset[Photo](source, "metadata.msgpack"),
        lambda source: typed.Dataset[Photo](source, Photo),
    ],
)
def test_the_type_is_given_in_several_ways(source, make):
    dataset = make(source)
    assert dataset.sample_type is Photo
    assert type(dataset[0]) is Photo
    assert get_args(dataset.batch_type) == (Photo,)


def test_without_a_type_samples_are_dict_samples(source):
    dataset = typed.Dataset(source)
    assert dataset.sample_type is typed.DictSample
    assert dataset[3].label == "photo 3"
    assert dataset[3]["number"] == 3


def test_two_types_are_refused(source):
    dataset = typed.Dataset[typed.DictSample](source, Photo)
    with pytest.raises(TypeError, match="expected one sample type, got two: Photo and"):
        dataset[0]
    with pytest.raises(TypeError, match="two: Photo and DictSample"):
        dataset.sample_type  # noqa: B018


def test_a_type_must_be_a_class(source):
    with pytest.raises(
        TypeError, match="sample_type must be a class, got an object of"
    ):
        typed.Dataset(source, 5)
    with pytest.raises(TypeError, match=r"must be a class, got .*Photo"):
        typed.Dataset["Photo"](source)[0]
    with pytest.raises(TypeError, match="int"):
        typed.Dataset[int](source)[0]


def test_a_subclass_may_declare_the_type(source):
    class Photos(typed.Dataset[Photo]):
        pass

    class Samples(typed.Dataset[S], Generic[S]):
        pass

    assert type(Photos(source)[0]) is Photo
    assert type(Photos(source)[3:]) is Photos
    assert type(Samples[Photo](source)[0]) is Photo


def test_the_type_survives_a_helper_and_a_pickle(source):
    def open_as(kind):
        return typed.Dataset[kind](source)

    copied = pickle.loads(pickle.dumps(open_as(Photo).shuffle(seed=3)[4:]))
    assert copied.sample_type is Photo
    assert numbers(copied) == numbers(open_as(Photo).shuffle(seed=3)[4:])


def test_a_dataset_opens_its_source_at_first_use(tmp_path):
    dataset = typed.Dataset[Photo](str(tmp_path / "photos-0.tar"))
    assert dataset.sample_type is Photo
    with pytest.raises(FileNotFoundError):
        next(dataset.ordered())
    write_photos(tmp_path, 1)
    assert len(dataset) == 10


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((), {}, "missing required argument: 'source'"),
        (("x.tar",), {"shufle": 1}, "shufle"),
        (("x.tar",), {"max_memory": "1GiB", "tokn": ""}, "did you mean token="),
    ],
)
def test_wrong_arguments_are_refused_at_once(arguments, options, message):
    with pytest.raises(TypeError, match=message):
        typed.Dataset[Photo](*arguments, **options)


def test_positions_and_slices(photos):
    assert len(photos) == 30
    assert photos[-1].number == 29
    assert photos[np.int64(12)].number == 12
    assert numbers(photos[5:25:5]) == [5, 10, 15, 20]
    assert numbers(photos[[20, 3, -1]]) == [20, 3, 29]
    assert numbers(photos[np.arange(30) % 10 == 4]) == [4, 14, 24]
    for i in (30, -31):
        with pytest.raises(IndexError, match="out of range: there are 30 samples"):
            photos[i]


def test_select_gives_a_list(photos):
    assert numbers(photos.select([20, 3, -1])) == [20, 3, 29]
    assert photos.select([]) == []
    with pytest.raises(
        IndexError, match="positions 30, -31 not found in dataset of 30"
    ):
        photos.select([3, 30, -31])


def test_samples_by_key(photos):
    assert photos.get("000023").number == photos["000023"].number == 23
    assert "000023" in photos
    assert "000030" not in photos
    assert photos.keys()[3] == "000003"
    with pytest.raises(
        SampleKeyError, match=r"no sample '00002x' in .*did you mean"
    ) as e:
        photos.get("00002x")
    assert isinstance(e.value, KeyError)
    with pytest.raises(SampleKeyError):
        photos[:10].get("000023")


def test_head_opens_the_first_shards_only(photos, tmp_path):
    (tmp_path / "photos-2.tar").write_bytes(b"no tar" * 100)
    assert numbers(photos.head(12)) == list(range(12))
    assert numbers(photos.head()) == list(range(5))
    assert photos.head(0) == []
    with pytest.raises(ValueError, match="n must not be negative"):
        photos.head(-1)


def test_many_samples_at_once(photos):
    assert numbers(photos.get_many([20, 3, -1])) == [20, 3, 29]
    assert numbers(asyncio.run(photos.get_many_async(range(2)))) == [0, 1]


def test_ordered_begins_anew_for_each_loop(photos):
    samples = photos.ordered()
    assert numbers(samples) == numbers(samples) == list(range(30))


def test_ordered_continues_after_next(photos):
    samples = photos.ordered()
    assert next(samples).number == 0
    assert samples.position == 1
    assert numbers(samples) == list(range(1, 30))
    assert list(samples) == []


def test_a_state_of_ordered_resumes(photos):
    samples = photos.ordered()
    assert numbers(sample for sample, _ in zip(samples, range(7), strict=False))
    rest = photos.resume(samples.state_dict())
    assert numbers(rest) == list(range(7, 30)) or numbers(rest) == list(range(8, 30))


@pytest.mark.parametrize("size", [1, 7, 30, 100])
def test_batches_hold_all_samples_in_order(photos, size):
    batches = list(photos.ordered(batch_size=size))
    assert [len(batch) for batch in batches][:-1] == [size] * (len(batches) - 1)
    assert [n for batch in batches for n in batch.number] == list(range(30))


def test_a_batch_size_below_one_is_refused(photos):
    for call in (photos.ordered, photos.shuffled):
        with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
            call(batch_size=0)
        with pytest.raises(ValueError, match="ragged must be"):
            call(batch_size=2, ragged="both")


@pytest.mark.parametrize("wrong", [{"seed": 1 << 128}, {"epoch": 1 << 128}])
def test_seeds_and_epochs_are_checked_before_the_first_sample(photos, wrong):
    with pytest.raises(ValueError, match="at most 128 bits"):
        photos.shuffled(**wrong)


def test_shuffled_is_a_permutation(photos):
    first = numbers(photos.shuffled(seed=7))
    assert Counter(first) == Counter(range(30))
    assert first == numbers(photos.shuffled(3, 4, seed=7)) == numbers(photos.shuffle(7))
    assert first != numbers(photos.shuffled(seed=7, epoch=1))
    batches = photos.shuffled(batch_size=4, seed=7)
    assert [n for batch in batches for n in batch.number] == first


def test_shuffled_without_a_seed_differs_each_time(photos):
    samples = photos.shuffled()
    assert numbers(samples) != numbers(samples)  # equal once in 30!


def test_shuffle_and_split_by_rank(photos):
    parts = [photos.shuffle(1).split_by_rank(rank, 3) for rank in range(3)]
    assert Counter(n for part in parts for n in numbers(part)) == Counter(range(30))
    assert [numbers(part) for part in photos.split([20, 10], seed=None)] == [
        list(range(20)),
        list(range(20, 30)),
    ]


def test_state_dict_and_resume(photos):
    iterator = photos.shuffle(seed=3).iter()
    first = [next(iterator).number for _ in range(11)]
    state = msgspec.json.decode(msgspec.json.encode(iterator.state_dict()))
    rest = photos.resume(state)
    assert Counter(first + numbers(rest)) == Counter(range(30))
    assert numbers(photos.iter(state)) == numbers(rest)
    assert numbers(typed.Dataset[Photo](photos.url).resume(state)) == numbers(rest)


def test_states_are_those_of_the_same_samples_without_types(photos, source):
    fields = fastshard.open(source)
    assert photos[5:].shuffle(3).state_dict(7) == fields[5:].shuffle(3).state_dict(7)


def test_datasets_add_up(photos):
    assert numbers(photos[:3] + photos[28:]) == [0, 1, 2, 28, 29]
    assert len(sum([photos, photos])) == 60


def test_decode_gives_dicts_with_the_key(photos):
    found = photos.decode("label")[12]
    assert found == {"__key__": "000012", "label": "photo 12"}
    assert list(photos.decode()[0]) == ["__key__", "number", "label", "image"]
    batch = next(photos.decode().batches(4))
    assert batch["image"].shape == (4, 2, 3)
    assert pickle.loads(pickle.dumps(photos.decode("label")))[12] == found
    with pytest.raises(fastshard.FastshardError, match="call decode before decode"):
        photos.decode().decode()


def test_the_schema(photos, source):
    assert list(photos.schema) == photos.column_names == ["number", "label", "image"]
    assert photos.schema["label"] is str
    assert typed.Dataset(source).column_names == []


def test_describe(photos, source):
    summary = photos.describe()
    assert summary["sample_type"] == "Photo"
    assert summary["fields"] == photos.schema
    assert summary["num_shards"] == len(summary["shards"]) == 3
    assert summary["shards"] == list(photos.shards) == photos.list_shards()
    assert summary["url"] == photos.url == source
    assert summary["metadata"] is None


def test_shard_list_is_deprecated(photos):
    with pytest.warns(DeprecationWarning, match="use list_shards"):
        assert photos.shard_list == photos.list_shards()


def test_metadata_are_a_msgpack_map(source, tmp_path):
    path = tmp_path / "metadata.msgpack"
    path.write_bytes(msgspec.msgpack.encode({"license": "CC0", "rate": 2.5}))
    dataset = typed.Dataset[Photo](source, metadata_url=str(path))
    assert dataset.metadata == {"license": "CC0", "rate": 2.5}
    path.unlink()
    assert dataset.metadata["rate"] == 2.5  # read once
    assert typed.Dataset[Photo](source).metadata is None


@pytest.mark.parametrize("data", [b"", b"\x91\x01", b"\x81\xa1a", b"\x81\x01\x02"])
def test_metadata_that_are_not_a_map_are_refused(source, tmp_path, data):
    path = tmp_path / "metadata.msgpack"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=str(path)):
        typed.Dataset[Photo](source, str(path)).metadata  # noqa: B018


def test_content_metadata_are_kept(photos):
    assert photos.content_metadata is None
    photos.content_metadata = {"camera": "A"}
    assert photos.content_metadata == photos[3:].content_metadata == {"camera": "A"}


def test_repr_names_type_order_and_stages(photos):
    text = repr(photos.shuffle(7).filter(is_odd).map(label_of)[:4])
    assert text.startswith("Dataset[str](3 shards; ")
    assert "shuffled seed 7 epoch 0; filter is_odd; [:4]; map label_of" in text


def test_repr_does_not_depend_on_reads(photos):
    dataset = photos.filter(is_odd)
    before = repr(dataset)
    assert len(dataset) == 15
    assert repr(dataset) == before


def test_a_dataset_is_a_context_manager(photos):
    with photos as dataset:
        assert len(dataset) == 30
    with pytest.raises(fastshard.errors.ClosedError):
        dataset[0]


def test_a_sample_of_another_type_is_named(tmp_path):
    path = tmp_path / "wrong.tar"
    write_shard(path, [row(0), {"number": 1, "label": "b"}, row(2)])
    dataset = typed.Dataset[Photo](str(path))
    for read in (
        lambda: dataset[1],
        lambda: dataset.get_many([1]),
        lambda: list(dataset),
        lambda: [batch.image for batch in dataset.ordered(batch_size=3)],
    ):
        with pytest.raises(typed.SchemaError, match="image") as caught:
            read()
        assert caught.value.path == str(path)
        assert caught.value.key == "000001"
        assert caught.value.field in ("image", None)
    assert numbers(dataset.iter(on_error="skip")) == [0, 2]


def test_a_sequence_of_paths_is_a_source(photos):
    assert len(typed.Dataset[Photo](photos.list_shards()[1:])) == 20
    with pytest.raises(ShardNotFoundError):
        len(typed.Dataset[Photo]([]))


def test_some_fields_of_samples(photos, source, tmp_path):
    part = photos.select_fields("image", "label")
    sample = part[7]
    assert type(sample) is typed.DictSample
    assert sample.keys() == ["image", "label"]
    assert sample.label == "photo 7"
    np.testing.assert_array_equal(sample.image, row(7)["image"])
    assert next(part.ordered(batch_size=4)).image.shape == (4, 2, 3)
    assert [s.keys() for s in photos.filter(is_odd).select_fields("number")[:1]] == [
        ["number"]
    ]
    untyped = typed.Dataset(source).select_fields("label")
    assert [s.to_dict() for s in untyped.head(1)] == [{"label": "photo 0"}]
    copied = pickle.loads(pickle.dumps(part))
    assert copied[7].label == "photo 7"
    with pytest.raises(fastshard.FieldNotFoundError, match="'lable' in Photo samples"):
        photos.select_fields("lable")
    with pytest.raises(fastshard.FieldNotFoundError):
        typed.Dataset(source).select_fields("lable")[0]
    with pytest.raises(TypeError, match="takes names of fields, got a list"):
        photos.select_fields(["label"])


def test_some_fields_are_read_without_the_others(tmp_path):
    write_shard(tmp_path / "a.tar", [{"number": 1, "label": "a", "image": b"none"}])
    dataset = typed.Dataset[Photo](str(tmp_path / "a.tar"))
    assert dataset.select_fields("label")[0].label == "a"
    with pytest.raises(FormatError):
        dataset[0]


def test_the_stored_samples_are_reached(photos):
    columns = photos[[3, 20]].untyped.columns(range(2), "number")
    assert columns["number"].tolist() == [3, 20]
    assert photos.filter(is_odd).untyped[1].key == "000003"
    assert photos[5:].raw[0].keys() == ["msgpack"]
    assert photos[5:].raw[0].key == "000005"
    assert photos.verify() == []
    assert photos.memory_info()["mapped"] > 0


def test_shards_are_excluded(photos):
    rest = photos.exclude(["photos-1.tar"])
    assert numbers(rest) == [*range(10), *range(20, 30)]
    assert len(rest.list_shards()) == 2
    assert numbers(photos.filter(is_odd).exclude([0, 2])) == [11, 13, 15, 17, 19]


def test_typed_datasets_are_combined(photos):
    both = photos.filter(is_odd) + photos
    assert numbers(both)[13:17] == [27, 29, 0, 1]
    assert both.fields["image"].shape == (2, 3)
    assert "number" in fastshard.mix([photos, photos]).fields
    pairs = fastshard.zip_by_key(photos[10:], photos.map(label_of).shuffle(3), False)
    assert [(a.number, b) for a, b in pairs[:2]] == [(10, "photo 10"), (11, "photo 11")]
    with pytest.raises(
        fastshard.SampleNotFoundError, match="the second dataset of zip"
    ):
        fastshard.zip_by_key(photos[:5], photos[5:10])[0]


def test_states_of_batches_resume_after_them(photos):
    batches = photos.shuffle(3).ordered(batch_size=7)
    first = next(batches).number + next(batches).number
    assert batches.position == 14
    rest = numbers(photos.shuffle(3).resume(batches.state_dict()))
    assert Counter(first + rest) == Counter(range(30))
    assert first == numbers(photos.shuffle(3))[:14]


def test_an_error_does_not_lose_the_samples_before_it(tmp_path):
    good = [row(i) for i in range(4)]
    write_shard(tmp_path / "a.tar", good[:2])
    (tmp_path / "b.tar").write_bytes(b"no tar" * 200)
    write_shard(tmp_path / "c.tar", good[2:], start=2)
    paths = [str(tmp_path / f"{name}.tar") for name in "abc"]
    batches = iter(typed.Dataset[Photo](paths).ordered(batch_size=3))
    with pytest.raises(FormatError, match=r"b\.tar"):
        next(batches)
    assert next(batches).number == [0, 1, 2]
    assert next(batches).number == [3]


def test_names_are_those_that_there_are(photos):
    for each in (photos, typed.Dataset):
        assert {"select", "as_type", "head"} <= set(dir(each))
        assert "to_tuple" not in dir(each)  # has a hint only
