"""Lenses of an index: stored, found, loaded; code only where it is allowed."""

import json
import sqlite3
import warnings

import pytest

from fastshard import LensNotFoundError, typed
from fastshard.errors import DescriptionError
from support.marks import not_sanitized
from support.typed import lens_module

pytestmark = not_sanitized  # tests no C code

REF = "atdata://local/lens/{}@{}"


@pytest.fixture
def types():
    """Return two types that no other test's lenses are of."""

    class Person(typed.PackableSample):
        name: str
        age: int

    class Name(typed.PackableSample):
        name: str

    return Person, Name


def copying(types):
    person, name = types

    def get(s: person) -> name:
        return name(name=s.name)

    def put(v: name, s: person) -> person:
        return person(name=v.name, age=s.age)

    return typed.Lens(get, put)


def shouting(types):
    person, name = types

    def get(s: person) -> name:
        return name(name=s.name.upper())

    return typed.Lens(get)


def test_stored_and_loaded(index, types):
    person, name = types
    ref = index.store_lens(copying(types), name="by_name", description="the name")
    assert ref == REF.format("by_name", "1.0.0")
    record = index.get_lens(ref)
    assert record["$ref"] == ref
    assert (record["source_schema"], record["view_schema"]) == ("Person", "Name")
    assert record["description"] == "the name"
    lens = index.load_lens(ref, source_type=person, view_type=name)
    assert lens(person("a", 1)) == name("a")
    assert lens.put(name("b"), person("a", 1)) == person("b", 1)


def test_a_lens_that_computes_does_not_come_back_as_a_copy(index, types):
    person, name = types
    ref = index.store_lens(shouting(types), name="shout")
    assert index.get_lens(ref)["getter"] == {"kind": "opaque"}
    with pytest.raises(ValueError, match="Cannot reconstitute the lens 'shout'"):
        index.load_lens(ref, source_type=person, view_type=name)
    ref = index.store_lens(lens_module.name, name="title")
    assert index.get_lens(ref)["getter"]["kind"] == "code_reference"


def test_code_needs_permission(index):
    ref = index.store_lens(lens_module.length, name="length")
    with pytest.raises(ValueError, match="allow_code=True") as caught:
        index.load_lens(ref)
    assert ref in str(caught.value)
    lens = index.load_lens(ref, allow_code=True)
    assert lens(lens_module.Person("abc", 1)) == lens_module.Length(3)


def test_versions(index, types):
    lens = copying(types)
    refs = [index.store_lens(lens, name="n") for _ in range(2)]
    refs.append(index.store_lens(lens, name="n", version="1.10.0"))
    refs.append(index.store_lens(lens, name="n", version="0.1.0"))
    refs.append(index.store_lens(lens, name="n"))
    versions = ["1.0.0", "1.0.1", "1.10.0", "0.1.0", "1.10.1"]
    assert refs == [REF.format("n", each) for each in versions]
    assert sorted(each["$ref"] for each in index.list_lenses()) == sorted(refs)
    assert [*index.lenses] == index.list_lenses()


@pytest.mark.parametrize("version", ["", "1", "latest"])
def test_null_versions(index, types, version):
    with pytest.raises(ValueError, match="not a semantic version"):
        index.store_lens(copying(types), name="n", version=version)


@pytest.mark.parametrize("name", ["", "a" * 201, "a" * 1_000_000, 5, None])
def test_names_that_are_none(index, types, name):
    with pytest.raises((ValueError, TypeError), match="name of a lens") as caught:
        index.store_lens(copying(types), name=name)
    assert len(str(caught.value)) < 100


@pytest.mark.parametrize("name", ["a@b", "a/b", "a*?[b]", "it's", "a b", "日本", "@"])
def test_any_text_is_a_name(index, types, name):
    ref = index.store_lens(copying(types), name=name)
    assert ref == REF.format(name, "1.0.0")
    assert index.get_lens(ref)["name"] == name
    assert [each["$ref"] for each in index.list_lenses()] == [ref]


def test_non_lenses(index):
    with pytest.raises(TypeError, match="expected a Lens, got function"):
        index.store_lens(lambda s: s, name="n")
    with pytest.raises(TypeError, match="no annotation"):
        index.store_lens(typed.Lens(lambda s: s), name="n")


def test_found_by_schemas(index, types):
    a = index.store_lens(copying(types), name="a")
    b = index.store_lens(shouting(types), name="b", view_schema="Loud")
    c = index.store_lens(copying(types), name="c", source_schema="Person@1.0.0")
    assert {each["$ref"] for each in index.find_lenses("Person")} == {a, b}
    assert [each["$ref"] for each in index.find_lenses("Person", "Loud")] == [b]
    assert [each["$ref"] for each in index.find_lenses("Person@1.0.0")] == [c]
    assert index.find_lenses("Pers") == index.find_lenses("Person", "%") == []


def test_lenses_that_are_not_there(index):
    for call in (index.get_lens, index.load_lens):
        with pytest.raises(KeyError, match="Lens not found"):
            call(REF.format("none", "1.0.0"))


@pytest.mark.parametrize(
    "ref", ["none", "atdata://local/schema/None@1.0.0", REF.format("none", ""), 5]
)
def test_references_that_are_none(index, ref):
    with pytest.raises((ValueError, TypeError), match="reference"):
        index.get_lens(ref)


def test_a_loaded_lens_serves_datasets(index, types, tmp_path):
    person, name = types
    ref = index.store_lens(copying(types), name="n")
    people = [person(f"p{i}", i) for i in range(3)]
    ds = typed.write_samples(people, tmp_path / "a.tar")
    lens = index.load_lens(ref, source_type=person, view_type=name)
    assert typed.LensNetwork().transform(person, name) is lens
    assert [each.name for each in ds.as_type(name).ordered()] == ["p0", "p1", "p2"]


def test_a_declared_lens_is_not_replaced(index, types):
    person, name = types
    declared = copying(types)
    typed.LensNetwork().register(declared)
    ref = index.store_lens(declared, name="n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = index.load_lens(ref, source_type=person, view_type=name)
    assert loaded is not declared
    assert typed.LensNetwork().transform(person, name) is declared


def test_a_lens_that_is_not_loaded_is_not_registered(index, types):
    index.store_lens(copying(types), name="n")
    with pytest.raises(LensNotFoundError):
        typed.LensNetwork().transform(*types[::-1])


def overwrite(path, text):
    connection = sqlite3.connect(path)
    connection.execute("UPDATE lenses SET lens_json = ?", (text,))
    connection.commit()
    connection.close()


OPAQUE = {"kind": "opaque"}
DAMAGED = [
    *("", "{", "[]", "null", "[" * 100_000, "{}", '{"name": []}'),
    json.dumps({"name": "n", "getter": 5}),
    json.dumps({"name": "n", "getter": OPAQUE, "putter": OPAQUE}),
    json.dumps({"name": "n", "getter": {"kind": "field_mapping", "mappings": {}}}),
]


@pytest.mark.parametrize("text", DAMAGED, ids=lambda text: text[:40])
def test_stored_text_that_is_not_a_lens(index, types, tmp_path, text):
    person, name = types
    ref = index.store_lens(copying(types), name="n")
    overwrite(tmp_path / "index.db", text)
    with pytest.raises(DescriptionError, match=r"lens/n@1\.0\.0") as caught:
        index.load_lens(ref, source_type=person, view_type=name)
    assert len(str(caught.value)) < 500
    assert index.store_lens(copying(types), name="n") == REF.format("n", "1.0.1")
