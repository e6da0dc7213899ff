"""Readers and writers of typed samples: fastshard, atdata, and those around them.

`upstream` is atdata where it is installed (Python 3.12 or newer), else the pipeline
that it is made of: webdataset, msgpack and `np.frombuffer`. Annotations are not
postponed here, for atdata resolves no text.
"""

import importlib
import importlib.metadata
import importlib.util
import io
import json
import struct
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fastshard
from rivals.typed_data import (
    MANIFESTS,
    Fields,
    Store,
    bound,
    packed,
    shards_in,
    write_manifests,
    write_plain_manifests,
)

Iterate = Callable[[], Iterable[Any]]  # an epoch
BATCH = 32
BUFFER = 10_000  # samples that rivals shuffle

SPEC = importlib.util.find_spec("atdata")
HAS_ATDATA = SPEC is not None and SPEC.origin is not None  # no folder of that name


def upstream_name() -> str:
    if HAS_ATDATA:
        return f"atdata {importlib.metadata.version('atdata')}"
    return "webdataset, msgpack, np.frombuffer"


def typed() -> Any:
    pytest.importorskip("msgspec")
    return importlib.import_module("fastshard.typed")


def atdata() -> Any:
    return importlib.import_module("atdata")


@cache
def sample_type(library: Any) -> Any:
    """Return the type of the samples, declared by a library's `packable`."""

    class Sample:
        idx: int
        label: str
        x: NDArray  # type: ignore[type-arg]

    return library.packable(Sample)


@cache
def narrow_type(library: Any) -> Any:
    """Return a type without the array."""

    class Narrow:
        idx: int
        label: str

    return library.packable(Narrow)


@cache
def row_type(library: Any) -> Any:
    """Return the type of the samples of the manifests."""

    class Row:
        score: float
        label: str

    return library.packable(Row)


class Plain:
    """A sample of the pipeline."""

    __slots__ = ("idx", "label", "x")

    def __init__(self, idx: int, label: str, x: Any) -> None:
        self.idx = idx
        self.label = label
        self.x = array_of(x)


class PlainBatch:
    def __init__(self, samples: list[Plain]) -> None:
        self.label = [sample.label for sample in samples]
        self.x = np.stack([sample.x for sample in samples])


def fields_of(sample: Any) -> Fields:
    if isinstance(sample, dict):
        return int(sample["idx"]), str(sample["label"]), sample["x"]
    return sample.idx, sample.label, sample.x


def array_of(data: bytes) -> Any:
    """Return an array of its own, of the compact or the npy form, as atdata does."""
    if data[:6] == b"\x93NUMPY":
        return np.load(io.BytesIO(data), allow_pickle=False)
    start = 1 + data[0]
    ndim = data[start]
    shape = struct.unpack_from(f"<{ndim}q", data, start + 1)
    dtype = np.dtype(data[1:start].decode())
    return np.frombuffer(data, dtype, offset=start + 1 + 8 * ndim).reshape(shape).copy()


# fastshard. Its own shards: plain headers, aligned arrays.


def own(store: Store) -> list[str]:
    return shards_in(store.path("fastshard", write_own))


def write_own(folder: Path, store: Store) -> None:
    library = typed()
    kind = sample_type(library)
    samples = (kind(*fields) for fields in store.samples())
    library.write_samples(samples, folder / "s.tar", maxcount=store.per_shard)


def open_typed(store: Store, **options: Any) -> Any:
    library = typed()
    return library.Dataset[sample_type(library)](own(store), **options)


def open_typed_original(store: Store) -> Any:
    library = typed()
    return library.Dataset[sample_type(library)](store.original)


def ordered(store: Store) -> Iterate:
    return open_typed(store).ordered  # type: ignore[no-any-return]


def ordered_of_original(store: Store) -> Iterate:
    return open_typed_original(store).ordered  # type: ignore[no-any-return]


def ordered_without_array(store: Store) -> Iterate:
    library = typed()
    return library.Dataset[narrow_type(library)](own(store)).ordered  # type: ignore[no-any-return]


def members(store: Store) -> Iterate:
    """Return an iteration over the views of ``shard[i]``, the limit of `ordered`."""
    shards = [fastshard.open_shard(path) for path in own(store)]

    def epoch() -> Iterator[memoryview]:
        views = (map(shard.__getitem__, range(len(shard))) for shard in shards)
        return chain.from_iterable(views)

    return epoch


