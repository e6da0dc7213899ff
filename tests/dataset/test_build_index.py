"""`build_index`: resumed runs, parts, merging, directories of indexes."""

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent import futures

import pytest

import fastshard
from fastshard._util.processes.locks import hold_file
from fastshard.dataset.build_index import parse_part
from fastshard.errors import StaleIndexWarning
from fastshard.index.dataset_file import DatasetIndex
from support.inside.datasets import opened_shards
from support.processes import start
from support.servers.http import Server
from support.tars import write_tar

SHARDS = 7


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "data"
    for shard in range(SHARDS):
        below = folder / ("sub" if shard % 2 else ".")
        below.mkdir(parents=True, exist_ok=True)
        members = {f"{shard}-{i}.txt": b"%d" % i for i in range(shard + 1)}
        write_tar(below / f"t-{shard}.tar", members)
    return folder


def everything(folder):
    return f"{folder}/**"


def indexes(folder):
    return {
        path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.fsi")
    }


def times(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*.fsi")}


def test_a_shard_without_members_gets_an_index(tmp_path):
    path = write_tar(tmp_path / "empty.tar", {})
    fastshard.build_index(path)
    assert len(fastshard.open_shard(path)) == 0


def test_shards_and_the_dataset_get_indexes(folder):
    made = fastshard.build_index(everything(folder))
    assert made[-1] == str(folder / "dataset.fsi")
    assert len(made) == SHARDS + 1
    assert {os.path.relpath(path, folder) for path in made} == set(
        map(str, indexes(folder))
    )
    ds = fastshard.open(everything(folder))
    assert [len(shard) for shard in ds.shards] == [
        len(fastshard.open_shard(path, index="none")) for path in ds.shards.paths
    ]
    assert all(shard.index for shard in ds.shards)


def test_fresh_indexes_are_kept(folder):
    fastshard.build_index(everything(folder))
    before = times(folder)
    (folder / "t-2.fsi").unlink()
    fastshard.build_index(everything(folder))
    after = times(folder)
    changed = {path.name for path in after if after[path] != before[path]}
    assert changed == {"t-2.fsi", "dataset.fsi"}
    fastshard.build_index(everything(folder), again=True)
    assert all(times(folder)[path] != at for path, at in before.items())


def test_indexes_are_the_same_bytes_each_time(folder):
    fastshard.build_index(everything(folder))
    first = indexes(folder)
    fastshard.build_index(everything(folder), again=True, threads=1)
    assert indexes(folder) == first


def test_a_changed_shard_gets_a_new_index(folder):
    fastshard.build_index(everything(folder))
    write_tar(folder / "t-4.tar", {"new.txt": b"new"}, mtime=9)
    fastshard.build_index(everything(folder))
    ds = fastshard.open(everything(folder))
    assert ds["new"].text("txt") == "new"
    assert ds.verify() == []


def test_parts_and_merge_equal_one_run(folder, tmp_path):
    whole = tmp_path / "whole"
    fastshard.build_index(everything(folder), out=whole)
    parts = tmp_path / "parts"
    for i in range(3):
        with pytest.raises(fastshard.FastshardError, match="has no index"):
            fastshard.merge_indexes(everything(folder), out=parts)
        fastshard.build_index(everything(folder), out=parts, part=(i, 3))
    assert not (parts / "dataset.fsi").exists()
    fastshard.merge_indexes(everything(folder), out=parts)
    assert indexes(parts) == indexes(whole)
    assert indexes(folder) == {}


@pytest.mark.parametrize("text", ["3/3", "1", "-1/2", "a/b", "1/2/3", "", "0/0", "1/"])
def test_an_invalid_part_is_refused(text):
    with pytest.raises(ValueError, match="part"):
        parse_part(text)


def test_indexes_in_another_directory_are_used(folder, tmp_path):
    out = tmp_path / "out"
    fastshard.build_index(everything(folder), out=out)
    ds = fastshard.open(everything(folder), index=out)
    assert len(ds) == sum(range(1, SHARDS + 1))
    assert not any(opened_shards(ds))
    assert {os.path.dirname(shard.index) for shard in ds.shards} == {
        str(out),
        str(out / "sub"),
    }
    by_file = fastshard.open(everything(folder), index=out / "dataset.fsi")
    assert by_file["6-6"].text("txt") == "6"
    assert fastshard.open(everything(folder)).shards[0].index is None
    assert ds.verify() == []


def test_a_read_only_directory_is_explained(folder, monkeypatch):
    def refuse(*args, **options):
        raise PermissionError(13, "Permission denied", "t-0.fsi")

    monkeypatch.setattr("fastshard.index.binary.replace_file", refuse)
    with pytest.raises(PermissionError) as caught:
        fastshard.build_index(everything(folder))
    assert "out=" in caught.value.__notes__[0]


def test_a_broken_shard_stops_the_run_and_is_named(folder):
    (folder / "t-2.tar").write_bytes(b"x" * 2048)
    with pytest.raises(fastshard.FormatError, match=r"t-2\.tar"):
        fastshard.build_index(everything(folder))
    assert not (folder / "dataset.fsi").exists()


def test_an_unknown_format_is_refused(folder):
    with pytest.raises(ValueError, match="format"):
        fastshard.build_index(folder, format="pickle")


PAUSING = """
import sys, pytest, fastshard
from support.inside.datasets import after_each_index

def wait():
    print("made", flush=True)
    sys.stdin.readline()

after_each_index(pytest.MonkeyPatch(), wait)
fastshard.build_index(sys.argv[1], threads=1)
"""


def test_a_killed_run_leaves_whole_indexes_and_resumes(folder):
    with start("-c", PAUSING, everything(folder)) as child:
        child.stdin.write("\n")  # goes on behind the first
        child.stdin.flush()
        assert [child.stdout.readline() for _ in range(2)] == ["made\n"] * 2
        child.send_signal(signal.SIGKILL)
    made = times(folder)
    assert len(made) == 2
    fastshard.build_index(everything(folder))
    after = times(folder)
    assert {path: after[path] for path in made} == made
    assert len(fastshard.open(everything(folder))) == sum(range(1, SHARDS + 1))


@pytest.fixture
def flat(tmp_path):
    """Three indexed shards of 5 samples in one directory."""
    folder = tmp_path / "flat"
    folder.mkdir()
    for shard in range(3):
        write_shard(folder, shard)
    fastshard.build_index(folder)
    return folder


def write_shard(folder, shard, text="text", mtime=1):
    members = {f"{shard}-{i}.txt": text.encode() for i in range(5)}
    return write_tar(folder / f"{shard:04}.tar", members, mtime=mtime)


def listed_shards(path):
    return [shard.name for shard in DatasetIndex(str(path)).shards]


def read_over_http(folder):
    """Return the keys of the samples that a reader finds who cannot list a folder."""
    files = {
        f"/d/{path.relative_to(folder)}": path.read_bytes()
        for path in folder.rglob("*.*")
        if path.suffix in (".tar", ".fsi")
    }
    with Server(files) as server, fastshard.open(server.at("/d")) as ds:
        return [sample.key for sample in ds]


ALL = [f"{shard}-{i}" for shard in range(3) for i in range(5)]


@pytest.mark.parametrize("again", [False, True])
def test_indexing_one_shard_keeps_the_rows_of_the_others(flat, again):
    before = (flat / "dataset.fsi").read_bytes()
    made = fastshard.build_index(flat / "0001.tar", again=again)
    assert made == [str(flat / "0001.fsi"), str(flat / "dataset.fsi")]
    assert (flat / "dataset.fsi").read_bytes()[:48] == before[:48]
    assert read_over_http(flat) == ALL
    assert list(fastshard.open(flat).keys()) == ALL


def test_indexing_a_changed_shard_renews_its_row(flat):
    write_shard(flat, 1, "changed", mtime=9)
    fastshard.build_index(flat / "0001.tar")
    with fastshard.open(flat) as ds:  # without a StaleIndexWarning
        assert len(ds) == 15
        assert not any(opened_shards(ds))
        assert ds["1-3"].text("txt") == "changed"
        assert ds.verify() == []
    assert read_over_http(flat) == ALL


def test_indexing_an_appended_shard_adds_its_row_in_order(flat):
    write_shard(flat, 10)
    write_shard(flat, 3)
    with pytest.warns(StaleIndexWarning, match=r"left as it is.*0003\.tar"):
        fastshard.build_index(flat / "0010.tar")
    fastshard.build_index(flat / "0003.tar")
    names = ["0000.tar", "0001.tar", "0002.tar", "0003.tar", "0010.tar"]
    assert listed_shards(flat / "dataset.fsi") == names
    assert len(read_over_http(flat)) == 25


def test_a_part_of_a_directory_without_a_dataset_index_makes_none(flat):
    for path in flat.glob("*.fsi"):
        path.unlink()
    for number in range(2):
        with pytest.warns(StaleIndexWarning, match=r"not made.*fastshard index"):
            made = fastshard.build_index(flat / f"000{number}.tar")
        assert made == [str(flat / f"000{number}.fsi")]
    assert not (flat / "dataset.fsi").exists()
    fastshard.build_index(flat / "0002.tar")  # the last one completes it
    assert read_over_http(flat) == ALL


def test_a_stale_row_of_another_shard_leaves_the_dataset_index_alone(flat):
    before = (flat / "dataset.fsi").read_bytes()
    write_shard(flat, 2, "another text", mtime=9)
    with pytest.warns(StaleIndexWarning, match=r"dataset\.fsi was left as it is.*0002"):
        fastshard.build_index(flat / "0000.tar", again=True)
    assert (flat / "dataset.fsi").read_bytes() == before


def test_another_key_rule_leaves_the_dataset_index_alone(flat):
    before = (flat / "dataset.fsi").read_bytes()
    with pytest.warns(StaleIndexWarning, match=r'left as it is.*key="last"'):
        fastshard.build_index(flat / "0000.tar", key="last")
    assert (flat / "dataset.fsi").read_bytes() == before
    fastshard.build_index(flat, key="last")  # all of it: nothing is lost
    assert DatasetIndex(str(flat / "dataset.fsi")).last_dot


def test_removed_shards_are_dropped_with_a_warning(flat):
    for suffix in ("tar", "fsi"):
        (flat / f"0001.{suffix}").unlink()
    with pytest.warns(StaleIndexWarning, match=r"1 shard.*does not exist.*0001\.tar"):
        fastshard.build_index(flat / "0002.tar")
    assert listed_shards(flat / "dataset.fsi") == ["0000.tar", "0002.tar"]


def test_a_directory_keeps_the_rows_of_those_below(folder):
    fastshard.build_index(everything(folder))
    names = sorted(listed_shards(folder / "dataset.fsi"))
    assert len(names) == SHARDS
    fastshard.build_index(folder)
    assert sorted(listed_shards(folder / "dataset.fsi")) == names
    assert len(fastshard.open(folder)) == sum(range(1, SHARDS + 1, 2))


def test_indexing_a_shard_below_renews_the_index_above(folder):
    fastshard.build_index(everything(folder))
    before = listed_shards(folder / "dataset.fsi")
    write_tar(folder / "sub" / "t-3.tar", {"new.txt": b"new"}, mtime=9)
    made = fastshard.build_index(folder / "sub" / "t-3.tar")
    assert made[1:] == [str(folder / "sub/dataset.fsi"), str(folder / "dataset.fsi")]
    assert listed_shards(folder / "dataset.fsi") == before
    with fastshard.open(everything(folder)) as ds:  # without a StaleIndexWarning
        assert ds["new"].text("txt") == "new"
        assert ds.verify() == []


def test_an_index_above_that_cannot_be_written_is_left_alone(folder, monkeypatch):
    fastshard.build_index(everything(folder))
    before = (folder / "dataset.fsi").read_bytes()

    def refuse(path):
        if path == str(folder / ".dataset.fsi.lock"):
            raise PermissionError(13, "Permission denied", path)
        return hold_file(path)

    monkeypatch.setattr("fastshard.dataset.build_index.hold_file", refuse)
    with pytest.warns(StaleIndexWarning, match="left as it is: .*Permission denied"):
        made = fastshard.build_index(folder / "sub" / "t-3.tar", again=True)
    assert made[1:] == [str(folder / "sub/dataset.fsi")]
    assert (folder / "dataset.fsi").read_bytes() == before


def test_a_part_in_another_directory_keeps_the_rows(flat, tmp_path):
    out = tmp_path / "out"
    fastshard.build_index(flat, out=out)
    fastshard.build_index(flat / "0001.tar", out=out, again=True)
    assert listed_shards(out / "dataset.fsi") == ["0000.tar", "0001.tar", "0002.tar"]
    assert len(fastshard.open(flat, index=out)) == 15


def test_a_part_of_remote_shards_keeps_the_rows(flat, tmp_path):
    files = {f"/d/{path.name}": path.read_bytes() for path in flat.glob("*.tar")}
    out = tmp_path / "out"
    with Server(files) as server:
        fastshard.build_index(f"{server.at('/d')}/000{{0..2}}.tar", out=out)
        fastshard.build_index(server.at("/d/0001.tar"), out=out)
        names = listed_shards(out / "dataset.fsi")
        assert names == ["0000.tar", "0001.tar", "0002.tar"]
        del files["/d/0002.tar"]
        with pytest.warns(StaleIndexWarning, match=r"does not exist.*0002\.tar"):
            fastshard.build_index(server.at("/d/0001.tar"), out=out)
    assert listed_shards(out / "dataset.fsi") == ["0000.tar", "0001.tar"]


def test_merging_some_shards_keeps_the_rows_of_the_others(flat):
    fastshard.build_index(flat / "0001.tar", part=(0, 1), again=True)
    fastshard.merge_indexes(flat / "0001.tar")
    assert read_over_http(flat) == ALL
    (flat / "0002.fsi").unlink()
    before = (flat / "dataset.fsi").read_bytes()
    with pytest.raises(fastshard.FastshardError, match=r"left as it is.*0002\.tar"):
        fastshard.merge_indexes(flat / "0001.tar")
    assert (flat / "dataset.fsi").read_bytes() == before


def test_an_interrupted_merge_leaves_the_dataset_index(flat, monkeypatch):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    before = {path.name: path.read_bytes() for path in flat.iterdir()}
    write_shard(flat, 3)
    fastshard.build_index(flat, part=(0, 1))
    monkeypatch.setattr("fastshard.index.dataset_file.seal_dataset_header", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fastshard.merge_indexes(flat)
    assert (flat / "dataset.fsi").read_bytes() == before["dataset.fsi"]
    assert {path.name for path in flat.iterdir()} == {*before, "0003.tar", "0003.fsi"}


def test_processes_that_index_one_shard_each_lose_no_row(flat):
    for number in range(3, 6):
        write_shard(flat, number)
    code = (
        "import sys, warnings, fastshard\n"
        "warnings.simplefilter('ignore')\n"
        "sys.stdin.read(1)\n"
        "fastshard.build_index(sys.argv[1], again=True, threads=1)\n"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code, flat / f"{number:04}.tar"],
            stdin=subprocess.PIPE,
        )
        for number in range(3, 6)
    ]
    for child in children:
        child.stdin.close()
    assert [child.wait(60) for child in children] == [0] * 3
    assert listed_shards(flat / "dataset.fsi") == [f"{n:04}.tar" for n in range(6)]
    assert not list(flat.glob(".*"))


