"""Stale indexes are ignored or raise; fresh ones carry all contents of a shard."""

import io
import json
import os
import pickle
import shutil
import struct
import tarfile
import zlib
from itertools import pairwise
from pathlib import Path

import pytest

import fastshard
from fastshard.cli.entry import main
from fastshard.index.sidecar import sidecar_path
from support.index.binary import crc32c_by_bits
from support.servers.http import Server
from support.tars import write_tar

MEMBERS = {f"{i:03d}.{field}": b"x" * (i * 37) for i in range(30) for field in "ab"}
KINDS = ["fsi", "json"]


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def tar(tmp_path, kind):
    path = write_tar(tmp_path / "t.tar", MEMBERS)
    with fastshard.open_shard(path) as shard:
        shard.save_index(format=kind)
    return path


def index_of(path, kind):
    return path.with_suffix(f".{kind}")


def is_used(path, kind):
    """Return whether the index is used, after checking the shard's members."""
    with fastshard.open_shard(path) as shard, tarfile.open(path) as tar:
        assert [(n, bytes(v)) for n, v in zip(shard.names, shard, strict=True)] == [
            (member.name, tar.extractfile(member).read()) for member in tar
        ]
        return shard.index == str(index_of(path, kind))


def is_stale(path, kind):
    with pytest.warns(fastshard.StaleIndexWarning, match="stale index"):
        assert not is_used(path, kind)
    with pytest.raises(fastshard.StaleIndexError) as caught:
        fastshard.open_shard(path, index=index_of(path, kind))
    assert caught.value.path == str(index_of(path, kind))
    assert pickle.loads(pickle.dumps(caught.value)).reason == caught.value.reason


def rewrite(path, members, **options):
    """Write other members, and keep the file's times."""
    status = path.stat()
    write_tar(path, members, **options)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_fresh_index_is_used(tar, kind):
    assert is_used(tar, kind)


def test_a_copy_with_another_time_is_fresh(tar, kind, tmp_path):
    to = tmp_path / "copy"
    to.mkdir()
    for path in (tar, index_of(tar, kind)):
        shutil.copyfile(path, to / path.name)
    os.utime(to / "t.tar", ns=(1, 1))
    assert is_used(to / "t.tar", kind)
    assert fastshard.open_shard(to / "t.tar", index=index_of(to / "t.tar", kind)).index


def test_another_size_is_stale(tar, kind):
    with open(tar, "ab") as file:
        file.write(bytes(512))
    is_stale(tar, kind)


def test_a_shard_that_grew_inside_its_padding_is_stale(tmp_path, kind):
    """The size stays the same: tars are padded to 10,240 bytes."""
    path = write_tar(tmp_path / "t.tar", {f"{i}.a": b"data" for i in range(3)})
    fastshard.build_index(tmp_path, format=kind)
    size = path.stat().st_size
    with tarfile.open(path, "a") as file:
        member = tarfile.TarInfo("3.a")
        member.size = 4
        file.addfile(member, io.BytesIO(b"more"))
    assert path.stat().st_size == size
    is_stale(path, kind)
    with pytest.warns(fastshard.StaleIndexWarning), fastshard.open(tmp_path) as ds:
        assert len(ds) == 4
    fastshard.build_index(tmp_path, format=kind)
    assert is_used(path, kind)


def test_a_truncated_shard_is_stale(tar, kind):
    os.truncate(tar, 60_000)
    with pytest.raises(fastshard.StaleIndexError):
        fastshard.open_shard(tar, index=index_of(tar, kind))
    with (
        pytest.warns(fastshard.StaleIndexWarning),
        pytest.raises(fastshard.FormatError, match="ends inside"),
    ):
        fastshard.open_shard(tar)


@pytest.mark.parametrize("at", [0, 29, 59])
def test_another_name_at_the_same_offset_is_stale(tar, kind, at):
    names = list(MEMBERS)
    names[at] = "new.x"  # a name of the same length keeps the size of the tar
    size = tar.stat().st_size
    write_tar(tar, dict(zip(names, MEMBERS.values(), strict=True)), mtime=2)
    assert tar.stat().st_size == size
    if at in (0, 59):  # in the fingerprint; verify finds the others
        is_stale(tar, kind)


def test_members_in_another_order_are_stale(tar, kind):
    write_tar(tar, dict(reversed(MEMBERS.items())), mtime=2)
    is_stale(tar, kind)


def test_other_contents_with_the_same_time_are_found_by_verify(tmp_path):
    path = write_tar(tmp_path / "t.tar", MEMBERS)
    fastshard.build_index(path)
    rewrite(path, dict(reversed(MEMBERS.items())))
    with pytest.warns(fastshard.StaleIndexWarning):
        faults = fastshard.open(path).verify()
    assert any("written to after" in fault.reason for fault in faults)


