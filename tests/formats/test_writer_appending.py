"""Appending writers, one after another and concurrent; URLs as patterns."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fastshard
from fastshard.formats.writer import ShardPattern, ShardWriter
from support.marks import not_sanitized
from support.writing import names_in, numbered, write

URLS = ["s3://bucket/t-{:06d}.tar", "gs://b/t.tar", "https://h/t.tar", "file:///t.tar"]
URLS += ["hf://datasets/o/n/t-{}.tar", "ssh+x://h/t.tar", Path("s3://bucket/t-{}.tar")]


@pytest.mark.parametrize("pattern", URLS, ids=str)
def test_a_url_is_refused_by_its_scheme(tmp_path, monkeypatch, pattern):
    monkeypatch.chdir(tmp_path)
    scheme = str(pattern).partition(":")[0].replace("+", r"\+")
    with pytest.raises(ValueError, match=f"got a {scheme}:// URL") as caught:
        ShardWriter(pattern)
    assert "bucket" not in str(caught.value)  # a URL may hold a secret
    assert names_in(tmp_path) == []


def test_a_folder_with_a_colon_is_a_folder(tmp_path):
    (tmp_path / "s3:").mkdir()
    assert write(tmp_path / "s3:" / "t-{}.tar", numbered(1)).count == 1


@pytest.mark.parametrize("index", ["fsi", "json", "tar.idx", None])
@pytest.mark.parametrize(
    "pattern", ["t-{:06d}.tar", "t-%04d.tar", "{}.tar", "t{:x}.tar"]
)
def test_appending_continues_after_the_last_shard(tmp_path, pattern, index):
    def add(first, count, **options):
        samples = [numbered(i) for i in range(first, first + count)]
        return write(
            tmp_path / pattern, *samples, index=index, max_count=2, **options
        ).shards

    before = add(0, 21)
    kept = {name: (tmp_path / name).read_bytes() for name in names_in(tmp_path)}
    stamps = {name: (tmp_path / name).stat().st_mtime_ns for name in kept}
    added = add(21, 5, append=True)
    assert [Path(path).name for path in added] == [
        Path(ShardPattern(pattern).path(n)).name for n in (11, 12, 13)
    ]
    for name, data in kept.items():
        assert (tmp_path / name).read_bytes() == data
        assert (tmp_path / name).stat().st_mtime_ns == stamps[name]
    with fastshard.open([*before, *added]) as ds:
        assert list(ds.keys()) == [f"{i:06d}" for i in range(26)]


def test_appending_to_nothing_begins_at_the_start(tmp_path):
    (shard,) = write(tmp_path / "t-{}.tar", numbered(1), append=True, start=7).shards
    assert Path(shard).name == "t-7.tar"
    (shard,) = write(tmp_path / "t-{}.tar", numbered(1), append=True, start=3).shards
    assert Path(shard).name == "t-8.tar"
    (shard,) = write(tmp_path / "t-{}.tar", numbered(1), append=True, start=20).shards
    assert Path(shard).name == "t-20.tar"


def test_the_error_without_append_suggests_it(tmp_path):
    write(tmp_path / "t-{}.tar", numbered(1))
    with pytest.raises(FileExistsError, match=r"append=True.*overwrite=True.*t-0"):
        write(tmp_path / "t-{}.tar", numbered(2))
    assert len(names_in(tmp_path)) == 1


def test_other_files_are_ignored(tmp_path):
    write(tmp_path / "t-{:03d}.tar", numbered(1), start=4)
    for name in (
        ".t-009.tar.ab3.tmp",  # of a killed writer
        "t-0010.tar",  # not in the pattern's form
        "t-xyz.tar",
        "t-.tar",
        "t-012.tar.gz",
        "u-013.tar",
        "t--14.tar",
        "t-0x5.tar",
        "dataset.fsi",
    ):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "t-005.fsi").write_bytes(b"")  # of a deleted shard
    (tmp_path / "t-006.tar").symlink_to(tmp_path / "nowhere")
    (tmp_path / "t-007.fsi").write_bytes(b"")
    before = names_in(tmp_path)
    writer = write(tmp_path / "t-{:03d}.tar", numbered(2), index="fsi", append=True)
    assert [Path(path).name for path in writer.shards] == ["t-008.tar"]
    assert sorted({*names_in(tmp_path)} - {*before}) == ["t-008.fsi", "t-008.tar"]
    assert (tmp_path / "t-007.fsi").read_bytes() == b""


def test_a_number_in_a_directory_s_name(tmp_path):
    for n in range(4):
        (tmp_path / f"part-{n}").mkdir()
    pattern = tmp_path / "part-{}" / "t.tar"
    write(pattern, numbered(0), numbered(1), max_count=1)
    writer = write(pattern, numbered(2), append=True)
    assert writer.shards == [str(tmp_path / "part-2" / "t.tar")]


def test_shards_through_a_link_keep_its_name(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for n in range(2):
        writer = write(tmp_path / "link" / "t-{}.tar", numbered(n), append=True)
        assert writer.shards == [str(tmp_path / "link" / f"t-{n}.tar")]


@pytest.mark.parametrize("text", ["a{{b}}-{:02d}.tar", "{:>4}.tar", "{0:,}.tar"])
def test_numbers_are_read_as_the_pattern_writes_them(tmp_path, text):
    pattern = ShardPattern(str(tmp_path / text))
    numbers = [0, 7, 41, 1234]
    for number in numbers:
        Path(pattern.path(number)).write_bytes(b"")
    assert sorted(pattern.numbers()) == numbers


def test_options_that_exclude_each_other(tmp_path):
    with pytest.raises(ValueError, match="exclude each other"):
        ShardWriter(tmp_path / "t-{}.tar", append=True, overwrite=True)
    with pytest.raises(ValueError, match="needs a pattern with a number"):
        ShardWriter(tmp_path / "t.tar", append=True)
    with pytest.raises(TypeError, match="did you mean append="):
        ShardWriter(tmp_path / "t-{}.tar", apend=True)


@pytest.mark.parametrize("links", [True, False])
def test_two_writers_in_turn_never_take_one_number(tmp_path, monkeypatch, links):
    if not links:

        def link(a, b):
            raise OSError(errno.EPERM, "a file system without hard links")

        monkeypatch.setattr(os, "link", link)
    writers = [
        ShardWriter(tmp_path / "t-{}.tar", append=True, max_count=1) for _ in range(3)
    ]
    for i in range(4):
        for k, writer in enumerate(writers):
            writer.write({"__key__": f"{k}-{i}", "txt": "x"})
    for writer in writers:
        writer.close()
    shards = [path for writer in writers for path in writer.shards]
    assert len({*shards}) == 12
    expected = {f"t-{n}.{kind}" for n in range(12) for kind in ("tar", "fsi")}
    assert {*names_in(tmp_path)} == expected
    for k, writer in enumerate(writers):
        with fastshard.open(writer.shards) as ds:
            assert list(ds.keys()) == [f"{k}-{i}" for i in range(4)]


def test_a_claim_of_a_killed_process_is_named(tmp_path, monkeypatch):
    def link(a, b):
        raise OSError(errno.EPERM, "a file system without hard links")

    monkeypatch.setattr(os, "link", link)
    (tmp_path / ".t-0.tar.claim").write_bytes(b"")
    with pytest.raises(FileExistsError, match=r"\.t-0\.tar\.claim"):
        write(tmp_path / "t-{}.tar", numbered(1))
    writer = write(tmp_path / "t-{}.tar", numbered(1), append=True)
    assert writer.shards == [str(tmp_path / "t-1.tar")]
    assert names_in(tmp_path) == [".t-0.tar.claim", "t-1.tar"]


MANY = """
import sys
from fastshard import ShardWriter
folder, who = sys.argv[1:]
with ShardWriter(folder + "/t-{:04d}.tar", append=True, max_count=2) as writer:
    for i in range(60):
        writer.write({"__key__": f"{who}-{i:03d}", "txt": "x" * 100})
"""


@not_sanitized
def test_processes_that_append_at_once_lose_nothing(tmp_path):
    write(tmp_path / "t-{:04d}.tar", numbered(1), index="fsi")
    first = (tmp_path / "t-0000.tar").read_bytes()
    command = [sys.executable, "-c", MANY, tmp_path]
    running = [subprocess.Popen([*command, str(k)]) for k in range(4)]
    assert [process.wait(120) for process in running] == [0] * 4
    assert (tmp_path / "t-0000.tar").read_bytes() == first
    assert not [name for name in names_in(tmp_path) if name.startswith(".")]
    with fastshard.open(tmp_path / "t-*.tar") as ds:
        assert ds.verify() == []
        keys = list(ds.keys())
        assert len(ds.shards) == 121
    assert sorted(keys) == sorted(
        ["000001", *(f"{k}-{i:03d}" for k in range(4) for i in range(60))]
    )
