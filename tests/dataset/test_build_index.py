"""`build_index`: resumed runs, parts, merging, directories of indexes."""

import os
import signal
import subprocess
import sys
import time

import pytest

import fastshard
from fastshard.dataset.build_index import parse_part
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


def test_parts_and_merge_make_what_one_run_makes(folder, tmp_path):
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
    assert ds._set.open_count == 0
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


def test_a_killed_run_leaves_whole_indexes_and_resumes(folder):
    code = (
        "import sys, time, fastshard, fastshard.dataset.build_index as build\n"
        "slow = build._build_one\n"
        "def _build(job, shard, *more):\n"
        "    made = slow(job, shard, *more)\n"
        "    time.sleep(0.3)\n"
        "    return made\n"
        "build._build_one = _build\n"
        "fastshard.build_index(sys.argv[1], threads=1)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, everything(folder)])
    until = time.monotonic() + 60
    while len(indexes(folder)) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    made = times(folder)
    assert 2 <= len(made) < SHARDS
    fastshard.build_index(everything(folder))
    after = times(folder)
    assert {path: after[path] for path in made} == made
    assert len(fastshard.open(everything(folder))) == sum(range(1, SHARDS + 1))
