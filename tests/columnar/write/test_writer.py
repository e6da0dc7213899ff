"""Columnar writers: the bytes of shards and the rows of the index."""

import io
import itertools
import os
import sqlite3

import numpy as np
import pytest

from fastshard.columnar.write.writer import ShardedDatasetWriter
from fastshard.errors import ClosedError, FormatError
from support.columnar.stored import read_all, read_members, sql

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")


def arrays_equal(one, other):
    assert one.keys() == other.keys()
    for field in one:
        np.testing.assert_array_equal(one[field], other[field], strict=True)


# ------------------------------------------------------------- what is stored


def test_samples_read_back(writer, root):
    expected = {}
    for i in range(11):
        arrays = {"a": np.arange(i, dtype="f4"), "b": np.full((2, i), i)}
        if i % 3 == 0:
            del arrays["b"]
        id_ = writer.add_sample(arrays, metadata={"i": i})
        assert id_ == f"sample_{i + 1:012d}"
        expected[id_] = ({"i": i}, arrays)
    writer.close()
    found = read_all(root)
    assert list(found) == list(expected)
    for id_, (metadata, arrays) in expected.items():
        assert found[id_][0] == metadata
        arrays_equal(found[id_][1], arrays)
    assert sql(root, "SELECT name, num_shards FROM fields") == [("a", 3), ("b", 2)]


STORED = {
    "0-d": np.array(3.5),
    "empty": np.empty((0, 3), "i2"),
    "fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "transposed": np.arange(24).reshape(2, 3, 4).transpose(1, 0, 2),
    "strided": np.arange(20)[::3],
    "backwards": np.arange(5)[::-1],
    "big-endian": np.arange(5, dtype=">i4"),
    "bool": np.array([True, False]),
    "complex": np.array([1 + 2j]),
    "half": np.arange(3, dtype="f2"),
    "longdouble": np.arange(3, dtype="g"),
    "datetime": np.array(["2020-01-01", "NaT"], "M8[D]"),
    "timedelta": np.array(5, "m8[us]"),
    "datetime fortran": np.asfortranarray(np.zeros((2, 3), "M8[s]")),
    "bytes": np.array([b"abc", b"d"]),
    "text": np.array(["é", "日本"]),
    "void": np.zeros(2, "V5"),
    "structured": np.array([(1, 2.5)], [("x", "i4"), ("y", ">f8", (1,))]),
    "aligned": np.zeros(3, np.dtype([("x", "i1"), ("y", "f8")], align=True)),
    "nested": np.zeros(2, [("p", [("q", "M8[s]"), ("r", "U3")])]),
    "names": np.zeros(2, [("日", "i4")]),
    "names fortran": np.asfortranarray(np.zeros((2, 3), [("日", "i4")])),
    "long header": np.zeros(1, [(f"field_{i:05d}", "i1") for i in range(4000)]),
    "broadcast": np.broadcast_to(np.float32(2), (3, 4)),
    "read-only": np.frombuffer(b"12345678", "i4"),
    "many dimensions": np.zeros((1,) * 32),
    "large": np.arange(500_000.0),
}


@pytest.mark.parametrize("array", STORED.values(), ids=STORED)
@pytest.mark.filterwarnings("ignore:Stored array in format")
def test_bytes_are_those_of_np_save(writer, root, array):
    expected = io.BytesIO()
    np.save(expected, array, allow_pickle=False)
    for name in ("x", "y"):  # the second header comes from the cache
        writer.add_sample({"a": array}, name)
    writer.close()
    stored = read_members(root / "a_shards" / "shard_0000.tar")
    assert [name for name, _, _ in stored] == ["x.npy", "y.npy"]
    assert {data for _, _, data in stored} == {expected.getvalue()}
    offsets = [offset for _, offset, _ in stored]
    assert [(at,) for at in offsets] == sql(root, "SELECT a_offset FROM samples")


