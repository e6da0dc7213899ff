"""Decoded rows of an iteration are those of `StreamSample.decode`."""

from time import monotonic, sleep

import numpy
import pytest

import fastshard
from fastshard.errors import ClosedError, FormatError
from fastshard.streaming import CSVWriter, JSONWriter, MDSWriter
from fastshard.streaming.samples import StreamSample

WRITERS = {"mds": MDSWriter, "json": JSONWriter, "csv": CSVWriter}


@pytest.fixture(params=WRITERS)
def source(request, tmp_path):
    out = str(tmp_path / "rows")
    columns = {"a": "int", "b": "str"}
    with WRITERS[request.param](columns=columns, out=out, size_limit=400) as writer:
        for i in range(50):
            writer.write({"a": i, "b": f"text {i}"})
    return out


@pytest.mark.parametrize("fields", [(), ("b",), ("b", "a")])
def test_an_iteration_decodes_as_a_sample_does(source, fields):
    ds = fastshard.open(source)
    expected = [{"__key__": str(i), "a": i, "b": f"text {i}"} for i in range(50)]
    if fields:
        names = ("__key__", *fields)
        expected = [{name: row[name] for name in names} for row in expected]

    found = list(ds.decode(*fields))

    assert [list(row.items()) for row in found] == [[*row.items()] for row in expected]
    assert found == [sample.decode(*fields) for sample in ds]
    assert (
        list(ds.decode(*fields).shuffle(1).map(len)) == [len(fields or "ab") + 1] * 50
    )


def test_an_iteration_decodes_the_selected_fields_alone(source):
    found = list(fastshard.open(source).select_fields("b").decode())

    assert found[7] == {"__key__": "7", "b": "text 7"}


def test_an_iteration_uses_decoders_of_the_user(tmp_path):
    with MDSWriter(columns={"x.up": "bytes"}, out=str(tmp_path / "rows")) as writer:
        writer.write({"x.up": b"text"})

    def upper(data):
        return bytes(data).upper()

    ds = fastshard.open(tmp_path / "rows", decoders={"up": upper}).decode()

    assert list(ds) == [{"__key__": "0", "x.up": b"TEXT"}] == [ds[0]]


NUMBERS = ("uint8", "int16", "uint32", "float16", "float32", "float64", "int64")


def write_numbers(out, count=30):
    """Write rows of fixed numbers, and return them."""
    rows = [
        {f"c{k:02d}": getattr(numpy, NUMBERS[k % 7])(i + k) for k in range(12)}
        for i in range(count)
    ]
    columns = {f"c{k:02d}": NUMBERS[k % 7] for k in range(12)}
    with MDSWriter(columns=columns, out=str(out)) as writer:
        for row in rows:
            writer.write(row)
    return rows


@pytest.mark.parametrize("shuffled", [False, True])
def test_an_iteration_decodes_rows_of_numbers(tmp_path, shuffled):
    rows = write_numbers(tmp_path / "rows")
    ds = fastshard.open(tmp_path / "rows").decode()
    ds = ds.shuffle(3) if shuffled else ds

    first, again = list(ds), list(ds)

    assert first == again  # other objects: none is shared between rows
    assert all(a is not b for a, b in zip(first, again, strict=True))
    for row in first:
        assert list(row) == ["__key__", *rows[0]]
        expected = rows[int(row.pop("__key__"))]
        assert row == expected
        assert [*map(type, row.values())] == [*map(type, expected.values())]
    assert again[0]["__key__"] == ds[0]["__key__"]


