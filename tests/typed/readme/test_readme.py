"""The calls of atdata's README, with another import, on data made for them.

Each block is run as a module, and a second time with postponed annotations.
"""

import gc
import importlib.util
import itertools
import sys

import numpy as np
import pytest
from numpy.typing import NDArray

from fastshard import typed
from support.marks import not_sanitized
from support.servers.http import Server
from support.servers.s3 import ACCESS, SECRET, Bucket, serve_s3

NUMBERS = itertools.count()
SAMPLES = 16  # of a shard


@typed.packable
class Stored:
    """Sample with the fields that the blocks of the README name."""

    text: str
    image: NDArray[np.uint8]
    label: str
    metadata: dict
    field_name: str


def make(i):
    return Stored(
        text=f"text {i}",
        image=np.full((4, 4, 3), i % 256, "u1"),
        label=f"label {i}",
        metadata={"i": i},
        field_name=f"value {i}",
    )


def write(path, first=0, count=SAMPLES):
    path.parent.mkdir(parents=True, exist_ok=True)
    typed.write_samples(map(make, range(first, first + count)), path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files that the blocks name."""
    root = tmp_path_factory.mktemp("readme")
    for name in ("path/to/data.tar", "data.tar", "data/train.tar"):
        write(root / name)
    for k in range(10):
        write(root / f"path/to/data-{k:06d}.tar", SAMPLES * k)
        write(root / f"data-{k:06d}.tar", SAMPLES * k)
        for split in ("train", "val"):
            write(root / f"data/{split}/dataset-{k:06d}.tar", SAMPLES * k)
    for k in range(3):
        write(root / f"data/dataset-{k:06d}.tar", k, 1)
        write(root / f"data/train-{k:06d}.tar", SAMPLES * k)
    write(root / "data/test-000000.tar", 1000)
    return root


@pytest.fixture(scope="module")
def buckets(folder):
    """A store with the buckets that the blocks name."""
    pytest.importorskip("obstore")
    pytest.importorskip("moto.server")
    with serve_s3() as endpoint:
        mine = Bucket(endpoint)
        for name in ("my-bucket", "bucket"):
            mine.client.create_bucket(Bucket=name)
        for k in range(2):
            data = (folder / f"data-{k:06d}.tar").read_bytes()
            mine.client.put_object(
                Bucket="my-bucket", Key=f"data-{k:06d}.tar", Body=data
            )
        data = (folder / "data/dataset-000000.tar").read_bytes()
        for k in range(100):
            mine.client.put_object(Bucket="bucket", Key=f"data-{k:06d}.tar", Body=data)
        yield mine


@pytest.fixture(
    params=["", "from __future__ import annotations\n"], ids=["", "postponed"]
)
def run(request, folder, monkeypatch, tmp_path):
    """Run a block as a module in the folder; return its names."""
    monkeypatch.chdir(folder)

    def run(code, **names):
        name = f"readme_block_{next(NUMBERS)}"
        path = tmp_path / f"{name}.py"
        path.write_text(request.param + code)
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return run


TYPES = """
from fastshard import typed
from numpy.typing import NDArray

@typed.packable
class ImageSample:
    image: NDArray
    label: str
    metadata: dict
"""


def test_exploring(run, capsys):
    run("""
from fastshard.typed import load_dataset

ds = load_dataset("path/to/data.tar", split="train")

for sample in ds.ordered():
    print(sample.keys())
    print(sample["text"])
    print(sample.label)
    break
""")
    assert capsys.readouterr().out.splitlines() == [
        "['text', 'image', 'label', 'metadata', 'field_name']",
        "text 0",
        "label 0",
    ]


def test_loading_with_types(run, capsys):
    batches = []
    done = run(
        TYPES
        + """
from fastshard.typed import load_dataset

ds = load_dataset("path/to/data-{000000..000009}.tar", ImageSample, split="train")
whole = ds

ds = load_dataset("path/to/data.tar", split="train").as_type(ImageSample)

for sample in ds.ordered():
    print(f"Label: {sample.label}, Image shape: {sample.image.shape}")

for batch in whole.shuffled(batch_size=32):
    process_batch(batch.image, batch.label)
""",
        process_batch=lambda image, label: batches.append((image, label)),
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"Label: label {i}, Image shape: (4, 4, 3)" for i in range(SAMPLES)
    ]
    assert done.ds.sample_type is done.ImageSample
    assert done.whole[150].metadata == {"i": 150}
    assert {image.shape for image, _ in batches} == {(32, 4, 4, 3)}
    assert {(type(label), len(label)) for _, label in batches} == {(list, 32)}
    labels = [label for _, part in batches for label in part]
    assert sorted(labels) == sorted(f"label {i}" for i in range(160))
    assert labels != [f"label {i}" for i in range(160)]
    assert batches[0][0][:, 0, 0, 0].tolist() == [
        int(label.split()[1]) for label in batches[0][1]
    ]


def test_lenses(run, capsys):
    done = run(
        TYPES
        + """
dataset = typed.Dataset[ImageSample]("data.tar")

@typed.packable
class ProcessedSample:
    features: NDArray
    label: str

@typed.lens
def preprocess(sample: ImageSample) -> ProcessedSample:
    features = extract_features(sample.image)
    return ProcessedSample(features=features, label=sample.label)

processed_ds = dataset.as_type(ProcessedSample)

for sample in processed_ds.ordered(batch_size=None):
    print(sample.features.shape)
""",
        extract_features=lambda image: image.reshape(-1).astype("f4") / 255,
    )
    assert capsys.readouterr().out.splitlines() == ["(48,)"] * SAMPLES
    assert type(done.processed_ds[3]) is done.ProcessedSample
    assert done.processed_ds[3].label == "label 3"


def test_untyped_samples(run, capsys):
    run("""
from fastshard.typed import load_dataset

ds = load_dataset("data.tar", split="train")

for sample in ds.ordered():
    print(sample["field_name"])
    print(sample.field_name)
    print(sample.keys())
    print(sorted(sample.to_dict()))
""")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 * SAMPLES
    assert lines[4:8] == [
        "value 1",
        "value 1",
        "['text', 'image', 'label', 'metadata', 'field_name']",
        "['field_name', 'image', 'label', 'metadata', 'text']",
    ]


def test_typed_samples(run):
    done = run("""
from fastshard import typed
from numpy.typing import NDArray

@typed.packable
class MySample:
    array_field: NDArray
    optional_array: NDArray | None
    regular_field: str
""")
    array = np.arange(6.0).reshape(2, 3)
    for optional in (None, array[0]):
        sample = done.MySample(
            array_field=array, optional_array=optional, regular_field="text"
        )
        found = done.MySample.from_bytes(sample.packed)
        np.testing.assert_array_equal(found.array_field, array)
        np.testing.assert_array_equal(found.optional_array, optional)
        assert found.regular_field == "text"
    untyped = typed.DictSample.from_bytes(sample.packed)
    lens = typed.LensNetwork().transform(typed.DictSample, done.MySample)
    assert lens(untyped).regular_field == "text"


def test_lenses_put_back(run):
    done = run("""
from fastshard import typed

@typed.packable
class SourceType:
    name: str
    age: int

@typed.packable
class ViewType:
    name: str

@typed.lens
def my_lens(source: SourceType) -> ViewType:
    return ViewType(name=source.name)

@my_lens.putter
def my_lens_put(view: ViewType, source: SourceType) -> SourceType:
    return SourceType(name=view.name, age=source.age)
""")
    source = done.SourceType(name="Ada", age=36)
    assert done.my_lens(source) == done.ViewType(name="Ada")
    changed = done.my_lens.put(done.ViewType(name="Eve"), source)
    assert changed == done.SourceType(name="Eve", age=36)
    assert done.my_lens.check_laws([source, changed]) == []


def test_sources_of_urls(run, folder):
    done = run(
        TYPES
        + """
dataset = typed.Dataset[ImageSample]("data-{000000..000009}.tar")
""",
    )
    assert done.dataset.sample_type is done.ImageSample
    assert len(done.dataset) == 160
    with Server({"/data.tar": (folder / "data.tar").read_bytes()}) as server:
        remote = typed.Dataset[done.ImageSample](f"{server.url}/data.tar", timeout=5)
        assert [sample.label for sample in remote.ordered()][3] == "label 3"


@not_sanitized
def test_sources_in_buckets(run, buckets):
    done = run(
        TYPES
        + """
source = typed.S3Source(
    bucket="my-bucket",
    keys=["data-000000.tar", "data-000001.tar"],
    endpoint=ENDPOINT,
    access_key=ACCESS,
    secret_key=SECRET,
)
dataset = typed.Dataset[ImageSample](source)
""",
        ENDPOINT=buckets.endpoint,
        ACCESS=ACCESS,
        SECRET=SECRET,
    )
    assert done.dataset.source is done.source
    assert len(done.dataset) == 2 * SAMPLES
    assert [sample.label for sample in done.dataset.ordered()] == [
        f"label {i}" for i in range(2 * SAMPLES)
    ]
    assert next(iter(done.dataset.ordered(batch_size=8))).image.shape == (8, 4, 4, 3)
    assert SECRET not in repr(done.dataset) + repr(done.source)


@pytest.mark.parametrize(
    ("url", "count"),
    [
        ("data/dataset-000000.tar", 1),
        ("data/dataset-{000000..000002}.tar", 3),
        ("data/{train,val}/dataset-{000000..000009}.tar", 20 * SAMPLES),
    ],
)
def test_urls_of_datasets(run, url, count):
    done = run(TYPES + f"dataset = typed.Dataset[ImageSample]({url!r})\n")
    assert len(done.dataset) == count
    assert done.dataset.url == url
    splits = typed.load_dataset(url, done.ImageSample)
    expected = {"train", "validation"} if "val" in url else {"train"}
    assert set(splits) == expected


@not_sanitized
def test_loading_from_everywhere(run, buckets, monkeypatch):
    buckets.environment(monkeypatch)
    done = run(
        TYPES
        + """
from fastshard.typed import load_dataset

ds = load_dataset("./data/train-*.tar", split="train")
untyped = ds

ds = load_dataset("./data/train-*.tar", ImageSample, split="train")
local = ds

ds = load_dataset("s3://bucket/data-{000000..000099}.tar", ImageSample, split="train")
remote = ds

ds_dict = load_dataset("./data", ImageSample)
train_ds = ds_dict["train"]
test_ds = ds_dict["test"]

ds = load_dataset("./data/train.tar", split="train").as_type(ImageSample)
""",
    )
    assert done.untyped.sample_type is typed.DictSample
    assert len(done.untyped) == len(done.local) == 3 * SAMPLES
    assert done.local[17].label == "label 17"
    assert len(done.remote.list_shards()) == 100
    assert [sample.label for sample in done.remote.head(2)] == ["label 0"] * 2
    assert done.train_ds.sample_type is done.ImageSample
    assert done.test_ds[0].label == "label 1000"
    assert (len(done.test_ds), len(done.ds)) == (SAMPLES, SAMPLES)


# webdataset leaves its file to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_webdataset_reads_and_writes_the_same(tmp_path):
    wds = pytest.importorskip("webdataset")
    write(tmp_path / "ours.tar")
    pipeline = wds.WebDataset(
        str(tmp_path / "ours.tar"), shardshuffle=False, empty_check=False
    )
    found = [Stored.from_bytes(sample["msgpack"]) for sample in pipeline]
    assert [sample.label for sample in found] == [f"label {i}" for i in range(SAMPLES)]
    np.testing.assert_array_equal(found[3].image, make(3).image)
    del pipeline
    gc.collect()
    with wds.TarWriter(str(tmp_path / "theirs.tar")) as writer:
        for i in range(5):
            writer.write(make(i).as_wds)
    theirs = typed.Dataset(tmp_path / "theirs.tar", Stored)
    assert [sample.metadata for sample in theirs.ordered()] == [
        {"i": i} for i in range(5)
    ]
    np.testing.assert_array_equal(theirs[3].image, make(3).image)
