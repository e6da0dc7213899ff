"""Columns of many rows at once, in `Dataset.columns` and in batches."""

from array import array

import numpy as np
import pytest

import fastshard
from fastshard import FieldNotFoundError, FormatError, RaggedError
from fastshard.streaming import MDSWriter
from support.memory import evict
from support.servers.http import Server

COUNT = 600
TYPES = {
    "a": ("int", lambda i: i * 3 - 1),
    "b": ("str", lambda i: "text" * (i % 7)),
    "c": ("float16", lambda i: np.float16(i / 4)),
    "d": ("ndarray", lambda i: (np.arange(6) + i).astype("u2").reshape(2, 3)),
    "e": ("bytes", lambda i: bytes(i % 5)),
    "f": ("ndarray:int8:3", lambda i: np.array([i % 100, 1, 2], "i1")),
    "g": ("uint8", lambda i: np.uint8(i % 256)),
    "h": ("ndarray:float64", lambda i: np.full((2,), i / 3)),
    "i": ("ndarray:int8", lambda i: np.zeros(1 + i % 2, "i1")),
}
STACKED = ["a", "c", "d", "f", "g", "h"]


def write(path, names, count=COUNT):
    columns = {name: TYPES[name][0] for name in names}
    with MDSWriter(out=str(path), columns=columns, size_limit=4_000) as writer:
        for i in range(count):
            writer.write({name: TYPES[name][1](i) for name in names})
    return path


def expected(name, positions):
    values = [TYPES[name][1](i) for i in positions]
    dtype = np.int64 if name == "a" else None
    return np.stack([np.asarray(value, dtype) for value in values])


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    return write(tmp_path_factory.mktemp("columns") / "mixed", list(TYPES))


@pytest.fixture(scope="module")
def fixed(tmp_path_factory):
    return write(tmp_path_factory.mktemp("columns") / "fixed", ["a", "c", "f", "g"])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mode": "private"},
        {"mode": "pread"},
        {"max_memory": "64KiB"},
        {"prefetch": False},
        {"max_mapped": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["mixed", "fixed"])
def test_columns_equal_those_of_single_samples(request, kind, options):
    path = request.getfixturevalue(kind)
    names = [name for name in STACKED if kind == "mixed" or name in "acfg"]
    rng = np.random.default_rng(1)
    with fastshard.open(path, **options) as ds:
        assert len(ds.shards) > 2
        for positions in (rng.integers(0, COUNT, 300), [5], [-1, 0, -COUNT]):
            found = ds.columns(positions, names[::-1])
            batch = fastshard.collate(ds.select_fields(*names).get_many(positions))
            assert list(found) == names[::-1]
            for name in names:
                column = expected(name, np.asarray(positions) % COUNT)
                np.testing.assert_array_equal(found[name], column, strict=True)
                np.testing.assert_array_equal(batch[name], column, strict=True)
        shuffled = ds.shuffle(3)
        keys = [int(sample.key) for sample in shuffled]
        np.testing.assert_array_equal(
            shuffled.columns(range(COUNT), "a")["a"], expected("a", keys)
        )
        for positions in ([COUNT], [0, -COUNT - 1]):
            with pytest.raises(IndexError, match="out of range"):
                ds.columns(positions, names)


def test_rows_that_are_not_cached_are_paged_in(fixed):
    for path in fixed.glob("*.mds"):
        evict(path)
    with fastshard.open(fixed) as ds:
        found = ds.columns(range(COUNT), ["a", "g"])
    np.testing.assert_array_equal(found["g"], expected("g", range(COUNT)), strict=True)


def test_values_are_lists_and_ragged_arrays_are_told(mixed):
    with fastshard.open(mixed) as ds:
        found = ds.columns(iter([3, 4]), ["e", "a", "b"])
        assert list(found) == ["e", "a", "b"]
        assert list(found["b"]) == [TYPES["b"][1](3), TYPES["b"][1](4)]
        assert [bytes(value) for value in found["e"]] == [bytes(3), bytes(4)]
        assert found["a"].tolist() == [8, 11]
        with pytest.raises(RaggedError, match=r"'i'.*sample '3'"):
            ds.columns([3, 5, 4], ["a", "i"])
        found = ds.columns([3, 5, 4], ["a", "i"], ragged="list")
        assert [len(array) for array in found["i"]] == [2, 2, 1]
        assert found["a"].tolist() == [8, 14, 11]
        batch = fastshard.collate([ds[3], ds[4]], ragged="pad")
        assert batch["i"].shape == (2, 2)
        assert batch["__lengths__"]["i"].tolist() == [[2], [1]]
        assert batch["__lengths__"]["d"].tolist() == [[2, 3]] * 2
        with pytest.raises(FieldNotFoundError, match="z"):
            ds.columns([3], ["a", "z"])
        with pytest.raises(FieldNotFoundError, match="a"):
            ds.select_fields("c").columns([3], "a")


def test_decoders_of_the_user_come_first(fixed):
    with fastshard.open(fixed, decoders={"g": lambda view: view[0] + 1000}) as ds:
        assert ds.columns([3, 4], "g")["g"].tolist() == [1003, 1004]
        assert fastshard.collate([ds[3], ds[4]])["g"].tolist() == [1003, 1004]
        raw = ds.columns([3, 4], {"f": "u1"})["f"]
        assert raw.tolist() == [[3, 1, 2], [4, 1, 2]]