def test_keys_of_an_iteration_are_decimal(tmp_path):
    with MDSWriter(columns={"x": "int"}, out=str(tmp_path / "rows")) as writer:
        for i in range(1002):
            writer.write({"x": i})

    keys = [row["__key__"] for row in fastshard.open(tmp_path / "rows").decode()]

    assert keys == [str(i) for i in range(1002)]
    assert hash(keys[1001]) == hash("1001")
    assert keys[1001].isascii()


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_row_that_does_not_decode_is_named_and_skipped(tmp_path, shuffled):
    with MDSWriter(columns={"b": "str"}, out=str(tmp_path / "rows")) as writer:
        for i in range(40):
            writer.write({"b": f"<{i}>"})
    (path,) = (tmp_path / "rows").glob("*.mds")
    path.write_bytes(path.read_bytes().replace(b"<17>", b"<1\xff>"))
    ds = fastshard.open(tmp_path / "rows").decode()
    ds = ds.shuffle(3) if shuffled else ds
    errors = []

    def skip(error, position):
        errors.append((error, position))
        return True

    iterator = ds.iter(on_error=skip)
    found = [row["__key__"] for row in iterator]

    assert sorted(found, key=int) == [str(i) for i in range(40) if i != 17]
    assert iterator.position == 40
    ((error, position),) = errors
    assert isinstance(error, fastshard.FormatError)
    assert error.member == "sample 17, column 'b'"
    assert shuffled or position == 17
    assert any(f"position {position}" in note for note in error.__notes__)
    resumed = ds.resume({**ds.iter().state_dict()})
    with pytest.raises(fastshard.FormatError, match="invalid UTF-8"):
        list(resumed)


def test_an_iteration_over_decoded_rows_ends_with_the_dataset(tmp_path):
    write_numbers(tmp_path / "rows")
    ds = fastshard.open(tmp_path / "rows")
    iterator = iter(ds.decode())
    assert next(iterator)["__key__"] == "0"

    ds.close()

    with pytest.raises(fastshard.ClosedError):
        next(iterator)


def test_positions_of_a_decoded_dataset_are_decoded_as_samples_are(source):
    ds = fastshard.open(source)
    expected = [sample.decode() for sample in ds]
    decoded = ds.decode()

    assert [decoded[i] for i in (0, 7, 49, -1, -50)] == [
        expected[i] for i in (0, 7, 49, -1, 0)
    ]
    assert [decoded.shuffle(3)[i] for i in range(50)] == list(decoded.shuffle(3))
    for i in (50, -51, 10**30):
        with pytest.raises(IndexError):
            decoded[i]
    decoded.close()
    with pytest.raises(ClosedError):
        decoded[0]


def test_a_resident_row_is_decoded_by_position_without_a_sample(tmp_path, monkeypatch):
    with MDSWriter(columns={"a": "int"}, out=str(tmp_path / "rows")) as writer:
        for i in range(3):
            writer.write({"a": i})

    made = []

    class CountedSample(StreamSample):
        def __new__(cls, *args):
            made.append(cls)
            return super().__new__(cls, *args)

    monkeypatch.setattr("fastshard.streaming.shardset.StreamSample", CountedSample)
    ds = fastshard.open(tmp_path / "rows")
    decoded = ds.decode()
    assert decoded[1] == ds[1].decode() == {"__key__": "1", "a": 1}
    assert made  # and the shard is open now
    end = monotonic() + 10
    while made and monotonic() < end:  # until the file is known to be resident
        made.clear()
        assert decoded[2] == {"__key__": "2", "a": 2}
        assert [row["a"] for row in decoded.shuffle(1)] == [2, 0, 1]
        sleep(0.05)
    assert made == []


def test_the_error_of_a_decoded_position_names_the_sample(tmp_path):
    with MDSWriter(columns={"a": "json"}, out=str(tmp_path / "rows")) as writer:
        for i in range(3):
            writer.write({"a": {"value": i}})
    (path,) = (tmp_path / "rows").glob("*.mds")
    path.write_bytes(path.read_bytes().replace(b'"value": 2', b'"value": ?'))
    decoded = fastshard.open(tmp_path / "rows").decode()

    assert decoded[1]["a"] == {"value": 1}
    with pytest.raises(FormatError, match="sample 2") as caught:
        decoded[2]
    assert "position 2 of the dataset" in caught.value.__notes__
