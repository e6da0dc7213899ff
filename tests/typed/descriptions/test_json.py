"""Structures as JSON of an index and of a record: both ways, and damaged."""

import copy
import json
import random
from typing import ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from fastshard import typed
from fastshard.errors import DescriptionError, FastshardError
from fastshard.typed.descriptions.json_schema import (
    from_json_schema,
    from_schema,
    to_json_schema,
)
from fastshard.typed.descriptions.local_schema import from_local_json, to_local_json
from fastshard.typed.descriptions.schema_type import make_type
from fastshard.typed.descriptions.structure import describe

NDARRAY = "https://alt.science/schemas/atdata-ndarray-bytes/1.0.0#/$defs/ndarray"


@typed.packable
class Item:
    """A text."""

    __field_formats__: ClassVar[dict[str, str]] = {"m": "sparse", "t": "structured"}

    text: str
    pages: int | None
    score: float
    done: bool
    raw: bytes
    grid: list[list[int]]
    bare: list
    more: dict
    x: NDArray
    f: NDArray[np.float32] | None
    m: bytes
    t: NDArray


def primitive(name):
    return {"$type": "local#primitive", "primitive": name}


LOCAL = {
    "text": primitive("str"),
    "pages": primitive("int"),
    "score": primitive("float"),
    "done": primitive("bool"),
    "raw": primitive("bytes"),
    "grid": {
        "$type": "local#array",
        "items": {"$type": "local#array", "items": primitive("int")},
    },
    "bare": {"$type": "local#array"},
    "more": {"$type": "local#object"},
    "x": {"$type": "local#ndarray", "dtype": None},
    "f": {"$type": "local#ndarray", "dtype": "float32"},
    "m": {"$type": "local#sparse"},
    "t": {"$type": "local#structured"},
}


def test_json_of_an_index():
    found = to_local_json(describe(Item), "1.2.0", "2026-01-02T03:04:05+00:00")
    assert found == {
        "name": "Item",
        "version": "1.2.0",
        "fields": [
            {"name": name, "fieldType": kind, "optional": name in ("pages", "f")}
            for name, kind in LOCAL.items()
        ],
        "description": "A text.",
        "createdAt": "2026-01-02T03:04:05+00:00",
        "exactDtypes": True,
    }
    again = from_local_json(json.loads(json.dumps(found)))
    assert again == describe(Item)._replace(version="1.2.0")
    assert to_local_json(again, "1.2.0", found["createdAt"]) == found


def test_json_without_float32_has_the_usual_keys():
    class Plain(typed.PackableSample):
        x: NDArray[np.float64]

    found = to_local_json(describe(Plain), "1.0.0")
    assert [*found] == ["name", "version", "fields", "description", "createdAt"]


def test_json_of_a_record():
    found = to_json_schema(describe(Item))
    assert found == {
        "$type": "science.alt.dataset.schema#jsonSchemaFormat",
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "pages": {"type": "integer"},
            "score": {"type": "number"},
            "done": {"type": "boolean"},
            "raw": {"type": "string", "format": "byte", "contentEncoding": "base64"},
            "grid": {
                "type": "array",
                "items": {"type": "array", "items": {"type": "integer"}},
            },
            "bare": {"type": "array"},
            "more": {"type": "object"},
            "x": {"$ref": NDARRAY},
            "f": {"$ref": NDARRAY, "dtype": "float32"},
            "m": {
                "$ref": "https://alt.science/schemas/atdata-sparse-bytes/1.0.0"
                "#/$defs/sparse"
            },
            "t": {
                "$ref": "https://alt.science/schemas/atdata-structured-bytes/1.0.0"
                "#/$defs/structured"
            },
        },
        "required": [
            *("text", "score", "done", "raw", "grid", "bare", "more", "x", "m", "t")
        ],
        "arrayFormatVersions": {
            "ndarrayBytes": "1.0.0",
            "sparseBytes": "1.0.0",
            "structuredBytes": "1.0.0",
        },
    }
    assert from_json_schema(found, "Item").equals(describe(Item))


def test_order_of_a_record_is_that_of_required():
    found = to_json_schema(describe(Item))
    by_length = sorted(found["properties"].items(), key=lambda p: (len(p[0]), p[0]))
    found["properties"] = dict(by_length)  # as a server returns them
    again = from_json_schema(found, "Item")
    assert [f.name for f in again.fields] == [*found["required"], "f", "pages"]
    assert again.equals(describe(Item))


def test_no_versions_where_no_arrays_are():
    class Plain(typed.PackableSample):
        text: str | None

    found = to_json_schema(describe(Plain))
    assert [*found] == ["$type", "$schema", "type", "properties"]