def test_stacks_are_written_to_given_arrays(fixed):
    out = {"a": np.zeros(8, np.int64), "f": np.zeros((3, 8), "i1").T}
    with fastshard.open(fixed) as ds:
        batch = fastshard.collate([ds[7], ds[500]], out=out)
    assert np.shares_memory(batch["a"], out["a"])
    assert np.shares_memory(batch["f"], out["f"])
    for name in "acfg":
        np.testing.assert_array_equal(batch[name], expected(name, [7, 500]))


@pytest.mark.parametrize("mode", ["mmap", "pread"])
@pytest.mark.parametrize("word", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x00"])
def test_a_damaged_row_is_an_error_at_its_sample(tmp_path, mode, word):
    path = write(tmp_path / "d", ["a", "d", "e"], 20) / "shard.00000.mds"
    data = bytearray(path.read_bytes())
    start = int.from_bytes(data[4 + 4 * 11 : 8 + 4 * 11], "little")
    data[start : start + 4] = word
    path.write_bytes(data)
    with fastshard.open(path.parent, mode=mode) as ds:
        assert ds.columns([10, 12], "a")["a"].tolist() == [29, 35]
        for fields in ("a", ["a", "d"]):
            with pytest.raises(FormatError, match="sample 11") as caught:
                ds.columns([10, 11, 12], fields)
            assert caught.value.path == str(path)
            assert caught.value.offset >= start


def test_a_damaged_array_is_an_error_at_its_column(tmp_path):
    path = write(tmp_path / "d", ["d"], 20) / "shard.00000.mds"
    data = bytearray(path.read_bytes())
    start = int.from_bytes(data[4 + 4 * 11 : 8 + 4 * 11], "little")
    data[start + 4] = 255  # the code of the dtype
    path.write_bytes(data)
    with fastshard.open(path.parent) as ds:
        for positions in ([11, 12], [10, 11]):
            with pytest.raises(FormatError, match="sample 11, column 'd'") as caught:
                ds.columns(positions, "d")
            assert caught.value.path == str(path)


def test_rows_of_a_server_are_read_in_few_requests(mixed):
    files = {f"/d/{path.name}": path.read_bytes() for path in mixed.iterdir()}
    positions = list(range(0, COUNT, 3))
    with Server(files) as server, fastshard.open(f"{server.url}/d") as ds:
        shards = len(ds.shards)
        found = ds.columns(positions, ["a", "b", "d"])
        few = len(server.requests)
        assert few <= 2 * shards + 2  # the mark, the index, heads, rows
        batches = list(ds.select_fields("a", "d")[positions].batches(100))
        for name in "ad":
            column = expected(name, positions)
            np.testing.assert_array_equal(found[name], column, strict=True)
            stacked = np.concatenate([batch[name] for batch in batches])
            np.testing.assert_array_equal(stacked, column, strict=True)
        assert len(server.requests) <= few + shards


def test_batches_have_the_values_of_single_samples(mixed):
    with fastshard.open(mixed) as ds:
        few = ds.select_fields("b", "e", "a")
        (batch,) = few[5:30].batches(25)
        assert list(batch) == ["__key__", "b", "e", "a"]
        for name in "be":
            assert batch[name] == [TYPES[name][1](i) for i in range(5, 30)]
        own = fastshard.open(mixed, decoders={"b": lambda view: len(view)})
        (batch,) = own[5:30].batches(25, ragged="list")
        assert batch["b"].tolist() == [len(TYPES["b"][1](i)) for i in range(5, 30)]


@pytest.mark.parametrize(
    "kind", [np.int64, np.int32, np.uint16, ">i8", "strided", list, "i8 array"]
)
def test_positions_of_any_kind_find_the_same_rows(fixed, kind):
    chosen = np.array([5, 0, 599, 5, 300])
    if kind == "strided":
        positions = np.repeat(chosen, 2)[::2]
    elif kind == "i8 array":
        positions = array("q", chosen)
    else:
        positions = chosen.tolist() if kind is list else chosen.astype(kind)
    with fastshard.open(fixed) as ds:
        found = ds.columns(positions, ["g", "a"])
        assert list(found) == ["g", "a"]
        for name, column in found.items():
            assert column.flags.owndata
            assert column.flags.writeable
            np.testing.assert_array_equal(column, expected(name, chosen), strict=True)


@pytest.mark.parametrize("bad", [COUNT, -COUNT - 1, 1 << 62, -(1 << 62)])
@pytest.mark.parametrize("kind", [list, np.array])
def test_a_position_out_of_range_is_an_error(fixed, kind, bad):
    with fastshard.open(fixed) as ds, pytest.raises(IndexError, match=str(bad)):
        ds.columns(kind([0, bad, 1]), ["a", "c"])


def test_rows_of_more_shards_than_a_batch_remembers(tmp_path):
    with MDSWriter(out=str(tmp_path), columns={"a": "int"}, size_limit=150) as writer:
        for i in range(COUNT):
            writer.write({"a": i})
    with fastshard.open(tmp_path) as ds:
        assert len(ds.shards) > 100
        chosen = np.random.default_rng(2).permutation(COUNT)
        np.testing.assert_array_equal(ds.columns(chosen, "a")["a"], chosen)
