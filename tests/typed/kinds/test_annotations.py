"""Annotations of fields: kinds, postponed and forward names, refused types."""

import collections.abc
import dataclasses
import enum
import sys
import textwrap
import typing
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Generic,
    Literal,
    NewType,
    Optional,
    TypeVar,
    Union,
)

import numpy as np
import numpy.typing as npt
import pytest
import typing_extensions
from numpy.typing import NDArray

import fastshard
from fastshard import SchemaError, typed
from fastshard.typed.fields import field_plans
from fastshard.typed.kinds.values import pack

pytest.importorskip("msgspec")

T = TypeVar("T")
Colour = enum.Enum("Colour", {"RED": "red", "GREEN": "green"})
Number = enum.Enum("Number", {"ONE": 1.5, "TWO": b"two"})
Label = NewType("Label", str)


@typed.packable
class Box:
    x: int
    y: float = 0.5


# NDArray itself is such an alias where NumPy is of Python 3.12 and newer.
Scalar = TypeVar("Scalar", bound=np.generic)
Array = typing_extensions.TypeAliasType(
    "Array", np.ndarray[tuple[Any, ...], np.dtype[Scalar]], type_params=(Scalar,)
)


def sample_type(annotation, **values):
    """Return a class with one field `a`."""
    names = {"__annotations__": {"a": annotation}, "__module__": __name__, **values}
    return type("Sample", (typed.PackableSample,), names)


def plan(annotation, **values):
    return field_plans(sample_type(annotation, **values))[0]


def read(annotation, value):
    return sample_type(annotation).from_bytes(pack({"a": value})).a


@pytest.mark.parametrize(
    ("annotation", "kind", "optional"),
    [
        (int, "int", False),
        (float, "float", False),
        (bool, "bool", False),
        (str, "str", False),
        (bytes, "bytes", False),
        (None, "none", True),
        (type(None), "none", True),
        (int | None, "int", True),
        (Optional[str], "str", True),  # noqa: UP045
        (Union[None, float], "float", True),  # noqa: UP007
        (Annotated[int, "metadata"], "int", False),
        (Annotated[int, 1] | None, "int", True),
        (Final[int], "int", False),
        (Label, "str", False),
        (np.ndarray, "array", False),
        (NDArray, "array", False),
        (NDArray[Any], "array", False),
        (NDArray[T], "array", False),
        (NDArray[np.float32] | None, "array", True),
        (Optional[NDArray], "array", True),  # noqa: UP045
        (npt.NDArray[np.uint8], "array", False),
        (np.ndarray[tuple[int, int], np.dtype[np.int16]], "array", False),
        (np.ndarray[Any, np.dtype], "array", False),
        (Array, "array", False),
        (Array[np.uint8], "array", False),
        (Array[np.uint8] | None, "array", True),
        (Optional[Array], "array", True),  # noqa: UP045
    ],
)
def test_scalars_and_arrays(annotation, kind, optional):
    field = plan(annotation)
    assert (field.kind, field.optional) == (kind, optional)


