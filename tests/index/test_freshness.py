"""Freshness of indexes: by file identity, by some headers, by each member's header."""

import os
import random
import shutil
import warnings

import numpy as np
import pytest

import fastshard
from fastshard._core.io.source import LocalFile
from fastshard._util import files
from fastshard.index import freshness
from fastshard.index.binary import read_header
from fastshard.index.freshness import identify_file, spread_positions
from fastshard.index.sidecar import FORMATS, peek_counts
from fastshard.remote.file import open_remote
from fastshard.remote.options import make_settings
from support.inside.datasets import opened_shards
from support.servers.http import Server
from support.tar_blocks import END, extension, header, padded, record
from support.tars import read_links, write_tar

COUNT = 300
SIZE = 700  # bytes; 1,536 with the header, so that few members begin on a page
MODES = ["mmap", "private", "pread"]
NAMES = [f"{i:05d}.bin" for i in range(COUNT)]
ONE, OTHER = 102, 104  # outside the fingerprint; neither begins on a page


def data_of(name):
    return random.Random(name).randbytes(SIZE)


def write(path, names):
    return write_tar(path, {name: data_of(name) for name in names})


@pytest.fixture
def tar(tmp_path):
    return write(tmp_path / "t.tar", NAMES)


@pytest.fixture
def indexed(tar):
    fastshard.build_index(tar)
    return tar


@pytest.fixture
def no_random_headers(monkeypatch):
    """Compare no random headers."""
    monkeypatch.setattr(freshness, "random_positions", lambda count: [])


def is_unverified(shard):
    """Return whether the headers of members are compared at their first use."""
    return shard.parts()[1].index is not None


def replace(path, names):
    """Replace a tar by another of the same size and times, as ``cp -p`` may."""
    status = path.stat()
    write(path, names)
    assert path.stat().st_size == status.st_size
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def swap_names():
    names = list(NAMES)
    names[ONE], names[OTHER] = names[OTHER], names[ONE]
    assert not {ONE, OTHER} & set(spread_positions(COUNT))
    return names


def check_right(path, **options):
    """Check every member and sample, in every mode and without warnings."""
    expected, _ = read_links(path)
    for mode in MODES:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with fastshard.open_shard(path, mode=mode, **options) as shard:
                assert shard.index is not None
                assert [
                    (n, shard.read(i)) for i, n in enumerate(shard.names)
                ] == expected
                assert [bytes(view) for view in shard] == [data for _, data in expected]
                for name, data in expected:
                    if [n for n, _ in expected].count(name) == 1:
                        assert shard[name] == data


@pytest.mark.parametrize("kind", ["fsi", "json"])
def test_members_in_another_order_with_the_same_time_are_stale(tar, kind):
    with fastshard.open_shard(tar) as shard:
        index = shard.save_index(format=kind)
    replace(tar, NAMES[::-1])
    with pytest.raises(fastshard.StaleIndexError):
        fastshard.open_shard(tar, index=index)
    with pytest.warns(fastshard.StaleIndexWarning), fastshard.open_shard(tar) as shard:
        assert all(shard[name] == data_of(name) for name in NAMES)
    ds_warns = pytest.warns(fastshard.StaleIndexWarning)
    with ds_warns, fastshard.open(tar) as ds:
        assert all(sample["bin"] == data_of(f"{sample.key}.bin") for sample in ds)


def test_an_index_of_another_shard_of_the_same_size_and_time_is_stale(tar, tmp_path):
    other = write(tmp_path / "u.tar", [f"u{name[1:]}" for name in NAMES])
    status = tar.stat()
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert other.stat().st_size == status.st_size
    with fastshard.open_shard(tar) as shard:
        shard.save_index(other.with_suffix(".fsi"))
    with (
        pytest.warns(fastshard.StaleIndexWarning),
        fastshard.open_shard(other) as shard,
    ):
        assert shard.names[0].startswith("u")


def test_a_dataset_index_does_not_rely_on_times(indexed, tmp_path):
    replace(indexed, NAMES[::-1])
    with pytest.warns(fastshard.StaleIndexWarning, match=r"dataset\.fsi"):
        ds = fastshard.open(tmp_path)
    with pytest.warns(fastshard.StaleIndexWarning, match=r"t\.fsi"):
        assert ds["00007"]["bin"] == data_of("00007.bin")