def test_one_shape_after_another(writer, root):
    """The cached header of one array is not used for another."""
    arrays = [
        np.zeros((2, 3), "f4"),
        np.zeros((3, 2), "f4"),
        np.zeros((2, 3), "i4"),
        np.zeros((3, 2), "i4").T,
        np.zeros((2, 6), "i4")[:, ::2],
        np.zeros((2, 3), "i4"),
        np.zeros((2, 3), ">i4"),
        np.array(0, "i4"),
        [[0, 0, 0], [0, 0, 0]],
        np.zeros((2, 3), "m8[s]"),
    ]
    for array in itertools.chain(arrays, reversed(arrays)):
        writer.add_sample({"a": array})
    writer.close()
    found = [sample["a"] for _, sample in read_all(root).values()]
    for array, other in zip(itertools.chain(arrays, reversed(arrays)), found, strict=1):
        np.testing.assert_array_equal(np.asarray(array), other, strict=True)


IDS = [
    "a",
    "a/b/c",
    "/abs",
    "../up",
    "dir/",
    "é",
    "日本語" * 40,
    "x" * 96,
    "x" * 97,
    "d" * 90 + "/" + "x" * 90,
    "x" * 5000,
    "new\nline",
    " blank ",
    "quote'\"",
    "🎉",
    "a.npy",
    ".",
    "sample_000000000001",
]


def test_ids_of_any_kind(writer, root):
    for i, id_ in enumerate(IDS):
        assert writer.add_sample({"a": np.array(i)}, id_) == id_
    writer.close()
    found = read_all(root)
    assert list(found) == IDS
    assert [int(sample["a"]) for _, sample in found.values()] == [*range(len(IDS))]


@pytest.mark.parametrize("id_", ["", "a\0b", "\ud800"])
def test_invalid_ids(writer, id_):
    with pytest.raises(ValueError, match="sample's id"):
        writer.add_sample({}, id_)
    with pytest.raises(ValueError, match="sample's id"):
        writer.register_samples(["good", id_])
    with pytest.raises(TypeError, match="a str, got int"):
        writer.add_sample({}, 5)
    assert writer.conn.execute("SELECT count(*) FROM samples").fetchone() == (0,)


def test_a_taken_id_is_refused_and_leaves_no_bytes(writer, root):
    writer.add_sample({"a": np.arange(3)}, "x")
    with pytest.raises(ValueError, match=r"update_sample"):
        writer.add_sample({"a": np.arange(4), "b": np.arange(4)}, "x")
    writer.add_sample({"a": np.arange(5)}, "y")
    writer.close()
    assert [
        name for name, *_ in read_members(root / "a_shards" / "shard_0000.tar")
    ] == [
        "x.npy",
        "y.npy",
    ]
    assert list(read_all(root)) == ["x", "y"]


def test_generated_ids_skip_existing_ones(writer, root):
    for number in (1, 2, 4):
        writer.add_sample({"a": np.arange(number)}, f"sample_{number:012d}")
    made = [writer.add_sample({"a": np.arange(9)}) for _ in range(2)]
    assert made == ["sample_000000000003", "sample_000000000005"]
    writer.close()
    assert sql(root, "SELECT value FROM counters WHERE name = 'sample_id'") == [(5,)]
    with ShardedDatasetWriter(root) as again:
        assert again.add_sample({}) == "sample_000000000006"
    assert len(read_all(root)) == 6


# ------------------------------------------------------------- continuing


def test_a_shard_is_continued_until_it_is_full(root):
    for session in range(6):
        with ShardedDatasetWriter(root, samples_per_shard=4) as writer:
            writer.add_field("a")
            for _ in range(3):
                writer.add_sample({"a": np.array(session)})
    found = read_all(root)
    values = [int(sample["a"]) for _, sample in found.values()]
    assert values == [session for session in range(6) for _ in range(3)]
    counts = sql(root, "SELECT a_shard, count(*) FROM samples GROUP BY 1")
    assert counts == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 2)]


def test_update_sample(writer, root):
    for i in range(3):
        writer.add_sample({"a": np.array(i), "b": np.array(i)}, str(i), {"i": i})
    writer.update_sample("1", {"b": np.array(10)})
    writer.update_sample("2", {"a": np.array(20)}, {"new": True})
    writer.update_sample("0", {}, {})
    with pytest.raises(ValueError, match=r"no sample 'x': use add_sample"):
        writer.update_sample("x", {"a": np.array(1)})
    with pytest.raises(ValueError, match="no sample"):
        writer.update_sample("x", {})
    writer.close()
    found = read_all(root)
    assert [meta for meta, _ in found.values()] == [{}, {"i": 1}, {"new": True}]
    assert [int(s["a"]) for _, s in found.values()] == [0, 1, 20]
    assert [int(s["b"]) for _, s in found.values()] == [0, 10, 2]


