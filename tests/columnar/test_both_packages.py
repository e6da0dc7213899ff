"""Datasets that were moved, written by both packages, or left by a killed writer."""

from __future__ import annotations

import os
import random
import shutil
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import pytest

from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
from fastshard.errors import FastshardError
from support.columnar.checks import (
    assert_original_reads,
    assert_reads,
    assert_same_array,
    assert_same_arrays,
    assert_true_offsets,
    members_in,
    rename_base_dirs,
    snapshot,
    sql,
)
from support.columnar.original import (
    FIELDS,
    INDEX,
    OriginalReader,
    arrays_of,
    npy,
    shard_path,
)
from support.processes import run_script

# ---------------------------------------------------------------- another directory

BASE_DIRS = [
    "/mnt/lab/sets/data/{}",
    "/mnt/lab/sets/data/{}/",
    "/mnt/lab//data/./{}//",
    "C:\\Users\\lab\\data\\{}",
    "C:\\Users\\lab\\data\\{}\\",
    "\\\\server\\share\\{}",
    "D:/sets\\data/{}",
    "./data/{}",
    "../{}",
    "{}",
]


@pytest.mark.parametrize("base_dir", BASE_DIRS)
def test_a_base_dir_of_another_machine(several, base_dir):
    root, put = several
    rename_base_dirs(root, base_dir)
    assert_reads(root, put)


def test_a_dataset_that_was_moved(several, tmp_path):
    root, put = several
    moved = tmp_path / "else where" / ("50% #1" if os.name == "nt" else "50% #1?")
    moved.parent.mkdir()
    shutil.move(root, moved)
    assert_reads(moved, put)
    assert not root.exists()


def test_a_copy_does_not_read_the_source(several, tmp_path):
    root, put = several
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    for path in root.glob("*/*.tar"):
        path.write_bytes(b"no tar" * 1000)
    assert_reads(copy, put)


def test_a_relative_root(several, monkeypatch):
    root, put = several
    rename_base_dirs(root, "data/{}")
    monkeypatch.chdir(root.parent)
    assert_reads(Path("data"), put)
    assert_reads("data/", put)
    monkeypatch.chdir(root)
    assert_reads(".", put)


# ---------------------------------------------------------------- both packages write


def sizes_of_shards(root, field):
    paths = sorted((root / f"{field}_shards").glob("*.tar"))
    return [len(members_in(path)) for path in paths]


def test_the_original_reads_shards_of_fastshard(tmp_path):
    put = {f"s{i}": arrays_of(i) for i in range(13)}
    root = tmp_path / "data"
    with ShardedDatasetWriter(root, samples_per_shard=5) as writer:
        writer.add_fields(FIELDS)
        for i, (sample_id, arrays) in enumerate(put.items()):
            writer.add_sample(arrays, sample_id=sample_id, metadata={"n": i})
        put["s3"] = arrays_of(3, 1)
        writer.update_sample("s3", put["s3"])
    assert_original_reads(root, put)
    with OriginalReader(root) as reader:
        assert sorted(reader.list_fields()) == FIELDS
        assert sum(reader.shard_counts("history").values()) == 13
        assert reader.query_ids("json_extract(meta_json, '$.n') > ?", (11,)) == ["s12"]
        assert reader.get_sample("s3")[1] == {"n": 3}
    for field in FIELDS:
        assert_true_offsets(root, field)


def test_the_original_appends_to_fastshards_dataset(
    make_original, tmp_path, monkeypatch
):
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path / "else")
    root = tmp_path / "data"
    put = {f"s{i}": arrays_of(i) for i in range(7)}
    with ShardedDatasetWriter(root, samples_per_shard=5) as writer:
        writer.add_fields(FIELDS)
        for sample_id, arrays in put.items():
            writer.add_sample(arrays, sample_id=sample_id)
    with make_original(samples_per_shard=5) as original:
        original.add_field("extra")
        put |= {f"t{i}": arrays_of(i) for i in range(4)}
        for i in range(4):
            original.add_sample(put[f"t{i}"], sample_id=f"t{i}")
        for i in 1, 6:
            put[f"s{i}"] = {**arrays_of(i, 1), "extra": np.full((2, 2), i)}
            original.update_sample(f"s{i}", put[f"s{i}"])
    assert os.listdir() == []  # it wrote where the dataset is
    assert_original_reads(root, put)
    assert_reads(root, put)
    with ShardedDatasetWriter(root, samples_per_shard=5) as writer:
        put["u"] = {**arrays_of(9), "extra": np.zeros(1)}
        writer.add_sample(put["u"], sample_id="u")
        put["t1"] = {**put["t1"], "extra": np.ones(2)}
        writer.update_sample("t1", {"extra": put["t1"]["extra"]})
    assert_original_reads(root, put)
    assert_reads(root, put)


