"""Lenses as JSON: known copies, code, refusals."""

import dataclasses
import json
import pickle
import subprocess
import sys
from typing import ClassVar

import pytest

from fastshard import typed
from fastshard.errors import DescriptionError
from fastshard.typed.descriptions.lens_json import (
    from_lens_json,
    mapping_of,
    to_lens_json,
)
from support.marks import not_sanitized
from support.typed import lens_module

pytestmark = not_sanitized  # tests no C code


class Person(typed.PackableSample):
    name: str
    age: int
    city: str | None = None


class Name(typed.PackableSample):
    text: str


class Both(typed.PackableSample):
    name: str
    age: int
    extra: float = 0.5


class Named(typed.PackableSample):
    name: str

    @classmethod
    def make(cls, name):
        return cls(name.upper() if isinstance(name, str) else name)


class Counting(typed.PackableSample):
    name: str
    made: ClassVar[int] = 0

    def __post_init__(self):
        self.name = self.name.upper() if isinstance(self.name, str) else self.name


class Computing(typed.PackableSample):
    name: str

    @property
    def loud(self):
        return self.name.upper() if isinstance(self.name, str) else self.name


class Shadow:
    def __get__(self, sample, cls):
        if sample is None:
            raise AttributeError
        value = vars(sample)["_name"]
        return value.upper() if isinstance(value, str) else value

    def __set__(self, sample, value):
        vars(sample)["_name"] = value


class Shadowing(typed.PackableSample):
    name: str


Shadowing(name="a")
Shadowing.name = Shadow()


class Intercepting(typed.PackableSample):
    name: str

    def __getattribute__(self, name):
        value = object.__getattribute__(self, name)
        return value.upper() if isinstance(value, str) else value


class Own(typed.PackableSample):
    name: str

    def __init__(self, other):
        self.name = other


def identity(value):
    return value


def keyword(s: Person) -> Name:
    return Name(text=s.name)


def positional(s: Person) -> Name:
    return Name(s.name)


def several(s: Person) -> Both:
    return Both(age=s.age, name=s.name)


def twice(s: Person) -> Both:
    return Both(s.name, s.name)


COPIES = [
    (keyword, (("name", "text"),)),
    (positional, (("name", "text"),)),
    (several, (("name", "name"), ("age", "age"))),
    (twice, (("name", "name"), ("name", "age"))),
]


@pytest.mark.parametrize(
    ("get", "pairs"), COPIES, ids=lambda each: getattr(each, "__name__", "")
)
def test_getters_that_copy(get, pairs):
    assert mapping_of(typed.Lens(get)) == (pairs, None)


def upper(s: Person) -> Name:
    return Name(text=s.name.upper())


def branches(s: Person) -> Name:
    return Name(text=s.name) if s.age else Name(s.name)


def chosen(s: Person) -> Name:
    return Name(text="" if s.city is None else s.name)


def checked(s: Person) -> Name:
    if not isinstance(s.name, object):
        return Name(text="")
    return Name(text=s.name)


def constant(s: Person) -> Both:
    return Both(name=s.name, age=s.age, extra=1.0)


def constant_only(s: Person) -> Name:
    return Name(text="a")


def calls(s: Person) -> Name:
    return Name(text=identity(s.name))


def by_method(s: Person) -> Named:
    return Named.make(s.name)


def by_method_keyword(s: Person) -> Named:
    return Named.make(name=s.name)


def by_property(s: Computing) -> Name:
    return Name(text=s.loud)


def by_descriptor(s: Shadowing) -> Name:
    return Name(text=s.name)


def by_attribute(s: Intercepting) -> Name:
    return Name(text=s.name)


def by_constructor(s: Person) -> Own:
    return Own(s.name)


def formatted(s: Person) -> Name:
    return Name(text=f"{s.name}")


def added(s: Person) -> Name:
    return Name(text=s.name + "")


def whole(s: Person) -> Name:
    return Name(text=s)


def deeper(s: Person) -> Name:
    return Name(text=s.name.__class__)


def by_other(s: Person) -> Name:
    return identity(s.name)


def cached(s: Person, known={}) -> Name:  # noqa: B006
    return known.setdefault(s.name, Name(text=s.name))


def tried(s: Person) -> Name:
    try:
        return Name(text=s.name)
    except AttributeError:
        return Name(text="")


def replaced(s: Person) -> Person:
    return dataclasses.replace(s, name=s.city)


def splatted(s: Person) -> Both:
    values = {"name": s.name, "age": s.age}
    return Both(**values)


def stored(s: Person) -> Name:
    s.age = 0
    return Name(text=s.name)


