"""Datasets that are converted."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

import fastshard

COUNT = 23
PER_SHARD = 7


def make_samples(count=COUNT):
    """Samples of all kinds of fields, as `ShardWriter` takes them."""
    rng = np.random.default_rng(7)
    return [
        {
            "__key__": f"part/{i:04d}",
            "jpg": b"\xff\xd8" + rng.bytes(i * 10),
            "seg.png": b"\x89PNG" + rng.bytes(3),
            "thumb.webp": b"RIFF" + rng.bytes(i),
            "txt": f"caption {i}: ä \u2028 \U0001f600 " + "," * (i % 3),
            "cls": i - 5,
            "meta.json": {"a": [i, None, 0.5], "ü": {"b": "c"}},
            "x.npy": rng.random((i + 1, 2)).astype("f4"),
            "lr.npy": np.float32(i / 3),
            "data.bin": rng.bytes(20),
            "empty.txt": "",
        }
        for i in range(count)
    ]


def write_tar(folder, samples, per_shard=PER_SHARD):
    pattern = Path(folder) / "train-{:04d}.tar"
    with fastshard.ShardWriter(pattern, max_count=per_shard, index=None) as writer:
        for sample in samples:
            writer.write(sample)
    return str(folder)


def contents(folder):
    """The samples of tar shards: key, and stored bytes by field, in order."""
    with fastshard.open(folder) as ds:
        return [
            (sample.key, {field: bytes(sample.view(field)) for field in sample})
            for sample in ds
        ]


def digests(folder):
    """The digests of the shards of tar, in order."""
    paths = sorted(Path(folder).glob("*.tar"))
    return [hashlib.sha1(path.read_bytes()).hexdigest() for path in paths]


@pytest.fixture(scope="session")
def tars(tmp_path_factory):
    return write_tar(tmp_path_factory.mktemp("tars"), make_samples())
