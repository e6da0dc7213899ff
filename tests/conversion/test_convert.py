"""Conversion of tar shards to other formats, and unsupported values."""

import codecs
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import fastshard
from conversion.conftest import (
    COUNT,
    PER_SHARD,
    contents,
    digests,
    make_samples,
    write_tar,
)
from fastshard import ConversionError, convert
from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
from fastshard.streaming.write.jsonl import JSONWriter
from fastshard.streaming.write.mds import MDSWriter
from fastshard.streaming.write.xsv import CSVWriter, TSVWriter, XSVWriter
from support import tars
from support.inside.streaming import begin_shard
from support.marks import not_sanitized
from support.servers.http import Server

pytestmark = not_sanitized  # tests Python code

ARRAYS = ("x.npy", "lr.npy")
HELD = ("txt", "cls", "meta.json", *ARRAYS, "empty.txt")  # by columnar datasets


def only(samples, *fields):
    return [{name: s[name] for name in ("__key__", *fields)} for s in samples]


def files_of(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def nothing_is_left(folder):
    return not any(path.name.startswith(".") for path in Path(folder).iterdir())


@pytest.mark.parametrize("workers", [1, 2])
def test_tar_to_tar_is_the_same(tars, tmp_path, workers):
    done = convert(tars, tmp_path / "out", to="tar", workers=workers)
    assert digests(tmp_path / "out") == digests(tars)
    assert done.samples == COUNT
    assert done.columns["jpg"] == "jpeg"
    with fastshard.open(tmp_path / "out", index="auto") as ds:
        assert len(ds) == COUNT
    assert (tmp_path / "out" / "dataset.fsi").exists()
    assert fastshard.open(tmp_path / "out").verify() == []
    assert nothing_is_left(tmp_path)


@pytest.mark.parametrize("workers", [1, 2])
def test_tar_to_columnar_and_back_is_the_same(tmp_path, workers):
    samples = only(make_samples(), *HELD)
    tars = write_tar(tmp_path / "in", samples)
    done = convert(tars, tmp_path / "columns", to="columnar", workers=workers)
    assert done.columns == {
        "txt": "str", "cls": "int", "meta": "json", "x": "npy", "lr": "npy",
        "empty": "str",
    }  # fmt: skip
    reader = ShardedDatasetReader(tmp_path / "columns")
    for sample in samples:
        arrays, metadata = reader.get_sample(sample["__key__"])
        np.testing.assert_array_equal(arrays["x"], sample["x.npy"])
        assert arrays["lr"] == sample["lr.npy"]
        assert metadata == {
            "txt": sample["txt"],
            "cls": sample["cls"],
            "meta": sample["meta.json"],
            "empty": "",
        }
    convert(tmp_path / "columns", tmp_path / "back", to="tar", max_count=PER_SHARD)
    back = contents(tmp_path / "back")
    assert [(key, sorted(fields.items())) for key, fields in back] == [
        (key, sorted(fields.items())) for key, fields in contents(tars)
    ]


def to_mds(sample):
    return {
        "__key__": sample["__key__"],
        "jpg": sample["jpg"],
        "seg": sample["seg.png"],
        "thumb.webp": sample["thumb.webp"],
        "txt": sample["txt"],
        "cls": sample["cls"],
        "meta": json.dumps(
            sample["meta.json"], ensure_ascii=False, separators=(",", ":")
        ).encode(),
        "x": sample["x.npy"],
        "lr": sample["lr.npy"],
        "data.bin": sample["data.bin"],
        "empty": "",
    }


MDS_COLUMNS = {
    "__key__": "str", "jpg": "jpeg", "seg": "png", "thumb.webp": "bytes", "txt": "str",
    "cls": "int", "meta": "json", "x": "ndarray", "lr": "float32", "data.bin": "bytes",
    "empty": "str",
}  # fmt: skip


@pytest.mark.parametrize("compression", [None, "bz2:3"])
def test_converted_mds_equals_written_mds(tars, tmp_path, compression):
    options = {"compression": compression, "hashes": ["sha1", "md5"]}
    done = convert(tars, tmp_path / "out", to="mds", max_count=10, **options)
    assert done.columns == MDS_COLUMNS
    options["hashes"] = sorted(options["hashes"])
    expected = MDSWriter(
        columns=MDS_COLUMNS, out=tmp_path / "ours", size_limit=None, **options
    )
    with expected as writer:
        for i, sample in enumerate(make_samples()):
            if i and i % 10 == 0:
                writer.flush_shard()
                begin_shard(writer)
            writer.write(to_mds(sample))
    assert files_of(tmp_path / "out") == files_of(tmp_path / "ours")


@pytest.mark.parametrize(
    ("to", "writer_of", "options"),
    [
        ("json", JSONWriter, {}),
        ("csv", CSVWriter, {"newline": "\r\n"}),
        ("tsv", TSVWriter, {}),
        ("xsv", XSVWriter, {"separator": "::", "newline": "\n\n"}),
    ],
)
def test_converted_rows_equal_written_rows(tmp_path, to, writer_of, options):
    samples = only(make_samples(), "txt", "cls", "empty.txt")
    for sample in samples:
        sample["txt"] = sample["txt"].replace(",", ";")
        sample["lr.npy"] = np.float64(sample["cls"] / 3)
    tars = write_tar(tmp_path / "in", samples, 100)
    done = convert(tars, tmp_path / "out", to=to, hashes=["sha256"], **options)
    columns = {"__key__": "str", "txt": "str", "cls": "int", "empty": "str"}
    assert done.columns == columns | {"lr": "float"}
    expected = writer_of(
        columns=done.columns, out=tmp_path / "ours", size_limit=None,
        hashes=["sha256"], **options,
    )  # fmt: skip
    with expected as writer:
        for s in samples:
            row = {"__key__": s["__key__"], "txt": s["txt"], "cls": s["cls"]}
            writer.write(row | {"empty": "", "lr": float(s["lr.npy"])})
    assert files_of(tmp_path / "out") == files_of(tmp_path / "ours")


def test_shards_are_one_to_one_or_of_a_size(tars, tmp_path):
    sizes = {}
    for name, options in {
        "same": {},
        "count": {"max_count": 10},
        "size": {"max_size": "1500B"},
        "joined": {"max_size": "1MiB"},
    }.items():
        convert(tars, tmp_path / name, to="mds", **options)
        index = json.loads((tmp_path / name / "index.json").read_bytes())
        sizes[name] = [shard["samples"] for shard in index["shards"]]
        for k, shard in enumerate(index["shards"]):
            assert shard["raw_data"]["basename"] == f"shard.{k:05}.mds"
            path = tmp_path / name / f"shard.{k:05}.mds"
            assert path.stat().st_size == shard["raw_data"]["bytes"]
            if name == "size" and shard["samples"] > 1:
                assert path.stat().st_size <= 1500
    assert sizes["same"] == [7, 7, 7, 2]
    assert sizes["count"] == [10, 10, 3]
    assert sizes["joined"] == [23]
    assert sum(sizes["size"]) == 23
    assert len(sizes["size"]) > 7


def test_columns_and_encodings_are_chosen(tars, tmp_path):
    columns = {"cls": "int16", "x.npy": "ndarray:float32", "meta": "str", "txt": None}
    done = convert(tars, tmp_path / "out", to="mds", columns=columns)
    assert done.columns == {
        "cls": "int16", "x": "ndarray:float32", "meta": "str", "txt": "str",
    }  # fmt: skip
    done = convert(tars, tmp_path / "csv", to="csv", columns="__key__,lr:str,cls")
    lines = (tmp_path / "csv/shard.00000.csv").read_text().splitlines()
    assert lines[:2] == ["__key__,cls,lr", "part/0000,-5,0.0"]
    done = convert(tars, tmp_path / "tar", to="tar", columns="cls:int8,txt:bytes")
    assert done.columns == {"cls": "int8", "txt": "bytes"}
    [(_, fields), *_] = contents(tmp_path / "tar")
    assert list(fields) == ["cls.npy", "txt.bin"]


@pytest.mark.parametrize(
    ("to", "columns", "message"),
    [
        ("mds", "cls:uint8", "mds cannot hold sample 0 ('part/0000'), column 'cls'"),
        ("mds", "x:ndarray:float64", "column 'x': "),
        ("mds", "x:ndarray:float32:1,2", "sample 1 ('part/0001'), column 'x'"),
        ("mds", "txt:int", "column 'txt'"),
        ("json", None, "json cannot hold column 'jpg' of encoding jpeg; column 'seg'"),
        ("json", "x", "json cannot hold column 'x' of encoding npy"),
        ("json", "meta", "encoding json"),
        ("csv", "txt", "sample 1 ('part/0001'), column 'txt': '"),
        ("csv", "data.bin:str", "column 'data.bin'"),
        ("csv", "data.bin:int", "column 'data.bin'"),
        ("columnar", "jpg", "columnar cannot hold column 'jpg' of encoding jpeg"),
    ],
)
def test_values_beyond_a_format_are_refused_before_writing(
    tars, tmp_path, monkeypatch, to, columns, message
):
    monkeypatch.setattr(
        "fastshard.conversion.convert.write", lambda *_: pytest.fail("was written")
    )
    with pytest.raises(ConversionError) as caught:
        convert(tars, tmp_path / "out", to=to, columns=columns, workers=1)
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ([np.zeros((0, 3))], "empty"),
        ([np.zeros(3, bool)], "bool"),
        ([np.zeros(3, "U4")], "<U4"),
        ([np.zeros(3, "c8")], "complex64"),
        ([np.zeros(3), np.zeros(())], "sample 1"),
        ([np.zeros(()), np.zeros((), "f4")], "sample 0"),
    ],
)
def test_arrays_that_mds_lacks(tmp_path, arrays, reason):
    samples = [{"__key__": str(i), "npy": a} for i, a in enumerate(arrays)]
    tars = write_tar(tmp_path / "in", samples)
    with pytest.raises(ConversionError, match=reason):
        convert(tars, tmp_path / "out", to="mds")
    convert(tars, tmp_path / "out", to="mds", columns="__key__,npy:bytes")
    convert(tars, tmp_path / "columns", to="columnar")
    convert(tmp_path / "columns", tmp_path / "back", to="tar")
    assert contents(tmp_path / "back") == contents(tars)