COMPUTE = [
    *(upper, branches, chosen, checked, constant, constant_only, calls, by_method),
    *(by_descriptor, by_attribute, by_constructor),
    *(by_method_keyword, by_property, formatted, added, whole, deeper, by_other),
    *(tried, replaced, splatted, stored),
]


@pytest.mark.parametrize("get", COMPUTE, ids=lambda get: get.__name__)
def test_getters_that_are_not_known_to_copy(get):
    assert mapping_of(typed.Lens(get)) is None
    found = to_lens_json(typed.Lens(get), name="n", version="1.0.0")
    assert found["getter"] == {
        "kind": "code_reference",
        "module": __name__,
        "qualname": get.__name__,
    }


def test_a_constructor_that_computes_is_called_again():
    def get(s: Person) -> Counting:
        return Counting(s.name)

    lens = typed.Lens(get)
    found = from_lens_json(
        to_lens_json(lens, name="n", version="1.0.0"),
        source_type=Person,
        view_type=Counting,
    )
    assert found(Person("a", 1)) == lens(Person("a", 1)) == Counting("A")


def test_other_callables_are_not_known():
    class Getter:
        def __call__(self, s: Person) -> Name:
            return Name(text=s.name)

    def made(function):
        def get(s: Person) -> Name:
            return function(text=s.name)

        return typed.Lens(get)

    lens = typed.Lens(Getter().__call__)
    assert mapping_of(lens) is None
    assert mapping_of(made(lambda text: Name(text.upper()))) is None
    assert mapping_of(made(Name)) == ((("name", "text"),), None)
    assert to_lens_json(made(identity), name="n", version="1.0.0")["getter"] == {
        "kind": "opaque"
    }


def put(v: Both, s: Person) -> Person:
    return Person(name=v.name, age=v.age, city=s.city)


def put_less(v: Both, s: Person) -> Person:
    return Person(name=v.name, age=s.age, city=s.city)


def put_crossed(v: Both, s: Person) -> Person:
    return Person(name=v.age, age=v.name, city=s.city)


def put_moved(v: Both, s: Person) -> Person:
    return Person(name=v.name, age=v.age, city=s.name)


def put_dropped(v: Both, s: Person) -> Person:
    return Person(name=v.name, age=v.age)


def put_computed(v: Both, s: Person) -> Person:
    return Person(name=v.name.lower(), age=v.age, city=s.city)


def test_putters():
    lens = typed.Lens(several, put)
    assert mapping_of(lens)[1] == (("name", "name"), ("age", "age"))
    for other in (put_less, put_crossed, put_moved, put_dropped, put_computed):
        lens = typed.Lens(several, other)
        assert mapping_of(lens)[1] is None
        found = to_lens_json(lens, name="n", version="1.0.0")["putter"]
        assert found["qualname"] == other.__name__
    found = to_lens_json(typed.Lens(several), name="n", version="1.0.0")
    assert found["putter"] == {"kind": "opaque"}


def test_json_and_back():
    record = to_lens_json(
        typed.Lens(several, put), name="both", version="1.2.0", description="x"
    )
    made = record.pop("created_at")
    assert made.endswith("+00:00")
    assert record == {
        "name": "both",
        "version": "1.2.0",
        "source_schema": "Person",
        "view_schema": "Both",
        "getter": {
            "kind": "field_mapping",
            "mappings": [
                {"source_field": name, "view_field": name, "transform": None}
                for name in ("name", "age")
            ],
        },
        "putter": {
            "kind": "field_mapping",
            "mappings": [
                {"source_field": name, "view_field": name, "transform": None}
                for name in ("name", "age")
            ],
        },
        "description": "x",
    }
    lens = from_lens_json(
        json.loads(json.dumps(record)), source_type=Person, view_type=Both
    )
    people = [Person("a", 1, "b"), Person("c", 2)]
    assert lens(people[0]) == Both("a", 1)
    assert lens.put(Both("d", 3), people[0]) == Person("d", 3, "b")
    assert lens.check_laws(people) == []
    assert (lens.source_type, lens.view_type, lens.__name__) == (Person, Both, "both")
    again = pickle.loads(pickle.dumps(lens))
    assert again(people[1]) == Both("c", 2)
    assert again.put(Both("d", 3), people[1]) == Person("d", 3)
    stored_again = to_lens_json(again, name="both", version="1.2.0")
    assert stored_again["getter"] == record["getter"]
    assert stored_again["putter"] == record["putter"]


