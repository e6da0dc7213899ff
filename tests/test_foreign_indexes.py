"""Indexes of DALI, Megatron-Energon and wids: as their own tools write them."""

import json
import random
import shutil
import struct
import tarfile
from pathlib import Path

import pytest

import fastshard
from fastshard._core.source import LocalFile
from fastshard.index.dali import read_dali, write_dali
from fastshard.index.energon import read_energon
from fastshard.index.wids import read_wids, write_wids

from conftest import write_tar

DATA = Path(__file__).parent / "data" / "foreign"  # make.py there made it
KINDS = ["gnu", "pax", "ustar"]
FORMATS = ["idx", "tar.idx"]


def listed(shard):
    return list(
        zip(shard.names, shard.offsets.tolist(), shard.sizes.tolist(), strict=True)
    )


@pytest.fixture(params=KINDS)
def tar(request, tmp_path):
    return Path(shutil.copy(DATA / f"{request.param}.tar", tmp_path))


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_written_is_what_their_tools_write(tar, form):
    with fastshard.open_shard(tar) as shard:
        path = shard.save_index(format=form)
    assert Path(path).read_bytes() == (DATA / f"{tar.stem}.{form}").read_bytes()


@pytest.mark.parametrize("form", FORMATS)
def test_what_their_tools_write_is_read(tar, form):
    index = DATA / f"{tar.stem}.{form}"
    scanned = fastshard.open_shard(tar)
    with fastshard.open_shard(tar, index=index) as shard:
        assert shard.index == str(index)
        hidden = {".hidden", "sub/.hidden"} if form == "idx" else set()
        assert listed(shard) == [m for m in listed(scanned) if m[0] not in hidden]
        for name in shard.names:
            assert shard[name] == scanned[name]


def test_version_1_1_of_dali_finds_names_in_the_shard(tar):
    index = tar.with_suffix(".idx")
    with fastshard.open_shard(tar) as scanned, LocalFile(tar) as file:
        write_dali(str(index), scanned._contents, file, version="1.1")
        with fastshard.open_shard(tar, index=DATA / f"{tar.stem}.idx") as expected:
            assert listed(fastshard.open_shard(tar, index=index)) == listed(expected)
    text = index.read_text()
    assert text.startswith("v1.1 ")
    index.write_text(
        text.replace("jpg 512 ", "png 512 ").replace("jpg 1536 ", "png 1536 ")
    )
    with pytest.raises(fastshard.StaleIndexError, match="no png"):
        fastshard.open_shard(tar, index=index)


def test_they_are_not_looked_for(tar):
    for form in FORMATS:
        with fastshard.open_shard(tar) as shard:
            shard.save_index(format=form)
    assert fastshard.open_shard(tar).index is None


@pytest.mark.parametrize(
    "name", ["a b.jpg", "a\tb.jpg", "a\\b.jpg", "a\nb.txt", "a.x y"]
)
def test_a_name_that_dali_cannot_hold_is_refused(make_tar, name):
    shard = fastshard.open_shard(make_tar({"ok.txt": b"", name: b"x"}))
    with pytest.raises(fastshard.FastshardError, match="name of member"):
        shard.save_index(format="idx")
    assert not Path(shard.path).with_suffix(".idx").exists()


@pytest.mark.parametrize("form", FORMATS)
def test_a_shard_without_samples_is_refused(make_tar, form):
    shard = fastshard.open_shard(make_tar({".hidden": b""}))
    with pytest.raises(fastshard.FastshardError, match="sample"):
        shard.save_index(format=form)


@pytest.mark.parametrize("form", FORMATS)
def test_an_index_of_another_shard_is_refused(make_tar, form):
    one = fastshard.open_shard(make_tar({"a.txt": b"1" * 600, "b.txt": b"2"}, "1.tar"))
    other = make_tar({"a.txt": b"1", "b.txt": b"2"}, "2.tar")
    index = one.save_index(format=form)
    with pytest.raises(fastshard.FormatError):
        fastshard.open_shard(other, index=index)


def damaged(raw):
    """Every truncation, every byte changed, and some of both."""
    for n in range(len(raw)):
        yield raw[:n]
    for i in range(len(raw)):
        for flip in (1, 0x80, 0x20):
            yield raw[:i] + bytes([raw[i] ^ flip]) + raw[i + 1 :]
    numbers = random.Random(0)
    for _ in range(1000):
        changed = bytearray(raw)
        for _ in range(numbers.randrange(1, 5)):
            changed[numbers.randrange(len(raw))] = numbers.randrange(256)
        yield bytes(changed)