def test_an_index_of_another_shard_is_stale(tar, kind, tmp_path):
    other = write_tar(tmp_path / "u.tar", {f"u{n}": d for n, d in MEMBERS.items()})
    shutil.copyfile(index_of(tar, kind), index_of(other, kind))
    is_stale(other, kind)


def test_a_shard_that_was_written_to_after_it_was_opened_saves_no_index(tar):
    shard = fastshard.open_shard(tar)
    os.utime(tar, ns=(5, 5))
    with pytest.raises(fastshard.StaleIndexError, match="after it was opened"):
        shard.save_index()


def test_the_binary_index_comes_first(tmp_path):
    path = write_tar(tmp_path / "t.tar", MEMBERS)
    with fastshard.open_shard(path) as shard:
        for kind in KINDS:
            shard.save_index(format=kind)
    assert fastshard.open_shard(path).index.endswith(".fsi")
    index_of(path, "fsi").write_bytes(b"")
    with pytest.warns(fastshard.StaleIndexWarning, match="broken"):
        assert fastshard.open_shard(path).index.endswith(".json")


def test_index_none_neither_reads_nor_writes_an_index(tar, kind, tmp_path):
    assert fastshard.open_shard(tar, index="none").index is None
    bare = write_tar(tmp_path / "bare.tar", MEMBERS)
    fastshard.open_shard(bare)
    assert not index_of(bare, "fsi").exists()


def test_rebuilding_writes_an_index_and_replaces_a_stale_one(tar, kind):
    write_tar(tar, {"new": b"1"})
    with fastshard.open_shard(tar, index="rebuild") as shard:
        assert list(shard.names) == ["new"]
        before = index_of(tar, "fsi").stat().st_mtime_ns
        assert len(pickle.loads(pickle.dumps(shard))) == 1
    assert index_of(tar, "fsi").stat().st_mtime_ns == before
    assert fastshard.open_shard(tar).index == str(index_of(tar, "fsi"))


def test_an_index_can_be_in_another_directory(tar, kind, tmp_path):
    away = tmp_path / "away"
    away.mkdir()
    index_of(tar, kind).rename(away / f"t.{kind}")
    assert fastshard.open_shard(tar).index is None
    with fastshard.open_shard(tar, index=away) as shard:
        assert shard.index == str(away / f"t.{kind}")
        assert pickle.loads(pickle.dumps(shard)).index == shard.index


def test_a_missing_named_index_is_an_error(tar):
    with pytest.raises(FileNotFoundError):
        fastshard.open_shard(tar, index=tar.with_name("none.fsi"))
    with pytest.raises(ValueError, match="name its format"):
        fastshard.open_shard(tar, index=tar.with_name("none.txt"))


@pytest.mark.parametrize("mode", ["mmap", "private", "pread"])
def test_indexed_shards_read_as_scanned_ones(tar, kind, mode):
    scanned = fastshard.open_shard(tar, index="none", mode=mode)
    with fastshard.open_shard(tar, mode=mode) as shard:
        assert shard.index is not None
        assert shard.names == scanned.names
        assert shard.offsets.tolist() == scanned.offsets.tolist()
        assert shard.sizes.tolist() == scanned.sizes.tolist()
        assert list(shard.samples.keys()) == list(scanned.samples.keys())
        for one, other in zip(shard.samples, scanned.samples, strict=True):
            assert one.keys() == other.keys()
            assert [one[f] for f in one] == [other[f] for f in other]
        if kind == "fsi":
            assert (shard.end, shard.skipped) == (scanned.end, scanned.skipped)
        else:
            assert (shard.end, shard.skipped) == (None, None)


def test_pread_keeps_no_index_mapped(tmp_path):
    path = write_tar(tmp_path / "t.tar", MEMBERS)
    fastshard.build_index(path)
    with fastshard.open_shard(path, mode="pread") as shard:
        os.truncate(index_of(path, "fsi"), 0)
        assert list(shard.names) == list(MEMBERS)
        assert shard.samples["003"]["a"] == MEMBERS["003.a"]