def test_renamed_field_and_back():
    def get(s: Person) -> Name:
        return Name(text=s.name)

    def put(v: Name, s: Person) -> Person:
        return Person(v.text, s.age, s.city)

    record = to_lens_json(typed.Lens(get, put), name="n", version="1.0.0")
    assert record["putter"]["mappings"] == [
        {"source_field": "text", "view_field": "name", "transform": None}
    ]
    lens = from_lens_json(record, source_type=Person, view_type=Name)
    assert lens.put(Name("b"), Person("a", 1, "c")) == Person("b", 1, "c")


def test_a_lens_without_a_putter_has_none_when_it_is_loaded():
    record = to_lens_json(typed.Lens(keyword), name="n", version="1.0.0")
    lens = from_lens_json(record, source_type=Person, view_type=Name)
    with pytest.raises(TypeError, match="has no putter"):
        lens.put(Name("b"), Person("a", 1))


def test_chains_of_copies_are_copies():
    def get(s: Both) -> Name:
        return Name(text=s.name)

    def put_back(v: Name, s: Both) -> Both:
        return Both(name=v.text, age=s.age, extra=s.extra)

    first, second = typed.Lens(several, put), typed.Lens(get, put_back)
    assert mapping_of(first | second) == ((("name", "text"),), (("text", "name"),))
    assert mapping_of(first | typed.Lens(get)) == ((("name", "text"),), None)
    assert mapping_of(typed.Lens(upper) | typed.Lens.identity(Name)) is None
    people = [Person("a", 1, "b"), Person("c", 2)]
    loaded = from_lens_json(
        to_lens_json(first | second, name="n", version="1.0.0"),
        source_type=Person,
        view_type=Name,
    )
    for each in people:
        assert loaded(each) == (first | second)(each)
        assert loaded.put(Name("z"), each) == (first | second).put(Name("z"), each)


def test_the_identity_copies_all_fields():
    record = to_lens_json(typed.Lens.identity(Person), name="same", version="1.0.0")
    lens = from_lens_json(record, source_type=Person, view_type=Person)
    person = Person("a", 1, "b")
    assert lens(person) == person
    assert lens.put(Person("c", 2), person) == Person("c", 2)
    pairs = (("name", "name"), ("age", "age"))
    assert mapping_of(typed.Lens.identity(Person) | typed.Lens(several, put)) == (
        pairs,
        pairs,
    )


def test_fields_that_the_type_between_fills_are_not_copies():
    class Last(typed.PackableSample):
        extra: float

    def get(s: Both) -> Last:
        return Last(extra=s.extra)

    assert mapping_of(typed.Lens(several) | typed.Lens(get)) is None


RECORD = to_lens_json(typed.Lens(several, put), name="both", version="1.0.0")
CODE = to_lens_json(lens_module.name, name="name", version="1.0.0")
LENGTH = to_lens_json(lens_module.length, name="length", version="1.0.0")


def test_code_is_imported_only_if_it_is_allowed():
    code = (
        "import json, sys\n"
        "from fastshard.typed.descriptions.lens_json import from_lens_json\n"
        "record = json.loads(sys.argv[1])\n"
        "try:\n"
        "    from_lens_json(record)\n"
        "except ValueError as error:\n"
        "    print('allow_code=True' in str(error), 'antigravity' in sys.modules)\n"
    )
    reference = {"kind": "code_reference", "module": "antigravity", "qualname": "f"}
    for record in (
        {"name": "a", "getter": reference, "putter": reference},
        {"name": "a", "getter": {"kind": "opaque"}, "putter": reference},
        RECORD | {"putter": reference},
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, json.dumps(record)],
            capture_output=True,
            text=True,
        )
        expected = "opaque" not in json.dumps(record["getter"])
        assert done.stdout.split() == [str(expected), "False"], done.stderr


def test_code_of_a_module():
    person = lens_module.Person("ab cd", 1)
    with pytest.raises(DescriptionError, match="only with allow_code=True"):
        from_lens_json(CODE)
    lens = from_lens_json(CODE, allow_code=True)
    assert lens(person) == lens_module.Name("Ab Cd")
    assert lens.put(lens_module.Name("X"), person) == lens_module.Person("x", 1)
    assert lens.source_type is lens_module.Person
    length = from_lens_json(
        LENGTH,
        allow_code=True,
        source_type=lens_module.Person,
        view_type=lens_module.Length,
    )
    assert length(person) == lens_module.Length(5)
    named = LENGTH | {"getter": LENGTH["getter"] | {"qualname": "length"}}
    assert from_lens_json(named, allow_code=True) is lens_module.length
    mixed = RECORD | {"putter": CODE["putter"]}
    lens = from_lens_json(
        mixed | pair(view_field="text"),
        allow_code=True,
        source_type=lens_module.Person,
        view_type=lens_module.Name,
    )
    assert lens.put(lens_module.Name("X"), person) == lens_module.Person("x", 1)


