"""Windows copied from resident maps, and those that are read as pieces instead."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import fastshard
from fastshard._core.loader.tokens import TokenTable
from fastshard.errors import FormatError, StaleIndexError
from fastshard.index import freshness
from support.builders import npy
from support.inside.datasets import (
    locator_of,
    table_of_windows,
)
from support.memory import cached, evict
from support.tars import write_tar

COUNT = 300
PER_SHARD = 100
LENGTH = 65


def make_documents(count=COUNT):
    rng = np.random.default_rng(8)
    return [rng.integers(1, 60_000, n).astype("u2") for n in rng.integers(0, 40, count)]


def write_documents(folder, documents, names=None):
    folder.mkdir()
    names = names or [f"{i:05}" for i in range(len(documents))]
    for start in range(0, len(documents), PER_SHARD):
        members = {}
        for i in range(start, min(start + PER_SHARD, len(documents))):
            members[f"{names[i]}.npy"] = npy(documents[i])
            members[f"{names[i]}.bin"] = documents[i].tobytes()
        write_tar(folder / f"t-{start:05}.tar", members)
    return folder


@pytest.fixture(scope="module")
def documents():
    return make_documents()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, documents):
    found = write_documents(tmp_path_factory.mktemp("windows") / "d", documents)
    fastshard.build_index(found)
    return found


def table_of(ds, field="bin"):
    """The table of a dataset's tokens."""
    windows = ds.tokens(field, LENGTH, dtype="u2")
    return table_of_windows(windows)


def gather(table, starts, length=LENGTH):
    """Windows, and whether they were copied from resident maps."""
    out = np.zeros((len(starts), length), "u2")
    copied = table.gather_stream(np.asarray(starts, "i8"), length, out)
    return out, copied


def check(table, documents, copied):
    """Compare windows at random tokens with the concatenated documents."""
    flat = np.concatenate(documents)
    rng = np.random.default_rng(len(documents))
    for length in (1, 7, LENGTH, 1500):
        starts = rng.integers(0, len(flat) - length, 30)
        found, was_copied = gather(table, starts, length)
        for row, start in zip(found, starts, strict=True):
            assert (row == flat[start : start + length]).all()
        assert was_copied is copied


@pytest.mark.parametrize("field", ["npy", "bin"])
@pytest.mark.parametrize("indexed", [False, True])
def test_resident_shards_are_copied_at_once(folder, documents, field, indexed):
    with fastshard.open(folder, index="auto" if indexed else "none") as ds:
        check(table_of(ds, field), documents, True)
        part = ds[::-3]
        check(table_of(part, field), documents[::-3], True)
        table = table_of(ds, field)
        assert table.gather_stream(np.array([5, 900]), LENGTH, None, page_in=True)
        rows = table.pack(50, 10_000)
        out = np.empty((rows.count, 50), "u2")
        assert table.gather_rows(np.arange(rows.count), rows, out)
        assert np.sort(out[out > 0]).tolist() == sorted(np.concatenate(documents))


@pytest.mark.parametrize(
    "options", [{"mode": "pread"}, {"max_memory": "1MiB"}], ids=["pread", "ring"]
)
def test_other_shards_are_read_as_pieces(folder, documents, options):
    with fastshard.open(folder, **options) as ds:
        check(table_of(ds), documents, False)


def test_pages_that_are_not_resident_are_read(tmp_path):
    documents = make_documents()
    folder = write_documents(tmp_path / "d", documents)
    paths = sorted(folder.glob("*.tar"))
    fastshard.build_index(folder)
    with fastshard.open(folder) as ds:
        table = table_of(ds)  # of the index alone
        evict(*paths)
        gone = [cached(path) < path.stat().st_size for path in paths]
        found, copied = gather(table, [0, 5000])
        assert copied is not any(gone)
        assert (found[1] == np.concatenate(documents)[5000 : 5000 + LENGTH]).all()