def test_the_original_reads_ids_after_those_that_fastshard_made(
    make_original, tmp_path
):
    with ShardedDatasetWriter(tmp_path / "data") as writer:
        writer.add_fields(FIELDS)
        ids = [writer.add_sample(arrays_of(i)) for i in range(2)]
    with make_original() as original:
        ids += [original.add_sample(arrays_of(i)) for i in (2, 3)]
    with ShardedDatasetWriter(tmp_path / "data") as writer:
        ids += [writer.add_sample(arrays_of(i)) for i in (4, 5)]
    assert ids == [f"sample_{i:012d}" for i in range(1, 7)]
    put = {sample_id: arrays_of(i) for i, sample_id in enumerate(ids)}
    assert_original_reads(tmp_path / "data", put)
    assert_reads(tmp_path / "data", put)


def test_fastshard_appends_to_the_originals_dataset(make_original):
    with make_original(samples_per_shard=5) as original:
        original.add_fields(FIELDS)
        ids = [original.add_sample(arrays_of(i)) for i in range(7)]
    put = {sample_id: arrays_of(i) for i, sample_id in enumerate(ids)}
    root = original.root
    with ShardedDatasetWriter(root, samples_per_shard=5) as writer:
        writer.add_field("extra")
        for i in range(7, 17):
            put[writer.add_sample(arrays_of(i))] = arrays_of(i)
        for sample_id in ids[2], ids[6]:
            put[sample_id] = {**put[sample_id], "extra": np.zeros((2, 1), ">f8")}
            writer.update_sample(sample_id, {"extra": put[sample_id]["extra"]})
        put[ids[0]] = arrays_of(0, 1)
        writer.update_sample(ids[0], put[ids[0]])
    assert len(put) == 17
    assert_original_reads(root, put)
    assert_reads(root, put)
    for field in FIELDS:
        sizes = sizes_of_shards(root, field)
        assert max(sizes) == 5
        assert sum(sizes) == 18  # one is stored twice
    found = dict(sql(root, "SELECT name, num_shards FROM fields"))
    assert found == {"history": 4, "target": 4, "extra": 1}


def test_fastshard_starts_a_new_shard_after_oversized_ones(several):
    root, put = several
    with ShardedDatasetWriter(root, samples_per_shard=5) as writer:
        for i in range(21, 31):
            put[writer.add_sample(arrays_of(i))] = arrays_of(i)
    assert sizes_of_shards(root, "history") == [15, 6, 5, 5]
    assert_original_reads(root, put)
    assert_reads(root, put)


@pytest.mark.parametrize("base_dir", BASE_DIRS)
def test_fastshard_writes_to_the_present_directory(several, base_dir, tmp_path):
    root, put = several
    elsewhere = tmp_path / "mnt"
    rename_base_dirs(root, base_dir.replace("/mnt", str(elsewhere)))
    moved = tmp_path / "moved"
    root.rename(moved)
    with ShardedDatasetWriter(moved, samples_per_shard=5) as writer:
        writer.add_field("extra")
        first = next(iter(put))
        put[first] = {**put[first], "extra": np.ones(2)}
        writer.update_sample(first, {"extra": put[first]["extra"]})
        put[writer.add_sample(arrays_of(21))] = arrays_of(21)
    assert_reads(moved, put)
    assert not root.exists()
    assert not elsewhere.exists()


def test_compact_repairs_offsets_of_the_original(several, make_original):
    root, put = several
    with make_original(samples_per_shard=5) as original:
        for i in 0, 6, 20:
            sample_id = list(put)[i]
            put[sample_id] = {**put[sample_id], "target": np.full(3, i)}
            original.update_sample(sample_id, {"target": put[sample_id]["target"]})
    stored = {i: npy(arrays["history"]) for i, arrays in put.items()}
    with ShardedDatasetWriter(root, samples_per_shard=5) as writer:
        writer.compact()
    assert_original_reads(root, put)
    assert_reads(root, put)
    for field in FIELDS:
        assert_true_offsets(root, field)
        assert sizes_of_shards(root, field) == [5, 5, 5, 5, 1]
    for path in (root / "history_shards").glob("*.tar"):
        with tarfile.open(path) as tar:
            for found in tar:
                assert tar.extractfile(found).read() == stored[found.name[:-4]]