@pytest.mark.parametrize(
    ("property_", "expected"),
    [
        ({"type": ["string", "null"]}, "str | None"),
        ({"type": ["null", "integer"]}, "int | None"),
        ({"type": "string", "format": "date-time"}, "str"),
        ({"type": "string", "contentEncoding": "base64"}, "bytes"),
        ({"type": "array", "items": {}}, "list"),
        ({"type": "array", "items": {"type": ["string", "null"]}}, "list"),
        (
            {"$ref": NDARRAY, "dtype": "<f4", "shape": [3, None]},
            "ndarray[float32; (3, ?)]",
        ),
        ({"$ref": NDARRAY, "dimensionNames": ["h", "w"]}, "ndarray[any; h, w]"),
        ({"$ref": NDARRAY, "dtype": None}, "ndarray[any]"),
        ({"$ref": "https://x.example/safetensors/2.0.0"}, "safetensors"),
        ({"$ref": "https://x.example/ArrowTensor/2.0.0"}, "arrow_tensor"),
        ({"$ref": "https://x.example/DataFrame/2.0.0"}, "dataframe"),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, "dict"),
    ],
)
def test_properties_of_others(property_, expected):
    schema = {"properties": {"a": property_}, "required": ["a"]}
    (field,) = from_json_schema(schema, "Item").fields
    assert str(field) == expected


def test_shapes_and_names_are_kept():
    kind = {
        "$type": "science.alt.dataset.schemaType#ndarray",
        "dtype": "uint8",
        "shape": [None, 3],
        "dimensionNames": ["a", "b"],
    }
    data = {"name": "V", "fields": [{"name": "x", "fieldType": kind}]}
    found = from_local_json(data)
    stored = to_local_json(found, "1.0.0")["fields"][0]["fieldType"]
    assert stored == kind | {"$type": "local#ndarray"}
    property_ = to_json_schema(found)["properties"]["x"]
    assert property_ == {"$ref": NDARRAY} | {
        k: v for k, v in kind.items() if k[0] != "$"
    }
    assert from_json_schema(to_json_schema(found), "V").equals(found)
    assert describe(make_type(found)).equals(found)


def test_names_of_old_schemas():
    field = {"name": "a", "fieldType": primitive("str")}
    assert from_local_json({"name": "module.Old", "fields": [field]}).name == "Old"


@pytest.mark.parametrize(
    ("field_type", "match"),
    [
        (None, "'fieldType' must be an object"),
        ([], "'fieldType' must be an object"),
        ({}, "Unknown field type kind: ''"),
        ({"$type": 5}, r"'\$type' must be a str"),
        ({"$type": "local#unknown_kind"}, "Unknown field type kind: 'unknown_kind'"),
        ({"kind": ["a"]}, "'kind' must be a str"),
        (primitive("complex"), "Unknown primitive type: 'complex'"),
        (primitive(["str"]), "Unknown primitive type: list"),
        (primitive(None), "Unknown primitive type"),
        (
            {"$type": "local#ref", "ref": "at://x"},
            "Schema references.*not yet supported",
        ),
        ({"$type": "local#ndarray", "dtype": 4}, "'dtype' must be a str"),
        ({"$type": "local#structured", "dtype": []}, "'dtype' must be a str"),
        ({"$type": "local#ndarray", "shape": 4}, "'shape' must be a list"),
        ({"$type": "local#ndarray", "shape": [-1]}, "'shape' must have sizes"),
        ({"$type": "local#ndarray", "shape": [True]}, "'shape' must have sizes"),
        (
            {"$type": "local#ndarray", "shape": [1] * 65},
            "'shape' has too many dimensions",
        ),
        ({"$type": "local#ndarray", "dimensionNames": [1]}, "'dimensionNames' must"),
        ({"$type": "local#array", "items": "str"}, "'fieldType' must be an object"),
    ],
)
def test_field_types_that_are_none(field_type, match):
    data = {"name": "Item", "fields": [{"name": "a", "fieldType": field_type}]}
    with pytest.raises(DescriptionError, match=f"Item', field 'a': {match}"):
        from_local_json(data)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (None, "must be an object, is NoneType"),
        ([], "must be an object, is list"),
        ({}, "must have a 'name' field"),
        ({"name": 5}, "must have a 'name' field"),
        ({"name": "A", "version": 1}, "'version' must be a str"),
        ({"name": "A", "fields": None}, "'fields' must be a list"),
        ({"name": "A", "fields": {}}, "'fields' must be a list"),
        ({"name": "A", "fields": [5]}, "field 0 must be an object"),
        ({"name": "A", "fields": [{}]}, "field 0: must have a 'name' field"),
        ({"name": "A", "fields": [{"name": "a", "optional": 1}]}, "'optional' must be"),
        ({"name": "A", "fields": [{}] * 5000}, "5,000 items"),
    ],
)
def test_schemas_that_are_none(data, match):
    with pytest.raises(DescriptionError, match=match):
        from_local_json(data)