def test_register_samples(writer, root):
    writer.add_sample({}, "y", {"old": 1})
    writer.register_samples(["x", "y"], [{"x": 1}, {"y": 1}])
    writer.register_samples(["z"])
    with pytest.raises(ValueError, match="equally long, got 2 and"):
        writer.register_samples(["p", "q"], [{}])
    with pytest.raises(ValueError, match="metadata"):
        writer.register_samples(["p", "q"], [{}, {"x": float("nan")}])
    rows = sql(root, "SELECT id, meta_json FROM samples")
    assert rows == [("y", '{"old": 1}'), ("x", '{"x": 1}'), ("z", "{}")]


def test_a_metadata_column(writer, root):
    writer.add_sample({}, metadata={"length": 5, "it's": {"x": "é"}})
    writer.add_metadata_column("length", "$.length", "INTEGER")
    writer.add_metadata_column("deep", '$."it\'s".x')
    writer.add_sample({}, metadata={"length": 7})
    writer.close()
    rows = sql(root, "SELECT length, deep FROM samples")
    assert rows == [(5, "é"), (7, None)]
    plan = sql(root, "EXPLAIN QUERY PLAN SELECT id FROM samples WHERE length > 6")
    assert "INDEX" in plan[0][-1]
    with ShardedDatasetWriter(root) as again:
        again.add_metadata_column("typed", "$.length", int)
        with pytest.raises(ValueError, match="already"):
            again.add_metadata_column("length", "$.length")
        with pytest.raises(ValueError, match="type"):
            again.add_metadata_column("other", "$.x", bytes)
        for bad in ["length", "$[", "$.a\0b"]:
            with pytest.raises(ValueError, match="path"):
                again.add_metadata_column("other", bad)
        with pytest.raises(ValueError, match="type"):
            again.add_metadata_column("other", "$.x", "BLOB) --")
        with pytest.raises(ValueError, match="_shard"):
            again.add_metadata_column("x_shard", "$.x")
        again.add_sample({}, metadata={"length": 9})
    assert sql(root, "SELECT max(length) FROM samples") == [(9,)]


# ------------------------------------------------------------- the connection


def test_a_commit_of_the_connection_stores_the_arrays_first(writer, root):
    for i, end in enumerate(
        [
            writer.conn.commit,
            lambda: writer.conn.execute("COMMIT"),
            lambda: writer.conn.execute("/* x */ -- y\n ; end transaction"),
            lambda: writer.conn.cursor().execute("commit"),
            lambda: writer.conn.executescript("SELECT 1"),
            lambda: writer.conn.__exit__(None, None, None),
        ]
    ):
        writer.add_sample({"a": np.array(i)})
        assert len(read_all(root)) == i
        end()
        assert len(read_all(root)) == i + 1
    assert not writer.conn.in_transaction


def test_a_savepoint_that_commits(writer, root):
    writer.conn.isolation_level = None
    writer.conn.execute("SAVEPOINT mine")
    writer.add_sample({"a": np.array(1)})
    writer.conn.execute("RELEASE mine")
    assert len(read_all(root)) == 1


def test_without_an_isolation_level_nothing_is_committed_early(writer, root):
    writer.conn.isolation_level = None
    writer.add_sample({"a": np.array(1)})
    assert read_all(root) == {}
    writer.flush()
    assert len(read_all(root)) == 1


def test_a_rollback_removes_rows(writer, root):
    writer.add_sample({"a": np.array(1)}, "x")
    writer.flush()
    writer.add_sample({"a": np.array(2)}, "y")
    writer.conn.rollback()
    writer.add_sample({"a": np.array(3)}, "z")
    writer.close()
    assert list(read_all(root)) == ["x", "z"]


