"""Datasets of compressed shards: decompressed once, ahead, in bounded memory."""

import errno
import gc
import json
import os
import pickle
import threading
import time
import weakref

import pytest

import fastshard
from fastshard.cli import main
from fastshard.codecs import raw_files
from fastshard.errors import FormatError
from fastshard.streaming import MDSWriter
from support.inside.datasets import shards_of
from support.inside.streaming import check_pieces, replace_check_pieces
from support.servers.http import Server

pytest.importorskip("cramjam")

SHARDS, ROWS = 6, 20


@pytest.fixture
def folder(tmp_path):
    """Six shards of 20 rows, each of about 40 KB."""
    path = tmp_path / "data"
    columns = {"text": "str", "value": "int"}
    with MDSWriter(
        columns=columns,
        out=str(path),
        compression="gz:1",
        hashes=["sha1"],
        size_limit=41_000,
    ) as writer:
        for i in range(SHARDS * ROWS):
            writer.write({"text": f"{i:05}" * 400, "value": i})
    assert len(raw_names(path, ".gz")) == SHARDS
    return path


def raw_names(folder, suffix=".mds"):
    return sorted(name for name in os.listdir(folder) if name.endswith(suffix))


def wait_for(condition):
    for _ in range(500):
        if condition():
            return True
        time.sleep(0.01)
    return False


@pytest.fixture
def read_only(monkeypatch):
    """Make each raw file fail as on a read-only file system; count decompressions."""
    made = []
    pieces = check_pieces

    def refuse(path, *args):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    def counted(*args):
        made.append(args[-1])
        return pieces(*args)

    monkeypatch.setattr(raw_files, "store_raw", refuse)
    replace_check_pieces(monkeypatch, counted)
    return made


def values(ds):
    return [sample.decode()["value"] for sample in ds]


def test_an_epoch_leaves_the_raw_files(folder):
    ds = fastshard.open(folder)
    for _ in range(2):
        assert values(ds) == list(range(SHARDS * ROWS))
    assert len(raw_names(folder)) == SHARDS
    assert raw_names(folder, ".tmp") == []


def test_shards_that_follow_are_decompressed_ahead(folder):
    ds = fastshard.open(folder)
    assert raw_names(folder) == []
    assert ds[0].decode()["value"] == 0
    assert wait_for(lambda: "shard.00001.mds" in raw_names(folder))


def test_shards_out_of_order_are_decompressed_alone(folder):
    ds = fastshard.open(folder)
    ds[4 * ROWS]
    ds[2 * ROWS]
    time.sleep(0.05)
    assert raw_names(folder) == ["shard.00002.mds", "shard.00004.mds"]


def test_without_prefetch_nothing_is_decompressed_ahead(folder):
    ds = fastshard.open(folder, prefetch=False)
    ds[0]
    time.sleep(0.05)
    assert raw_names(folder) == ["shard.00000.mds"]


def test_a_damaged_shard_ahead_is_an_error_in_its_turn(folder):
    path = folder / "shard.00001.mds.gz"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    ds = fastshard.open(folder)
    good = [*range(ROWS), *range(2 * ROWS, SHARDS * ROWS)]
    assert values(ds[:ROWS]) == list(range(ROWS))
    for _ in range(2):
        with pytest.raises(FormatError, match=r"shard\.00001\.mds\.gz"):
            ds[ROWS]
    assert values(ds[good]) == good


def test_a_missing_shard_ahead_is_an_error_in_its_turn(folder):
    os.unlink(folder / "shard.00002.mds.gz")
    ds = fastshard.open(folder)
    assert values(ds[: 2 * ROWS]) == list(range(2 * ROWS))
    with pytest.raises(FileNotFoundError, match=r"shard\.00002\.mds"):
        ds[2 * ROWS]
    assert ds[3 * ROWS].decode()["value"] == 3 * ROWS


def test_threads_that_open_a_dataset_decompress_once(folder, read_only):
    ds = fastshard.open(folder, prefetch=False)
    found = []
    barrier = threading.Barrier(8)

    def work():
        barrier.wait()
        found.append(ds[ROWS].decode()["value"])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [ROWS] * 8
    assert len(read_only) == 1


