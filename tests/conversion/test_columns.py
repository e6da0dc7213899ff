"""Names and encodings of columns: a tar's fields and back."""

import itertools

import pytest

from fastshard.conversion.columns import (
    field_encoding,
    name_columns,
    name_fields,
    parse_columns,
    same_field,
    to_column,
    to_field,
)

PARTS = ["jpg", "jpeg", "png", "txt", "cls", "json", "npy", "bin", "webp", "x", "id"]
NAMES = [".".join(p) for n in (1, 2, 3) for p in itertools.product(PARTS, repeat=n)]
ENCODINGS = ["str", "int", "json", "npy", "jpeg", "png", "bytes", "float32", "str_int"]


@pytest.mark.parametrize(
    ("field", "column", "encoding"),
    [
        ("jpg", "jpg", "jpeg"),
        ("image.jpg", "image", "jpeg"),
        ("image.jpeg", "image.jpeg", "jpeg"),
        ("seg.png", "seg", "png"),
        ("webp", "webp", "bytes"),
        ("caption.txt", "caption", "str"),
        ("text", "text", "str"),
        ("label.cls", "label", "int"),
        ("id", "id", "int"),
        ("meta.json", "meta", "json"),
        ("x.npy", "x", "npy"),
        ("x.npz", "x.npz", "bytes"),
        ("pickle", "pickle", "bytes"),
        ("dat", "dat", "bytes"),
        ("txt.bin", "txt", "bytes"),
        ("jpg.jpg", "jpg.jpg", "jpeg"),
    ],
)
def test_the_column_of_a_field(field, column, encoding):
    assert (to_column(field), field_encoding(field)) == (column, encoding)
    assert to_field(column, encoding) == field


def test_every_field_comes_back():
    for field in NAMES:
        assert to_field(to_column(field), field_encoding(field)) == field


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_column_comes_back(encoding):
    for name in NAMES:
        field = to_field(name, encoding)
        assert to_column(field) == name
        assert field_encoding(field) == same_field(encoding)


@pytest.mark.parametrize(
    "fields",
    [
        ["left.jpg", "left.json"],
        ["left.jpg", "left"],
        ["jpg", "json", "left.jpg", "right.jpg"],
        ["a.cls", "a.txt", "b.cls"],
    ],
)
def test_fields_that_differ_in_their_suffix_alone_keep_it(fields):
    names = name_columns(fields)
    assert len(set(names.values())) == len(fields)
    pairs = [(names[field], field_encoding(field)) for field in fields]
    assert name_fields(pairs) == fields


def test_names_of_columns_are_unique():
    names = name_columns(["left.jpg", "left.jpg.jpg", "left.txt"])
    assert len(set(names.values())) == 3


def test_columns_are_parsed():
    text = "x:ndarray:float32:3,224,224,y:ndarray:int8:7,z:ndarray:uint8,label:int,jpg"
    assert parse_columns(text) == {
        "x": "ndarray:float32:3,224,224",
        "y": "ndarray:int8:7",
        "z": "ndarray:uint8",
        "label": "int",
        "jpg": None,
    }


@pytest.mark.parametrize("text", ["", "a,,b", "a:", ":int", "a:int,a:str", "a,b,"])
def test_wrong_columns_are_refused(text):
    with pytest.raises(ValueError, match="column"):
        parse_columns(text)
