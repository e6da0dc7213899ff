"""Writing shards: splitting, atomic publication, existing files, indexes."""

import errno
import gc
import io
import json
import os
import signal
import subprocess
import sys
import textwrap
from itertools import pairwise
from pathlib import Path

import pytest

import fastshard
import fastshard.formats.writer
from fastshard._util.sizes import parse_size
from fastshard.formats.tar_writer import HeaderEncoder
from fastshard.formats.writer import ShardWriter
from support.inside.datasets import new_shard_of, set_max_count
from support.processes import environment
from support.writing import names_in, numbered, read_back, write

END = 1024  # bytes of zeros at the end of a shard


# ---------------------------------------------------------------- splitting


def test_max_count(tmp_path):
    pattern = tmp_path / "t-{:03d}.tar"
    writer = write(pattern, *map(numbered, range(7)), max_count=3, start=5)
    assert writer.shards == [str(tmp_path / f"t-{i:03d}.tar") for i in (5, 6, 7)]
    assert writer.count == 7
    counts = [[key for key, _ in read_back(path)] for path in writer.shards]
    assert [len(keys) for keys in counts] == [3, 3, 1]
    assert [*counts[0], *counts[1], *counts[2]] == [f"{i:06d}" for i in range(7)]


@pytest.mark.parametrize("max_size", [1, 2048, 2049, 4095, 4096, 10_000, 50_000])
def test_max_size_is_never_exceeded_but_by_one_sample(tmp_path, max_size):
    sizes = [0, 1, 511, 512, 513, 3000, 1, 9000, 20_000, 0, 0, 0] * 3
    samples = [numbered(i, bin=bytes(n)) for i, n in enumerate(sizes)]
    writer = write(tmp_path / "{}.tar", *samples, max_size=max_size)
    shards = [(os.path.getsize(path), read_back(path)) for path in writer.shards]
    assert sum(len(samples) for _, samples in shards) == len(sizes)
    for nbytes, samples in shards:
        assert nbytes <= max_size or len(samples) == 1
    for (nbytes, _), (_, following) in pairwise(shards):
        data = len(following[0][1]["bin"])
        assert nbytes + 512 + data + -data % 512 > max_size  # the shard was full


def test_pax_headers_count_too(tmp_path):
    samples = [{"__key__": f"é{i}", "txt": b"x"} for i in range(4)]
    size = 2 * 4 * 512 + END
    for max_size, shards in [(size, 2), (size - 1, 4)]:
        folder = tmp_path / str(shards)
        folder.mkdir()
        writer = write(folder / "{}.tar", *samples, max_size=max_size)
        assert len(writer.shards) == shards


def test_the_same_key_may_be_in_another_shard(tmp_path):
    writer = write(tmp_path / "{}.tar", numbered(1), numbered(1), max_count=1)
    assert len(writer.shards) == 2


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        (1, 1),
        ("512", 512),
        ("10B", 10),
        ("2KB", 2000),
        ("500MB", 500_000_000),
        ("1 GB", 10**9),
        ("1KiB", 1024),
        ("100MiB", 100 << 20),
        ("1.5gib", 3 << 29),
        ("0.1KiB", 102),
    ],
)
def test_sizes_as_text(text, nbytes):
    assert parse_size(text) == nbytes


@pytest.mark.parametrize(
    "size", ["", "GB", "1 X", "-1", "0", 0, -5, "1e9", "1GiB2", "٣", "1.GB", "0.1B"]
)
def test_invalid_sizes(size):
    with pytest.raises(ValueError, match="size"):
        parse_size(size)


def test_a_pattern_without_a_number_is_one_shard(tmp_path):
    with ShardWriter(tmp_path / "t.tar", index=None, max_count=2) as writer:
        writer.write(numbered(0))
        writer.write(numbered(1))
        for _ in range(2):
            with pytest.raises(ValueError, match="a second shard needs a pattern"):
                writer.write(numbered(2))
    assert [key for key, _ in read_back(writer.shards[0])] == ["000000", "000001"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"max_size": 0}, ValueError),
        ({"max_size": "huge"}, ValueError),
        ({"max_size": 1.5}, TypeError),
        ({"max_count": 0}, ValueError),
        ({"max_count": 1.5}, TypeError),
        ({"start": -1}, ValueError),
        ({"index": "sqlite"}, ValueError),
        ({"mtime": 0.5}, TypeError),
        ({"mtime": -1}, ValueError),
        ({"mtime": 8**11}, ValueError),
        ({"mode": 0o10000}, ValueError),
    ],
)
def test_invalid_options(tmp_path, options, error):
    with pytest.raises(error):
        ShardWriter(tmp_path / "{}.tar", **options)


