"""Structures of declared types, and which of them are equal."""

import enum
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from fastshard import typed
from fastshard.typed.descriptions.local_schema import from_local_json
from fastshard.typed.descriptions.structure import (
    Structure,
    StructureField,
    ValueType,
    describe,
)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Mixed(enum.Enum):
    ONE = 1
    TWO = "two"


class Inner(typed.PackableSample):
    a: int


def value_of(annotation, **namespace):
    names = {"__annotations__": {"x": annotation}, **namespace}
    made = type("Made", (typed.PackableSample,), names)
    (field,) = describe(made).fields
    return str(field)


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (str, "str"),
        (int, "int"),
        (float, "float"),
        (bool, "bool"),
        (bytes, "bytes"),
        (str | None, "str | None"),
        (dict, "dict"),
        (dict[str, int], "dict"),
        (dict[str, Any] | None, "dict | None"),
        (list, "list"),
        (list[str], "list[str]"),
        (list[list[int]], "list[list[int]]"),
        (list[dict], "list[dict]"),
        (list[Any], "list"),
        (list[int | str], "list"),
        (list[str | None], "list"),
        (tuple[int, ...], "list[int]"),
        (tuple[float, float], "list[float]"),
        (tuple[float, str], "list"),
        (tuple, "list"),
        (NDArray, "ndarray[any]"),
        (np.ndarray, "ndarray[any]"),
        (NDArray[np.float32], "ndarray[float32]"),
        (NDArray[np.float32] | None, "ndarray[float32] | None"),
        (NDArray[np.bool_], "ndarray[bool]"),
        (NDArray[np.complex128], "ndarray[complex128]"),
        (NDArray[np.str_], "ndarray[str]"),
        (NDArray[np.bytes_], "ndarray[bytes]"),
        (NDArray[np.datetime64], "ndarray[datetime64]"),
        (NDArray[np.floating], "ndarray[any]"),
        (NDArray[np.float32 | np.float64], "ndarray[any]"),
        (Literal["a", "b"], "str"),
        (Literal[1, 2, None], "int | None"),
        (Color, "str"),
        (Annotated[str, typed.Field(aliases=("text",))], "str"),
    ],
    ids=str,
)
def test_kind_of_a_field(annotation, expected):
    assert value_of(annotation) == expected


@pytest.mark.parametrize(
    "name", ["arrow_tensor", "dataframe", "safetensors", "sparse", "structured"]
)
def test_formats_are_kinds(name):
    assert value_of(object, __field_formats__={"x": name}).startswith(name)


@pytest.mark.parametrize(
    "annotation", [Any, None, int | str, Literal["a", 1], Mixed, Inner, Inner | None]
)
def test_objects_without_a_description_are_named(annotation):
    with pytest.raises(TypeError, match=r"Made\.x: "):
        value_of(annotation)


def test_no_packable_class():
    with pytest.raises(TypeError, match="int is not a dataclass"):
        describe(int)


def test_description_is_the_docstring_that_somebody_wrote():
    @typed.packable
    class Told:
        """A text."""

        a: int

    @typed.packable
    class Untold:
        a: int

    assert describe(Told).description == "A text."
    assert describe(Untold).description is None


def structure(*fields, name="Made"):
    return Structure(name, tuple(StructureField(*each) for each in fields))


INT, STR = ValueType("int"), ValueType("str")


def test_equal_structures():
    first = structure(("a", INT), ("b", STR, True))
    assert first.equals(structure(("b", STR, True), ("a", INT)))
    assert first.equals(first._replace(version="2.0.0", description="x"))


@pytest.mark.parametrize(
    "other",
    [
        structure(("a", INT)),
        structure(("a", INT), ("b", STR)),
        structure(("a", INT), ("c", STR, True)),
        structure(("a", STR), ("b", STR, True)),
        structure(("a", INT), ("b", STR, True), ("c", INT)),
        structure(("a", INT), ("b", STR, True), name="Other"),
    ],
)
def test_structures_that_are_not_equal(other):
    first = structure(("a", INT), ("b", STR, True))
    assert not first.equals(other)
    assert not other.equals(first)


def test_types_of_items_and_dtypes_are_compared():
    arrays = [ValueType("ndarray", name) for name in (None, "float32", "float64")]
    lists = [ValueType("array", items=items) for items in (None, INT, STR)]
    shaped = [ValueType("ndarray", shape=(n,)) for n in (2, 3, None)]
    named = [ValueType("ndarray", dimension_names=(n,)) for n in "xy"]
    values = [*arrays, *lists, *shaped, *named]
    for i, a in enumerate(values):
        for j, b in enumerate(values):
            assert a.is_like(b) == (i == j)


def test_claimed_dtype_is_like_none():
    def stored(dtype, **more):
        field = {"name": "x", "fieldType": {"$type": "local#ndarray", "dtype": dtype}}
        return from_local_json({"name": "Made", "fields": [field], **more})

    @typed.packable
    class Made:
        x: NDArray

    bare = describe(Made)

    class Made(typed.PackableSample):
        x: NDArray[np.float32]

    exact = describe(Made)
    claimed = stored("float32")
    assert claimed.equals(bare)
    assert bare.equals(claimed)
    assert claimed.equals(exact)
    assert claimed.equals(claimed)
    assert not bare.equals(exact)
    assert not stored("float64").equals(bare)
    assert not stored("float64").equals(claimed)
    assert not stored("float32", exactDtypes=True).equals(bare)
    assert stored("<f4", exactDtypes=True).equals(exact)