def test_big_ints_and_byte_orders(tmp_path):
    samples = [
        {"__key__": "a", "cls": 10**39, "npy": np.arange(3, dtype=">i4")},
        {"__key__": "b", "cls": -1, "npy": np.asfortranarray(np.eye(2, 3))},
    ]
    tars = write_tar(tmp_path / "in", samples)
    done = convert(tars, tmp_path / "out", to="mds")
    assert done.columns["cls"] == "str_int"
    done = convert(tars, tmp_path / "csv", to="csv", columns="cls")
    assert str(10**39) in (tmp_path / "csv/shard.00000.csv").read_text()


def test_samples_with_different_fields(tmp_path):
    samples = [{"__key__": str(i), "cls": i} for i in range(20)]
    samples[15]["txt"] = "only here"
    tars = write_tar(tmp_path / "in", samples)
    for to in ("mds", "json", "csv"):
        with pytest.raises(ConversionError, match="19 of 20 samples lack 'txt'"):
            convert(tars, tmp_path / "out", to=to)
        convert(tars, tmp_path / to, to=to, columns="__key__,cls")
    convert(tars, tmp_path / "tar", to="tar")
    assert digests(tmp_path / "tar") == digests(tars)
    convert(tars, tmp_path / "columns", to="columnar")
    convert(tmp_path / "columns", tmp_path / "back", to="tar")
    assert contents(tmp_path / "back") == contents(tars)
    with pytest.raises(ConversionError, match=r"sample 0 .*it has no field"):
        convert(tars, tmp_path / "out", to="tar", columns="txt")


