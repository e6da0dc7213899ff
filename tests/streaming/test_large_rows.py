"""Rows of large fields: the pages of fields that nobody asks for stay on the disk."""

import json
import random

import numpy as np
import pytest

import fastshard
from fastshard.streaming import MDSWriter, reader_from_json
from support.memory import cached, evict

COUNT = 24
NBYTES = 300_000  # of an image

READS = {
    "decode": lambda ds: [ds[i].decode("label")["label"] for i in range(COUNT)],
    "iterate": lambda ds: [s.decode()["label"] for s in ds.select_fields("label")],
    "stage": lambda ds: [s["label"] for s in ds.select_fields("label").decode()],
    "batches": lambda ds: np.concatenate(
        [batch["label"] for batch in ds.select_fields("label").batches(5)]
    ).tolist(),
    "columns": lambda ds: ds.columns(range(COUNT), "label")["label"].tolist(),
    "arrays": lambda ds: [int(ds[i].array("label")) for i in range(COUNT)],
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large") / "rows"
    columns = {"image": "bytes", "label": "int", "name": "str"}
    with MDSWriter(out=str(folder), columns=columns) as writer:
        for i in range(COUNT):
            image = random.Random(i).randbytes(NBYTES)
            writer.write({"image": image, "label": i, "name": f"n{i}"})
    return folder


@pytest.mark.parametrize("read", READS)
def test_other_fields_are_not_read(dataset, read):
    shard = dataset / "shard.00000.mds"
    evict(shard)
    with fastshard.open(dataset) as ds:
        assert READS[read](ds) == list(range(COUNT))
    assert cached(shard) < COUNT * NBYTES / 2
    with fastshard.open(dataset) as ds:
        names = [sample.decode()["name"] for sample in ds.select_fields("name")]
    assert names == [f"n{i}" for i in range(COUNT)]


READER_READS = {
    "get_item": lambda reader: [
        reader.get_item(i, fields=["label"])["label"] for i in range(COUNT)
    ],
    "columns": lambda reader: reader.read_columns(range(COUNT), ["label"])[
        "label"
    ].tolist(),
    "names": lambda reader: [
        int(name[1:]) for name in reader.read_columns(range(COUNT), "name")["name"]
    ],
}


@pytest.mark.parametrize("read", READER_READS)
def test_readers_do_not_read_other_fields(dataset, read):
    shard = dataset / "shard.00000.mds"
    index = json.loads((dataset / "index.json").read_text())
    evict(shard)
    reader = reader_from_json(str(dataset), None, index["shards"][0])
    assert READER_READS[read](reader) == list(range(COUNT))
    assert cached(shard) < COUNT * NBYTES / 2
    assert reader[3]["image"] == random.Random(3).randbytes(NBYTES)


@pytest.mark.parametrize("options", [{}, {"mode": "pread"}, {"max_memory": "1MiB"}])
def test_large_rows_are_read_whole(dataset, options):
    evict(dataset / "shard.00000.mds")
    with fastshard.open(dataset, **options) as ds:
        for _ in range(2):  # cold, and cached
            for i, sample in enumerate(ds.select_fields("image", "name")):
                assert sample.decode() == {
                    "__key__": str(i),
                    "image": random.Random(i).randbytes(NBYTES),
                    "name": f"n{i}",
                }
