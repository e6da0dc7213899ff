"""`as_type`: lenses as stages, structure, and decoding as another type."""

import pickle
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from fastshard import typed
from support.typed.packed import write_shard
from support.typed.photos import Photo, is_odd, row, write_photos


@typed.packable
class Caption:
    text: str
    brightness: float


@typed.packable
class Length:
    letters: int


@typed.lens
def caption_of(photo: Photo) -> Caption:
    return Caption(text=photo.label, brightness=float(photo.image[0, 0]))


@typed.lens
def length_of(caption: Caption) -> Length:
    return Length(letters=len(caption.text))


@pytest.fixture
def source(tmp_path):
    return write_photos(tmp_path)


@pytest.fixture
def photos(source):
    return typed.Dataset[Photo](source)


def test_a_lens_makes_the_samples(photos):
    captions = photos.as_type(Caption)
    assert captions.sample_type is Caption
    assert captions[12] == Caption("photo 12", 12.0)
    assert captions.head(1) == list(captions)[:1] == [Caption("photo 0", 0.0)]
    batch = next(captions.ordered(batch_size=3))
    assert batch.sample_type is Caption
    assert batch.brightness == [0.0, 1.0, 2.0]
    assert captions.get_many([3])[0].text == "photo 3"
    assert "as Caption" in repr(captions)


def test_lenses_follow_each_other(photos):
    lengths = photos.as_type(Caption).as_type(Length)
    assert lengths[3] == Length(7)
    assert photos.as_type(Length)[12] == Length(8)  # by the only chain


def test_a_filter_before_a_lens_stays(photos):
    captions = photos.filter(is_odd).as_type(Caption)
    assert [caption.text for caption in captions][:2] == ["photo 1", "photo 3"]
    assert len(captions) == 15
    bright = captions.filter(lambda caption: caption.brightness > 20)
    assert [c.brightness for c in bright] == [21, 23, 25, 27, 29]
    assert bright[0].text == "photo 21"


def test_a_dataset_with_lenses_pickles(photos):
    captions = pickle.loads(pickle.dumps(photos.as_type(Caption).shuffle(3)))
    assert captions[4] == photos.as_type(Caption).shuffle(3)[4]
    assert captions.sample_type is Caption


def test_without_a_type_every_packable_class_is_a_view(source):
    photos = typed.Dataset(source).as_type(Photo)
    assert type(photos[7]) is Photo
    np.testing.assert_array_equal(photos[7].image, row(7)["image"])
    assert not photos[7].image.flags.owndata  # decoded from the shard
    odd = typed.Dataset(source).filter(lambda s: s.number % 2).as_type(Photo)
    assert [photo.number for photo in odd][:2] == [1, 3]
    assert odd[7].number == 15


def test_a_lens_of_ones_own_is_taken_before_decoding(source):
    @typed.packable
    class Loud:
        text: str

    @typed.lens
    def loud(sample: typed.DictSample) -> Loud:
        return Loud(text=sample["label"].upper())

    assert typed.Dataset(source).as_type(Loud)[2].text == "PHOTO 2"


def test_structure_without_a_lens(photos):
    @dataclass
    class Small:
        label: str
        extra: int = 5

    @dataclass
    class Other:
        label: str
        missing: int

    small = photos.as_type(Small)
    assert small.sample_type is Small
    assert small[7] == Small("photo 7")
    assert next(small.ordered(batch_size=2)).extra == [5, 5]
    with pytest.raises(typed.LensNotFoundError, match="Photo"):
        photos.as_type(Other)
    assert photos.as_type(Photo) is photos


def test_a_part_of_the_fields_is_decoded_without_the_others(tmp_path):
    @typed.packable
    class Whole:
        label: str
        image: NDArray[np.float32]

    @typed.packable
    class Part:
        label: str

    write_shard(tmp_path / "a.tar", [{"label": "a", "image": b"no array"}])
    dataset = typed.Dataset[Whole](str(tmp_path / "a.tar"))
    assert dataset.as_type(Part)[0] == Part("a")
    with pytest.raises(typed.ShardError):
        dataset[0]


def test_a_default_of_the_first_type_holds_for_the_second(tmp_path):
    @typed.packable
    class First:
        label: str
        rank: int = 7

    @typed.packable
    class Second:
        rank: int

    write_shard(tmp_path / "a.tar", [{"label": "a"}, {"label": "b", "rank": 2}])
    ranks = typed.Dataset[First](str(tmp_path / "a.tar")).as_type(Second)
    assert [sample.rank for sample in ranks] == [7, 2]


def test_a_mapped_type_without_lens_is_an_error(photos):
    with pytest.raises(typed.LensNotFoundError):
        photos.map(lambda photo: photo).as_type(Caption)


@pytest.mark.parametrize("other", [None, "Caption", Photo | None], ids=repr)
def test_as_type_rejects_non_classes(photos, other):
    with pytest.raises(TypeError, match="as_type needs a class"):
        photos.as_type(other)