def test_fields_that_differ_in_their_suffix_come_back(tmp_path):
    samples = [{"__key__": "a", "left.jpg": b"j", "left.json": {}, "left": b"plain"}]
    tars = write_tar(tmp_path / "in", samples)
    done = convert(tars, tmp_path / "mds", to="mds")
    assert list(done.columns) == ["__key__", "left.jpg", "left.json", "left"]
    convert(tars, tmp_path / "tar", to="tar")
    assert digests(tmp_path / "tar") == digests(tars)


@pytest.mark.parametrize("to", ["mds", "json", "csv", "columnar", "tar"])
def test_no_samples(tmp_path, to):
    with ShardedDatasetWriter(tmp_path / "in") as writer:
        writer.add_field("x")
    done = convert(tmp_path / "in", tmp_path / "out", to=to)
    assert done.samples == 0
    if to in ("columnar", "tar"):
        with fastshard.open(tmp_path / "out") as ds:
            assert len(ds) == 0
    else:
        index = json.loads((tmp_path / "out/index.json").read_bytes())
        assert index == {"version": 2, "shards": []}


def test_keys_must_be_unique_where_they_are_ids(tmp_path):
    for part in ("a", "b"):
        write_tar(tmp_path / "in" / part, [{"__key__": "k", "cls": 1}])
    source = f"{tmp_path}/in/**"
    with pytest.raises(ConversionError, match=r"sample 1 \('k'\): another sample has"):
        convert(source, tmp_path / "columns", to="columnar")
    convert(source, tmp_path / "tar", to="tar")
    assert len(contents(tmp_path / "tar")) == 2
    convert(source, tmp_path / "mds", to="mds")
    with pytest.raises(ConversionError, match="already"):
        convert(source, tmp_path / "one", to="tar", max_count=2)
    assert not (tmp_path / "one").exists()
    assert nothing_is_left(tmp_path)


