"""Tables of samples: of Arrow and of pandas."""

import sys

import numpy as np
import pytest

from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
from fastshard.errors import FastshardError, FieldNotFoundError, MissingLibraryError
from support.marks import not_sanitized

pytestmark = not_sanitized  # tests Python code

COUNT = 6


def arrays_of(i):
    arrays = {
        "vec": np.arange(3, dtype=">f4") + i,
        "grid": np.full((2, 3), i, "i2"),
        "one": np.array(i, "i4"),
        "flag": np.array([i % 2 == 0, True]),
        "word": np.array(f"w{i}"),
        "day": np.array(f"2020-01-0{i + 1}", "M8[D]"),
        "series": np.arange(i, dtype="f8"),
        "deep": np.full((i % 3, 2, i), i),
        "empty": np.zeros((2, 0)),
    }
    if i % 2:
        arrays |= {"late": np.full(2, i, "f4"), "map": np.full((1, 2), i), "num": i}
    return {name: np.asarray(array) for name, array in arrays.items()}


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    root = tmp_path_factory.mktemp("tables") / "d"
    with ShardedDatasetWriter(root, samples_per_shard=4) as writer:
        writer.add_fields([*arrays_of(1), "never"])
        for i in range(COUNT):
            metadata = {"n": i, "name": f"n{i}"} if i != 4 else {"name": 4}
            writer.add_sample(arrays_of(i), f"s{i}", metadata)
        writer.add_metadata_column("n", "$.n", int)
        writer.add_metadata_column("name", "$.name", "NUMERIC")
        writer.add_field("complex")
        writer.update_sample("s0", {"complex": np.zeros(2, "c8")})
    with ShardedDatasetReader(root) as reader:
        yield reader


def test_arrow_columns_hold_the_values_of_fields(reader):
    pa = pytest.importorskip("pyarrow")
    order = [5, 0, 3, 0]
    names = [*arrays_of(1), "n"]
    table = reader.to_arrow(order, names)
    assert table.column_names == ["id", *names]
    assert table["id"].to_pylist() == [f"s{i}" for i in order]
    for name in names[:-1]:
        expected = [
            arrays_of(i)[name].tolist() if name in arrays_of(i) else None for i in order
        ]
        column = table[name]
        if isinstance(column.type, pa.FixedShapeTensorType):
            got = [None if v is None else v for v in column.to_pylist()]
            got = [
                None if v is None else np.reshape(v, arrays_of(i)[name].shape).tolist()
                for i, v in zip(order, got, strict=True)
            ]
        else:
            got = column.to_pylist()
        assert got == expected, name
    assert table["n"].to_pylist() == order
    types = {name: str(table.schema.field(name).type) for name in names}
    assert types["vec"] == "fixed_size_list<item: float>[3]"
    assert types["one"] == "int32"
    assert types["day"] == "date32[day]"
    assert types["series"] == "list<item: double>"
    assert types["deep"] == "list<item: list<item: list<item: int64>>>"
    assert table.schema.field("grid").type == pa.fixed_shape_tensor(pa.int16(), (2, 3))
    table.validate(full=True)


def test_arrow_tensors_are_views_of_one_stack(reader):
    pytest.importorskip("pyarrow")
    column = reader.to_arrow(fields="grid")["grid"].combine_chunks()
    tensor = column.to_numpy_ndarray()
    np.testing.assert_array_equal(tensor, [arrays_of(i)["grid"] for i in range(COUNT)])


def test_arrow_refuses_fields_without_a_type_by_name(reader):
    pytest.importorskip("pyarrow")
    with pytest.raises(FastshardError, match=r"field 'complex' .*complex64"):
        reader.to_arrow([0, 1], "complex")
    with pytest.raises(FieldNotFoundError, match="vecs"):
        reader.to_arrow([0], "vecs")
    assert reader.to_arrow([0, 1], ["never", "n"])["never"].null_count == 2
    assert reader.to_arrow([], ["vec", "n"]).num_rows == 0


def test_frames_hold_the_values_of_fields(reader):
    pd = pytest.importorskip("pandas")
    frame = reader.to_pandas(["s5", "s0", "s3"])
    assert (frame.index.name, list(frame.index)) == ("id", ["s5", "s0", "s3"])
    assert list(frame) == [*arrays_of(1), "never", "complex", "n", "name"]
    for i in (5, 0, 3):
        for name, array in arrays_of(i).items():
            cell = frame.loc[f"s{i}", name]
            if array.ndim:
                np.testing.assert_array_equal(cell, array)
                assert (cell.dtype, cell.shape) == (array.dtype, array.shape)
            else:
                assert cell == array.item() or name == "day"
    assert frame["one"].dtype == "i4"
    assert frame["day"].tolist()[1] == pd.Timestamp("2020-01-01")
    assert frame.loc["s0", "late"] is None
    assert frame["num"].tolist() == [5, pd.NA, 3]
    assert frame["n"].dtype == "i8"
    assert frame["never"].isna().all()
    whole = reader.to_pandas(fields=["n", "name"])
    assert str(whole["n"].dtype) == "Int64"
    assert whole["name"].tolist() == ["n0", "n1", "n2", "n3", 4, "n5"]
    assert len(reader.to_pandas([], ["vec", "one"])) == 0


@pytest.mark.parametrize("library", ["pyarrow", "pandas"])
def test_a_missing_library_is_named(reader, monkeypatch, library):
    monkeypatch.setitem(sys.modules, library, None)
    call = {"pyarrow": reader.to_arrow, "pandas": reader.to_pandas}[library]
    with pytest.raises(MissingLibraryError, match=f"pip install {library}"):
        call([0], "vec")