def test_infos_of_a_json_index_are_carried_over(tmp_path):
    path = write_tar(tmp_path / "t.tar", {"a.jpg": b"1", "b.jpg": b"2", "c.jpg": b"3"})
    entry = {"width": 3, "captions": ["é", "x"], "nested": {"deep": [None, 1.5]}}
    files = {
        "c.jpg": {"offset": 2560, "size": 1},
        "a.jpg": {"offset": 512, "length": 1, **entry},
        "b.jpg": {"offset": 1536, "length": 1, "path": "b.jpg", "sha256": "00"},
    }
    index_of(path, "json").write_text(json.dumps({"files": files}))
    expected = [entry, {"sha256": "00"}, {}]
    with fastshard.open_shard(path) as shard:
        assert shard.index.endswith(".json")
        assert [shard.info(i) for i in range(3)] == expected
        assert shard.info("a.jpg") == shard.info(-3) == entry
        with pytest.raises(IndexError):
            shard.info(3)
        shard.save_index()
    with fastshard.open_shard(path) as shard:
        assert shard.index.endswith(".fsi")
        assert [shard.info(i) for i in range(3)] == expected
        shard.save_index(tmp_path / "again.json")
    again = json.loads((tmp_path / "again.json").read_text())
    assert again["filesize"] == path.stat().st_size
    assert again["files"]["a.jpg"] == {"offset": 512, "length": 1, **entry}
    assert list(again["files"]) == ["a.jpg", "b.jpg", "c.jpg"]


