"""Lengths of ``.npy`` documents in a ``.fsi``: read once, checked, ignored if stale."""

import os

import numpy as np
import pytest

import fastshard
from fastshard.dataset import tokens
from fastshard.index.binary import read_binary
from fastshard.index.document_column import read_lengths, write_lengths
from support.builders import npy
from support.tars import write_tar

COUNT = 40


@pytest.fixture
def folder(tmp_path):
    write(tmp_path, range(COUNT))
    fastshard.build_index(tmp_path)
    return tmp_path


def write(folder, lengths, dtype="u2"):
    members = {f"{i:03}.npy": npy(np.full(n, i, dtype)) for i, n in enumerate(lengths)}
    members |= {f"{i:03}.a.npy": npy(np.arange(3, dtype="i8")) for i in range(COUNT)}
    return write_tar(folder / "t.tar", members)


def window_count(folder, field="npy", **options):
    with fastshard.open(folder, **options) as ds:
        windows = ds.tokens(field, 10)
        found = [window.tolist() for window in windows]
    return len(found), found


def header_reads(monkeypatch):
    """Count the documents whose headers are read."""
    counts = []
    read = tokens.read_shard_column

    def counted(samples, positions, *rest):
        counts.append(len(positions))
        return read(samples, positions, *rest)

    monkeypatch.setattr(tokens, "read_shard_column", counted)
    return counts


def test_headers_are_read_once(folder, monkeypatch):
    reads = header_reads(monkeypatch)
    first = window_count(folder)
    assert reads == [COUNT]
    assert window_count(folder) == first
    assert reads == [COUNT, tokens.PROBES]
    assert window_count(folder, "a.npy")[0] == (3 * COUNT - 10) // 9 + 1
    assert window_count(folder, "a.npy")[0] == (3 * COUNT - 10) // 9 + 1
    assert window_count(folder) == first
    assert reads[2:] == [COUNT, tokens.PROBES, tokens.PROBES]
    with fastshard.open(folder) as ds:
        part = ds[[9, 3, 30]].tokens("npy", 10)
        assert part[1].tolist() == [3] * 3 + [30] * 7
        assert reads[5:] == [3]


def test_the_index_is_otherwise_the_same(folder):
    path = folder / "t.fsi"
    with fastshard.open_shard(folder / "t.tar") as shard:
        before = shard.names[:], shard.offsets.tolist(), shard.samples.key_at(7)
    window_count(folder)
    index = read_binary(str(path))
    assert index.find_damage() == []
    with fastshard.open_shard(folder / "t.tar", index=str(path)) as shard:
        assert before == (
            shard.names[:],
            shard.offsets.tolist(),
            shard.samples.key_at(7),
        )
        assert shard.info(3) == {}
    with fastshard.open(folder) as ds:
        assert ds.verify() == []


def test_infos_stay_readable(folder):
    fastshard.build_index(folder, hashes=True)
    with fastshard.open_shard(folder / "t.tar") as shard:
        infos = [dict(shard.info(i)) for i in range(len(shard))]
    assert infos[0]
    window_count(folder)
    window_count(folder, "a.npy")
    with fastshard.open_shard(folder / "t.tar") as shard:
        assert [dict(shard.info(i)) for i in range(len(shard))] == infos
        mark = shard.fingerprint
    assert read_lengths(str(folder / "t.fsi"), "npy", mark, COUNT, False) is not None


def test_a_new_shard_is_read_anew(folder):
    window_count(folder)
    write(folder, reversed(range(COUNT)))
    fastshard.build_index(folder)
    expected = window_count(folder, index="none")
    assert window_count(folder) == window_count(folder) == expected


def test_other_headers_of_the_same_size_are_seen(folder):
    window_count(folder)
    path = folder / "t.tar"
    data = path.read_bytes()
    start = data.index(b"\x93NUMPY", 512 * 3)
    status = os.stat(path)
    path.write_bytes(data.replace(b"'<u2'", b"'<i2'"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert start > 0
    with fastshard.open(folder) as ds:
        assert ds.tokens("npy", 10).dtype == np.dtype("i2")


def test_every_flipped_byte_of_the_column_is_ignored_or_refused(folder):
    expected = window_count(folder)
    path = folder / "t.fsi"
    good = path.read_bytes()
    with fastshard.open_shard(folder / "t.tar") as shard:
        mark = shard.fingerprint
    column = read_lengths(str(path), "npy", mark, COUNT, False)
    places = [*range(196, 256), *range(len(good) - 380, len(good))]
    for at in places[::5]:
        bad = bytearray(good)
        bad[at] ^= 0x41
        path.write_bytes(bad)
        assert read_lengths(str(path), "npy", mark, COUNT, False) in (None, column)
    for size in range(0, len(good), 397):
        path.write_bytes(good[:size])
        assert read_lengths(str(path), "npy", mark, COUNT, False) is None
        assert not write_lengths(str(path), "npy", mark, False, "<u2", bytes(8 * COUNT))
    path.write_bytes(good)
    assert window_count(folder) == expected


def test_wrong_lengths_with_right_checksums_are_seen(folder):
    expected = window_count(folder)
    path = str(folder / "t.fsi")
    with fastshard.open_shard(folder / "t.tar") as shard:
        mark = shard.fingerprint
    for lengths in (np.full(COUNT, 2**63 + 5, "<u8"), np.full(COUNT, 1, "<u8")):
        assert write_lengths(path, "npy", mark, False, "<u2", lengths.tobytes())
        assert window_count(folder) == expected
    for dtype in ("<u4", "O", "nonsense"):
        stored = np.zeros(COUNT, "<u8").tobytes()
        assert write_lengths(path, "npy", mark, False, dtype, stored)
        assert window_count(folder) == expected


def test_a_read_only_index_is_left_alone(folder, monkeypatch):
    path = folder / "t.fsi"
    before = path.read_bytes()
    monkeypatch.setattr(os, "access", lambda *_: False)
    first = window_count(folder)
    assert path.read_bytes() == before
    assert window_count(folder) == first


def test_without_an_index_none_is_made(tmp_path):
    write(tmp_path, range(COUNT))
    window_count(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["t.tar"]