@pytest.mark.parametrize(
    ("annotation", "dtype"),
    [
        (NDArray, None),
        (np.ndarray, None),
        (NDArray[Any], None),
        (NDArray[np.generic], None),
        (NDArray[np.float32], np.dtype("f4")),
        (NDArray[np.float32] | None, np.dtype("f4")),
        (Array, None),
        (Array[np.float32] | None, np.dtype("f4")),
        (Annotated[NDArray[np.bool_], "mask"], np.dtype("?")),
        (NDArray[np.longlong], np.dtype("i8")),
        (NDArray[float], np.dtype("f8")),
        (NDArray[np.floating], np.floating),
        (NDArray[np.integer[Any]], np.integer),
        (NDArray[np.str_], np.dtype("U")),
        (NDArray[np.datetime64], np.dtype("M8")),
        (NDArray[np.float32 | np.float64], np.floating),
        (NDArray[np.float32 | np.uint8], np.number),
        (NDArray[np.float32 | np.str_], None),
    ],
)
def test_dtypes_of_arrays(annotation, dtype):
    assert plan(annotation).dtype == dtype


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (list, [1, "a", None, [b"x"]]),
        (list[str], ["a", "b"]),
        (typing.List[int], [1, 2]),  # noqa: UP006
        (list[list[float]], [[1.5], []]),
        (collections.abc.Sequence[int], [1]),
        (dict, {"a": {"b": [1]}}),
        (dict[str, int], {"a": 1}),
        (typing.Mapping[str, list[bool]], {"a": [True]}),
        (tuple, (1, "a")),
        (tuple[int, str], (1, "a")),
        (tuple[int, ...], (1, 2, 3)),
        (tuple[()], ()),
        (Any, {"a": [1, b"x", None]}),
        (Any, None),
        (int | str, "a"),
        (int | str, 1),
        (int | float, 1.5),
        (int | str | None, None),
        (list[int] | None, None),
        (list[int | None], [1, None]),
        (list[bytes], [b"\x00", b""]),
        (Literal["a", "b"], "b"),
        (Literal[1, "one", True, b"x", None], True),
        (Literal[1, "one", True, b"x", None], None),
        (list[Literal["a", "b"]], ["a"]),
        (Box | None, None),
        (Annotated[list[Annotated[int, 1]], 2], [1]),
    ],
)
def test_a_value_is_read_as_it_was_written(annotation, value):
    again = read(annotation, value)
    assert again == value
    assert type(again) is type(value)


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (Colour, "red", Colour.RED),
        (Number, 1.5, Number.ONE),
        (Number, b"two", Number.TWO),
        (list[Colour], ["red", "green"], [Colour.RED, Colour.GREEN]),
        (Colour | None, None, None),
        (Box, {"x": 1}, Box(1)),
        (Box, {"x": 1, "y": 2, "z": 3}, Box(1, 2.0)),
        (list[Box], [{"x": 1}, {"y": 1.5, "x": 2}], [Box(1), Box(2, 1.5)]),
        (dict[str, Box | None], {"a": {"x": 1}, "b": None}, {"a": Box(1), "b": None}),
        (tuple[Box, int], [{"x": 1}, 2], (Box(1), 2)),
    ],
)
def test_enumerations_and_nested_samples(annotation, value, expected):
    cls = sample_type(annotation)
    again = cls.from_bytes(pack({"a": value}))
    assert again.a == expected
    assert cls.from_bytes(again.packed) == again


def test_nested_samples_have_arrays():
    class Inner(typed.PackableSample):
        x: NDArray[np.float32]

    class Outer(typed.PackableSample):
        inner: Inner
        several: list[Inner]

    outer = Outer(Inner(np.ones(3, "f4")), [Inner(np.zeros(2, "f4"))])
    payload = outer.packed
    again = Outer.from_bytes(payload)
    assert again.inner.x.tolist() == [1, 1, 1]
    assert again.several[0].x.tolist() == [0, 0]
    assert not again.inner.x.flags.owndata


def test_a_type_that_holds_itself():
    @typed.packable
    class Node:
        value: int
        children: "list[Node]"
        parent: "Node | None" = None

    node = Node(1, [Node(2, [])], Node(0, []))
    assert Node.from_bytes(node.packed) == node


@pytest.mark.parametrize(
    ("annotation", "value", "texts"),
    [
        (list[str], ["a", 1], ["str", "int"]),
        (list[int], "ab", ["array", "str"]),
        (dict[str, int], [1], ["object", "array"]),
        (tuple[int, str], [1], ["2"]),
        (int | str, 1.5, ["int | str", "float"]),
        (Literal["a", "b"], "c", ["'c'", "'a', 'b'"]),
        (Literal[1], True, ["True", "1"]),
        (Literal[1], [1], ["[1]"]),
        (Colour, "blue", ["'blue'", "Colour"]),
        (list[Colour], ["blue"], ["'blue'"]),
        (Box, {"y": 1.5}, ["Box", "'x'"]),
        (Box, [1], ["map"]),
        (Box, {"x": "1"}, ["int", "str", "'a.x'"]),
        (list[Box], [{"x": 1}, {"x": "1"}], ["int", "str", "[1]"]),
        (list[Box], None, ["array", "None"]),
    ],
)
def test_another_value_is_a_schema_error_with_known_values(annotation, value, texts):
    with pytest.raises(SchemaError) as caught:
        read(annotation, value)
    for text in texts:
        assert text in str(caught.value)
    assert caught.value.field.startswith("a")
    assert 0 <= caught.value.offset <= len(pack({"a": value}))


# Fields that cannot be.