def ordered_batches(store: Store) -> Iterate:
    ds = open_typed(store)
    return lambda: ds.ordered(batch_size=BATCH)


def ordered_batches_of_original(store: Store) -> Iterate:
    ds = open_typed_original(store)
    return lambda: ds.ordered(batch_size=BATCH)


def shuffled(store: Store) -> Iterate:
    ds = open_typed(store)
    return lambda: ds.shuffled(seed=7)


def dict_samples(store: Store) -> Iterate:
    library = typed()
    return library.Dataset(own(store)).ordered  # type: ignore[no-any-return]


def dict_samples_of_original(store: Store) -> Iterate:
    library = typed()
    return library.Dataset(store.original).ordered  # type: ignore[no-any-return]


def opened_tar(store: Store) -> Any:
    """Return the dataset of the members, whose samples are not decoded."""
    return fastshard.open(own(store))


def from_bytes(store: Store) -> Callable[[Any], Any]:
    return sample_type(typed()).from_bytes  # type: ignore[no-any-return]


# atdata.


def atdata_url(paths: list[str]) -> str:
    """Return the one pattern of several shards."""
    start, *_, stop = paths if len(paths) > 1 else paths * 2
    if start == stop:
        return start
    first, last = (path.rpartition("-")[2][: -len(".tar")] for path in (start, stop))
    return start.replace(f"-{first}.tar", f"-{{{first}..{last}}}.tar")


