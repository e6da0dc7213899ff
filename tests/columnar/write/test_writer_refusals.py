"""Arguments that columnar writers refuse, and the errors that they raise."""

import json
import os

import numpy as np
import pytest

from fastshard.columnar import ShardedDatasetReader, compact
from fastshard.columnar.write.writer import ShardedDatasetWriter
from fastshard.errors import FormatError
from support.columnar.stored import read_all, read_members, sql


class Unconvertible:
    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("on another device")


@pytest.mark.parametrize(
    "array",
    [
        np.array([{}], object),
        None,
        {"not": "an array"},
        [[1], [1, 2]],
        np.zeros(1, [("x", object)]),
        np.ma.masked_array([1, 2], [True, False]),
        Unconvertible(),
    ],
    ids=["object", "none", "dict", "ragged", "field", "masked", "unconvertible"],
)
def test_arrays_that_cannot_be_stored(writer, root, array):
    with pytest.raises(ValueError, match="field 'b'"):
        writer.add_sample({"a": np.arange(2), "b": array}, "x")
    writer.add_sample({"a": np.arange(2)}, "y")
    with pytest.raises(ValueError, match="field 'b'"):
        writer.update_sample("y", {"a": np.arange(3), "b": array})
    writer.close()
    assert list(read_all(root)) == ["y"]
    assert len(read_members(root / "a_shards" / "shard_0000.tar")) == 1


def test_objects_are_pickled_with_allow_pickle(root):
    with ShardedDatasetWriter(root, allow_pickle=True) as writer:
        writer.add_field("a")
        writer.add_sample({"a": np.array([{"x": 1}, None], object)}, "x")
        writer.add_sample({"a": np.arange(3)}, "y")
        with pytest.raises(ValueError, match="pickled"):
            writer.add_sample({"a": np.array([lambda: 0], object)}, "z")
    found = read_all(root)
    assert list(found["x"][1]["a"]) == [{"x": 1}, None]
    assert list(found) == ["x", "y"]


def test_an_unregistered_field(writer, root):
    with pytest.raises(ValueError, match=r"'c' is not registered: call add_field"):
        writer.add_sample({"a": np.arange(2), "c": np.arange(2)})
    with pytest.raises(ValueError, match="not registered"):
        writer.open_shard("c", 0)
    with pytest.raises(TypeError, match="mapping"):
        writer.add_sample([np.arange(2)])
    writer.close()
    assert not list(root.glob("a_shards/*")) or read_all(root) == {}


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        ({"x": float("nan")}, ValueError),
        ({"x": float("inf")}, ValueError),
        ({"x": {1, 2}}, ValueError),
        ({"x": np.float32(1)}, ValueError),
        ({(1, 2): 1}, ValueError),
        ([1, 2], TypeError),
        ("text", TypeError),
    ],
)
def test_metadata_that_is_not_json(writer, metadata, error):
    with pytest.raises(error, match="metadata"):
        writer.add_sample({"a": np.arange(2)}, metadata=metadata)
    writer.add_sample({}, "x")
    with pytest.raises(error, match="metadata"):
        writer.update_sample("x", {}, metadata)
    assert writer.conn.execute("SELECT count(*) FROM samples").fetchone() == (1,)


DEEP = []
for _ in range(100_000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("metadata", "hint"),
    [
        ({"n": np.int64(1)}, r"of sample 'x' .* int64 .*\.item\(\)"),
        ({"n": {"deep": [np.arange(3)]}}, r"ndarray .*\.tolist\(\)"),
        ({"n": {1}}, "set is not JSON serializable$"),
        ({(1, 2): 1}, "keys must be [^;]*$"),
        ({1: DEEP}, "cannot be JSON"),
        ({"n": float("nan")}, "of sample 'x' cannot be JSON"),
        ({1: "a", "1": "b"}, "keys that are equal as JSON"),
        ({True: 1, "true": 2, "x": 3}, "keys that are equal as JSON"),
    ],
)
def test_errors_of_metadata(writer, metadata, hint):
    with pytest.raises(ValueError, match=hint):
        writer.add_sample({}, "x", metadata)
    with pytest.raises(ValueError, match=hint):
        writer.register_samples(["x"], [metadata])
    assert writer.conn.execute("SELECT count(*) FROM samples").fetchone() == (0,)


def test_repeated_ids(writer, root):
    with pytest.raises(ValueError, match="twice"):
        writer.register_samples(["p", "p"], [{"a": 1}, {"a": 2}])
    with pytest.raises(TypeError, match="a mapping for each id"):
        writer.register_samples(["p"], {"a": 1})
    writer.register_samples(["p", "p"])
    with pytest.raises(ValueError, match="twice"):
        writer.write_shard("a", 3, ["p", "p"], [np.arange(1), np.arange(2)])
    assert [*read_all(root)] == ["p"]
    assert not os.listdir(root / "a_shards")


def test_a_refused_sample_uses_no_id(writer):
    with pytest.raises(ValueError, match="not registered"):
        writer.add_sample({"nope": np.arange(2)})
    with pytest.raises(ValueError, match="metadata"):
        writer.add_sample({}, metadata={"x": {1}})
    assert writer.add_sample({}) == "sample_000000000001"