def test_columns_added_by_the_user(writer, root):
    writer.conn.execute("ALTER TABLE samples ADD COLUMN length INTEGER")
    writer.conn.execute("CREATE INDEX idx_length ON samples(length)")
    id_ = writer.add_sample({"a": np.arange(3)})
    writer.conn.execute("UPDATE samples SET length = 3 WHERE id = ?", (id_,))
    writer.close()
    assert sql(root, "SELECT length FROM samples") == [(3,)]


def test_closing_the_connection_closes_the_writer(writer, root):
    writer.add_sample({"a": np.arange(3)})
    writer.conn.close()
    assert writer.closed
    assert len(read_all(root)) == 1


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER INSERT ON samples BEGIN DELETE FROM fields; END",
        "CREATE TRIGGER t AFTER UPDATE ON counters BEGIN DELETE FROM fields; END",
    ],
)
def test_an_index_with_triggers_is_refused(writer, root, statement):
    writer.close()
    conn = sqlite3.connect(root / "index.sqlite")
    conn.execute(statement)
    conn.close()
    with pytest.raises(FormatError, match="trigger"):
        ShardedDatasetWriter(root)


def test_a_file_that_is_not_an_index_is_refused(tmp_path):
    (tmp_path / "index.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(FormatError):
        ShardedDatasetWriter(tmp_path)
    assert not (tmp_path / "index.sqlite-wal").exists()


# ------------------------------------------------------------- whole shards


def test_write_shard(writer, root):
    ids = ["x", "y", "z"]
    writer.register_samples(ids)
    writer.write_shard("a", 0, ids, [np.arange(i) for i in range(3)])
    assert [len(s["a"]) for _, s in read_all(root).values()] == [0, 1, 2]
    writer.write_shard("b", 7, ids[:1], [np.arange(5)])
    writer.update_sample("y", {"a": np.arange(9), "b": np.arange(9)})
    writer.close()
    rows = sql(root, "SELECT id, a_shard, b_shard FROM samples")
    assert rows == [("x", 0, 7), ("y", 0, 7), ("z", 0, None)]
    read_all(root)


def test_an_existing_shard_is_kept_without_overwrite(writer, root):
    writer.register_samples(["x", "y"])
    writer.write_shard("a", 0, ["x", "y"], [np.arange(1), np.arange(2)])
    with pytest.raises(FileExistsError):
        writer.write_shard("a", 0, ["x"], [np.arange(3)])
    assert [len(s["a"]) for _, s in read_all(root).values()] == [1, 2]
    writer.write_shard("a", 0, ["x"], [np.arange(3)], overwrite=True)
    found = read_all(root)
    assert len(found["x"][1]["a"]) == 3
    assert found["y"][1] == {}
    assert sorted(os.listdir(root / "a_shards")) == ["shard_0000.tar"]


def test_the_growing_shard_can_be_replaced(writer, root):
    for i in range(6):
        writer.add_sample({"a": np.array(i)}, str(i))
    with pytest.raises(FileExistsError):
        writer.write_shard("a", 1, ["5"], [np.array(50)])
    writer.write_shard("a", 1, ["5"], [np.array(50)], overwrite=True)
    writer.add_sample({"a": np.array(6)}, "6")
    writer.close()
    values = [{k: int(v) for k, v in s.items()} for _, s in read_all(root).values()]
    assert values == [{"a": i} for i in range(4)] + [{}, {"a": 50}, {"a": 6}]


def test_open_shard(writer, root):
    writer.register_samples(["x", "y"])
    with writer.open_shard("a") as one, writer.open_shard("a") as other:
        assert (one.shard_id, other.shard_id) == (0, 1)
        one.add_sample("x", np.arange(2))
        other.add_sample("y", np.arange(3))
        one.add_sample("x", np.arange(4))  # replaces the one before
        other.add_sample("z", np.arange(6))  # registers the sample
        with pytest.raises(ValueError, match="field 'a'"):
            one.add_sample("x", object())
        with pytest.raises(FileExistsError):
            writer.open_shard("a", 0)
        writer.add_sample({"a": np.arange(5)}, "w")
    found = {i: len(sample["a"]) for i, (_, sample) in read_all(root).items()}
    assert found == {"x": 4, "y": 3, "w": 5, "z": 6}
    with pytest.raises(ClosedError):
        one.add_sample("x", np.arange(2))


def test_an_exception_inside_discards_the_shard(writer, root):
    writer.register_samples(["x"])
    writer.write_shard("a", 0, ["x"], [np.arange(3)])

    def fail():
        with writer.open_shard("a", 0, overwrite=True) as shard:
            shard.add_sample("x", np.arange(9))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert len(read_all(root)["x"][1]["a"]) == 3
    assert os.listdir(root / "a_shards") == ["shard_0000.tar"]
    with pytest.raises(ValueError, match="equally long, got 1 and 2"):
        writer.write_shard("a", 1, ["x"], [np.arange(3)] * 2)


# ------------------------------------------------------------- compaction


def test_compact(writer, root):
    for i in range(10):
        writer.add_sample({"a": np.arange(1000 + i), "b": np.array(i)}, str(i))
    for i in range(0, 10, 2):
        writer.update_sample(str(i), {"a": np.arange(i)})
    writer.flush()
    before = read_all(root)
    done = writer.compact()
    assert done.bytes_after < done.bytes_before
    assert (done.shards_before, done.shards_after) == (7, 6)
    after = read_all(root)
    assert list(after) == list(before)
    for id_, (_, arrays) in before.items():
        arrays_equal(after[id_][1], arrays)
    assert writer.compact()[:2] == (done.bytes_after,) * 2  # nothing to do
    writer.add_sample({"a": np.array(0)}, "more")
    writer.close()
    assert len(read_all(root)) == 11
    assert len(os.listdir(root / "a_shards")) == 3


def test_compaction_reuses_the_number_of_an_empty_shard(writer, root):
    """A number is free if its only array was dropped."""
    for i in range(4):
        writer.add_sample({"a": np.arange(i)}, str(i))
    with pytest.raises(ValueError, match="already"):
        writer.add_sample({"a": np.arange(3)}, "0")
    writer.update_sample("0", {"b": np.arange(3)})
    writer.conn.execute(
        "UPDATE samples SET a_offset = NULL, a_shard = NULL WHERE id = '1'"
    )
    writer.flush()
    before = read_all(root)
    writer.compact()
    assert len(read_all(root)) == len(before)
    arrays_equal(read_all(root)["3"][1], before["3"][1])


def test_compaction_of_a_field_without_arrays(writer, root):
    writer.register_samples(["x"])
    writer.write_shard("a", 0, ["x"], [np.arange(3)])
    writer.conn.execute("UPDATE samples SET a_offset = NULL, a_shard = NULL")
    writer.compact()
    assert os.listdir(root / "a_shards") == []
    writer.add_sample({"a": np.arange(3)})
    writer.close()
    with ShardedDatasetWriter(root) as again:
        again.add_sample({"a": np.arange(3)})
    assert len(read_all(root)) == 3


@pytest.mark.parametrize("lost", ["a_shard = NULL", "a_shard = 'x'", "a_shard = -1"])
def test_compact_refuses_rows_without_a_shard(writer, root, lost):
    for i in range(6):
        writer.add_sample({"a": np.full(3, i)}, str(i))
    writer.conn.execute(f"UPDATE samples SET {lost} WHERE id = '1'")
    writer.update_sample("0", {"a": np.arange(3)})
    writer.flush()
    path = root / "a_shards" / "shard_0000.tar"
    before = path.read_bytes()
    with pytest.raises(FormatError, match="shard"):
        writer.compact()
    assert path.read_bytes() == before


def test_compact_refuses_rows_without_a_member(writer, root):
    for i in range(3):
        writer.add_sample({"a": np.arange(3)}, str(i))
    writer.conn.execute("UPDATE samples SET id = 'other' WHERE id = '1'")
    writer.flush()
    path = root / "a_shards" / "shard_0000.tar"
    before = path.read_bytes()
    writer.update_sample("0", {"a": np.arange(3)})
    with pytest.raises(FormatError, match="no such member"):
        writer.compact()
    assert os.listdir(root / "a_shards") == ["shard_0000.tar"]
    assert path.read_bytes().startswith(before[:-1024])
    writer.add_sample({"a": np.arange(3)})