@pytest.mark.parametrize(
    ("form", "read"), [("idx", read_dali), ("tar.idx", read_energon)]
)
def test_damage_is_refused_or_lies_in_the_shard(tmp_path, form, read):
    tar = tmp_path / "ustar.tar"
    shutil.copy(DATA / "ustar.tar", tar)
    index = tmp_path / f"x.{form}"
    raw = (DATA / f"ustar.{form}").read_bytes()
    nbytes = tar.stat().st_size
    with LocalFile(tar) as file:
        for changed in damaged(raw):
            index.write_bytes(changed)
            try:
                table = read(str(index), file).table
            except fastshard.FormatError as error:
                assert str(index) in (error.path, *error.args)
                assert error.offset <= max(len(raw), nbytes)
            else:
                assert form == "idx" or changed == raw
                extents = [table.extent(i) for i in range(len(table))]
                assert all(512 <= at <= nbytes - size for at, size in extents)


def test_numbers_that_overflow_are_refused(tmp_path):
    tar = write_tar(tmp_path / "x.tar", {"a.txt": b"1"})
    index = tmp_path / "x.idx"
    for offset, size in ((2**64, 1), (512, 2**64), (10**400, 1), (2**63, 2**63)):
        index.write_text(f"v1.2 1\ntxt {offset} {size} a.txt\n")
        with pytest.raises(fastshard.FormatError) as caught:
            fastshard.open_shard(tar, index=index)
        assert caught.value.path == str(index)


def test_energon_offsets_are_those_of_first_headers(make_tar):
    path = make_tar(
        {"a.x": b"1", "a.y": b"2", "b.x": b"3"}, form=tarfile.PAX_FORMAT, mtime=1.5
    )
    with fastshard.open_shard(path) as shard:
        raw = Path(shard.save_index(format="tar.idx")).read_bytes()
    with tarfile.open(path) as tar:
        headers = [member.offset for member in tar]
        end = tar.offset
    assert struct.unpack("<3Q", raw) == (headers[0], headers[2], end)


@pytest.fixture
def shards(tmp_path):
    for shard in range(3):
        write_tar(tmp_path / f"t-{shard}.tar", {f"{shard}{i}.txt": b"1" for i in "abc"})
    return tmp_path


def test_a_shard_list_is_a_source(shards):
    [path] = fastshard.build_index(shards, format="wids")
    text = json.loads(Path(path).read_text())
    assert text["wids_version"] == 1
    assert text["shardlist"][1] == {
        "url": "t-1.tar",
        "nsamples": 3,
        "filesize": (shards / "t-1.tar").stat().st_size,
    }
    ds = fastshard.open(path)
    assert [sample.key for sample in ds][:4] == ["0a", "0b", "0c", "1a"]


def test_shard_lists_nest_and_have_bases(shards):
    other = shards / "other.json"
    write_wids(str(other), [(str(shards / "t-2.tar"), 3)], md5=True)
    whole = {
        "wids_version": 1,
        "shardlist": [{"url": "t-0.tar", "nsamples": 3}],
        "datasets": [
            {"shardlist": [{"url": "t-1.tar", "nsamples": 3}], "base": str(shards)},
            {"source_url": "other.json", "weight": 2},
            {"base": "http://host/x/", "shardlist": [{"url": "r.tar", "nsamples": 1}]},
        ],
    }
    path = shards / "all.json"
    path.write_text(json.dumps(whole))
    found = read_wids(str(path))
    assert [shard.url for shard in found] == [
        *(str(shards / f"t-{i}.tar") for i in range(3)),
        "http://host/x/r.tar",
    ]
    import hashlib

    data = (shards / "t-2.tar").read_bytes()
    assert found[2].md5sum == hashlib.md5(data).hexdigest()


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        "{",
        '{"wids_version": 2, "shardlist": []}',
        '{"wids_version": 1, "shardlist": {}}',
        '{"wids_version": 1, "shardlist": [1]}',
        '{"wids_version": 1, "shardlist": [{"nsamples": 1}]}',
        '{"wids_version": 1, "shardlist": [{"url": "a\\u0000", "nsamples": 1}]}',
        '{"wids_version": 1, "shardlist": [{"url": "a", "nsamples": -1}]}',
        '{"wids_version": 1, "shardlist": [{"url": "a", "nsamples": true}]}',
        '{"wids_version": 1, "shardlist": [{"url": "a", "nsamples": 1e3}]}',
        '{"wids_version": 1, "datasets": [{}]}',
        '{"wids_version": 1, "datasets": [{"source_url": "x.json"}]}',
        '{"wids_version": 1, "base": 7, "shardlist": []}',
        "[" * 100_000,
    ],
    ids=lambda text: text[:60],
)
def test_what_is_no_shard_list_is_refused(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)  # the list that names itself is one inside another
    with pytest.raises(fastshard.FormatError) as caught:
        read_wids(str(path))
    assert caught.value.path == str(path)
