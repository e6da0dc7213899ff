"""Schema of a dataset: exact dtypes, shapes and counts, metadata columns."""

import json
import sqlite3

import numpy as np
import pytest

from fastshard.cli import main
from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter, stat
from fastshard.errors import ClosedError, FormatError
from support.columnar.packed import write_packed
from support.marks import not_sanitized

pytestmark = not_sanitized  # tests Python code

COUNT = 40


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("schema") / "d"
    with ShardedDatasetWriter(root, samples_per_shard=7) as writer:
        writer.add_fields(["x", "odd", "axes", "types", "some", "wide", "text", "none"])
        for i in range(COUNT):
            arrays = {
                "x": np.full((2, 3), i, ">f4"),
                "odd": np.zeros((2, 5 if i == COUNT - 1 else 3), "i2"),
                "axes": np.zeros((1,) * (i % 3)),
                "types": np.zeros(3, "i4" if i % 2 else "i8"),
                "wide": np.zeros(9000 + (i == 30)),
                "text": np.array(["a" * (i % 2), "b"]) if i else np.array(["", "b"]),
            }
            if i >= 30:
                arrays["some"] = np.array(i, "u1")
            writer.add_sample(arrays, f"s{i}", {"n": i, "it's": str(i)})
        writer.add_metadata_column("n", "$.n", int)
        writer.add_metadata_column("it", '$."it\'s"', str)
        writer.conn.execute("ALTER TABLE samples ADD COLUMN plain")
        writer.conn.commit()
    return root


def test_schema_is_exact(root):
    with ShardedDatasetReader(root) as reader:
        schema = reader.schema()
    fields = {
        name: (field.dtype, field.shape, field.max_shape, field.samples)
        for name, field in schema.fields.items()
    }
    assert fields == {
        "x": (np.dtype(">f4"), (2, 3), (2, 3), COUNT),
        "odd": (np.dtype("i2"), "ragged", (2, 5), COUNT),
        "axes": (np.dtype("f8"), "ragged", None, COUNT),
        "types": ("ragged", (3,), (3,), COUNT),
        "some": (np.dtype("u1"), (), (), 10),
        "wide": (np.dtype("f8"), "ragged", (9001,), COUNT),
        "text": (np.dtype("U1"), (2,), (2,), COUNT),
        "none": (None, None, None, 0),
    }
    assert schema.samples == COUNT
    assert [tuple(column) for column in schema.columns.values()] == [
        ("n", "$.n", "INTEGER"),
        ("it", '$."it\'s"', "TEXT"),
        ("plain", None, ""),
    ]
    assert repr(schema).splitlines() == [
        "<schema of 40 samples",
        "  x      >f4 (2, 3), 40 samples",
        "  odd    int16 ragged, up to (2, 5), 40 samples",
        "  axes   float64 ragged, 40 samples",
        "  types  ragged (3,), 40 samples",
        "  some   uint8 (), 10 samples",
        "  wide   float64 ragged, up to (9001,), 40 samples",
        "  text   <U1 (2,), 40 samples",
        "  none   no samples",
        "  n      INTEGER, metadata $.n",
        '  it     TEXT, metadata $."it\'s"',
        "  plain  any type, metadata>",
    ]


def test_schema_of_one_state_is_read_once(tmp_path):
    with ShardedDatasetWriter(tmp_path / "d") as writer:
        writer.add_field("x")
        writer.add_sample({"x": np.zeros(2)})
        writer.flush()
        reader = ShardedDatasetReader(tmp_path / "d")
        first = reader.schema()
        writer.add_sample({"x": np.zeros(3)})
        writer.flush()
        assert reader.schema() is first
        reader.refresh()
        assert reader.schema().fields["x"].shape == "ragged"
        reader.close()
        with pytest.raises(ClosedError):
            reader.schema()


def test_stat_shows_the_schema(root, capfd):
    assert main(["stat", str(root)]) == 0
    out = capfd.readouterr().out
    for line in (
        'columns  n INTEGER $.n, it TEXT $."it\'s", plain',
        "    >f4 (2, 3)\n",
        "    int16 ragged, up to (2, 5)\n",
        "    ragged (3,)\n",
    ):
        assert line in out
    assert main(["stat", "--json", str(root)]) == 0
    schema = json.loads(capfd.readouterr().out)["schema"]
    assert schema["fields"]["odd"] == {
        "dtype": "int16",
        "shape": "ragged",
        "max_shape": [2, 5],
        "samples": COUNT,
        "packed": False,
    }
    assert schema["columns"]["n"] == {"path": "$.n", "type": "INTEGER"}


def test_a_damaged_field_is_an_error(tmp_path, capfd):
    root = tmp_path / "d"
    with ShardedDatasetWriter(root) as writer:
        writer.add_fields(["x", "y"])
        for _ in range(30):
            writer.add_sample({"x": np.zeros(2), "y": np.ones(1)})
    with sqlite3.connect(root / "index.sqlite") as connection:
        connection.execute("UPDATE samples SET x_offset = 1 << 40 WHERE rowid = 20")
    connection.close()
    with ShardedDatasetReader(root) as reader, pytest.raises(FormatError):
        reader.schema()
    fields = stat(root, schema=True)["schema"]["fields"]
    assert "shard_0000.tar" in fields["x"]["error"]
    assert fields["y"]["shape"] == (1,)
    assert main(["stat", str(root)]) == 0
    assert "shard_0000.tar" in capfd.readouterr().out


def test_packed_fields_are_named(tmp_path):
    samples = [{"x": np.full(3, i, "f4"), "y": np.zeros(1 + i % 2)} for i in range(25)]
    write_packed(tmp_path / "d", samples, packed=["x"])
    with ShardedDatasetReader(tmp_path / "d") as reader:
        fields = reader.schema().fields
    assert (fields["x"].shape, fields["x"].is_packed) == ((3,), True)
    assert (fields["y"].max_shape, fields["y"].is_packed) == ((2,), False)
    assert str(fields["x"]) == "float32 (3,), 25 samples, packed"
