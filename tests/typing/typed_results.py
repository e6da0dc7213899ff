"""Types of typed samples and datasets; read by type checkers, never run."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, assert_type

import numpy as np
from numpy.typing import NDArray

from fastshard import typed
from fastshard.typed import (
    Dataset,
    DatasetDict,
    DataSource,
    DictSample,
    Lens,
    Packable,
    PackableSample,
    S3Source,
    SampleBatch,
    URLSource,
    lens,
    load_dataset,
    packable,
    write_samples,
)


@packable
class ImageSample:
    image: NDArray[np.uint8]
    label: str
    metadata: dict[str, Any]
    size: tuple[int, int] = (0, 0)
    many: ClassVar[int] = 0

    def shout(self) -> str:
        return self.label.upper()


class Captioned(PackableSample):
    text: Annotated[str, typed.Field(aliases=("caption",))]
    image: NDArray[np.uint8]
    bbox: NDArray[np.float32] | None = None
    kind: Literal["photo", "drawing"] = "photo"
    tags: list[str] = field(default_factory=list[str])


@dataclass
class Plain(PackableSample):
    a: int
    b: float = 0.5


class KeywordOnly(PackableSample, kw_only=True):
    a: int = 0
    b: str


# Constructors.
image = np.zeros((2, 2), "u1")
one = ImageSample(image, "cat", {}, size=(2, 2))
assert_type(one, ImageSample)
assert_type(ImageSample(image=image, label="cat", metadata={}), ImageSample)
assert_type(one.label, str)
assert_type(one.image, NDArray[np.uint8])
assert_type(one.size, tuple[int, int])
assert_type(one.shout(), str)
two = Captioned(text="a cat", image=image)
assert_type(two, Captioned)
assert_type(two.bbox, NDArray[np.float32] | None)
assert_type(two.kind, Literal["photo", "drawing"])
assert_type(two.tags, list[str])
assert_type(Plain(3), Plain)
assert_type(KeywordOnly(b="x"), KeywordOnly)

# What only classes that derive from the base have.
assert_type(two.packed, bytes)
assert_type(two.as_wds, dict[str, Any])
assert_type(Captioned.from_bytes(b""), Captioned)
assert_type(Captioned.from_bytes(bytearray(), copy=True, strict=True), Captioned)
assert_type(Captioned.from_data({"text": "a"}), Captioned)
some: Packable = two
other: Packable = DictSample(a=1)
assert_type(some.packed, bytes)

# Samples of no declared type.
untyped = DictSample(text="a", label=1)
assert_type(untyped.text, Any)
assert_type(untyped["text"], Any)
assert_type(untyped.keys(), list[str])
assert_type(untyped.items(), list[tuple[str, Any]])
assert_type(untyped.get("text"), Any)
assert_type(untyped.to_dict(), dict[str, Any])
assert_type("text" in untyped, bool)
assert_type(len(untyped), int)
assert_type(untyped.view("text"), memoryview)
assert_type(untyped.array("x"), NDArray[Any])
assert_type(DictSample.from_bytes(b""), DictSample)
assert_type(untyped.packed, bytes)

# Schemas.
assert_type(typed.schema_of(ImageSample), str)
assert_type(typed.fingerprint(Captioned), str)

# Datasets.
ds = Dataset[ImageSample]("data-{000000..000009}.tar")
assert_type(ds, Dataset[ImageSample])
assert_type(Dataset("data.tar", ImageSample), Dataset[ImageSample])
assert_type(Dataset[Captioned](["a.tar", "b.tar"], strict=True), Dataset[Captioned])
untyped_ds: Dataset[DictSample] = Dataset("data.tar")
assert_type(untyped_ds[0], DictSample)
assert_type(ds[0], ImageSample)
assert_type(ds[-1].image, NDArray[np.uint8])
assert_type(ds[:10], Dataset[ImageSample])
assert_type(ds[[1, 2]], Dataset[ImageSample])
assert_type(ds.get("000001"), ImageSample)
assert_type(ds.head(3), list[ImageSample])
assert_type(ds.select([1, 2]), list[ImageSample])
assert_type(ds.get_many([1, 2]), list[ImageSample])
assert_type(len(ds), int)
assert_type(ds.sample_type, type[ImageSample])
assert_type(ds.column_names, list[str])
assert_type(ds.list_shards(), list[str])
for sample in ds:
    assert_type(sample, ImageSample)
for sample in ds.ordered():
    assert_type(sample, ImageSample)
for sample in ds.ordered(batch_size=None):
    assert_type(sample, ImageSample)
assert_type(next(iter(ds.ordered())), ImageSample)
assert_type(next(iter(ds.shuffled(seed=1))), ImageSample)
for batch in ds.ordered(batch_size=32):
    assert_type(batch, SampleBatch[ImageSample])
    assert_type(batch.samples, list[ImageSample])
    assert_type(batch.image, Any)
for batch in ds.shuffled(batch_size=32, seed=1, epoch=2):
    assert_type(batch, SampleBatch[ImageSample])
assert_type(next(iter(ds.ordered(batch_size=32))), SampleBatch[ImageSample])
assert_type(SampleBatch([one]), SampleBatch[ImageSample])


def is_cat(sample: ImageSample) -> bool:
    return sample.label == "cat"


def label_of(sample: ImageSample) -> str:
    return sample.label


assert_type(ds.filter(is_cat), Dataset[ImageSample])
assert_type(ds.filter(lambda sample: sample.label == "cat"), Dataset[ImageSample])
assert_type(ds.map(label_of), Dataset[str])
assert_type(ds.map(label_of)[0], str)
assert_type(ds.as_type(Captioned), Dataset[Captioned])
assert_type(ds.as_type(Captioned).as_type(Plain), Dataset[Plain])
assert_type(untyped_ds.as_type(ImageSample), Dataset[ImageSample])
assert_type(ds.copied(), Dataset[ImageSample])
assert_type(ds.shuffle(seed=7).split_by_rank(0, 2), Dataset[ImageSample])
assert_type(ds.to_dict(10), dict[str, list[Any]])
assert_type(ds.metadata, dict[str, Any] | None)


def count(samples: Iterator[ImageSample]) -> int:
    return sum(1 for _ in samples)


# load_dataset.
assert_type(load_dataset("data/", ImageSample, split="train"), Dataset[ImageSample])
assert_type(load_dataset("data/", ImageSample), DatasetDict[ImageSample])
assert_type(load_dataset("data/", split="train"), Dataset[DictSample])
assert_type(load_dataset("data/"), DatasetDict[DictSample])
splits = load_dataset("./data", ImageSample)
assert_type(splits["train"], Dataset[ImageSample])
assert_type(splits["train"][0], ImageSample)
assert_type(splits.num_shards, dict[str, int])


# Lenses.
@lens
def caption(sample: ImageSample) -> Captioned:
    return Captioned(text=sample.label, image=sample.image)


@lens
def shorten(sample: Captioned) -> Plain:
    return Plain(len(sample.text))


@caption.putter
def put_caption(view: Captioned, sample: ImageSample) -> ImageSample:
    return ImageSample(view.image, view.text, sample.metadata)


assert_type(caption, Lens[ImageSample, Captioned])
assert_type(caption(one), Captioned)
assert_type(caption.get(one), Captioned)
assert_type(caption.put(two, one), ImageSample)
assert_type(caption | shorten, Lens[ImageSample, Plain])
assert_type(shorten @ caption, Lens[ImageSample, Plain])
assert_type((caption | shorten)(one), Plain)
assert_type(Lens.identity(Plain), Lens[Plain, Plain])
network = typed.LensNetwork()
assert_type(network.transform(ImageSample, Captioned), Lens[ImageSample, Captioned])

# Sources.
url_source: DataSource = URLSource("data/train-{000000..000009}.tar")
s3_source: DataSource = S3Source(bucket="b", keys=["k.tar"], endpoint="http://e")
assert_type(Dataset[ImageSample](s3_source), Dataset[ImageSample])

# Writing.
assert_type(write_samples([one], "out.tar"), Dataset[ImageSample])
made = write_samples([two], "out.tar", maxcount=10, manifest=True, array_format="npy")
assert_type(made, Dataset[Captioned])
decorator: Callable[[type[Plain]], type[Plain]] = packable

# Stores.
disk: typed.AbstractDataStore = typed.LocalDiskStore("store")
keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
bucket = typed.S3DataStore(keys, bucket="b")
s3_store: typed.AbstractDataStore = bucket
stored = bucket.write_shards(made, prefix="p", maxcount=100)
assert_type(stored, typed.ShardWriteResult)
assert_type(stored.checksums, dict[str, str])
assert_type(stored[0], str)
read_again: DataSource = bucket.create_source(stored)
assert_type(typed.generate_cid({"a": [1]}), str)
assert_type(typed.verify_cid("bafy", {"a": [1]}), bool)