def damaged_table(ds, change, raw=True, members=None):
    """A table of ``bin`` documents, the 150th of another length than its member."""
    known = [len(sample["bin"]) // 2 for sample in ds]
    known[150] += change
    places = np.arange(1, 2 * PER_SHARD, 2, "u4")
    places = np.tile(places, COUNT // PER_SHARD) if members is None else members
    return TokenTable(locator_of(ds), "bin", np.array(known), places, 2, b"", raw), sum(
        known[:150]
    )


@pytest.mark.parametrize(
    ("change", "raw"), [(1, True), (-1, True), (1, False), (2**40, False)]
)
def test_a_member_of_another_size_is_named(folder, documents, change, raw):
    with fastshard.open(folder) as ds:
        table, start = damaged_table(ds, change, raw)
        found, copied = gather(table, [0, 500])
        assert copied
        assert (found[0] == np.concatenate(documents)[:LENGTH]).all()
        out = np.zeros((4, LENGTH), "u2")
        with pytest.raises(FormatError, match="as counted before") as caught:
            table.gather_stream(np.array([7, start - 3]), LENGTH, out[1:3])
        assert not out[0].any()
        assert not out[3].any()
        assert caught.value.member == "00150.bin"
        assert caught.value.path.endswith("t-00100.tar")
        with fastshard.open_shard(caught.value.path) as shard:
            assert caught.value.offset == shard.offsets[101]


def test_members_beyond_the_shard_are_an_error(folder):
    with fastshard.open(folder) as ds:
        members = np.full(COUNT, 2**32 - 1, "u4")
        table, _ = damaged_table(ds, 0, members=members)
        with pytest.raises(FormatError, match="fewer members"):
            gather(table, [0])


@pytest.mark.parametrize("column", ["offsets", "sizes"])
@pytest.mark.parametrize("value", [2**64 - 1, 2**64 - 2**20, 2**63, 1 << 40])
def test_extents_that_change_under_the_map_are_checked(
    tmp_path, documents, column, value
):
    """An index that another process writes to is mapped: each use is checked."""
    write_documents(tmp_path / "d", documents)
    fastshard.build_index(tmp_path / "d")
    path = tmp_path / "d" / f"t-{PER_SHARD:05}.tar"
    with fastshard.open(tmp_path / "d") as ds:
        table = table_of(ds)
        with fastshard.open_shard(path) as shard:
            numbers = getattr(shard, column)
        raw = path.with_suffix(".fsi").read_bytes()
        at = raw.index(numbers.tobytes())
        check(table, documents, True)
        with path.with_suffix(".fsi").open("r+b") as file:
            file.seek(at + 8 * 101)
            file.write(value.to_bytes(8, "little"))
        start = sum(map(len, documents[:150]))
        with pytest.raises(FormatError) as caught:
            gather(table, [0, start])
        assert caught.value.member == "00150.bin"
        assert caught.value.path == str(path)


@pytest.mark.parametrize("field", ["npy", "bin"])
def test_a_file_truncated_under_the_map_is_an_error(tmp_path, documents, field):
    folder = write_documents(tmp_path / "d", documents)
    with fastshard.open(folder, check_size=True) as ds:
        table = table_of(ds, field)
        check(table, documents, True)
        path = folder / "t-00000.tar"
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2)
        with pytest.raises(FormatError, match="truncated") as caught:
            gather(table, [100])
        assert caught.value.path == str(path)
        assert caught.value.member.endswith(field)
        start = sum(map(len, documents[:PER_SHARD]))
        assert gather(table, [start])[1]  # in another shard


def test_headers_of_a_copied_shard_are_compared(tmp_path, documents, monkeypatch):
    monkeypatch.setattr(freshness, "random_positions", lambda count: [])
    names = [f"{i:05}" for i in range(COUNT)]
    folder = write_documents(tmp_path / "d", documents)
    fastshard.build_index(folder)
    copy = shutil.copytree(folder, tmp_path / "copy", copy_function=shutil.copy)
    with fastshard.open(copy) as ds:
        check(table_of(ds), documents, True)
    lengths = [len(document) for document in documents]
    one, other = next(
        (i, k)
        for i in range(PER_SHARD + 20, PER_SHARD + 80)
        for k in range(i + 1, PER_SHARD + 80)
        if 2 < lengths[i] == lengths[k]
    )
    swapped = [*documents]
    swapped[one], swapped[other] = documents[other], documents[one]
    names[one], names[other] = names[other], names[one]
    for path in write_documents(tmp_path / "e", swapped, names).glob("*.tar"):
        shutil.copy(path, copy)  # of the same size
    with fastshard.open(copy, index=copy) as ds:
        table = table_of(ds)
        assert gather(table, [0])[1]
        for _ in range(2):
            with pytest.raises(StaleIndexError, match=f"no member '{one:05}.bin'"):
                gather(table, [0, sum(lengths[:one])])


def test_threads_gather_together(folder, documents):
    flat = np.concatenate(documents)
    with fastshard.open(folder) as ds:
        table = table_of(ds)

        def work(seed):
            starts = np.random.default_rng(seed).integers(0, len(flat) - LENGTH, 64)
            found, _ = gather(table, starts)
            return (found == flat[starts[:, None] + np.arange(LENGTH)]).all()

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(work, range(100)))


def test_lengths_of_windows_are_checked(folder):
    with fastshard.open(folder) as ds:
        table = table_of(ds)
        for length in (0, -1, 2**31, 2**62):
            with pytest.raises(ValueError, match="windows of"):
                table.gather_stream(np.array([0, 1]), length, None, page_in=True)