def test_a_held_dataset_index_is_waited_for(flat):
    lock = flat / ".dataset.fsi.lock"
    with hold_file(str(lock)):
        thread = threading.Thread(
            target=fastshard.build_index, args=(flat / "0001.tar",), daemon=True
        )
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
    thread.join(60)
    assert not thread.is_alive()
    assert not lock.exists()


def test_a_wids_list_keeps_the_shards_that_are_not_indexed_again(flat):
    (path,) = fastshard.build_index(flat, format="wids")
    write_shard(flat, 1, "longer text than before", mtime=9)
    write_shard(flat, 3)
    with pytest.warns(StaleIndexWarning):  # of the shards' own indexes
        fastshard.build_index([flat / "0001.tar", flat / "0003.tar"], format="wids")
    with open(path) as file:
        urls = [shard["url"] for shard in json.load(file)["shardlist"]]
    assert urls == ["0000.tar", "0001.tar", "0002.tar", "0003.tar"]


@pytest.mark.parametrize(
    ("processors", "threads", "used"), [(5, None, 5), (5, 2, 2), (None, None, 1)]
)
def test_threads_are_those_asked_for_or_one_for_each_processor(
    folder, monkeypatch, processors, threads, used
):
    counts = []

    class Pool(futures.ThreadPoolExecutor):
        def __init__(self, count):
            counts.append(count)
            super().__init__(count)

    monkeypatch.setattr(futures, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    fastshard.build_index(folder, threads=threads)
    assert counts[:1] == [used]