def test_no_limit(tmp_path):
    writer = write(tmp_path / "t.tar", *map(numbered, range(5)), max_size=None)
    assert len(writer.shards) == 1


# ---------------------------------------------------------------- atomic publication


def test_a_shard_appears_when_it_is_complete(tmp_path):
    with ShardWriter(tmp_path / "{}.tar", index=None, max_count=1) as writer:
        writer.write(numbered(0))
        assert [n for n in names_in(tmp_path) if n.endswith(".tar")] == []
        writer.write(numbered(1))
        assert [n for n in names_in(tmp_path) if n.endswith(".tar")] == ["0.tar"]
        assert writer.shards == [str(tmp_path / "0.tar")]
        assert writer.count == 2
    assert names_in(tmp_path) == ["0.tar", "1.tar"]
    assert (tmp_path / "0.tar").stat().st_mode & 0o777 == 0o666 & ~umask()


def umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_without_samples_there_is_no_shard(tmp_path):
    with ShardWriter(tmp_path / "{}.tar") as writer:
        pass
    assert (writer.shards, writer.count, names_in(tmp_path)) == ([], 0, [])


def test_an_exception_discards_the_unfinished_shard(tmp_path):
    writer = ShardWriter(tmp_path / "{}.tar", index=None, max_count=2)
    with pytest.raises(KeyError, match="mine"), writer:  # noqa: PT012
        for i in range(5):
            writer.write(numbered(i))
        raise KeyError("mine")
    assert names_in(tmp_path) == ["0.tar", "1.tar"]
    assert writer.count == 4
    with pytest.raises(fastshard.ClosedError):
        writer.write(numbered(9))


def test_closing_twice_and_writing_after(tmp_path):
    writer = ShardWriter(tmp_path / "{}.tar", index=None)
    writer.write(numbered(0))
    writer.close()
    writer.close()
    with pytest.raises(fastshard.ClosedError, match="closed"):
        writer.write(numbered(1))
    assert "1 samples" in repr(writer)


def test_a_dropped_writer_leaves_only_whole_shards(tmp_path):
    writer = ShardWriter(tmp_path / "{}.tar", index=None, max_count=2)
    for i in range(3):
        writer.write(numbered(i))
    match = "1.tar was not closed: 1 sample is not stored"
    with pytest.warns(fastshard.UnclosedWriterWarning, match=match):  # noqa: PT031
        del writer
        gc.collect()
    assert names_in(tmp_path) == ["0.tar"]


def run(code, *arguments):
    code = f"from fastshard.formats.writer import ShardWriter\n{textwrap.dedent(code)}"
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        env=environment(),
        text=True,
    )


def test_a_process_that_ends_without_close_leaves_no_temporary_file(tmp_path):
    process = run(
        """
        import sys
        writer = ShardWriter(sys.argv[1], index=None, max_count=2)
        for i in range(3):
            writer.write({"__key__": str(i), "txt": b"x"})
        """,
        tmp_path / "{}.tar",
    )
    process.communicate()
    assert process.returncode == 0
    assert names_in(tmp_path) == ["0.tar"]


@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL there")
@pytest.mark.parametrize("index", [None, "fsi"])
def test_a_killed_process_leaves_only_whole_shards(tmp_path, index):
    process = run(
        """
        import itertools, sys
        index = sys.argv[2] if sys.argv[2] != "None" else None
        writer = ShardWriter(sys.argv[1], index=index, max_count=20)
        for i in itertools.count():
            writer.write({"__key__": str(i), "txt": b"x" * 9000})
            if i % 20 == 0:
                print(len(writer.shards), flush=True)
        """,
        tmp_path / "{:06d}.tar",
        index,
    )
    while int(process.stdout.readline()) < 5:
        pass
    process.send_signal(signal.SIGKILL)
    process.communicate()

    shards = sorted(tmp_path.glob("*.tar"))
    assert len(shards) >= 5
    for i, path in enumerate(shards):
        keys = [key for key, _ in read_back(path)]  # a stale index would warn
        assert keys == [str(k) for k in range(20 * i, 20 * i + 20)]
    for path in tmp_path.glob("*.fsi"):
        assert path.with_suffix(".tar") in shards  # never before its shard


