"""Sources without shards: one class of error, which lists the contents."""

import gzip
import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fastshard
from fastshard import FastshardError, FormatError, ShardNotFoundError
from fastshard.columnar import ShardedDatasetReader
from fastshard.dataset.paths import not_found
from support.tars import write_tar


@pytest.fixture(autouse=True)
def cwd(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make(*names, data=b""):
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(data)


def message_of(source, error=ShardNotFoundError, call=fastshard.open):
    with pytest.raises(error) as caught:
        call(source)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(os.sep, "/")


SOURCES = {
    "a directory": "pictures",
    "below a directory": "pictures/**",
    "a glob": "pictures/*.tar",
    "a brace list": "pictures/{0..3}.tar",
    "a path": "picturse",
    "a list": ["pictures/0.tar", "pictures/1.tar"],
    "an empty list": [],
    "an empty string": "",
    "joined sources": "pictures::",
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_nothing_found_is_one_class_that_old_handlers_catch(source):
    make("pictures/x.jpg")
    with pytest.raises(ShardNotFoundError) as caught:
        fastshard.open(source)
    error = caught.value
    for base in (FastshardError, FileNotFoundError, ValueError):
        assert isinstance(error, base)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is ShardNotFoundError
    assert (str(again), again.path, again.errno) == (str(error), error.path, 2)


def test_an_error_keeps_its_notes_in_a_pickle():
    error = ShardNotFoundError("no shard", "d")
    error.add_note("position 3")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["position 3"]
    assert pickle.loads(pickle.dumps(ShardNotFoundError("none"))).path is None


def test_a_missing_shard_is_the_same_class_for_open_shard():
    write_tar(Path("train-0000.tar"), {"a.txt": b"1"})
    message = message_of("trian-0000.tar", call=fastshard.open_shard)
    assert message == "trian-0000.tar does not exist; did you mean train-0000.tar?"


def test_a_shard_that_vanishes_is_the_same_class_at_its_first_use():
    path = write_tar(Path("0.tar"), {"a.txt": b"1"})
    with fastshard.open("0.tar", index="none") as ds:
        os.remove(path)
        with pytest.raises(ShardNotFoundError, match=r"0\.tar does not exist"):
            len(ds)


# What a directory has


def test_files_of_samples_are_counted_and_the_writer_named():
    make(*[f"d/{i}.jpg" for i in range(1200)], *[f"d/{i}.txt" for i in range(7)])
    assert message_of("d") == (
        "d has no shard (.tar): it has 1,200 jpg and 7 txt files: make shards with "
        "fastshard.ShardWriter (docs: making shards)"
    )


def test_files_in_directories_below_are_counted():
    make(*[f"d/{i % 3}/{i}.jpg" for i in range(30)])
    assert "30 jpg files in 3 directories below: make shards" in message_of("d")
    make("d/0.jpg")
    assert "31 jpg files: make" in message_of("d")


def test_an_empty_directory_and_one_with_hidden_tars():
    os.mkdir("d")
    assert message_of("d") == "d has no shard (.tar): it is empty"
    make("d/.x.tar")
    assert "begin with a dot are skipped: d/.x.tar" in message_of("d")


@pytest.mark.parametrize(
    ("name", "compression", "command"),
    [
        ("train.tar.gz", "gzip", "gunzip"),
        ("train.tgz", "gzip", "gunzip"),
        ("train.TAR.GZ", "gzip", "gunzip"),
        ("train.tar.bz2", "bzip2", "bunzip2"),
        ("train.tbz2", "bzip2", "bunzip2"),
        ("train.tar.xz", "xz", "unxz"),
        ("train.txz", "xz", "unxz"),
        ("train.tar.zst", "zstd", "unzstd"),
        ("train.tar.lz4", "lz4", "unlz4"),
    ],
)
def test_compressed_tars_are_recognized_by_name(name, compression, command):
    make(f"d/{name}")
    advice = f"compressed with {compression}: decompress it (`{command} d/{name}`)"
    assert advice in message_of("d")
    assert advice in message_of(f"d/{name}", FastshardError)
    assert "members of compressed tars cannot be reached" in message_of("d")


def test_a_compressed_file_named_as_a_tar_is_recognized_by_its_bytes():
    data = write_tar(Path("a.tar"), {"a.txt": b"1"}).read_bytes()
    make("gz.tar", data=gzip.compress(data))
    for call in (lambda path: len(fastshard.open(path)), fastshard.open_shard):
        message = message_of("gz.tar", FormatError, call)
        assert message.startswith("compressed with gzip: decompress it, for members")
        assert message.endswith("at gz.tar, byte 0")


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("labels.csv", b"path,label\n0.jpg,3\n", "a CSV file"),
        ("labels.csv", b"\xff\xfe,\x01\n", "a CSV file"),
        ("rows.jsonl", b'{"a": 1}\n' * 200, "a file of JSON lines"),
        ("notes", "größe\n".encode() * 200, "a text file"),
        ("notes.tar", b"Not Found\n", "a text file"),
        ("x.npy", b"\x93NUMPY\x01\x00", "an array of NumPy"),
    ],
)
def test_another_file_as_a_shard_is_named(name, data, kind):
    make(name, data=data)
    assert message_of(name, FormatError, fastshard.open_shard) == (
        f"expected a tar, got {kind} - at {name}, byte 0"
    )
    if not name.endswith(".tar"):
        done = subprocess.run(
            [sys.executable, "-m", "fastshard", "ls", name],
            capture_output=True,
            text=True,
        )
        assert (
            done.stderr
            == f"fastshard: expected a tar, got {kind} - at {name}, byte 0\n"
        )
        assert kind in message_of(name, FastshardError)


