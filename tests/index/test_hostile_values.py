"""Indexes with hostile numbers under right checksums: refused where they are loaded.

Each number of a header is replaced by absurd and by near ones, in a process whose
memory is limited: it reads the right samples, or names the index, and what it writes
anew is right.
"""

import json
import struct
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

import fastshard
from fastshard._core.table.checksums import block_sums
from fastshard.codecs.compression import parse_compression
from fastshard.index.binary import HEADER, read_binary, seal_header
from fastshard.index.dataset_file import DatasetIndex, write_dataset_index
from support.builders import npy
from support.marks import LONG, not_sanitized
from support.processes import environment
from support.tars import write_tar

SAMPLES = 7  # of a shard
LENGTHS_AT = 196  # byte of a header: the place of the documents' lengths
STEP = 1 if LONG else 11  # every value, or some


def make_folder(folder, hashes=False):
    """Write two shards of documents and labels, with indexes."""
    folder.mkdir()
    for shard in range(2):
        members = {}
        for i in range(SAMPLES):
            members[f"{shard}{i}.cls"] = str(i).encode()
            members[f"{shard}{i}.npy"] = npy(np.arange(3 * i + shard, dtype="u2"))
        write_tar(folder / f"t-{shard}.tar", members)
    fastshard.build_index(folder, hashes=hashes)
    return folder


def read_windows(folder, **options):
    with fastshard.open(folder, **options) as ds:
        return [window.tolist() for window in ds.tokens("npy", 10)]


@not_sanitized  # which takes address space of its own
@pytest.mark.skipif(sys.platform != "linux", reason="limits address space")
@pytest.mark.parametrize("kind", ["shard", "tokens", "dataset"])
def test_every_number_of_a_header_is_checked(tmp_path, kind):
    folder = make_folder(tmp_path / "data", hashes=kind == "shard")
    if kind == "tokens":
        read_windows(folder)  # stores the lengths of documents
        assert read_binary(str(folder / "t-0.fsi")).header.lengths[1] > 0
    done = subprocess.run(
        [sys.executable, "-m", "support.index.hostile", kind, folder, str(STEP)],
        env=environment() | {"MALLOC_ARENA_MAX": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize("place", [2_900_000_000, 1, 300, 2**63, 2**64 - 1])
def test_a_hostile_place_of_lengths_is_neither_allocated_nor_written(tmp_path, place):
    folder = make_folder(tmp_path / "data")
    expected = read_windows(folder)
    path = folder / "t-0.fsi"
    raw = bytearray(path.read_bytes())
    struct.pack_into("<Q", raw, LENGTHS_AT, place)
    index = read_binary(str(path))
    at, size = index.extents["sums"]
    sums = block_sums(raw[HEADER.size : at])
    path.write_bytes(seal_header(bytes(raw[: HEADER.size]), sums) + raw[HEADER.size :])
    kept = path.read_bytes()
    assert len(kept) == at + size
    tracemalloc.start()
    try:
        with pytest.warns(fastshard.StaleIndexWarning, match="documents' lengths"):
            assert read_windows(folder) == expected
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
    assert path.read_bytes() == kept
    with pytest.raises(fastshard.FormatError, match="documents' lengths") as caught:
        read_binary(str(path))
    assert caught.value.offset == LENGTHS_AT


def test_lengths_are_read_without_a_gibibyte(tmp_path):
    folder = make_folder(tmp_path / "data")
    read_windows(folder)
    tracemalloc.start()
    try:
        read_windows(folder)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("samples", "members"), [(2**40, 2**40), (14, 2**32), (15, 14), (2**63, 2**63)]
)
def test_counts_of_a_dataset_index_fit_the_shards(tmp_path, samples, members):
    """They size the order of a shuffle before a shard is opened."""
    folder = make_folder(tmp_path / "data")
    path = str(folder / "dataset.fsi")
    known = DatasetIndex(path)
    first = known.shards[0]._replace(samples=samples, members=members)
    write_dataset_index(
        path, [first, known.shards[1]], last_dot=False, seed=known.seed, rows=None
    )
    with pytest.raises(fastshard.FormatError, match="do not fit a shard"):
        DatasetIndex(path)
    with pytest.warns(fastshard.StaleIndexWarning), fastshard.open(folder) as ds:
        assert len(ds) == len(ds.shuffle(seed=1)[:]) == 2 * SAMPLES


def test_a_streaming_index_has_no_more_samples_than_bytes(tmp_path):
    with fastshard.streaming.MDSWriter(
        out=str(tmp_path), columns={"x": "int"}
    ) as writer:
        writer.write({"x": 1})
    path = tmp_path / "index.json"
    index = json.loads(path.read_text())
    index["shards"][0]["samples"] = 2**32 - 2
    path.write_text(json.dumps(index))
    with pytest.raises(fastshard.FormatError, match="more samples than bytes"):
        fastshard.open(tmp_path)


@pytest.mark.parametrize("algo", ["br", "bz2", "gz", "zstd"])
@pytest.mark.parametrize("nbytes", [2**33, 2**40, 2**47])
def test_allocation_follows_decompressed_bytes_not_the_raw_size(algo, nbytes):
    codec = parse_compression(algo)
    packed = codec.compress(bytes(3 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(fastshard.FormatError, match="decompressed to 3,145,728"):
            codec.decompress(packed, nbytes)
        assert tracemalloc.get_traced_memory()[1] < 512 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("algo", ["br", "gz", "zstd"])
def test_a_large_raw_file_is_decompressed_whole(algo, monkeypatch):
    monkeypatch.setattr("fastshard.codecs.compression.FIRST_BYTES", 1 << 20)
    data = np.random.default_rng(0).integers(0, 4, 5 << 20, "u1").tobytes()
    codec = parse_compression(f"{algo}:1")
    assert codec.decompress(codec.compress(data), len(data)) == data
