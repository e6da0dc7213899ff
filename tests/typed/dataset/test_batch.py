"""Batches of typed samples: stacks, lists, ragged arrays, fields read by themselves."""

import copy
import pickle
from typing import get_args

import numpy as np
import pytest
from numpy.typing import NDArray

import fastshard
from fastshard import typed
from fastshard.errors import FormatError, RaggedError
from support.loader.batches import assert_same_batches
from support.typed.packed import compact, npy, write_shard
from support.typed.photos import Photo, is_odd, row, write_photos


@typed.packable
class Maybe:
    name: str
    image: NDArray | None = None


@typed.packable
class Loose:
    name: str
    image: NDArray


@pytest.fixture
def photos(tmp_path):
    return typed.Dataset[Photo](write_photos(tmp_path))


def batch_of(tmp_path, kind, rows, size=100, encode=npy, **options):
    path = tmp_path / "rows.tar"
    write_shard(path, rows, encode=encode)
    return next(typed.Dataset(str(path), kind).ordered(batch_size=size, **options))


def rows_of(*images):
    return [{"name": f"n{i}", "image": image} for i, image in enumerate(images)]


def test_arrays_are_stacked_and_other_values_listed(photos):
    batch = next(photos.ordered(batch_size=8))

    assert len(batch) == 8
    assert batch.number == list(range(8))
    assert batch.label == [f"photo {i}" for i in range(8)]
    expected = np.stack([row(i)["image"] for i in range(8)])
    np.testing.assert_array_equal(batch.image, expected)
    assert batch.image.dtype == "f4"
    assert batch.image.flags.writeable
    assert batch.image.flags.c_contiguous
    assert batch.image is batch.image  # cached
    assert batch["image"] is batch.image


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_make_the_same_batches(photos, threads):
    shuffled = photos.shuffle(3).split_by_rank(1, 2)
    for part in (photos, photos.filter(is_odd), shuffled, photos[20:3:-2]):
        count = assert_same_batches(part, 4, threads=threads)
        assert count == -(-len(part) // 4)


def test_samples_are_objects(photos):
    batch = next(photos.ordered(batch_size=3))
    assert [type(sample) for sample in batch.samples] == [Photo] * 3
    assert batch.samples is batch.samples
    assert [sample.number for sample in batch] == [0, 1, 2]
    np.testing.assert_array_equal(batch.samples[2].image, row(2)["image"])


def test_a_batch_knows_its_type(photos):
    batch = next(photos.ordered(batch_size=3))
    assert batch.sample_type is Photo
    assert isinstance(batch, typed.SampleBatch)
    assert get_args(batch.__orig_class__) == (Photo,)
    made = typed.SampleBatch[Photo]([])
    assert made.sample_type is Photo
    assert (made.samples, made.image) == ([], [])
    assert typed.SampleBatch([photos[0]]).sample_type is Photo
    assert repr(batch) == "SampleBatch[Photo](3 samples)"


def test_a_batch_of_given_samples(photos):
    samples = [photos[i] for i in (5, 20)]
    batch = typed.SampleBatch[Photo](samples)
    assert batch.samples == samples
    assert batch.label == ["photo 5", "photo 20"]
    assert batch.image.shape == (2, 2, 3)


def test_fields_that_are_none_are_named(photos):
    batch = next(photos.ordered(batch_size=3))
    with pytest.raises(
        AttributeError,
        match="No sample attribute named 'imgae': samples of Photo have number, label",
    ):
        batch.imgae  # noqa: B018
    with pytest.raises(KeyError):
        batch["imgae"]
    with pytest.raises(KeyError):
        batch.array("imgae")
    assert not hasattr(batch, "__torch_function__")


@pytest.mark.parametrize("ragged", ["error", "list", "pad"])
@pytest.mark.parametrize("encode", [npy, compact])
def test_ragged_arrays(tmp_path, ragged, encode):
    images = [np.ones((2, 3), "i2"), np.ones((1, 4), "i2"), np.ones((2, 2), "i2")]
    batch = batch_of(tmp_path, Loose, rows_of(*images), encode=encode, ragged=ragged)
    if ragged == "error":
        with pytest.raises(
            RaggedError, match=r"field 'image' is int16 \(1, 4\) in sample 1"
        ):
            batch.image  # noqa: B018
        assert batch.name == ["n0", "n1", "n2"]
    elif ragged == "list":
        assert type(batch.image) is list
        for found, image in zip(batch.image, images, strict=True):
            np.testing.assert_array_equal(found, image)
    else:
        assert batch.image.shape == (3, 2, 4)
        assert batch.image.dtype == "i2"
        assert batch.image.sum() == sum(image.size for image in images)
        assert batch.lengths("image").tolist() == [[2, 3], [1, 4], [2, 2]]
        with pytest.raises(KeyError):
            batch.lengths("name")


def test_lengths_of_equal_arrays(photos):
    batch = next(photos.ordered(batch_size=2, ragged="pad"))
    assert batch.lengths("image").tolist() == [[2, 3], [2, 3]]
    with pytest.raises(KeyError):
        next(photos.ordered(batch_size=2)).lengths("image")


def test_arrays_of_several_dtypes_do_not_stack(tmp_path):
    images = np.ones(2, "i2"), np.ones(2, "f8")
    batch = batch_of(tmp_path, Loose, rows_of(*images))
    with pytest.raises(RaggedError, match=r"float64 \(2,\) in sample 1 .* int16"):
        batch.image  # noqa: B018


@pytest.mark.parametrize("encode", [npy, compact])
def test_arrays_of_both_byte_orders_and_lengths_of_text_stack(tmp_path, encode):
    images = np.array([1, 2], "<i4"), np.array([3, 4], ">i4")
    batch = batch_of(tmp_path, Loose, rows_of(*images), encode=encode)
    assert batch.image.tolist() == [[1, 2], [3, 4]]
    words = np.array(["a"]), np.array(["word"])
    batch = batch_of(tmp_path, Loose, rows_of(*words), encode=encode)
    assert batch.image.tolist() == [["a"], ["word"]]


@pytest.mark.parametrize("first", [True, False])
def test_none_among_arrays_gives_a_list(tmp_path, first):
    rows = rows_of(np.ones(2), None) if first else rows_of(None, np.ones(2))
    batch = batch_of(tmp_path, Maybe, rows)
    assert type(batch.image) is list
    assert [value is None for value in batch.image] == [not first, first]


def test_missing_optional_arrays_are_none(tmp_path):
    batch = batch_of(
        tmp_path, Maybe, [{"name": "a", "image": np.ones(2)}, {"name": "b"}]
    )
    assert batch.image[1] is None
    np.testing.assert_array_equal(batch.image[0], [1, 1])


def test_arrays_in_fortran_order_are_stacked_in_c_order(tmp_path):
    images = [np.asfortranarray(np.arange(6.0).reshape(2, 3) + i) for i in range(4)]
    batch = batch_of(tmp_path, Loose, rows_of(*images))
    np.testing.assert_array_equal(batch.image, np.stack(images))
    mixed = [images[0], np.ascontiguousarray(images[1])]
    batch = batch_of(tmp_path, Loose, rows_of(*mixed))
    np.testing.assert_array_equal(batch.image, np.stack(mixed))


def test_both_forms_of_arrays_stack(tmp_path):
    images = [np.arange(3, dtype="f4") + i for i in range(4)]
    forms = iter([npy, compact, compact, npy])
    batch = batch_of(
        tmp_path, Loose, rows_of(*images), encode=lambda array: next(forms)(array)
    )
    np.testing.assert_array_equal(batch.image, np.stack(images))


def test_arrays_without_axes_or_items_stack(tmp_path):
    batch = batch_of(tmp_path, Loose, rows_of(np.array(1.5), np.array(2.5)))
    assert batch.image.tolist() == [1.5, 2.5]
    batch = batch_of(tmp_path, Loose, rows_of(np.zeros((0, 3)), np.zeros((0, 3))))
    assert batch.image.shape == (2, 0, 3)


def test_batches_of_samples_without_types(photos, tmp_path):
    dataset = typed.Dataset(photos.url)
    batch = next(dataset.ordered(batch_size=4))
    assert batch.sample_type is typed.DictSample
    assert batch.label == ["photo 0", "photo 1", "photo 2", "photo 3"]
    assert [type(value) for value in batch.image] == [bytes] * 4
    expected = np.stack([row(i)["image"] for i in range(4)])
    np.testing.assert_array_equal(batch.array("image"), expected)
    given = typed.SampleBatch[typed.DictSample](dataset.head(4))
    np.testing.assert_array_equal(given.array("image"), expected)
    with pytest.raises(
        AttributeError, match="samples of DictSample have number, label"
    ):
        batch.imgae  # noqa: B018
    with pytest.raises((FormatError, KeyError, TypeError)):
        batch.array("label")


def test_a_batch_of_differing_dict_samples(tmp_path):
    batch = batch_of(tmp_path, None, [{"a": 1, "b": 2}, {"a": 3}])
    assert batch.a == [1, 3]
    with pytest.raises(KeyError):
        batch["b"]


def test_batches_pickle_and_copy(photos):
    for batch in (
        next(photos.ordered(batch_size=4)),
        typed.SampleBatch[Photo](photos.head(4)),
    ):
        for copied in (pickle.loads(pickle.dumps(batch)), copy.copy(batch)):
            assert copied.sample_type is Photo
            assert copied.label == batch.label
            np.testing.assert_array_equal(copied.image, batch.image)


def test_a_field_of_a_name_that_batches_have(tmp_path):
    @typed.packable
    class Odd:
        samples: str
        array: int

    batch = batch_of(tmp_path, Odd, [{"samples": "a", "array": 1}])
    assert batch["samples"] == ["a"]
    assert batch["array"] == [1]


def test_a_method_after_init_is_called_for_batches(tmp_path):
    @typed.packable
    class Upper:
        name: str

        def __post_init__(self):
            self.name = self.name.upper()

    batch = batch_of(tmp_path, Upper, [{"name": "a"}, {"name": "b"}])
    assert batch.name == ["A", "B"]


@pytest.mark.parametrize("collate", [fastshard.collate, "batches"])
def test_collate_gives_the_values_of_a_batch(photos, collate):
    batch = next(photos.ordered(batch_size=6))
    found = (
        next(photos.batches(6))
        if collate == "batches"
        else collate([photos[i] for i in range(6)])
    )
    assert list(found) == ["number", "label", "image"]
    assert found["number"] == batch.number
    assert found["label"] == batch.label
    np.testing.assert_array_equal(found["image"], batch.image)


def test_collate_takes_ragged_and_missing_arrays(tmp_path):
    batch = batch_of(tmp_path, Maybe, rows_of(np.ones(2), np.ones(3)), ragged="list")
    found = fastshard.collate(batch.samples, ragged="list")
    assert [array.shape for array in found["image"]] == [(2,), (3,)]
    padded = fastshard.collate(batch.samples, ragged="pad")
    assert padded["image"].shape == (2, 3)
    assert padded["__lengths__"]["image"].tolist() == [[2], [3]]
    with pytest.raises(RaggedError):
        fastshard.collate(batch.samples)
    some = fastshard.collate([*batch.samples, Maybe("c")])
    assert some["image"][2] is None


def test_collate_takes_dict_samples(photos):
    dataset = typed.Dataset(photos.url)
    found = fastshard.collate(dataset.head(3))
    assert found["label"] == ["photo 0", "photo 1", "photo 2"]
    assert [type(value) for value in found["image"]] == [bytes] * 3


def test_the_torch_adapter_takes_typed_samples(photos):
    torch = pytest.importorskip("torch")
    from fastshard.adapters.torch import collate

    found = collate(photos.head(4))
    assert isinstance(found["image"], torch.Tensor)
    assert found["image"].shape == (4, 2, 3)
    assert found["label"] == [f"photo {i}" for i in range(4)]


def test_a_field_is_read_without_the_others(tmp_path):
    good = {"name": "a", "image": np.ones(2)}
    broken = {"name": "b", "image": b"no array"}
    batch = batch_of(tmp_path, Loose, [good, broken])
    assert batch.name == ["a", "b"]
    with pytest.raises(FormatError, match="000001"):
        batch.image  # noqa: B018
    with pytest.raises(FormatError, match="000001"):
        batch.samples  # noqa: B018


def test_batches_of_dicts_take_all_options(photos, tmp_path):
    out = {}
    batches = photos.batches(8, out=out, drop_last=True)
    images = [batch["image"].copy() for batch in batches]
    assert len(images) == 3
    assert out["image"].shape == (8, 2, 3)
    expected = np.stack([row(i)["image"] for i in range(16, 24)])
    np.testing.assert_array_equal(images[2], expected)
    np.testing.assert_array_equal(out["image"], expected)
    path = tmp_path / "ragged.tar"
    write_shard(path, rows_of(np.ones(2), np.ones(3)))
    ragged = typed.Dataset[Loose](str(path))
    listed = next(ragged.batches(2, ragged="list"))
    assert [x.shape for x in listed["image"]] == [(2,), (3,)]
    padded = next(ragged.batches(2, ragged="pad"))
    assert padded["image"].shape == (2, 3)
    assert padded["__lengths__"]["image"].tolist() == [[2], [3]]
    with pytest.raises(RaggedError):
        next(ragged.batches(2))
    assert next(ragged.batches(2, collate=len)) == 2


def test_unreadable_samples_are_skipped_in_batches_of_dicts(tmp_path):
    path = tmp_path / "wrong.tar"
    write_shard(path, [row(0), {"number": 1, "label": "b"}, row(2), b"\x81", row(4)])
    dataset = typed.Dataset[Photo](str(path))
    skipped = []
    batches = dataset.batches(2, on_error=lambda error, i: skipped.append(i))
    assert [batch["number"] for batch in batches] == [[0, 2], [4]]
    assert sorted(skipped) == [1, 3]
    with pytest.raises(FormatError, match="000001"):
        list(dataset.batches(2))