def open_atdata(store: Store, most: int | None = None) -> Any:
    library = atdata()
    paths = store.original
    if most is not None:
        paths = paths[: max(most // store.per_shard, 1)]
    return library.Dataset[sample_type(library)](atdata_url(paths))


# The pipeline.


def open_pipeline(store: Store, most: int | None = None) -> Any:
    wds = pytest.importorskip("webdataset")
    paths = store.original
    if most is not None:
        paths = paths[: max(most // store.per_shard, 1)]
    return wds.WebDataset(paths, shardshuffle=False)


def unpack(payload: bytes) -> Any:
    return pytest.importorskip("msgpack").unpackb(payload)


def plain(sample: Any) -> Plain:
    return Plain(**unpack(sample["msgpack"]))


def pipeline_ordered(store: Store) -> Iterate:
    ds = open_pipeline(store).map(plain)
    return lambda: ds


# Upstream: the one or the other.


def upstream_ordered(store: Store, most: int | None = None) -> Iterate:
    if HAS_ATDATA:
        return open_atdata(store, most).ordered  # type: ignore[no-any-return]
    ds = open_pipeline(store, most).map(plain)
    return lambda: ds


def upstream_batches(store: Store) -> Iterate:
    if HAS_ATDATA:
        ds = open_atdata(store)
        return lambda: ds.ordered(batch_size=BATCH)
    batched = open_pipeline(store).map(plain).batched(BATCH, collation_fn=PlainBatch)
    return lambda: batched


def upstream_shuffled(store: Store) -> Iterate:
    if HAS_ATDATA:
        return open_atdata(store).shuffled  # type: ignore[no-any-return]
    mixed = open_pipeline(store).map(plain).shuffle(BUFFER)
    return lambda: mixed


def upstream_dict_samples(store: Store) -> Iterate:
    if HAS_ATDATA:
        library = atdata()
        ds = library.Dataset[library.DictSample](atdata_url(store.original))
        return ds.ordered  # type: ignore[no-any-return]
    dicts = open_pipeline(store).map(lambda sample: unpack(sample["msgpack"]))
    return lambda: dicts


def upstream_from_bytes(store: Store) -> Callable[[Any], Any]:
    if HAS_ATDATA:
        return sample_type(atdata()).from_bytes  # type: ignore[no-any-return]
    unpackb = pytest.importorskip("msgpack").unpackb
    return lambda payload: Plain(**unpackb(payload))


# HF datasets and columnar.


def open_hf(store: Store) -> Any:
    datasets = pytest.importorskip("datasets")
    path = store.path("arrow", write_hf)
    return datasets.load_from_disk(str(path / "saved")).with_format("numpy")


def write_hf(folder: Path, store: Store) -> None:
    import datasets

    datasets.disable_progress_bars()
    numbers = datasets.Sequence(datasets.Value("float32"), length=store.numbers)
    kinds = datasets.Features(
        {
            "idx": datasets.Value("int64"),
            "label": datasets.Value("string"),
            "x": numbers,
        }
    )
    idx, label, x = zip(*store.samples(), strict=True)
    columns = {"idx": list(idx), "label": list(label), "x": np.stack(x)}
    made = datasets.Dataset.from_dict(columns, features=kinds)
    made.save_to_disk(str(folder / "saved"))


def hf_ordered(store: Store) -> Iterate:
    ds = open_hf(store)
    return lambda: ds


class HfBatch:
    def __init__(self, columns: Any) -> None:
        self.label = columns["label"].tolist()
        self.x = columns["x"]


def hf_batches(store: Store) -> Iterate:
    ds = open_hf(store)
    return lambda: map(HfBatch, ds.iter(batch_size=BATCH))


def hf_shuffled(store: Store) -> Iterate:
    mixed = open_hf(store).shuffle(7)
    return lambda: mixed


def columnar_samples(store: Store) -> Iterate:
    from fastshard.columnar import ShardedDatasetReader

    reader = ShardedDatasetReader(store.path("columnar", write_columnar))
    return lambda: reader.samples


def write_columnar(folder: Path, store: Store) -> None:
    from fastshard.columnar import ShardedDatasetWriter

    with ShardedDatasetWriter(folder, samples_per_shard=store.per_shard) as writer:
        writer.add_fields(["x"])
        for i, (idx, label, x) in enumerate(store.samples()):
            metadata = {"idx": idx, "label": label}
            writer.add_sample({"x": x}, sample_id=f"{i:08d}", metadata=metadata)


# Writers. Each is called with a folder and fields, and returns the paths.


def write_fastshard(folder: Path, rows: list[Fields], **options: Any) -> list[str]:
    library = typed()
    kind = sample_type(library)
    samples = (kind(*fields) for fields in rows)
    ds = library.write_samples(samples, folder / "s.tar", **options)
    return ds.list_shards()  # type: ignore[no-any-return]


def write_fastshard_compact(folder: Path, rows: list[Fields]) -> list[str]:
    return write_fastshard(folder, rows, array_format="compact")


def write_upstream(folder: Path, rows: list[Fields]) -> list[str]:
    path = folder / "s.tar"
    if HAS_ATDATA:
        library = atdata()
        kind = sample_type(library)
        library.write_samples((kind(*fields) for fields in rows), path)
        return [str(path)]
    wds = pytest.importorskip("webdataset")
    with wds.TarWriter(str(path)) as writer:
        for i, fields in enumerate(rows):
            writer.write({"__key__": f"{i:036d}", "msgpack": packed(fields)})
    return [str(path)]


# Queries over manifests: the keys found. Each opens its files.

Query = Callable[[Path], list[str]]


def manifests_of(folder: Path) -> Path:
    """Return the folder of shards with manifests."""
    path = folder / "manifests"
    if not path.exists():
        path.mkdir()
        write_manifests(path)
    return path


def query_fastshard(folder: Path) -> list[str]:
    library = typed()
    with library.Dataset[row_type(library)](shards_in(folder)) as ds:
        fields = ds.fields
        found = ds.query((fields.score >= bound()) & (fields.label == "cat"))
    return [place.key for place in found]


def query_fastshard_plain(folder: Path) -> list[str]:
    """Query manifests without digests, whose keys are compared with the shards'."""
    path = folder.parent / "plain manifests"
    if not path.exists():
        path.mkdir()
        write_plain_manifests(path, folder)
    return query_fastshard(path)


def query_executor(folder: Path) -> list[str]:
    library = typed()
    fields = library.query_fields(row_type(library))
    executor = library.QueryExecutor.from_directory(folder)
    found = executor.query((fields.score >= bound()) & (fields.label == "cat"))
    return [place.key for place in found]


def query_upstream(folder: Path) -> list[str]:
    if HAS_ATDATA:
        library = atdata()
        url = atdata_url([str(folder / f"m-{k:06d}.tar") for k in (0, MANIFESTS - 1)])
        ds = library.Dataset[row_type(library)](url)
        fields = ds.fields
        found = ds.query((fields.score >= bound()) & (fields.label == "cat"))
        return [place.key for place in found]
    pandas = pytest.importorskip("pandas")
    keys: list[str] = []
    for path in sorted(folder.glob("*.manifest.json")):
        json.loads(path.read_text())
        rows = pandas.read_parquet(path.with_suffix(".parquet"))
        chosen = rows[(rows["score"] >= bound()) & (rows["label"] == "cat")]
        keys += chosen["__key__"].tolist()
    return keys