def test_the_layout_is_as_the_docstring_says(tmp_path):
    """Decode an index by the docstring of `fastshard.index.binary`."""
    path = write_tar(tmp_path / "t.tar", MEMBERS | {"README": b"r"})
    with fastshard.open_shard(path) as shard:
        raw = Path(shard.save_index()).read_bytes()
        names, offsets = list(shard.names), shard.offsets.tolist()
        samples = [shard.samples.members_at(i) for i in range(len(shard.samples))]
    assert raw[:8] == b"\x89fsi\r\n\x1a\n"
    version, flags, nbytes, size, mtime = struct.unpack_from("<IIQQq", raw, 8)
    assert (version, flags, nbytes) == (2, 0, len(raw))
    status = path.stat()
    assert (size, mtime) == (status.st_size, status.st_mtime_ns)
    count, sample_count, grouped, name_bytes, info_bytes, end = struct.unpack_from(
        "<6Q", raw, 56
    )
    assert (count, sample_count, grouped, info_bytes) == (61, 30, 60, 0)
    assert end <= size
    assert struct.unpack_from("<8Q", raw, 104) == (0,) * 8
    identity = struct.unpack_from("<QQq", raw, 168)
    assert identity == (status.st_dev, status.st_ino, status.st_ctime_ns)
    assert raw[196:252] == bytes(56)
    assert struct.unpack_from("<I", raw, 252)[0] == zlib.crc32(raw[:252])
    at = 256
    columns = []
    for width in (8 * 61, 8 * 61, 8 * 61, 4 * 31, 4 * 60, 0, name_bytes, 0):
        at = -(-at // 64) * 64
        columns.append(raw[at : at + width])
        at += width
    at = -(-at // 64) * 64
    body, sums = raw[256:at], raw[at:]
    assert len(body) < 65_536
    assert sums == struct.pack("<I", crc32c_by_bits(body))
    assert struct.unpack_from("<I", raw, 192)[0] == crc32c_by_bits(raw[:192] + sums)
    assert list(struct.unpack("<61Q", columns[0])) == offsets
    ends = struct.unpack("<61Q", columns[2])
    starts = (0, *ends[:-1])
    assert [
        columns[6][a:b].decode() for a, b in zip(starts, ends, strict=True)
    ] == names
    starts_of = struct.unpack("<31I", columns[3])
    members = struct.unpack("<60I", columns[4])
    assert [list(members[a:b]) for a, b in pairwise(starts_of)] == samples


def test_the_same_shard_makes_the_same_index(tmp_path):
    path = write_tar(tmp_path / "t.tar", MEMBERS)
    with fastshard.open_shard(path) as shard:
        first = Path(shard.save_index(tmp_path / "1.fsi")).read_bytes()
    with fastshard.open_shard(path, index=tmp_path / "1.fsi") as shard:
        again = Path(shard.save_index(tmp_path / "2.fsi")).read_bytes()
    assert first == again


def test_a_repeated_field_raises_at_its_sample_with_an_index_too(tmp_path):
    path = write_tar(tmp_path / "t.tar", {"a.x": b"1", "b.x": b"2", "b.X": b"3"})
    fastshard.build_index(path)
    with fastshard.open_shard(path) as shard:
        assert shard.index is not None
        assert shard.samples[0].keys() == ["x"]
        with pytest.raises(fastshard.FormatError, match="twice"):
            shard.samples[1]
    with fastshard.open_shard(path, lower=False) as shard:
        assert shard.samples[1].keys() == ["x", "X"]


def test_an_empty_shard_has_an_index(tmp_path):
    path = tmp_path / "t.tar"
    path.write_bytes(bytes(1024))
    for form in ("fsi", "json"):
        with fastshard.open_shard(path, index="none") as shard:
            index = shard.save_index(format=form)
        with fastshard.open_shard(path, index=index) as shard:
            assert (len(shard), len(shard.samples)) == (0, 0)
    assert len(fastshard.open(path)) == 0


@pytest.mark.parametrize(
    ("shard", "form", "path"),
    [
        ("/d/a.b.tar", "fsi", "/d/a.b.fsi"),
        ("/d/a.b.tar", "json", "/d/a.b.json"),
        ("/d.x/a.b.tar", "idx", "/d.x/a.idx"),
        ("a.tar", "tar.idx", "a.tar.idx"),
    ],
)
def test_names_of_sidecars(shard, form, path):
    assert sidecar_path(shard, form) == path


@pytest.fixture
def sizeless(tmp_path):
    """A shard with a JSON index as others write it, without the shard's size."""
    path = write_tar(tmp_path / "grown.tar", MEMBERS)
    with fastshard.open_shard(path) as shard:
        index = shard.save_index(format="json")
    with open(index) as file:
        content = json.load(file)
    del content["filesize"]
    Path(index).write_text(json.dumps(content))
    assert is_used(path, "json")
    return path


def test_a_grown_shard_makes_an_index_without_a_size_stale(sizeless):
    with tarfile.open(sizeless, "a") as tar:
        member = tarfile.TarInfo("more.a")
        member.size = 4
        tar.addfile(member, io.BytesIO(b"more"))
    is_stale(sizeless, "json")


def test_a_grown_remote_shard_makes_an_index_without_a_size_stale(sizeless):
    index = sizeless.with_suffix(".json").read_bytes()
    files = {"/0.tar": sizeless.read_bytes(), "/0.json": index}
    grown = write_tar(sizeless.with_name("other.tar"), MEMBERS | {"more.a": b"more"})
    with Server(files) as server:
        assert fastshard.open_shard(server.at("/0.tar")).index is not None
        files["/0.tar"] = grown.read_bytes()
        with pytest.warns(fastshard.StaleIndexWarning, match="stale index.*'more.a'"):
            shard = fastshard.open_shard(server.at("/0.tar"))
        assert shard["more.a"] == b"more"


def write_folder(folder, texts, *, shards=12):
    """Write shards, and beside some of them a JSON file of another tool."""
    folder.mkdir()
    for k in range(shards):
        write_tar(folder / f"{k:02}.tar", {f"{k}.txt": b"%d" % k})
        if k < len(texts):
            (folder / f"{k:02}.json").write_text(texts[k])
    return folder


FOREIGN_JSON = ['{"count": 1, "loss": NaN}', "[1, 2]", '"text"', "{}", "# yaml", ""]


def test_json_files_of_other_tools_are_warned_of_once_a_dataset(tmp_path):
    folder = write_folder(tmp_path / "d", 2 * FOREIGN_JSON, shards=20)
    ds = fastshard.open(folder)
    with pytest.warns(fastshard.StaleIndexWarning, match="not an index") as caught:
        assert len(list(ds.shuffle(seed=1))) == 20
    assert len(list(ds)) == 20
    (warning,) = caught
    assert "12 of 20 shards have such a file" in str(warning.message)
    assert f"{folder}{os.sep}" in str(warning.message)


def test_json_files_of_other_tools_are_warned_of_once_remotely(tmp_path):
    folder = write_folder(tmp_path / "d", FOREIGN_JSON)
    files = {f"/{path.name}": path.read_bytes() for path in folder.iterdir()}
    with Server(files) as server:
        ds = fastshard.open(f"{server.at('/')}{{00..11}}.tar")
        with pytest.warns(fastshard.StaleIndexWarning, match="not an index") as caught:
            assert len(list(ds)) == 12
    assert len(caught) == 1


def test_damaged_json_indexes_are_each_warned_of(tmp_path):
    folder = write_folder(tmp_path / "d", 3 * ['{"files": {"a": '])
    with pytest.warns(fastshard.StaleIndexWarning, match="broken index") as caught:
        assert len(list(fastshard.open(folder))) == 12
    assert len(caught) == 3


def test_a_json_file_of_another_tool_raises_if_it_is_named(tmp_path):
    folder = write_folder(tmp_path / "d", FOREIGN_JSON)
    for k in range(len(FOREIGN_JSON)):
        with pytest.raises(fastshard.FormatError):
            fastshard.open_shard(folder / f"{k:02}.tar", index=folder / f"{k:02}.json")
        with pytest.warns(fastshard.StaleIndexWarning, match="index") as caught:
            fastshard.open_shard(folder / f"{k:02}.tar")
        assert len(caught) == 1


def test_commands_warn_once_of_json_files_of_other_tools(tmp_path, capsys):
    folder = write_folder(tmp_path / "d", 2 * FOREIGN_JSON)
    assert main(["ls", str(folder)]) == 0
    output = capsys.readouterr()
    assert len(output.out.splitlines()) == 12
    assert output.err.count("not an index") == 1
    assert "12 of 12 shards have such a file" in output.err