@pytest.mark.parametrize(
    ("schema", "match"),
    [
        (None, "'schema' must be an object"),
        ("{}", "'schema' must be an object"),
        ({"type": "array"}, "'type' must be 'object'"),
        ({"properties": []}, "'properties' must be an object"),
        ({"properties": {}, "required": ["a"]}, "'required' has 'a'"),
        ({"properties": {"a": {}}, "required": "a"}, "'required' must be a list"),
        ({"properties": {"a": {}}, "required": [["a"]]}, "'required' has list"),
        ({"properties": {"a": None}}, "field 'a': a property must be an object"),
        ({"properties": {"a": {}}}, "field 'a': Unknown type of a property"),
        ({"properties": {"a": {"type": "tensor"}}}, "Unknown type .*'tensor'"),
        ({"properties": {"a": {"type": {"b": 1}}}}, "Unknown type .*dict"),
        ({"properties": {"a": {"type": ["string", "integer"]}}}, "Unknown type"),
        ({"properties": {"a": {"$ref": 5}}}, r"'\$ref' must be a str"),
        ({"properties": {"a": {"$ref": "#"}}}, "refers to '#'"),
        ({"properties": {"a": {"$ref": "#/properties/ndarray"}}}, "not yet supported"),
        ({"properties": {"a": {"$ref": "https://x.example/y"}}}, "not yet supported"),
        ({"properties": {"a": {"$ref": NDARRAY, "dtype": {}}}}, "'dtype' must be"),
        ({"properties": {"a": {"type": "array", "items": 5}}}, "must be an object"),
        ({"properties": {str(i): {} for i in range(5000)}}, "5,000 properties"),
    ],
)
def test_records_that_are_none(schema, match):
    with pytest.raises(DescriptionError, match=match) as caught:
        from_json_schema(schema, "Item")
    assert isinstance(caught.value, (FastshardError, ValueError))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"atdataSchemaVersion": 99}, "Unsupported schema record version: 99"),
        ({"$atdataSchemaVersion": 2}, "Unsupported schema record version: 2"),
        ({"atdataSchemaVersion": "1"}, "'atdataSchemaVersion' must be"),
        ({"atdataSchemaVersion": True}, "'atdataSchemaVersion' must be"),
        ({"atdataSchemaVersion": 0}, "'atdataSchemaVersion' must be"),
        ({"schemaType": "avro"}, "unknown schemaType 'avro'"),
        ({"schemaType": {}}, "unknown schemaType dict"),
        ({"name": None}, "must have a 'name' field"),
        ({"version": None}, "must have a 'version' field"),
        ({"schema": None}, "'schema' must be an object"),
    ],
)
def test_records_of_a_schema_that_are_none(changes, match):
    record = {
        "name": "Item",
        "version": "1.0.0",
        "schemaType": "jsonSchema",
        "schema": {"properties": {"a": {"type": "string"}}},
    }
    assert from_schema(record).fields[0].name == "a"
    with pytest.raises(DescriptionError, match=match):
        from_schema(record | changes)


def test_lists_without_an_end():
    kind = {"$type": "local#array"}
    kind["items"] = kind
    with pytest.raises(DescriptionError, match="nested deeper than 32"):
        from_local_json({"name": "A", "fields": [{"name": "a", "fieldType": kind}]})
    items = {"type": "array"}
    items["items"] = items
    with pytest.raises(DescriptionError, match="nested deeper than 32"):
        from_json_schema({"properties": {"a": items}}, "A")


def test_long_values_are_cut_in_errors():
    kind = {"$type": "#" + "x" * 1_000_000}
    data = {"name": "A" * 1_000_000, "fields": [{"name": "b" * 1_000_000}]}
    with pytest.raises(DescriptionError) as caught:
        from_local_json(data)
    assert len(str(caught.value)) < 400
    data["fields"][0]["fieldType"] = kind
    with pytest.raises(DescriptionError) as caught:
        from_local_json(data)
    assert len(str(caught.value)) < 400


WRONG = (None, 5, -1.5, True, "x", "", [], {}, ["a"], {"a": 1}, "#", "\x00", "a" * 9999)


@pytest.mark.parametrize("seed", range(4))
def test_schemas_with_one_value_changed(seed):
    rng = random.Random(seed)
    local = to_local_json(describe(Item), "1.0.0")
    record = {
        "name": "Item",
        "version": "1.0.0",
        "schemaType": "jsonSchema",
        "schema": to_json_schema(describe(Item)),
        "atdataSchemaVersion": 1,
    }
    refused = 0
    for whole in (local, record) * 150:
        data = copy.deepcopy(whole)
        damage(data, rng)
        try:
            made = make_type(from_schema(data))
        except DescriptionError as error:
            refused += 1
            assert len(str(error)) < 500
        else:
            assert issubclass(made, typed.PackableSample)
    assert refused > 50


def damage(data, rng):
    """Replace one value, or remove it."""
    while True:
        key = rng.choice([*data] if isinstance(data, dict) else range(len(data)))
        if isinstance(data[key], dict | list) and data[key] and rng.random() < 0.8:
            data = data[key]
        elif rng.random() < 0.3:
            del data[key]
            return
        else:
            data[key] = rng.choice(WRONG)
            return
