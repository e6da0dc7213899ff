"""Reads of the same files by other libraries give the same samples."""

import json
import random
import tarfile

import pytest

import fastshard
from support.tars import write_tar

SHARDS = 3
EACH = 20

# The other libraries leave files open, and use deprecated calls.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]


def samples_of(shard):
    numbers = random.Random(shard)
    for i in range(EACH):
        key = f"{'dir/' if shard == 1 else ''}{shard:02d}-{i:04d}"
        yield {
            "__key__": key,
            "jpg": numbers.randbytes(numbers.choice([1, 511, 512, 513, 3000])),
            "seg.png": numbers.randbytes(40),
            "json": json.dumps({"i": i, "caption": "é"}).encode(),
            "cls": b"%d" % (i % 10),
        }


def write_by_tarfile(folder, form, mtime):
    for shard in range(SHARDS):
        members = {}
        for sample in samples_of(shard):
            key = sample.pop("__key__")
            members |= {f"{key}.{field}": data for field, data in sample.items()}
        write_tar(folder / f"t-{shard}.tar", members, form=form, mtime=mtime)


def write_by_fastshard(folder):
    with fastshard.ShardWriter(folder / "t-{}.tar", max_count=EACH) as writer:
        for shard in range(SHARDS):
            for sample in samples_of(shard):
                writer.write(sample)


def write_by_webdataset(folder):
    wds = pytest.importorskip("webdataset")
    for shard in range(SHARDS):
        with wds.TarWriter(str(folder / f"t-{shard}.tar"), encoder=False) as writer:
            for sample in samples_of(shard):
                writer.write(sample)


WRITERS = {
    "ustar": lambda folder: write_by_tarfile(folder, tarfile.USTAR_FORMAT, 1),
    "gnu": lambda folder: write_by_tarfile(folder, tarfile.GNU_FORMAT, 1),
    "pax": lambda folder: write_by_tarfile(folder, tarfile.PAX_FORMAT, 1.5),
    "fastshard": write_by_fastshard,
    "webdataset": write_by_webdataset,
}


@pytest.fixture(params=WRITERS)
def folder(request, tmp_path):
    WRITERS[request.param](tmp_path)
    return tmp_path


EXPECTED = [sample for shard in range(SHARDS) for sample in samples_of(shard)]


def read_by_fastshard(folder, **options):
    with fastshard.open(folder, **options) as ds:
        return [
            {"__key__": sample.key} | {field: bytes(sample[field]) for field in sample}
            for sample in ds
        ]


@pytest.mark.parametrize("index", ["none", "fsi", "json", "idx", "tar.idx"])
def test_fastshard_reads_them_with_every_index(folder, index):
    for path in folder.glob("*.fsi"):
        path.unlink()
    if index != "none":
        made = fastshard.build_index(folder, format=index)
    if index in ("idx", "tar.idx"):
        read = []
        for path in made:
            name = path.removesuffix(".idx").removesuffix(".tar") + ".tar"
            with fastshard.open_shard(name, index=path) as shard:
                assert shard.index == path
                read += [
                    {"__key__": s.key} | {f: bytes(s[f]) for f in s}
                    for s in shard.samples
                ]
    else:
        read = read_by_fastshard(folder)
        with fastshard.open(folder) as ds:
            used = {
                shard.index and shard.index.rpartition(".")[2] for shard in ds.shards
            }
        assert used == {None if index == "none" else index}
    assert read == EXPECTED


def test_webdataset_reads_the_same(folder):
    wds = pytest.importorskip("webdataset")
    shards = [str(path) for path in sorted(folder.glob("*.tar"))]
    found = []
    for sample in wds.WebDataset(shards, shardshuffle=False):
        fields = {k: v for k, v in sample.items() if not k.startswith("__")}
        found.append({"__key__": sample["__key__"]} | fields)
    assert found == EXPECTED == read_by_fastshard(folder)


def test_wids_reads_the_same(folder):
    wids = pytest.importorskip("wids")
    [index] = fastshard.build_index(folder, format="wids")
    ds = wids.ShardListDataset(index, keep=True, transformations=[])
    found = []
    for i in range(len(ds)):
        fields = {
            key.removeprefix("."): value.read()
            for key, value in ds[i].items()
            if key.startswith(".")
        }
        found.append({"__key__": ds[i]["__key__"]} | fields)
    assert found == EXPECTED
    assert read_by_fastshard(index) == EXPECTED


def test_webshart_reads_the_same(folder):
    webshart = pytest.importorskip("webshart")
    fastshard.build_index(folder, format="json")
    theirs = webshart.discover_dataset(str(folder))
    expected = {
        f"{sample['__key__']}.{field}": data
        for sample in EXPECTED
        for field, data in sample.items()
        if field != "__key__"
    }
    found = {}
    for k in range(theirs.num_shards):
        reader = theirs.open_shard(k)
        for i, name in enumerate(reader.filenames()):
            found[name] = reader.read_file(i)
    assert found == expected
    with fastshard.open(folder) as ds:
        names = list(ds.members.keys())
        assert {name: bytes(v) for name, v in zip(names, ds.members, strict=True)} == (
            expected
        )