def test_a_damaged_tar_is_not_another_file():
    data = bytearray(write_tar(Path("a.tar"), {"a.txt": b"1"}).read_bytes())
    data[150] ^= 1
    make("x.tar", data=data)
    message = message_of("x.tar", FormatError, fastshard.open_shard)
    assert "expected a tar" not in message


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b"PK\x03\x04", "a zip archive"),
        (b"PAR1", "a parquet file"),
        (b"<!DOCTYPE html>", "an HTML page"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "a pointer of Git LFS"),
    ],
)
def test_another_file_named_as_a_tar_is_recognized_by_its_bytes(head, name):
    make("x.tar", data=head + b"\n" * 600)
    assert f"expected a tar, got {name}" in message_of(
        "x.tar", FormatError, fastshard.open_shard
    )
    make("d/data.bin", data=head + b"\n" * 600)
    assert ("git lfs pull" in message_of("d")) == ("LFS" in name)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["shard.0.mds", "index.json"], "a dataset of MosaicML Streaming (1 mds file)"),
        (["0.mds"], "without an index.json of version 2: fastshard.streaming.rebuild"),
        (["0.parquet", "1.parquet"], "a Hugging Face dataset (2 parquet files)"),
        (["train/0.arrow", "dataset_dict.json"], "a Hugging Face dataset (1 arrow"),
        (["data.mdb", "lock.mdb"], "an LMDB database (2 mdb files)"),
        (["a.zip"], "a dataset of zip archives (1 zip file)"),
        (["a.tfrecord"], "a dataset of TFRecord files (1 tfrecord file)"),
        (["a.h5"], "a dataset of HDF5 files (1 h5 file)"),
        (["0.fsi", "1.fsi"], "2 fsi files, indexes without their shards"),
    ],
)
def test_directories_of_other_formats_are_recognized(names, text):
    make(*[f"d/{name}" for name in names], data=b"{}")
    assert text in message_of("d")


def test_an_index_of_another_version_of_mosaicml_is_recognized():
    make("d/index.json", data=json.dumps({"version": 1, "shards": []}).encode())
    assert "MosaicML Streaming, but not of version 2" in message_of("d")


def test_a_wids_index_alone_is_named():
    make("d/train.json", data=json.dumps({"shardlist": []}).encode())
    assert "d/train.json is a wids index: open that file" in message_of("d")


@pytest.mark.parametrize("name", ["x.wds", "x.TAR", "x"])
def test_tars_of_another_suffix_are_recognized_by_their_bytes(name):
    data = write_tar(Path("a.tar"), {"a.txt": b"1"}).read_bytes()
    make(f"d/{name}", data=data)
    message = message_of("d")
    assert f"d/{name} is a tar: rename tars to end in .tar" in message
    message = message_of(f"d/{name}", FastshardError)
    assert "but it is a tar: rename it, or read it with fastshard.open_shard" in message
    fastshard.open_shard(f"d/{name}").close()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.parquet", "a parquet file"),
        ("a.zip", "a zip archive"),
        ("a.fsi", "an index"),
    ],
)
def test_a_file_of_another_format_is_named(name, kind):
    make(name)
    message = message_of(name, FastshardError)
    assert message.startswith(f"{name} is not a shard (.tar) but {kind}: ")