WAYS = {
    "by position": lambda shard, i: shard[i],
    "by name": lambda shard, i: shard[NAMES[i]],
    "a slice": lambda shard, i: shard[i : i + 1],
    "a copy": lambda shard, i: shard.read(i),
    "an array": lambda shard, i: shard.array(i, np.uint8),
    "gathered": lambda shard, i: shard.read_into([0, i], bytearray(2 * SIZE)),
    "in order": lambda shard, i: list(shard),
    "in an order": lambda shard, i: list(shard.scan([i])),
    "a sample": lambda shard, i: shard.samples[i]["bin"],
    "a sample by key": lambda shard, i: shard.samples[NAMES[i][:5]]["bin"],
    "decoded": lambda shard, i: shard.samples[i].decode(),
    "a file": lambda shard, i: shard.samples[i].open("bin").read(),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_moved_members_raise_at_first_use(indexed, no_random_headers, mode, way):
    write(indexed, swap_names())
    index = str(indexed.with_suffix(".fsi"))
    for i in (ONE, OTHER):
        with fastshard.open_shard(indexed, index=index, mode=mode) as shard:
            assert all(shard[k] == data_of(NAMES[k]) for k in (0, 50, COUNT - 1))
            for _ in range(2):  # the error repeats
                with pytest.raises(fastshard.StaleIndexError) as caught:
                    WAYS[way](shard, i)
                assert caught.value.path == index
                assert caught.value.member in (NAMES[ONE], NAMES[OTHER])
                assert str(indexed) in caught.value.reason
                assert f"byte {shard.offsets[NAMES.index(caught.value.member)]:,}" in (
                    caught.value.reason
                )


DATASET_WAYS = {
    "by position": lambda ds: ds[ONE]["bin"],
    "many": lambda ds: [s["bin"] for s in ds.get_many([0, ONE])],
    "in order": lambda ds: [s["bin"] for s in ds],
    "batches": lambda ds: list(ds.batches(64)),
    "shuffled": lambda ds: [s["bin"] for s in ds.shuffle(seed=1)],
    "a column": lambda ds: ds.columns([ONE, 0], ["bin"]),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", DATASET_WAYS)
def test_moved_members_raise_in_datasets(indexed, no_random_headers, mode, way):
    write(indexed, swap_names())
    ds = fastshard.open(indexed, mode=mode, index=indexed.parent)
    with pytest.raises(fastshard.StaleIndexError, match="no member"):
        DATASET_WAYS[way](ds)


def test_random_headers_find_a_swap(indexed, monkeypatch):
    """The random headers find a swap outside the fingerprint after a few opens."""
    names = list(NAMES)
    for i in range(1, COUNT - 1):
        if not {i, i + 1} & set(spread_positions(COUNT)) and names[i] == NAMES[i]:
            names[i], names[i + 1] = names[i + 1], names[i]
    write(indexed, names)
    with pytest.raises(fastshard.StaleIndexError, match="no member"):
        fastshard.open_shard(indexed, index=indexed.with_suffix(".fsi"))
    assert len({tuple(freshness.random_positions(10**6)) for _ in range(50)}) == 50


def test_a_member_on_a_page_boundary_reads_other_bytes(indexed, no_random_headers):
    """A moved member that begins on a page reads other bytes, as documented."""
    with fastshard.open_shard(indexed) as shard:
        offsets = shard.offsets
    hashed = set(spread_positions(COUNT))
    on_page = [i for i in range(COUNT) if offsets[i] % 4096 == 0 and i not in hashed]
    names = list(NAMES)
    one, other = on_page[:2]
    names[one], names[other] = names[other], names[one]
    write(indexed, names)
    with fastshard.open_shard(indexed, index=indexed.with_suffix(".fsi")) as shard:
        assert shard[NAMES[one]] == data_of(NAMES[other])
    assert any("does not list" in f.reason for f in fastshard.open(indexed).verify())


def copy_shard(path, to):
    to.mkdir()
    for name in os.listdir(path.parent):
        if name != to.name:
            shutil.copy2(path.parent / name, to / name)
    return to / path.name


def link_shard(path, to):
    to.mkdir()
    os.link(path, to / path.name)
    return path


def change_mode(path, to):
    path.chmod(0o600)
    return path


def change_time(path, to):
    os.utime(path, ns=(5, 5))
    return path


@pytest.mark.parametrize("change", [copy_shard, link_shard, change_mode, change_time])
@pytest.mark.parametrize("kind", ["fsi", "json"])
def test_good_shards_give_no_warning(tar, tmp_path, kind, change):
    fastshard.build_index(tar, format=kind)
    path = change(tar, tmp_path / "to")
    with fastshard.open_shard(path) as shard:
        assert is_unverified(shard)
    check_right(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with fastshard.open(path.parent / "t.tar") as ds:
            assert len(ds) == COUNT
            assert [s["bin"] for s in ds] == [data_of(name) for name in NAMES]


@pytest.mark.parametrize("kind", FORMATS)
def test_the_indexed_file_needs_no_header_checks(tmp_path, kind):
    with fastshard.ShardWriter(str(tmp_path / "w-%d.tar")) as writer:
        for name in NAMES[:40]:
            writer.write({"__key__": name[:5], "bin": data_of(name)})
    path = next(tmp_path.glob("w-*.tar"))
    with fastshard.open_shard(path, index="none") as shard:
        index = shard.save_index(format=kind)
    with fastshard.open_shard(path, index=index) as shard:
        assert is_unverified(shard) == (
            kind in ("json", "idx")
        )  # no identity is recorded
    check_right(path, index=index)


def test_the_recorded_identity_is_that_of_stat(indexed, tmp_path):
    found = read_header(str(indexed.with_suffix(".fsi"))).identity
    assert found == identify_file(indexed.stat())
    with LocalFile(str(indexed)) as file:
        assert found == identify_file(file)


def test_a_remote_file_is_not_known_by_its_identity(indexed):
    with Server({"/a.tar": indexed.read_bytes()}) as server:
        url = server.at("/a.tar")
        found = identify_file(open_remote(url, make_settings({}, [url])))
    assert not freshness.is_same_file(found, found)


def test_the_first_version_of_each_shard_stays():
    first = freshness.FirstVersions(4)
    for k in range(4):
        first.record(k, (k + 1, -k - 1))
    for k in range(4):
        first.record(k, (9, 9))
        first.check(k, "a.tar", (k + 1, -k - 1))
        with pytest.raises(fastshard.StaleShardError):
            first.check(k, "a.tar", (9, 9))


def test_counts_are_peeked_for_the_indexed_file_alone(indexed, tmp_path):
    assert peek_counts(str(indexed)) == (COUNT, COUNT)
    to = copy_shard(indexed, tmp_path / "to")
    assert peek_counts(str(to)) is None
    replace(indexed, NAMES[::-1])
    assert peek_counts(str(indexed)) is None


def test_counts_of_a_copied_dataset_open_no_shard(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for k in range(5):
        write(folder / f"t-{k}.tar", [f"{k}{name[1:]}" for name in NAMES[:20]])
    fastshard.build_index(folder)
    shutil.copytree(folder, tmp_path / "to")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with fastshard.open(tmp_path / "to") as ds:
            assert len(ds) == 100
            assert not any(opened_shards(ds))
            assert ds["30007"]["bin"] == data_of("30007.bin")
            assert [s.key for s in ds][::20] == [f"{k}0000" for k in range(5)]


def test_indexing_a_copy_records_its_identity(indexed, tmp_path):
    to = copy_shard(indexed, tmp_path / "to")
    fastshard.build_index(to)
    with fastshard.open_shard(to) as shard:
        assert not is_unverified(shard)
    before = to.with_suffix(".fsi").stat().st_ino
    fastshard.build_index(to)
    assert to.with_suffix(".fsi").stat().st_ino == before  # fresh: not rebuilt


def member(name, data, *extensions):
    return (
        b"".join(extensions) + header(name, size=b"%011o\0" % len(data)) + padded(data)
    )


LONG = b"d/" * 80 + b"long.bin"


def make_conflicting_member(name, size, data):
    """Return a member whose ustar header and pax header give different sizes."""
    return header(name, size=b"%011o\0" % size) + padded(data)


PLAIN = [member(b"%03d.bin" % i, b"%03d" % i * 99) for i in range(30)]
ODD = {
    "a local path": [
        *PLAIN[:3],
        member(b"made-up", b"x" * 600, extension(b"x", record(b"path", b"true.bin"))),
        *PLAIN[3:],
    ],
    "a local size": [
        *PLAIN[:3],
        extension(b"x", record(b"size", b"600"))
        + header(b"s.bin", size=b"%011o\0" % 7)
        + padded(b"y" * 600),
        *PLAIN[3:],
    ],
    "a global path": [
        extension(b"g", record(b"path", b"all.bin")),
        *PLAIN[:3],
    ],
    "a global size": [
        extension(b"g", record(b"size", b"297")),
        *(make_conflicting_member(b"%03d.bin" % i, 1, b"z" * 297) for i in range(9)),
    ],
    "a global header in the middle": [
        *PLAIN[:20],
        extension(b"g", record(b"size", b"297") + record(b"comment", b"c")),
        *(make_conflicting_member(b"g%02d.bin" % i, 2, b"w" * 297) for i in range(9)),
    ],
    "global comments": [
        extension(b"g", record(b"comment", b"0" * 600)),
        *PLAIN,
    ],
    "long names": [
        extension(b"L", LONG + b"\0") + header(LONG[:100]) + padded(b"abc"),
        *PLAIN[:5],
        extension(b"x", record(b"path", LONG + b"2.bin") + record(b"mtime", b"1.5"))
        + header(b"short", size=b"%011o\0" % 5)
        + padded(b"12345"),
        *PLAIN[5:],
    ],
    "a directory and links between": [
        *PLAIN[:4],
        header(b"dir/", b"5", b"%011o\0" % 0),
        header(b"link.bin", b"2", b"%011o\0" % 0, link=b"001.bin"),
        header(b"hard.bin", b"1", b"%011o\0" % 0, link=b"002.bin"),
        header(b"later.bin", b"2", b"%011o\0" % 0, link=b"020.bin"),
        *PLAIN[4:],
    ],
    "a long comment": [
        *PLAIN[:4],
        member(b"c.bin", b"c" * 9, extension(b"x", record(b"comment", b"n" * 50_000)
                                             + record(b"path", b"commented.bin"))),
        *PLAIN[4:],
    ],
}  # fmt: skip


@pytest.mark.parametrize("what", ODD)
@pytest.mark.parametrize("kind", FORMATS)
def test_an_index_that_was_just_written_is_fresh(tmp_path, what, kind):
    """The shards have names and sizes from every kind of extension header."""
    path = tmp_path / "t.tar"
    path.write_bytes(b"".join(ODD[what]) + END)
    with fastshard.open_shard(path, index="none") as shard:
        names = list(shard.names)
        try:
            index = shard.save_index(format=kind)
        except fastshard.FastshardError as error:
            assert what == "a global path"  # all members have one name
            assert "JSON index lists a name once" in str(error) or kind == "idx"
            return
    check_right(path, index=index)
    os.utime(path, ns=(7, 7))  # headers decide, for every format
    check_right(path, index=index)
    with fastshard.open_shard(path, index=index) as shard:
        if kind != "idx":  # DALI omits members without a key
            assert list(shard.names) == names


@pytest.mark.parametrize("what", ["a local path", "a global size", "long names"])
def test_names_in_extension_headers_are_compared(tmp_path, no_random_headers, what):
    path = tmp_path / "t.tar"
    raw = b"".join(ODD[what]) + END
    path.write_bytes(raw)
    with fastshard.open_shard(path, index="none") as shard:
        index = shard.save_index(format="json")
    for old, new in [(b"true.bin", b"tru2.bin"), (b"size=297", b"size=296"),
                     (b"long.bin2.bin", b"long.bin3.bin")]:  # fmt: skip
        if old in raw:
            path.write_bytes(raw.replace(old, new))
            with (
                pytest.raises(fastshard.FormatError),
                fastshard.open_shard(path, index=index) as shard,
            ):
                list(shard)


def test_a_replaced_shard_saves_no_index(tar):
    shard = fastshard.open_shard(tar)
    replace(tar, NAMES[::-1])
    with pytest.raises(fastshard.StaleIndexError, match="after it was opened"):
        shard.save_index()


@pytest.fixture
def stopped_clock(monkeypatch):
    """Stop the clock of file times; record the sleeps."""
    slept = []
    monkeypatch.setattr(files.sys, "platform", "linux")
    monkeypatch.setattr(files.time, "sleep", slept.append)
    return slept


def test_an_index_is_made_after_the_tick_of_the_last_change(
    tar, stopped_clock, monkeypatch
):
    ctime = os.stat(tar).st_ctime_ns
    monkeypatch.setattr(
        files.time, "clock_gettime_ns", lambda _: ctime + (len(stopped_clock) > 2)
    )

    with fastshard.open_shard(tar, index="rebuild") as shard:
        shard.save_index()

    assert len(stopped_clock) == 3


def test_a_change_during_the_tick_is_an_error(tar, monkeypatch):
    ctime = os.stat(tar).st_ctime_ns
    monkeypatch.setattr(files.sys, "platform", "linux")
    monkeypatch.setattr(files.time, "clock_gettime_ns", lambda _: ctime)
    monkeypatch.setattr(files.time, "sleep", lambda _: tar.chmod(0o600))

    with (
        fastshard.open_shard(tar, index="none") as shard,
        pytest.raises(fastshard.StaleIndexError),
    ):
        shard.save_index()


def test_a_stopped_clock_is_not_waited_for(tar, stopped_clock, monkeypatch):
    ctime = os.stat(tar).st_ctime_ns
    monkeypatch.setattr(files.time, "clock_gettime_ns", lambda _: ctime)

    with fastshard.open_shard(tar, index="none") as shard:
        shard.save_index()

    assert sum(stopped_clock) <= 0.02 + 1e-9