def test_keys_that_tars_cannot_hold(tmp_path):
    with ShardedDatasetWriter(tmp_path / "in") as writer:
        writer.add_field("x")
        writer.add_sample({"x": np.zeros(2)}, sample_id="good")
        writer.add_sample({"x": np.zeros(2)}, sample_id="a.b")
    with pytest.raises(ConversionError, match=r"sample 1 \('a\.b'\): .*first dot"):
        convert(tmp_path / "in", tmp_path / "out", to="tar")


def test_metadata_of_mixed_types(tmp_path):
    with ShardedDatasetWriter(tmp_path / "in") as writer:
        writer.add_field("x")
        for value in (1, "one", None, 0.5):
            writer.add_sample({"x": np.zeros(2)}, metadata={"v": value, "f": 0.5})
    done = convert(tmp_path / "in", tmp_path / "mds", to="mds")
    assert done.columns == {
        "__key__": "str", "x": "ndarray", "v": "json", "f": "float64",
    }  # fmt: skip
    convert(tmp_path / "in", tmp_path / "tar", to="tar")
    assert [fields["v.json"] for _, fields in contents(tmp_path / "tar")] == [
        b"1", b'"one"', b"null", b"0.5",
    ]  # fmt: skip


def test_a_damaged_source_leaves_nothing(tmp_path):
    tars = write_tar(tmp_path / "in", make_samples())
    path = tmp_path / "in/train-0002.tar"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(fastshard.FormatError, match="train-0002"):
        convert(tars, tmp_path / "out", to="mds")
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_null_text_and_null_json(tmp_path):
    for field, message in [("txt", "not UTF-8"), ("json", "not UTF-8"), ("cls", "int")]:
        tars = write_tar(tmp_path / field, [{"__key__": "a", field: b"\xff{"}])
        with pytest.raises(fastshard.FormatError, match=f"{message}.*'a.{field}'"):
            convert(tars, tmp_path / "out", to="mds")
        convert(tars, tmp_path / f"{field}-tar", to="tar")  # copied as it is
        assert digests(tmp_path / f"{field}-tar") == digests(tars)