# Memory.


def test_shards_that_cannot_be_written_are_in_memory(folder, read_only):
    ds = fastshard.open(folder)
    for _ in range(2):
        assert values(ds) == list(range(SHARDS * ROWS))
    assert raw_names(folder) == []
    assert len(read_only) == SHARDS  # all fit
    assert bytes(ds[7]["text"]) == b"00007" * 400


@pytest.mark.parametrize("mode", ["mmap", "pread", "private"])
def test_modes_of_shards_in_memory(folder, read_only, mode):
    ds = fastshard.open(folder, mode=mode)
    view = ds[7]["text"]
    assert bytes(view) == b"00007" * 400
    assert view.readonly == (mode != "private")
    if mode == "private":
        view[:5] = b"#####"
        assert bytes(ds[7]["text"][:6]) == b"#####0"
    assert ds.columns([3, 99, 3], "value")["value"].tolist() == [3, 99, 3]
    assert sorted(values(ds.shuffle(seed=1))) == list(range(SHARDS * ROWS))
    batches = ds.select_fields("value").batches(50)
    found = [value for batch in batches for value in batch["value"].tolist()]
    assert found == list(range(SHARDS * ROWS))


def test_memory_of_shards_is_bounded(folder, read_only):
    """Three shards of 40 KB exceed 100 KB: the oldest is closed, and views stay."""
    ds = fastshard.open(folder, max_memory=100_000, prefetch=False)
    views = [ds[k * ROWS]["text"] for k in range(SHARDS)]
    assert len(read_only) == SHARDS
    assert [bytes(view) for view in views] == [
        f"{k * ROWS:05}".encode() * 400 for k in range(SHARDS)
    ]
    ds[(SHARDS - 1) * ROWS], ds[(SHARDS - 2) * ROWS]
    assert len(read_only) == SHARDS  # the last two are held
    assert ds[0].decode()["value"] == 0
    assert len(read_only) == SHARDS + 1
    assert values(ds) == list(range(SHARDS * ROWS))


def test_memory_goes_with_the_dataset(folder, read_only):
    ds = fastshard.open(folder)
    list(ds)
    alive = weakref.ref(shards_of(ds))
    gc.disable()
    try:
        del ds
        assert wait_for(lambda: alive() is None)  # a thread may still open ahead
    finally:
        gc.enable()


def test_shards_in_memory_are_opened_one_ahead(folder, read_only):
    ds = fastshard.open(folder)
    ds[0]
    assert wait_for(lambda: len(read_only) == 2)
    time.sleep(0.05)
    assert len(read_only) == 2
    assert values(ds) == list(range(SHARDS * ROWS))
    assert len(read_only) == SHARDS


def test_a_shard_above_the_limit_is_an_error(folder, read_only):
    ds = fastshard.open(folder, max_memory=30_000)
    with pytest.raises(OSError, match="exceed max_memory=30,000"):
        ds[0]


def test_a_dataset_in_memory_pickles(folder, read_only):
    ds = fastshard.open(folder)
    ds[0]
    assert pickle.loads(pickle.dumps(ds))[ROWS].decode()["value"] == ROWS


# Hashes.


def test_hashes_are_checked_when_a_shard_is_opened(folder):
    index = json.loads((folder / "index.json").read_bytes())
    index["shards"][1]["raw_data"]["hashes"]["sha1"] = "0" * 40
    index["shards"][2]["zip_data"]["hashes"]["sha1"] = "1" * 40
    (folder / "index.json").write_text(json.dumps(index))
    ds = fastshard.open(folder, validate_hash="sha1")
    assert ds[0].decode()["value"] == 0
    for k, digit in ((1, "0"), (2, "1")):
        with pytest.raises(FormatError, match=f"the index states {digit}{digit}"):
            ds[k * ROWS]
    assert ds[3 * ROWS].decode()["value"] == 3 * ROWS
    assert fastshard.open(folder)[ROWS].decode()["value"] == ROWS
    ds = fastshard.open(folder, validate_hash="md5")
    with pytest.raises(ValueError, match="no hash 'md5'"):
        ds[0]