def test_a_huge_directory_is_counted_in_part(monkeypatch):
    make(*[f"d/{i}.jpg" for i in range(300)])
    monkeypatch.setattr(not_found, "MAX_ENTRIES", 256)
    assert "it has more than 256 files, most of them jpg: make" in message_of("d")
    monkeypatch.setattr(not_found, "MAX_ENTRIES", 1000)
    monkeypatch.setattr(not_found, "MAX_SECONDS", 0.0)  # a slow file system
    assert "it has more than 255 files, most of them jpg: make" in message_of("d")


def test_a_deep_tree_is_searched_in_part(monkeypatch):
    make(*[f"d/{i}/0.jpg" for i in range(20)], "d/30/0.tar")
    assert "directories below it have: d/30" in message_of("d")
    monkeypatch.setattr(not_found, "MAX_FOLDERS", 10)
    assert "more than 9 files, most of them jpg" in message_of("d")


def test_a_link_to_a_parent_directory_does_not_hang():
    make("d/a/0.jpg")
    try:
        os.symlink("..", "d/a/up", target_is_directory=True)
    except OSError:
        pytest.skip("links cannot be made here")
    assert "jpg" in message_of("d")


# Paths, globs, brace lists


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("data/trian", "data/trian does not exist; did you mean data/train?"),
        ("data/TRAIN", "data/TRAIN does not exist; did you mean data/train?"),
        ("data/x/y/z.tar", "z.tar does not exist: there is no 'x' in data; data has"),
        (
            "daat/train",
            "there is no 'daat' in the current directory; did you mean data",
        ),
        (
            "someone/some-set",
            "the current directory; a dataset of the hub is hf://datasets/someone/some",
        ),
        ("someone/s-00.tar", "there is no 'someone' in the current directory"),
        (
            "data/train/s",
            "data/train/s does not exist; did you mean data/train/s-00.tar",
        ),
        ("data/train/s-00.tar/x", "data/train/s-00.tar is not a directory"),
        ("data/train/t-*.tar", "matches no shard (.tar); data/train has other ones: "),
        ("data/trian/*.tar", "data/trian does not exist; did you mean data/train?"),
        ("data/train/s-{0..3}.tar", "did you mean data/train/s-00.tar?"),
        ("data/train/s-2.tar", "s-2.tar does not exist; data/train has s-00.tar, s-0"),
        ("data/train/s-1.tar", "did you mean data/train/s-01.tar?"),
        ("data/train/s-0", "data/train has s-00.tar, s-01.tar"),
        ("data/train/s-{00..09}.tar", "8 of 10 shards missing: data/train/s-02.tar, "),
    ],
)
def test_a_path_that_does_not_exist_names_the_nearest(source, text):
    if os.name == "nt" and source == "data/TRAIN":
        pytest.skip("names have no case there")
    make("data/train/s-00.tar", "data/train/s-01.tar", "data/val/s-00.tar")
    assert text in message_of(source)


def test_a_path_that_a_shell_would_expand(tmp_path, monkeypatch):
    make("data/0.tar")
    for name in ("HOME", "USERPROFILE", "ROOT_OF_DATA"):
        monkeypatch.setenv(name, str(tmp_path))
    for path in ("~/data", "$ROOT_OF_DATA/data"):
        message = message_of(path)
        assert message.startswith(f"{path} does not exist; did you mean ")
        assert message.endswith("/data?")


def test_a_missing_absolute_path(tmp_path):
    make("train/0.tar")
    path = str(tmp_path / "trian").replace(os.sep, "/")
    assert message_of(path).endswith(f"did you mean {path[:-5]}train?")


def test_a_columnar_reader_of_a_directory_without_index():
    make("d/0.jpg")
    for path, text in (("d", "no columnar dataset"), ("e", "e does not exist")):
        with pytest.raises(FileNotFoundError, match=text) as caught:
            ShardedDatasetReader(path)
        assert isinstance(caught.value, ShardNotFoundError)


@pytest.mark.skipif(os.name == "nt", reason="no such names there")
def test_errors_show_no_control_characters():
    make("d\x1b[31m/a.x\x1b[2J")
    message = message_of("d\x1b[31m")
    assert "\\x1b" in message
    assert re.search(r"[\x00-\x1f]", message) is None