BAD = [
    (set[str], r"set\[str\]"),
    (frozenset, "frozenset"),
    (object, "object"),
    (complex, "complex"),
    (type, "type"),
    (dataclasses.make_dataclass("Plain", ["a"]), "Plain"),
    (typing.Callable[[int], int], "Callable"),
    (list[set[int]], r"set\[int\]"),
    (dict[str, complex], "complex"),
    (NDArray[np.object_], "objects"),
    (list[NDArray], "arrays inside containers"),
    (dict[str, NDArray[np.float32]], "arrays inside containers"),
    (NDArray | bytes, "union of arrays"),
    (NDArray | list[int], "union of arrays"),
    (Box | int, "union of samples"),
    (list[int] | tuple[int, ...], "array-like"),
    ("NoSuchName", "'NoSuchName'"),
    ("list[NoSuchName]", "'NoSuchName'"),
    ("1 +", "invalid"),
    ("np.no_such_name", "no_such_name"),
    (typing.TypedDict("Movie", {"name": str}), "Movie"),
]


@pytest.mark.parametrize(("annotation", "text"), BAD)
def test_an_invalid_field_names_class_and_field(annotation, text):
    cls = sample_type(annotation)  # the class itself can be made
    for use in (
        lambda: cls.from_bytes(b"\x80"),
        lambda: typed.schema_of(cls),
        lambda: cls(1).packed,
    ):
        with pytest.raises(TypeError, match=text) as caught:
            use()
        assert str(caught.value).startswith("Sample.a: ")


@pytest.mark.parametrize("name", ["packed", "as_wds", "from_bytes", "from_data"])
def test_a_field_that_hides_a_method(name):
    cls = type("Sample", (typed.PackableSample,), {"__annotations__": {name: int}})
    with pytest.raises(TypeError, match=rf"Sample\.{name}: "):
        cls.from_bytes(b"\x80")


def test_an_init_var_is_not_a_field():
    class Sample(typed.PackableSample):
        a: int
        b: dataclasses.InitVar[int]

    with pytest.raises(TypeError, match=r"Sample\.b: an InitVar"):
        Sample.from_bytes(b"\x80")


def test_aliases_that_are_names_of_other_fields():
    class Sample(typed.PackableSample):
        a: int
        b: Annotated[int, typed.Field(aliases=("a",))]

    with pytest.raises(TypeError, match=r"Sample\.b: the alias 'a'"):
        Sample.from_bytes(b"\x80")


def test_aliases_are_a_tuple_of_str():
    for aliases in ("text", (1,)):
        with pytest.raises(TypeError, match="aliases must be"):
            typed.Field(aliases=aliases)
    assert typed.Field(aliases=("a",)) == typed.Field(aliases=("a",))
    assert len({typed.Field(aliases=("a",)), typed.Field(aliases=("a",))}) == 1


def test_a_mutable_default_is_refused():
    class Sample(typed.PackableSample):
        a: list = []  # noqa: RUF012

    with pytest.raises(ValueError, match="mutable default"):
        Sample()


def test_class_variables_and_plain_attributes_are_not_fields():
    class Sample(typed.PackableSample):
        a: int
        b: ClassVar[list] = []
        c = 5

    assert [field.name for field in field_plans(Sample)] == ["a"]


# Postponed annotations.

POSTPONED = """
    from __future__ import annotations
    from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Optional
    import numpy as np
    import numpy.typing as npt
    from numpy.typing import NDArray
    from fastshard import typed
    if TYPE_CHECKING:
        from decimal import Decimal

    @typed.packable
    class Postponed:
        bare: NDArray
        floats: NDArray[np.float32]
        whole: np.ndarray
        maybe: Optional[NDArray]
        short: npt.NDArray[np.uint8] | None
        label: Annotated[str, typed.Field(aliases=("caption",))]
        tags: list[str]
        kind: Literal["a", "b"]
        other: Later | None = None
        count: ClassVar[int] = 0

    class Derived(typed.PackableSample):
        floats: NDArray[np.float32]
        other: Later | None = None

    @typed.packable
    class Later:
        x: NDArray[np.int64]

    class Hidden(typed.PackableSample):
        price: Decimal

    def make():
        from collections import OrderedDict as Local
        Key = str

        @typed.packable
        class Inner:
            a: Key
            b: list[Inner]

        class Outer(typed.PackableSample):
            inner: Inner
            key: dict[Key, int]

        return Inner, Outer
"""


