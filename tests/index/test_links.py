"""Links in every way that a shard is opened, indexed and read."""

import os
import shutil
import struct
import warnings

import pytest

import fastshard
from fastshard.index.binary import HEADER, read_binary, seal_header
from support.inside.datasets import before_each_comparison
from support.servers.http import Server
from support.tars import SYMBOLIC, read_links, write_links

MODES = "mmap", "private", "pread"
FORMATS = "fsi", "json", "idx", "tar.idx"


def entries(count=40):
    """Samples whose label is a link, far from its target, and links to later blobs."""
    listed = [("s/early.jpg", "../z/blob.bin", SYMBOLIC), ("s/early.cls", b"0")]
    for i in range(count):
        listed.append((f"d/{i:03d}.jpg", b"%03d" % i * (i * 7 % 90 + 1)))
        listed.append((f"d/{i:03d}.cls", b"1" if i == 0 else "d/000.cls"))
        if i % 9 == 4:
            listed.append((f"d/copy{i}.jpg", f"d/{i // 2:03d}.jpg"))
            listed.append((f"d/copy{i}.cls", f"d/{i:03d}.cls"))
    return [*listed, ("z/blob.bin", b"blob" * 300), ("z/c.bin", "blob.bin", SYMBOLIC)]


@pytest.fixture
def tar(tmp_path):
    return write_links(tmp_path / "t.tar", entries(), mtime=1.5)


def check(path, shown=None, **options):
    """Compare every member, by position and name, and every sample with `tarfile`."""
    expected, unread = read_links(path)
    assert not unread
    samples = {}
    for name, data in expected:
        samples.setdefault(name.partition(".")[0], {})[name.rpartition(".")[2]] = data
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with fastshard.open_shard(shown or path, **options) as shard:
            found = [(name, shard.read(i)) for i, name in enumerate(shard.names)]
            assert found == expected
            assert [bytes(view) for view in shard.scan()] == [d for _, d in expected]
            assert all(shard[name] == data for name, data in expected)
            assert [(s.key, {f: bytes(s[f]) for f in s}) for s in shard.samples] == [
                *samples.items()
            ]
            return shard.index


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", FORMATS)
def test_an_index_lists_links_in_the_order_of_the_archive(tar, mode, kind):
    with fastshard.open_shard(tar, index="none") as shard:
        index = shard.save_index(format=kind)
    assert check(tar, index=index, mode=mode) == index
    os.utime(tar, ns=(7, 7))  # headers decide
    assert check(tar, index=index, mode=mode) == index


@pytest.mark.parametrize("kind", [None, "fsi", "json"])
def test_links_over_http(tar, kind):
    if kind is not None:
        with fastshard.open_shard(tar) as shard:
            shard.save_index(format=kind)
    files = {f"/{path.name}": path.read_bytes() for path in tar.parent.iterdir()}
    with Server(files) as server:
        index = check(tar, server.at("/t.tar"))
        assert (index is None) == (kind is None)
        with fastshard.open(server.at("/t.tar")) as ds:
            assert ds["s/early"]["jpg"] == b"blob" * 300
            found = [bytes(s["cls"]) for s in ds if "cls" in s]
            assert found == [b"0", *[b"1"] * 44]


def test_several_walks_over_http_find_all_links(tmp_path):
    """Walks from several positions meet links whose targets others have found."""
    listed = [(f"{i:03d}.bin", os.urandom(1 << 20)) for i in range(40)]
    for i in range(39, 0, -3):
        listed.insert(i, (f"l{i}.bin", f"{i // 2:03d}.bin"))
        listed.insert(i, (f"m{i}.bin", f"{39 - i // 2:03d}.bin", SYMBOLIC))
    path = write_links(tmp_path / "t.tar", [*listed, ("last.bin", "gone")])
    expected, unread = read_links(path)
    with Server({"/t.tar": path.read_bytes()}) as server:
        with pytest.warns(fastshard.UnreadEntryWarning, match=r"'last\.bin'"):
            shard = fastshard.open_shard(server.at("/t.tar"))
        with pytest.warns(fastshard.UnreadEntryWarning):
            local = fastshard.open_shard(path)
        with shard, local:
            assert list(shard.offsets) == list(local.offsets)
            assert [*shard.names] == [name for name, _ in expected]
            assert shard.unread_links == local.unread_links
            assert unread == ["last.bin"]


@pytest.mark.parametrize("kind", ["fsi", "json"])
def test_a_link_that_leads_elsewhere_makes_the_index_stale_at_its_use(tmp_path, kind):
    """The tar has the same size; all headers but one that is not compared agree."""
    listed = [(f"{i:03d}.bin", b"%03d" % i) for i in range(200)]
    paths = []
    for target in ("150.bin", "151.bin"):
        listed[120] = ("120.bin", target, SYMBOLIC)
        paths.append(write_links(tmp_path / f"{target}.tar", listed))
    with fastshard.open_shard(paths[0]) as shard:
        index = shard.save_index(tmp_path / f"t.{kind}")
    with fastshard.open_shard(paths[1], index=index) as shard:
        assert shard["119.bin"] == b"119"
        with pytest.raises(fastshard.StaleIndexError, match=r"'120\.bin'"):
            shard["120.bin"]