def test_a_forked_process_does_not_remove_the_parents_file(tmp_path):
    if not hasattr(os, "fork"):
        pytest.skip("no fork there")
    process = run(
        """
        import os, sys
        from support.inside.datasets import new_shard_of
        writer = ShardWriter(sys.argv[1], index=None)
        writer.write({"__key__": "0", "txt": b"x"})
        new_shard_of(writer).file.flush()
        if os.fork() == 0:
            sys.exit()
        os.wait()
        writer.close()
        """,
        tmp_path / "s.tar",
    )
    process.communicate()
    assert process.returncode == 0
    assert names_in(tmp_path) == ["s.tar"]


class FullDisk(io.BytesIO):
    def writelines(self, parts):
        raise OSError(errno.ENOSPC, "no space left")


def test_a_full_disk_closes_the_writer(tmp_path):
    writer = ShardWriter(tmp_path / "{}.tar", index=None, max_count=1)
    writer.write(numbered(0))
    writer.write(numbered(1))
    new_shard_of(writer).file = FullDisk()
    set_max_count(writer, 2)
    with pytest.raises(OSError, match="no space"):
        writer.write(numbered(2))
    with pytest.raises(fastshard.ClosedError):
        writer.write(numbered(3))
    writer.close()
    assert names_in(tmp_path) == ["0.tar"]
    assert writer.count == 1


def test_a_shard_modified_by_others_is_an_error(tmp_path):
    writer = ShardWriter(tmp_path / "s.tar", index=None)
    writer.write(numbered(0))
    writer.write(numbered(1))
    new = new_shard_of(writer)
    new.file.flush()
    whole = Path(new.temporary).read_bytes()
    header = HeaderEncoder(0o644, 0).member(b"000009.txt", 1)
    Path(new.temporary).write_bytes(header + whole[512:])
    with pytest.raises(fastshard.FormatError, match="names differ from those written"):
        writer.close()
    assert names_in(tmp_path) == []


# ---------------------------------------------------------------- existing files


def test_existing_shards_raise(tmp_path):
    (tmp_path / "1.tar").write_bytes(b"mine")
    writer = ShardWriter(tmp_path / "{}.tar", index=None, max_count=1)
    writer.write(numbered(0))
    for _ in range(2):
        with pytest.raises(FileExistsError) as caught:
            writer.write(numbered(1))
        assert caught.value.filename == str(tmp_path / "1.tar")
    writer.close()
    assert names_in(tmp_path) == ["0.tar", "1.tar"]
    assert (tmp_path / "1.tar").read_bytes() == b"mine"


def test_existing_indexes_raise(tmp_path):
    (tmp_path / "0.fsi").write_bytes(b"mine")
    with (
        ShardWriter(tmp_path / "{}.tar") as writer,
        pytest.raises(FileExistsError, match=r"0\.fsi"),
    ):
        writer.write(numbered(0))
    assert names_in(tmp_path) == ["0.fsi"]


@pytest.mark.parametrize("links", [True, False])
def test_of_two_racing_writers_one_raises(tmp_path, monkeypatch, links):
    if not links:

        def link(*names):
            raise PermissionError(errno.EPERM, "no hard links here")

        monkeypatch.setattr(os, "link", link)
    writers = [ShardWriter(tmp_path / "{}.tar", index=None) for _ in range(2)]
    for i, writer in enumerate(writers):
        writer.write(numbered(i))
    writers[0].close()
    with pytest.raises(FileExistsError) as caught:
        writers[1].close()
    assert caught.value.filename == os.path.realpath(tmp_path / "0.tar")
    assert names_in(tmp_path) == ["0.tar"]
    assert [key for key, _ in read_back(tmp_path / "0.tar")] == ["000000"]