@pytest.mark.parametrize("empty", [True, False])
def test_shards_without_their_index(writer, root, empty):
    writer.add_sample({"a": np.arange(3)})
    writer.close()
    index = root / "index.sqlite"
    index.write_bytes(b"") if empty else index.unlink()
    before = (root / "a_shards" / "shard_0000.tar").read_bytes()
    for _ in range(2):
        with pytest.raises(FormatError, match="a_shards have no index: move them away"):
            ShardedDatasetWriter(root)
    assert (root / "a_shards" / "shard_0000.tar").read_bytes() == before
    assert index.exists() == empty  # no new index is left
    (root / "a_shards").rename(root / "away")
    with ShardedDatasetWriter(root) as again:
        again.add_field("a")


def test_metadata_that_nests_deeply_is_refused_or_read(writer):
    circle = {}
    circle["x"] = circle
    with pytest.raises(ValueError, match="metadata"):
        writer.add_sample({}, metadata=circle)
    for depth in (100, 500, 900, 2000, 5000):
        deep = text = []
        for _ in range(depth):
            text.append([])
            text = text[0]
        try:
            writer.add_sample({}, metadata={"x": deep})
        except ValueError:
            assert depth > 500
    assert writer.conn.execute(
        "SELECT count(json_extract(meta_json, '$.x')) FROM samples"
    ).fetchone() >= (2,)


def test_metadata_is_the_text_of_json_dumps(writer, root):
    texts = [
        {"é": "\ud800", "n": None, "f": 1.5, "big": 2**70, "l": [True, {}]},
        {7: 2, 2.5: 3, None: 4, True: 5},
        {},
    ]
    for metadata in texts:
        writer.add_sample({}, metadata=metadata)
    writer.add_sample({})
    writer.close()
    stored = [text for (text,) in sql(root, "SELECT meta_json FROM samples")]
    assert stored == [*map(json.dumps, texts), "{}"]


NAMES = ["", "1a", "a b", "a-b", 'a"; DROP TABLE samples', "é", "id", "ID", "Meta_Json"]
NAMES += ["a_offset", "A", "x" * 200, "a\n", "__key__"]


@pytest.mark.parametrize("name", NAMES)
def test_invalid_field_names(writer, name):
    before = writer.conn.execute("SELECT * FROM fields").fetchall()
    if name not in ("a_offset",):
        with pytest.raises(ValueError, match="field"):
            writer.add_fields(["good", name])
        assert writer.conn.execute("SELECT * FROM fields").fetchall() == before
        assert "good_offset" not in {
            row[1] for row in writer.conn.execute("PRAGMA table_info(samples)")
        }
    else:
        with pytest.raises(ValueError, match="column"):
            writer.add_field(name)


def test_fields_and_columns_that_collide(writer):
    writer.conn.execute("ALTER TABLE samples ADD COLUMN length_shard INTEGER")
    writer.conn.execute("ALTER TABLE samples ADD COLUMN width INTEGER")
    for name in ("length", "a_shard"):
        with pytest.raises(ValueError, match=r"the column .* exists"):
            writer.add_field(name)
    with pytest.raises(TypeError):
        writer.add_fields("abc")
    writer.add_fields(["a", "c", "c"])  # existing ones are skipped
    fields = writer.conn.execute("SELECT name FROM fields").fetchall()
    assert fields == [("a",), ("b",), ("c",)]
    free = ["width", "rowid", "x_offset"]  # their columns have other names
    writer.add_fields(free)
    writer.add_sample({name: np.arange(i) for i, name in enumerate(free)}, "s")
    writer.close()
    _, found = read_all(writer.root)["s"]
    assert [len(found[name]) for name in free] == [0, 1, 2]


def use_reader(root):
    with ShardedDatasetReader(root) as reader:
        list(reader)


def use_writer(root):
    ShardedDatasetWriter(root).close()


@pytest.fixture
def index(root):
    """Return the path of an index of one file."""
    with ShardedDatasetWriter(root) as writer:
        writer.add_field("a")
        for i in range(300):
            writer.add_sample({"a": np.arange(2)}, f"sample {i}")
    sql(root, "PRAGMA journal_mode=DELETE")
    return root / "index.sqlite"


@pytest.mark.parametrize("use", [use_reader, use_writer, compact])
def test_an_index_whose_schema_is_not_utf8_is_a_format_error(root, index, use):
    stored = index.read_bytes()
    damaged = stored.replace(b"CREATE TABLE samples", b"CREATE TABL\xc1 samples", 1)
    index.write_bytes(damaged)  # SQLite quotes it in its message

    assert damaged != stored
    with pytest.raises(FormatError, match="0xc1") as caught:
        use(root)
    assert caught.value.path == str(index)


@pytest.mark.parametrize("use", [use_reader, compact])
def test_an_index_with_a_damaged_page_is_a_format_error(root, index, use):
    ((page,),) = sql(root, "SELECT rootpage FROM sqlite_master WHERE name = 'samples'")
    ((size,),) = sql(root, "PRAGMA page_size")
    damaged = bytearray(index.read_bytes())
    damaged[(page - 1) * size + 1 : page * size] = b"\xff" * (size - 1)
    index.write_bytes(damaged)

    with pytest.raises(FormatError, match="malformed") as caught:
        use(root)
    assert caught.value.path == str(index)