def equal_arrays(i, version):
    """Return arrays of one or two blocks, whose sums often equal true offsets."""
    history = np.full(224, 1000 * i + version, np.float32)
    return {"history": history, "target": np.full(96, i + version / 1000, np.float32)}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("make_arrays", [arrays_of, equal_arrays])
def test_both_write_in_turns(make_original, tmp_path, make_arrays, seed):
    rng = random.Random(seed)
    root = tmp_path / "data"
    put = {}
    for turn in range(8):
        ours = rng.random() < 0.5
        make = ShardedDatasetWriter if ours else make_original
        per = rng.choice([3, 5, 8])
        with make(root, samples_per_shard=per) as writer:
            writer.add_fields(FIELDS)
            for step in range(rng.randrange(12)):
                i, version = rng.randrange(1000), 100 * turn + step
                arrays = make_arrays(i, version)
                if rng.random() < 0.3:
                    del arrays[rng.choice(FIELDS)]
                if put and rng.random() < 0.5:
                    sample_id = rng.choice(list(put))
                    writer.update_sample(sample_id, arrays)
                    put[sample_id] = put[sample_id] | arrays
                elif rng.random() < 0.5:
                    put[writer.add_sample(arrays)] = arrays
                else:
                    sample_id = f"{turn}/{step}"
                    writer.add_sample(arrays, sample_id=sample_id)
                    put[sample_id] = arrays
        assert_original_reads(root, put)
        assert_reads(root, put)


# ---------------------------------------------------------------- a killed writer


def killed(writer, folder, *, shm=True):
    """Copy a dataset as a killed writer would leave it: without its buffers."""
    shutil.copytree(writer.root, folder)
    if not shm:
        (folder / f"{INDEX}-shm").unlink()
    assert (folder / f"{INDEX}-wal").stat().st_size > 0
    return folder


@pytest.mark.parametrize("shm", [True, False])
def test_a_leftover_log(make_original, tmp_path, shm):
    put = {f"s{i}": arrays_of(i) for i in range(9)}
    writer = make_original(samples_per_shard=4)
    writer.add_fields(FIELDS)
    for sample_id, arrays in put.items():
        writer.add_sample(arrays, sample_id=sample_id, metadata={"id": sample_id})
    writer.close_tars()
    assert_reads(killed(writer, tmp_path / "killed", shm=shm), put)


@pytest.mark.parametrize("shm", [True, False])
def test_a_writer_killed_at_work(make_original, tmp_path, shm):
    arrays = {f"s{i}": {"x": np.full(10_000 + i, i, np.int32)} for i in range(25)}
    writer = make_original(commit_every=5, samples_per_shard=15)
    writer.add_field("x")
    for sample_id, put in arrays.items():
        writer.add_sample(put, sample_id=sample_id)
    root = killed(writer, tmp_path / "killed", shm=shm)

    ids = list(arrays)  # all are committed
    size = os.path.getsize(shard_path(root / "x_shards", 1))
    whole, end = ids[:15], 0
    for sample_id in ids[15:]:
        nbytes = len(npy(arrays[sample_id]["x"]))
        end += 512 + nbytes + -nbytes % 512
        if end <= size:
            whole.append(sample_id)
    assert len(whole) < len(ids)  # the last array is still in a buffer
    before = snapshot(root)
    with ShardedDatasetReader(root) as reader:
        assert reader.query_ids() == ids
        for sample_id in [*ids, *whole]:
            if sample_id in whole:
                found = reader.get_sample(sample_id)[0]["x"]
                assert_same_array(found, arrays[sample_id]["x"])
            else:
                with pytest.raises(FastshardError):
                    reader.get_sample(sample_id)
        found = None
    assert snapshot(root) == before