def test_a_copied_shard_is_scanned_once_for_its_links(tar, tmp_path, monkeypatch):

    with fastshard.open_shard(tar) as shard:
        shard.save_index()
    (tmp_path / "copy").mkdir()
    for path in (tar, tar.with_suffix(".fsi")):
        shutil.copy(path, tmp_path / "copy")
    scans = []
    before_each_comparison(monkeypatch, lambda: scans.append(1))
    assert check(tmp_path / "copy" / "t.tar", mode="mmap") is not None
    assert len(scans) == 1


def unread_tar(path, links=2):
    listed = [("a.jpg", b"abc"), *((f"l{i}.jpg", "gone") for i in range(links))]
    return write_links(path, listed)


def test_a_binary_index_counts_links_that_are_not_read(tmp_path):
    path = unread_tar(tmp_path / "t.tar")
    with pytest.warns(fastshard.UnreadEntryWarning):
        fastshard.open_shard(path, index="rebuild").close()
    match = "2 links lead to no member .* listed by fastshard verify"
    with pytest.warns(fastshard.UnreadEntryWarning, match=match):
        shard = fastshard.open_shard(path)
    assert dict(shard.skipped) == {"hard link": 2}
    assert shard.index is not None
    assert list(shard.unread_links) == []


def test_an_index_of_a_release_that_read_no_links_is_stale(tmp_path):
    path = unread_tar(tmp_path / "t.tar")
    with pytest.warns(fastshard.UnreadEntryWarning):
        fastshard.open_shard(path, index="rebuild").close()
    index = path.with_suffix(".fsi")
    raw = bytearray(index.read_bytes())
    (flags,) = struct.unpack_from("<I", raw, 12)
    assert flags == 8
    struct.pack_into("<I", raw, 12, 0)
    at, size = read_binary(str(index)).extents["sums"]
    index.write_bytes(
        seal_header(bytes(raw[: HEADER.size]), bytes(raw[at : at + size]))
        + raw[HEADER.size :]
    )
    with (
        pytest.warns(fastshard.UnreadEntryWarning),
        pytest.warns(fastshard.StaleIndexWarning, match="read no links; renew it"),
        fastshard.open_shard(path) as shard,
    ):
        assert shard.index is None
    with pytest.raises(fastshard.StaleIndexError):
        fastshard.open_shard(path, index=index)
    with pytest.warns(fastshard.UnreadEntryWarning):
        fastshard.build_index(path)
    with pytest.warns(fastshard.UnreadEntryWarning), fastshard.open_shard(path) as new:
        assert new.index is not None


@pytest.mark.parametrize("indexed", [False, True])
def test_a_dataset_warns_once(tmp_path, indexed):
    for k in range(5):
        unread_tar(tmp_path / f"{k}.tar", links=k)
    if indexed:
        with pytest.warns(fastshard.UnreadEntryWarning) as caught:
            fastshard.build_index(tmp_path)
        assert len(caught) == 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with fastshard.open(tmp_path) as ds:
            for view in (ds, ds.shuffle(1), ds[2:], ds.select_fields("jpg")):
                assert [bytes(sample["jpg"]) for sample in view] == [b"abc"] * len(view)
    assert [one.category for one in caught] == [fastshard.UnreadEntryWarning]
    assert __file__ in {one.filename for one in caught} or indexed or len(caught) == 1


def test_a_dataset_index_counts_samples_of_links(tar):
    made = fastshard.build_index(tar.parent)
    assert made[-1].endswith("dataset.fsi")
    with fastshard.open(tar.parent) as ds:
        assert len(ds) == 47
        assert ds["d/copy13"]["jpg"] == ds["d/006"]["jpg"]
        assert ds["d/017"]["cls"] == b"1"
    shardlist = fastshard.build_index(tar.parent, format="wids")
    with fastshard.open(shardlist[0]) as ds:
        assert len(ds) == 47


def test_a_tar_of_links_alone_has_no_index(tmp_path):
    path = write_links(tmp_path / "t.tar", [("a.jpg", "../blobs/1", SYMBOLIC)])
    with pytest.raises(fastshard.FormatError, match=r"links alone.* tar -h"):
        fastshard.build_index(tmp_path)
    assert not list(tmp_path.glob("*.fsi"))
    with pytest.warns(fastshard.UnreadEntryWarning, match="tar -h stores the files"):
        assert len(fastshard.open_shard(path)) == 0


@pytest.mark.parametrize("to", ["tar", "mds"])
def test_links_are_converted_as_files(tmp_path, to):
    path = write_links(tmp_path / "t.tar", entries()[2:-2])
    with fastshard.open(path) as ds:
        expected = [(bytes(s["jpg"]), int(bytes(s["cls"]))) for s in ds]
    assert len(expected) == 44
    fastshard.convert(path, tmp_path / "out", to=to)
    with fastshard.open(tmp_path / "out") as ds:
        assert [(bytes(s["jpg"]), s.decode("cls")["cls"]) for s in ds] == expected