# Verification.


@pytest.mark.parametrize("hashes", [False, True])
def test_verify_writes_nothing(folder, hashes):
    before = sorted(os.listdir(folder))
    assert fastshard.open(folder).verify(hashes=hashes) == []
    assert sorted(os.listdir(folder)) == before


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_verify_names_damage(folder):
    ds = fastshard.open(folder)
    ds[3 * ROWS]  # writes a raw file
    flip(folder / "shard.00000.mds.gz", 6)  # the time: it decompresses all the same
    flip(folder / "shard.00001.mds.gz", -7)  # the checksum of gzip
    os.truncate(folder / "shard.00002.mds.gz", 100)
    flip(folder / "shard.00003.mds", -1)
    os.unlink(folder / "shard.00004.mds.gz")
    found = {}
    for fault in fastshard.open(folder).verify(hashes=True):
        found.setdefault(os.path.basename(fault.path), []).append(fault.reason)
    assert list(found) == [
        "shard.00000.mds.gz",
        "shard.00001.mds.gz",
        "shard.00002.mds.gz",
        "shard.00003.mds",
        "shard.00004.mds",
    ]
    assert found["shard.00001.mds.gz"].pop().startswith("gz: ")
    reasons = [reason for (reason,) in found.values()]
    assert reasons[0].startswith("sha1 is ")
    assert reasons[1].startswith("sha1 is ")
    assert reasons[2].startswith("the file has 100 bytes")
    assert reasons[3].startswith("sha1 is ")
    assert "does not exist" in reasons[4]
    names = {os.path.basename(fault.path) for fault in fastshard.open(folder).verify()}
    # Without hashes: unreadable data.
    assert names == {"shard.00001.mds.gz", "shard.00002.mds.gz", "shard.00004.mds"}


def test_verify_tells_of_hashes_and_of_rows(copy_streaming):
    """Damage that changes a hash is also named by the row where it is met."""
    folder = copy_streaming("corrupt/bad_offset").root
    reasons = [fault.reason for fault in fastshard.open(folder).verify(hashes=True)]
    assert [reason.partition(" is ")[0] for reason in reasons[:2]] == ["sha1", "xxh64"]
    assert len(reasons) == 3
    assert [f.reason for f in fastshard.open(folder).verify()] == reasons[2:]


@pytest.mark.parametrize("name", ["mds/zstd", "json/br", "csv/gz", "edge/all_hashes"])
def test_the_command_compares_hashes(copy_streaming, name, capsys):
    pytest.importorskip("xxhash")
    folder = copy_streaming(name).root
    assert main(["verify", "--hash", str(folder)]) == 0
    path = next(p for p in sorted(folder.iterdir()) if p.name != "index.json")
    flip(path, -1)
    capsys.readouterr()
    assert main(["verify", "--hash", "--json", str(folder)]) == 1
    faults = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {os.path.basename(fault["path"]) for fault in faults} == {path.name}
    index = json.loads((folder / "index.json").read_bytes())
    algos = index["shards"][0]["hashes"]
    told = [fault["reason"].partition(" is ")[0] for fault in faults]
    assert [algo for algo in told if algo in algos] == algos


def serve(folder):
    return Server({f"/data/{p.name}": p.read_bytes() for p in folder.iterdir()})


def test_remote_files_are_compared_with_hashes(copy_streaming):
    folder = copy_streaming("mds/zstd").root
    with serve(folder) as server:
        assert fastshard.open(f"{server.url}/data/").verify(hashes=True) == []
    path = folder / "shard.00000.mds.zstd"
    flip(path, 5)
    with serve(folder) as server:
        faults = fastshard.open(f"{server.url}/data/").verify(hashes=True)
        told = [fault.reason.partition(" is ")[0] for fault in faults]
        assert {"sha1", "xxh64"} <= set(told)
        assert all(fault.path.endswith(path.name) for fault in faults)
