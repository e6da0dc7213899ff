"""Decoded rows of an iteration are those of `StreamSample.decode`."""

import pytest

import fastshard
from fastshard.streaming import CSVWriter, JSONWriter, MDSWriter

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