@pytest.fixture(scope="module")
def postponed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("postponed")
    (folder / "postponed_types.py").write_text(textwrap.dedent(POSTPONED))
    sys.path.insert(0, str(folder))
    try:
        import postponed_types

        yield postponed_types
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("postponed_types", None)


def test_postponed_annotations_are_resolved(postponed):
    kinds = {
        field.name: (field.kind, field.dtype, field.optional)
        for field in field_plans(postponed.Postponed)
    }
    assert kinds == {
        "bare": ("array", None, False),
        "floats": ("array", np.dtype("f4"), False),
        "whole": ("array", None, False),
        "maybe": ("array", None, True),
        "short": ("array", np.dtype("u1"), True),
        "label": ("str", None, False),
        "tags": ("object", None, False),
        "kind": ("object", None, False),
        "other": ("object", None, True),
    }
    assert field_plans(postponed.Postponed)[5].aliases == ("caption",)


def test_postponed_names_that_are_defined_later(postponed):
    later = postponed.Later(np.arange(2))
    sample = postponed.Derived(np.ones(2, "f4"), later)
    again = postponed.Derived.from_bytes(sample.packed)
    assert again.other.x.tolist() == [0, 1]
    assert again.floats.dtype == np.float32


def test_postponed_names_of_a_function(postponed):
    inner, outer = postponed.make()
    sample = outer(inner("k", [inner("l", [])]), {"a": 1})
    assert outer.from_bytes(sample.packed) == sample


def test_a_name_for_type_checkers_alone_is_named_by_the_error(postponed):
    with pytest.raises(TypeError, match=r"Hidden\.price: .*'Decimal', which is not"):
        postponed.Hidden.from_bytes(b"\x80")


def test_a_name_that_is_defined_after_a_failure(postponed):
    class Sample(typed.PackableSample):
        a: "Missing"  # noqa: F821

    with pytest.raises(TypeError, match="Missing"):
        Sample.from_bytes(b"\x81\xa1a\x01")
    globals()["Missing"] = int
    try:
        assert Sample.from_bytes(b"\x81\xa1a\x01").a == 1
    finally:
        del globals()["Missing"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="syntax of Python 3.12")
def test_type_aliases_of_python_312():
    names = {}
    exec("type Words = list[str]", names)
    assert read(names["Words"], ["a"]) == ["a"]


def test_faults_of_bytes_inside_nested_samples_name_the_fields():
    class Inner(typed.PackableSample):
        x: NDArray

    class Outer(typed.PackableSample):
        inner: Inner

    payload = Outer(Inner(np.ones(3, "f4"))).packed.replace(
        b"\x93NUMPY\x01", b"\x93NUMPY\x09"
    )
    with pytest.raises(fastshard.FormatError) as caught:
        Outer.from_bytes(payload)
    assert caught.value.member == "field 'inner.x'"


U = TypeVar("U")


class Pair(typed.PackableSample, Generic[T, U]):
    first: T
    second: list[U] | None
    third: Annotated[U, "note"]


class Half(Pair[NDArray[np.uint8], U]):
    own: U


class Whole(Half["Later"]):
    pass


class Later(typed.PackableSample):
    i: int


class Scaled(typed.PackableSample, Generic[Scalar]):
    x: NDArray[Scalar] | None
    y: NDArray[Scalar]


class Bytes(Scaled[np.uint8]):
    z: str = ""


def test_type_variables_are_those_of_a_subclass():
    sample = Whole(np.arange(3, dtype="u1"), [Later(1)], Later(2), Later(3))
    again = Whole.from_bytes(sample.packed)
    assert np.array_equal(again.first, sample.first)
    assert (again.second, again.third, again.own) == ([Later(1)], Later(2), Later(3))
    with pytest.raises(SchemaError, match="first"):
        Whole.from_bytes(Whole(np.zeros(3), None, Later(2), Later(3)).packed)
    with pytest.raises(SchemaError, match="'y'"):
        Bytes.from_bytes(Bytes(None, np.zeros(3)).packed)
    assert Bytes.from_bytes(Bytes(None, np.zeros(3, "u1")).packed).x is None
    loose = Scaled.from_bytes(Scaled(np.zeros(2), np.zeros(3)).packed)
    assert loose.x.dtype == loose.y.dtype == float