def test_reading_while_the_original_writes(make_original):
    put = {f"s{i}": arrays_of(i) for i in range(12)}
    writer = make_original(samples_per_shard=5)
    writer.add_fields(FIELDS)
    ids = list(put)
    with ShardedDatasetReader(writer.root) as reader:
        assert len(reader) == 0
        for end in 3, 8, 12:
            known = reader.query_ids()
            for sample_id in ids[len(known) : end]:
                writer.add_sample(put[sample_id], sample_id=sample_id)
            writer.update_sample("s0", put["s0"])
            writer.close_tars()
            assert reader.query_ids() == known  # a snapshot
            reader.refresh()
            assert reader.query_ids() == ids[:end]
            for (found, _), sample_id in zip(
                reader.get_many(ids[:end]), ids[:end], strict=True
            ):
                assert_same_arrays(found, put[sample_id])
    writer.close()
    assert_reads(writer.root, put)


def test_a_torn_shard_is_read_to_its_fault(make_original):
    with make_original() as writer:
        writer.add_field("x")
        for i in range(5):
            writer.add_sample({"x": np.full(1000, i)}, sample_id=f"s{i}")
    path = shard_path(writer.root / "x_shards", 0)
    whole = path.read_bytes()
    member_size = 512 + 128 + 8000 + 64
    for size in range(0, 5 * member_size, 487):
        path.write_bytes(whole[:size])
        with ShardedDatasetReader(writer.root) as reader:
            for i in range(5):
                if (i + 1) * member_size - 64 <= size:
                    found = reader.get_sample(f"s{i}")[0]["x"]
                    assert_same_array(found, np.full(1000, i))
                else:
                    with pytest.raises(FastshardError):
                        reader.get_sample(f"s{i}")


def test_fastshard_appends_after_a_killed_original(make_original, tmp_path):
    arrays = {f"s{i}": {"x": np.full(10_000 + i, i, np.int32)} for i in range(25)}
    original = make_original(commit_every=10)
    original.add_field("x")
    for sample_id, put in arrays.items():
        original.add_sample(put, sample_id=sample_id)
    root = killed(original, tmp_path / "killed")
    whole = []
    with ShardedDatasetReader(root) as reader:
        for sample_id in reader.query_ids():
            try:
                found = reader.get_sample(sample_id)[0]["x"]
            except FastshardError:
                continue
            assert_same_array(found, arrays[sample_id]["x"])
            whole.append(sample_id)
        found = None
    assert len(whole) > 10
    with ShardedDatasetWriter(root) as writer:
        writer.add_sample({"x": np.ones(3)}, sample_id="new")
        writer.update_sample("s19", {"x": np.ones(4)})
    with ShardedDatasetReader(root) as reader:
        assert_same_array(reader.get_sample("new")[0]["x"], np.ones(3))
        assert_same_array(reader.get_sample("s19")[0]["x"], np.ones(4))
        for sample_id in whole:
            if sample_id != "s19":
                found = reader.get_sample(sample_id)[0]["x"]
                assert_same_array(found, arrays[sample_id]["x"])


# ---------------------------------------------------------------- read-only

READ = """
import os, sys
import numpy, fastshard
from fastshard.columnar import ShardedDatasetReader
if hasattr(os, "geteuid") and os.geteuid() == 0:
    os.setuid(65534)  # to root every directory is writable
root = sys.argv[1]
try:
    open(os.path.join(root, "new"), "x")
except PermissionError:
    pass
else:
    raise SystemExit("the directory is not read-only")
with ShardedDatasetReader(root) as reader:
    for sample_id in reader.query_ids():
        arrays, metadata = reader.get_sample(sample_id)
        print(sample_id, metadata["n"], arrays["x"].tolist())
"""


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX permissions")
@pytest.mark.parametrize("log", [False, True])
def test_a_read_only_directory(make_original, tmp_path, log):
    put = {f"s{i}": [float(i), i + 0.5] for i in range(4)}
    writer = make_original()
    writer.add_field("x")
    for n, (sample_id, array) in enumerate(put.items()):
        writer.add_sample({"x": np.array(array)}, sample_id, {"n": n})
    writer.close_tars()
    if not log:
        writer.close()
    with tempfile.TemporaryDirectory() as folder:  # accessible to another user
        os.chmod(folder, 0o755)
        root = Path(folder, "data")
        shutil.copytree(writer.root, root)
        for path in [root, *root.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        before = snapshot(root)
        try:
            printed = run_script(tmp_path, READ, root)
            assert snapshot(root) == before
        finally:
            for path in [root, *root.rglob("*")]:
                path.chmod(0o755)
    expected = [f"{i} {n} {array}" for n, (i, array) in enumerate(put.items())]
    assert printed.splitlines() == expected