def test_overwriting(tmp_path):
    for i in range(2):
        write(tmp_path / "s.tar", numbered(i), overwrite=True, index="fsi")
    assert names_in(tmp_path) == ["s.fsi", "s.tar"]
    assert [key for key, _ in read_back(tmp_path / "s.tar")] == ["000001"]

    write(tmp_path / "s.tar", numbered(2), overwrite=True, index=None)
    assert names_in(tmp_path) == ["s.tar"]  # the old shard's index is removed


@pytest.mark.parametrize("append", [False, True])
def test_a_missing_directory_is_created_with_the_first_shard(tmp_path, append):
    pattern = tmp_path / "new" / "below" / "{}.tar"
    ShardWriter(pattern, append=append).close()
    assert not os.path.exists(tmp_path / "new")
    write(pattern, numbered(0), append=append)
    assert names_in(tmp_path / "new" / "below") == ["0.tar"]


def test_a_directory_whose_path_is_a_file_is_named(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    writer = ShardWriter(tmp_path / "file" / "{}.tar")
    with pytest.raises(FileExistsError) as caught:
        writer.write(numbered(0))
    assert caught.value.filename == str(tmp_path / "file")


# ---------------------------------------------------------------- indexes


def test_the_index_is_fresh_and_lists_the_samples(tmp_path):
    samples = [numbered(i, jpg=b"x" * i, json={"i": i}) for i in range(50)]
    writer = write(tmp_path / "t-{:03d}.tar", *samples, max_count=20, index="fsi")
    stems = [f"t-{i:03d}" for i in range(3)]
    assert names_in(tmp_path) == [f"{s}.{e}" for s in stems for e in ("fsi", "tar")]
    for path in writer.shards:
        with fastshard.open_shard(path) as shard:  # a stale one would warn
            assert shard.index == path[:-4] + ".fsi"
            assert shard.samples.grouping.lower
        assert read_back(path) == read_back(path, index="none")


def test_the_index_knows_that_case_is_kept(tmp_path):
    path = write(tmp_path / "s.tar", {"__key__": "k", "JPG": b"1"}, lower=False)
    path = path.shards[0]
    assert read_back(path, lower=False) == [("k", {"JPG": b"1"})]


def test_the_index_is_written_after_its_shard(tmp_path, monkeypatch):
    seen = []

    def save(contents, file, path, format=None, *, grouping=None):  # noqa: A002
        seen.append((file.path, path, format, len(contents.table)))
        assert os.path.exists(file.path)

    monkeypatch.setattr(fastshard.formats.writer, "save_index", save)
    write(tmp_path / "a.b-{}.tar", numbered(0), numbered(1), index="json", max_count=1)
    paths = [str(tmp_path / f"a.b-{i}") for i in range(2)]
    assert seen == [(f"{p}.tar", f"{p}.json", "json", 1) for p in paths]


def test_an_index_that_fails_leaves_its_shard(tmp_path, monkeypatch):
    def save(*arguments, **options):
        raise fastshard.FastshardError("it cannot carry that")

    monkeypatch.setattr(fastshard.formats.writer, "save_index", save)
    writer = ShardWriter(tmp_path / "{}.tar", max_count=1)
    writer.write(numbered(0))
    with pytest.raises(fastshard.FastshardError, match="cannot carry"):
        writer.write(numbered(1))
    assert writer.shards == [str(tmp_path / "0.tar")]
    assert names_in(tmp_path) == ["0.tar"]
    with pytest.raises(fastshard.ClosedError):
        writer.write(numbered(1))


@pytest.mark.parametrize(
    ("pattern", "index", "match"),
    [
        ("train.{:06d}", "fsi", "one index"),
        ("a.{}.tar", "idx", "one index"),
        ("{}.fsi", "fsi", "replace the shard"),
        ("{}.json", "json", "replace the shard"),
    ],
)
def test_conflicting_index_paths_are_errors(pattern, index, match):
    with pytest.raises(ValueError, match=match):
        ShardWriter(pattern, index=index)


def test_json_index(tmp_path):
    path = write(tmp_path / "s.tar", numbered(0), index="json").shards[0]
    assert json.loads((tmp_path / "s.json").read_text())["files"].keys() == {
        "000000.txt"
    }
    assert read_back(path) == read_back(path, index="none")