def test_a_link_as_output_is_followed(tars, tmp_path):
    (tmp_path / "disk/empty").mkdir(parents=True)
    (tmp_path / "link").symlink_to("disk/empty")
    convert(tars, tmp_path / "link", to="mds", columns="cls")
    assert (tmp_path / "disk/empty/index.json").exists()
    assert (tmp_path / "link").is_symlink()
    assert nothing_is_left(tmp_path)
    assert nothing_is_left(tmp_path / "disk")


def test_a_mount_point_as_output_is_refused_first(tars, tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: path == str(tmp_path / "out"))
    with pytest.raises(FileExistsError, match="mount point"):
        convert(tars, tmp_path / "out", to="mds")
    convert(tars, tmp_path / "out/below", to="mds", columns="cls")


def test_an_output_that_exists_is_refused(tars, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_bytes(b"")
    (tmp_path / "file").write_bytes(b"")
    for name in ("full", "file"):
        with pytest.raises(FileExistsError, match=name):
            convert(tars, tmp_path / name, to="mds")
    with pytest.raises(ValueError, match="local directory"):
        convert(tars, "s3://bucket/out", to="mds")
    (tmp_path / "empty").mkdir()
    convert(tars, tmp_path / "empty", to="mds", columns="cls")
    assert (tmp_path / "empty/index.json").exists()
    convert(tars, tmp_path / "deep/below", to="mds", columns="cls")
    assert (
        oct((tmp_path / "deep/below").stat().st_mode)[-3:]
        == oct((tmp_path / "deep").stat().st_mode)[-3:]
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to": "zip"}, "to must be"),
        ({"to": "tar", "compression": "zstd"}, "compression= is not an option of tar"),
        ({"to": "columnar", "max_size": 5}, "max_size= is not an option of columnar"),
        ({"to": "mds", "separator": ","}, "separator="),
        ({"to": "mds", "compression": "lzma"}, "not a supported compression"),
        ({"to": "mds", "hashes": ["crc"]}, "not a supported hash"),
        ({"to": "mds", "hashes": ["md5", "md5"]}, "unique"),
        ({"to": "mds", "columns": "nope"}, "no column 'nope'; it has __key__, jpg"),
        ({"to": "mds", "columns": "cls,cls:int"}, "twice"),
        ({"to": "mds", "columns": "x,x.npy"}, "twice"),
        ({"to": "mds", "columns": "cls:pkl"}, "no encoding 'pkl'"),
        ({"to": "mds", "columns": "cls:what"}, "no encoding 'what'"),
        ({"to": "csv", "columns": "cls:uint8"}, "no encoding 'uint8'"),
        ({"to": "csv", "newline": ""}, "must not be empty"),
        ({"to": "mds", "max_count": 0}, "max_count must be positive"),
        ({"to": "mds", "workers": 0}, "workers must be positive"),
    ],
)
def test_wrong_options(tars, tmp_path, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        convert(tars, tmp_path / "out", **options)
    assert not isinstance(caught.value, ConversionError)
    assert list(tmp_path.iterdir()) == []


def test_urls_are_read(tars, tmp_path):
    files = {f"/d/{p.name}": p.read_bytes() for p in Path(tars).glob("*.tar")}
    with Server(files) as server:
        source = f"{server.url}/d/train-{{0000..0003}}.tar"
        convert(source, tmp_path / "out", to="tar", cache_dir=tmp_path / "cache")
    assert digests(tmp_path / "out") == digests(tars)


def test_a_large_sample_is_not_held(tmp_path):
    size = 128 << 20
    tars = write_tar(tmp_path / "in", [{"__key__": "a", "bin": bytes(size), "cls": 1}])
    code = (
        "import sys, fastshard\n"
        "fastshard.convert(sys.argv[1], sys.argv[2], to=sys.argv[3], workers=1)\n"
        "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])\n"
    )
    for to in ("mds", "tar"):
        command = [sys.executable, "-c", code, tars, str(tmp_path / to), to]
        if not os.path.exists("/proc/self/status"):
            pytest.skip("no /proc")
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peak = int(done.stdout) << 10  # not ru_maxrss, which begins with the parent's
        assert peak < size + (100 << 20)  # mapped pages, and no copy


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_an_interrupt_leaves_nothing(tmp_path):
    samples = [{"__key__": f"{i}", "txt": "x" * 100} for i in range(4000)]
    tars = write_tar(tmp_path / "in", samples, 100)
    code = (
        "import sys, time, fastshard\n"
        "from fastshard.conversion import ranges\n"
        "real = ranges.write_samples\n"
        "def slow(*args):\n"
        "    time.sleep(0.2)\n"
        "    return real(*args)\n"
        "ranges.write_samples = slow\n"
        "fastshard.convert(sys.argv[1], sys.argv[2], to='mds', workers=2)\n"
    )
    command = [sys.executable, "-c", code, tars, str(tmp_path / "out")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not any(tmp_path.glob(".out.*/out/part-*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert err.count(b"Traceback") == 1  # none of the workers
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_a_worker_that_dies_is_an_error(tars, tmp_path):
    if multiprocessing.get_start_method() != "fork":
        pytest.skip("workers do not see the patched function")
    code = (  # in a process without other threads, which forks its workers
        "import os, sys, fastshard\n"
        "from fastshard.conversion import ranges\n"
        "ranges.write_samples = lambda *args: os._exit(9)\n"
        "fastshard.convert(sys.argv[1], sys.argv[2], to='mds', workers=2)\n"
    )
    command = [sys.executable, "-c", code, tars, str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "FastshardError: a worker process died" in done.stderr
    assert nothing_is_left(tmp_path)


def test_shards_that_are_compressed_are_cut(tars, tmp_path, monkeypatch):
    monkeypatch.setattr("fastshard.conversion.rows.MAX_COMPRESSED", 1500)
    for compression, count in [(None, 4), ("bz2", 23)]:
        out = tmp_path / str(compression)
        convert(tars, out, to="mds", compression=compression, workers=1)
        index = json.loads((out / "index.json").read_bytes())
        assert (len(index["shards"]) > 7) == (compression is not None)
        assert sum(shard["samples"] for shard in index["shards"]) == 23
        assert count >= len(index["shards"])


def test_forked_workers_share_the_opened_source(tars, tmp_path):
    code = (
        "import sys, fastshard\n"
        "from fastshard.dataset import open as module\n"
        "real, calls = module.open, []\n"
        "def once(*args, **options):\n"
        "    assert not calls\n"
        "    calls.append(args)\n"
        "    return real(*args, **options)\n"
        "module.open = once\n"
        "fastshard.convert(sys.argv[1], sys.argv[2], to='mds', workers=2)\n"
    )
    if sys.platform != "linux":
        pytest.skip("processes are forked on Linux")
    subprocess.run([sys.executable, "-c", code, tars, tmp_path / "out"], check=True)
    assert (tmp_path / "out/index.json").exists()


def test_json_with_a_byte_order_mark_is_read_everywhere(tmp_path):
    tars.write_tar(tmp_path / "a.tar", {"0.json": codecs.BOM_UTF8 + b'{"x": 1}'})
    for to in ("mds", "packed", "tar"):
        fastshard.convert(tmp_path / "a.tar", tmp_path / to, to)
        with fastshard.open(tmp_path / to, packed=to == "packed") as ds:
            assert ds[0].decode("json")["json"] == {"x": 1}, to