def test_code_of_other_types_is_refused():
    with pytest.raises(DescriptionError, match=r"source_type .* is Person, not Both"):
        from_lens_json(CODE, allow_code=True, source_type=Both)
    with pytest.raises(DescriptionError, match=r"view_type .* is Name, not Both"):
        from_lens_json(CODE, allow_code=True, view_type=Both)


def test_code_without_annotations_needs_types():
    reference = {"module": lens_module.__name__, "qualname": "bare_name"}
    record = LENGTH | {"getter": {"kind": "code_reference", **reference}}
    lens = from_lens_json(
        record,
        allow_code=True,
        source_type=lens_module.Person,
        view_type=lens_module.Name,
    )
    for each in (lens, pickle.loads(pickle.dumps(lens))):
        assert each(lens_module.Person("a", 1)) == lens_module.Name("a")
        assert each.source_type is lens_module.Person
    with pytest.raises(TypeError, match="no annotation"):
        from_lens_json(record, allow_code=True, source_type=lens_module.Person)


MODULE = lens_module.__name__


@pytest.mark.parametrize(
    ("reference", "match"),
    [
        ({"module": MODULE, "qualname": "nothing"}, "has no function 'nothing'"),
        ({"module": MODULE, "qualname": "NUMBER"}, "has no function 'NUMBER'"),
        ({"module": MODULE, "qualname": "name.nothing"}, "has no function"),
        ({"module": MODULE, "qualname": "<lambda>"}, "names no code"),
        ({"module": "../x", "qualname": "f"}, "names no code"),
        ({"module": ".", "qualname": "f"}, "names no code"),
        ({"module": 5, "qualname": "f"}, "must have a 'module' field"),
        ({"module": MODULE}, "must have a 'qualname' field"),
    ],
)
def test_code_that_is_not_there(reference, match):
    record = CODE | {"getter": {"kind": "code_reference", **reference}}
    with pytest.raises(DescriptionError, match=match):
        from_lens_json(record, allow_code=True)


def test_module_that_is_not_there():
    reference = {"kind": "code_reference", "module": "no_such_module", "qualname": "f"}
    with pytest.raises(ImportError, match="no_such_module"):
        from_lens_json(CODE | {"getter": reference}, allow_code=True)


def pair(**changes):
    one = {"source_field": "name", "view_field": "name", "transform": None}
    return {"getter": {"kind": "field_mapping", "mappings": [one | changes]}}


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"name": None}, "must have a 'name' field"),
        ({"getter": None}, "'getter' must be an object"),
        ({"getter": {}}, "must have a 'kind' field"),
        ({"getter": {"kind": "opaque"}}, "Cannot reconstitute the lens 'both'"),
        ({"getter": {"kind": "python"}}, "Cannot reconstitute the lens 'both'"),
        ({"getter": {"kind": ["a"]}}, "must have a 'kind' field"),
        ({"getter": {"kind": "field_mapping"}}, "'mappings' must be a list"),
        ({"getter": {"kind": "field_mapping", "mappings": [5]}}, "must be an object"),
        ({"getter": {"kind": "field_mapping", "mappings": [{}]}}, "'source_field'"),
        ({"putter": 5}, "'putter' must be an object"),
        (pair(transform="upper"), "unknown transform 'upper'"),
        (pair(source_field="x"), "Person has no field 'x'"),
        (pair(view_field="x"), "Both has no field 'x'"),
        (pair(view_field="__class__"), "Both has no field"),
        (pair(view_field=5), "must have a 'view_field' field"),
        (pair(), "maps nothing to the field 'age' of Both"),
    ],
)
def test_records_that_are_none(changes, match):
    with pytest.raises(DescriptionError, match=match):
        from_lens_json(RECORD | changes, source_type=Person, view_type=Both)


def test_a_field_that_is_mapped_twice():
    one = pair()["getter"]["mappings"][0]
    record = RECORD | {"getter": {"kind": "field_mapping", "mappings": [one, one]}}
    with pytest.raises(DescriptionError, match="maps to the field 'name' twice"):
        from_lens_json(record, source_type=Person, view_type=Both)


def test_types_that_are_missing():
    with pytest.raises(DescriptionError, match="view_type is required"):
        from_lens_json(RECORD)
    with pytest.raises(DescriptionError, match="source_type is required"):
        from_lens_json(RECORD, view_type=Both)
    with pytest.raises(TypeError, match="source_type must be a packable class"):
        from_lens_json(RECORD, source_type=int, view_type=Both)
