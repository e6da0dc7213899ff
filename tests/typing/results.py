"""Types of public results; read by type checkers, never run."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, assert_type

import numpy as np
from numpy.typing import NDArray

import fastshard
from fastshard import (
    BatchIterator,
    Concat,
    Dataset,
    FieldInfo,
    Loader,
    Mix,
    Sample,
    SampleIterator,
    Zip,
)
from fastshard.columnar import (
    ArraySequence,
    Compaction,
    ShardedDatasetReader,
    ShardedDatasetWriter,
    ShardHandle,
    compact,
)
from fastshard.dataset.sequence.batch import Collation
from fastshard.dataset.sequence.images import ImageSample
from fastshard.streaming import (
    CSVReader,
    FileInfo,
    MDSReader,
    MDSWriter,
    Reader,
    merge_index,
    reader_from_json,
    rebuild_index,
)

Decoded = dict[str, Any]


def count_bytes(sample: Sample) -> int:
    return len(sample["jpg"])


def label(values: Decoded) -> str:
    return str(values["cls"])


def keys(samples: list[Sample]) -> list[str]:
    return [sample.key for sample in samples]


# Datasets.
ds = fastshard.open("train-{000..099}.tar", decoders={"jpg": bytes}, max_memory="1GiB")
assert_type(ds, Dataset[Sample])
assert_type(fastshard.open(["a.tar", "b.tar"], index="none"), Dataset[Sample])
with fastshard.open("columnar/") as opened:
    assert_type(opened, Dataset[Sample])

# Items and parts.
assert_type(ds[7], Sample)
assert_type(ds[-1], Sample)
assert_type(ds["000042"], Sample)
assert_type(ds[np.int64(7)], Sample)
assert_type(ds[10:20], Dataset[Sample])
assert_type(ds[[5, 900, 17]], Dataset[Sample])
assert_type(ds[range(5)], Dataset[Sample])
assert_type(ds[np.arange(5)], Dataset[Sample])
assert_type(ds[np.array([True, False])], Dataset[Sample])
assert_type(ds.get_many([1, 2]), list[Sample])
assert_type(len(ds), int)
assert_type(ds.keys()[0], str)
assert_type("000042" in ds.keys(), bool)  # noqa: SIM118

# Samples.
sample = ds[0]
assert_type(sample["jpg"], memoryview)
assert_type(sample.key, str)
assert_type(sample.keys(), list[str])
assert_type(list(sample), list[str])
assert_type(sample.text("txt"), str)
assert_type(sample.array("npy"), NDArray[Any])
assert_type(sample.decode("jpg"), Decoded)

# Order.
assert_type(ds.shuffle(7, epoch=1, block=4), Dataset[Sample])
assert_type(ds.split_by_rank(0, 2, drop_last="pad"), Dataset[Sample])
assert_type(ds.shuffle(), Dataset[Sample])
assert_type(ds.batches(batch_size=4), BatchIterator[dict[str, Any]])
assert_type(fastshard.ShardWriter("x.tar", maxcount=1000, maxsize=3e9).count, int)
assert_type(fastshard.ShardNotFoundError("none").path, str | None)
assert_type(ds.state_dict(3), dict[str, Any])
assert_type(ds.resume({}), Dataset[Sample])

# Selection.
assert_type(ds.select_fields("jpg", missing="skip"), Dataset[Sample])
assert_type(ds.filter(lambda key, sizes, info: sizes["jpg"] > 9), Dataset[Sample])
assert_type(ds.exclude(["a.tar", 3]), Dataset[Sample])
assert_type(ds.map(count_bytes).filter(lambda key, sizes, info: True), Dataset[int])

assert_type(ds.head(), list[Sample])
assert_type(ds.map(count_bytes).head(3), list[int])
assert_type(ds.take(3), Dataset[Sample])
assert_type(ds.split([0.9, 0.1], seed=3), list[Dataset[Sample]])
assert_type(ds.split([90, 10]), list[Dataset[Sample]])

# Mapped datasets.
decoded = ds.decode("jpg", "cls")
assert_type(decoded, Dataset[Decoded])
assert_type(decoded[0]["jpg"], Any)
assert_type(decoded["000042"], Decoded)
assert_type(decoded.map(label), Dataset[str])
assert_type(decoded.map(label)[0], str)
assert_type(decoded.map(label)[::2], Dataset[str])
assert_type(decoded.map(label).shuffle(3)[0], str)
assert_type(ds.map(count_bytes).map(float)[0], float)
assert_type(ds.map(lambda sample: sample.key)[0], str)
assert_type(ds.map(count_bytes).get_many([1]), list[int])

# Iteration.
assert_type(iter(ds), SampleIterator[Sample])
assert_type(ds.iter(), SampleIterator[Sample])
assert_type(ds.iter(order=[3, 1], window=8, on_error="skip"), SampleIterator[Sample])
it = iter(ds.map(count_bytes))
assert_type(it, SampleIterator[int])
assert_type(next(it), int)
assert_type(iter(it), SampleIterator[int])
assert_type(it.state_dict(), dict[str, Any])
assert_type(it.position, int)
assert_type(it.skipped, int)
assert_type(ds.iter(it.state_dict()), SampleIterator[Sample])
assert_type([each for each in decoded], list[Decoded])  # noqa: C416
plain: Iterator[Sample] = iter(ds)
it.close()


def log(error: Exception, position: int) -> None: ...


assert_type(ds.iter(on_error=log), SampleIterator[Sample])

# Batches.
assert_type(ds.batches(4), BatchIterator[dict[str, Any]])
assert_type(decoded.batches(4, ragged="pad"), BatchIterator[dict[str, Any]])
assert_type(decoded.map(label).batches(4), BatchIterator[Any])
assert_type(ds.batches(4, collate=keys), BatchIterator[list[str]])
assert_type(ds.map(count_bytes).batches(4, collate=sum), BatchIterator[int])
batches = ds.batches(4, collate=keys, state={}, on_error="skip", drop_last=True)
assert_type(next(batches), list[str])
assert_type(iter(batches), BatchIterator[list[str]])
assert_type(batches.state_dict(), dict[str, Any])
assert_type(len(batches), int)
assert_type(ds.loader(4), Loader[Any])
loader = ds.loader(4, collate=keys, threads=2, on_error="mask", timeout=1.5)
assert_type(loader, Loader[list[str]])
assert_type(next(loader), list[str])
assert_type(loader.stats().verdict, Literal["consumer", "storage", "decode"] | None)
pictures = ds.images("jpg", 224, crop="random")
assert_type(pictures, Dataset[ImageSample])
assert_type(ds.tokens("npy", 16).loader(4), Loader[Any])
assert_type(fastshard.collate([ds[0]], ragged="pad"), dict[str, Any])
assert_type(fastshard.collate(ds.get_many([1])), dict[str, Any])
assert_type(fastshard.collate([1, 2]), Any)

# Formats.
assert_type(fastshard.formats.formats(), list[fastshard.formats.Format])
fastshard.formats.register("fastshard.columnar.format")
assert_type(ds.columns([1], ["x"]), dict[str, Any])
assert_type(ds.columns([1], {"x": "f4"}, ragged="list"), dict[str, Any])
assert_type(ds.read_into([1], bytearray(9), fields="jpg"), NDArray[np.int64])
assert_type(ds.info("width"), NDArray[Any])
assert_type(ds.memory_info(), dict[str, int | None])
assert_type(ds.stats(), dict[str, Any])
assert_type(ds.fields, Mapping[str, FieldInfo])
assert_type(ds.fields["npy"].kind, str)
assert_type(ds.fields["npy"].dtype, str | None)
assert_type(ds.fields["npy"].shape, tuple[int | None, ...] | None)


async def read() -> None:
    assert_type(await ds.get_many_async([1, 2]), list[Sample])
    assert_type(await ds.map(count_bytes).get_many_async([1]), list[int])


# Datasets of datasets.
mixed = fastshard.mix([ds, ds.shuffle(3)], weights=[1, 2], seed=3, stop="all")
assert_type(mixed, Mix[Sample])
assert_type(mixed[0], Sample)
assert_type(mixed[:9], Mix[Sample])
assert_type(mixed.map(count_bytes), Mix[int])
assert_type(mixed.map(count_bytes).shuffle(1)[0], int)
assert_type(next(mixed.iter()), Sample)
assert_type(mixed.batches(4), BatchIterator[dict[str, Any]])
assert_type(mixed.images("jpg", 224), Mix[ImageSample])
assert_type((ds + ds).images("jpg", 224, flip=True), Concat[ImageSample])
assert_type((ds + ds).select_fields("jpg", missing="skip"), Concat[Sample])
assert_type((ds + ds).decode("jpg;png"), Concat[dict[str, Any]])
assert_type(mixed.select_fields("jpg"), Mix[Sample])
assert_type(mixed.decode("jpg"), Mix[dict[str, Any]])
assert_type(fastshard.collate(keys=False), Collation)
pairs = fastshard.zip_by_key(ds, decoded.map(label))
assert_type(pairs, Zip[tuple[Sample, str]])
assert_type(pairs[0], tuple[Sample, str])
assert_type(pairs[np.arange(3)], Zip[tuple[Sample, str]])
assert_type(pairs.map(lambda pair: len(pair[1])), Zip[int])
assert_type(fastshard.mix([pairs, pairs]), Mix[tuple[Sample, str]])
both = ds + ds.shuffle(3)
assert_type(both, Concat[Sample])
assert_type(both[0], Sample)
assert_type(both["000042"], Sample)
assert_type(both[:9], Concat[Sample])
assert_type(both.split([0.5, 0.5]), list[Concat[Sample]])
assert_type(both.map(count_bytes).head(), list[int])
assert_type(ds + decoded, Concat[Sample | Decoded])
assert_type(both + mixed, Concat[Sample])
assert_type(mixed + pairs, Concat[Sample | tuple[Sample, str]])
assert_type(both.keys()[0], str)
assert_type(both.fields, Mapping[str, FieldInfo])
assert_type(mixed.take(3), Mix[Sample])
bare: fastshard.Dataset = ds.map(count_bytes)
assert_type(bare[0], Any)

# Shards.
with fastshard.open_shard("x.tar", mode="private") as shard:
    assert_type(shard[0], memoryview)
    assert_type(shard["a.jpg"], memoryview)
    assert_type(shard[1:], list[memoryview])
    assert_type(shard.read("a.jpg"), bytes)
    assert_type(shard.array(0), NDArray[Any])
    assert_type(shard.samples[0], Sample)
    assert_type(shard.samples["k"], Sample)
    assert_type(shard.samples[1:], list[Sample])
    assert_type(shard.names[-1], str)
    assert_type(shard.sizes, NDArray[np.uint64])
    assert_type(shard.save_index("x.json"), str)
    assert_type([view for view in shard.scan([2, 1])], list[memoryview])  # noqa: C416
with fastshard.ShardWriter("t-{}.tar", max_size="1GiB") as writer:
    writer.write({"__key__": "a", "txt": "b"})
assert_type(fastshard.build_index("d", format="fsi", part="0/2"), list[str])

# Columnar datasets.
with ShardedDatasetReader("columnar/") as reader:
    assert_type(len(reader), int)
    assert_type(reader.samples, ArraySequence)
    assert_type(reader.samples[0]["x"], NDArray[Any])
    assert_type(reader.samples[1:], list[dict[str, NDArray[Any]]])
    arrays, metadata = reader.get_sample("a", ["x"])
    assert_type(arrays["x"], NDArray[Any])
    assert_type(metadata, dict[str, Any])
    assert_type(reader.get_many(["a"])[0][0]["x"], NDArray[Any])
    assert_type(reader.columns(["a"])["x"], NDArray[Any])
    # A named field may be a metadata column, and its text is a list.
    assert_type(reader.columns(np.arange(3), "x"), dict[str, Any])
    assert_type(reader.columns([0, 1], ragged="list"), dict[str, Any])
    assert_type(next(reader.scan("x", batch_size=2)), dict[str, Any])
    assert_type(reader.query_ids("x_offset IS NOT NULL"), list[str])
    assert_type(reader.query(columns=["id"]), list[dict[str, Any]])

with ShardedDatasetWriter("columnar/") as column_writer:
    assert_type(column_writer, ShardedDatasetWriter)
    assert_type(column_writer.add_sample({"x": np.arange(3)}), str)
    assert_type(column_writer.open_shard("x"), ShardHandle)
    assert_type(column_writer.compact(), Compaction)
assert_type(compact("columnar/"), Compaction)

# Shards of MosaicML Streaming.
mds = fastshard.open("mds/", split="train", validate_hash="xxh64")
assert_type(mds, Dataset[Sample])
assert_type(fastshard.open("mds/", allow_unsafe_types=True)[7], Sample)
shard_reader = reader_from_json("mds/", None, {})
assert_type(shard_reader, Reader)
assert_type(shard_reader[7], Decoded)
assert_type(shard_reader[np.int64(7)], Decoded)
assert_type(shard_reader[2:5], list[Any])
assert_type(shard_reader[[5, 9]], list[Any])
assert_type(shard_reader[np.arange(5)], list[Any])
assert_type(list(shard_reader), list[Decoded])
assert_type(shard_reader.get_item(7, fields=["x"]), Decoded)
assert_type(shard_reader.get_sample_data(7), bytes)
assert_type(shard_reader.decode_sample(b""), Decoded)
assert_type(shard_reader.size, int)
assert_type(shard_reader.evict(), int)
assert_type(shard_reader.set_up_local(["a"], safe_keep_zip=True), int)
assert_type(shard_reader.get_zip_size(), int | None)
assert_type(shard_reader.file_pairs, list[tuple[FileInfo, FileInfo | None]])
assert_type(MDSReader.from_json("mds/", None, {}), MDSReader)
assert_type(CSVReader.from_json("csv/", "train", {}), CSVReader)
assert_type(rebuild_index("mds/"), str)
merge_index(["a", "b"], "out")
with MDSWriter(columns={"x": "int"}, out="mds", size_limit="64mb") as writing:
    assert_type(writing, MDSWriter)
    writing.write({"x": 1})
    assert_type(writing.get_config(), Decoded)


class LineReader(Reader):
    """Format of one's own, by two methods."""

    def decode_sample(self, data: bytes) -> dict[str, str]:
        return {"text": data.decode()}

    def get_sample_data(self, idx: int) -> bytes:
        return b"line"


assert_type(LineReader("", None, None, [], 3, "1kb")[0], Decoded)
