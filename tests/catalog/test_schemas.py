"""Schemas of an index: versions, equality, types, modules for editors, damage."""

import json
import pickle
import sqlite3
import threading

import numpy as np
import pytest
from numpy.typing import NDArray

from fastshard import typed
from fastshard.errors import DescriptionError
from fastshard.typed.descriptions.structure import describe
from support.marks import not_sanitized
from support.processes import run_script
from support.typed.numbers import Number

pytestmark = not_sanitized  # tests no C code

REF = "atdata://local/schema/{}@{}"


def made(fields, name="Item", doc=None):
    names = {"__annotations__": fields, "__doc__": doc}
    return type(name, (typed.PackableSample,), names)


def without_none(schema):
    return {key: value for key, value in schema.items() if value is not None}


def stored(index):
    return sorted(each["$ref"] for each in index.list_schemas())


@pytest.mark.parametrize("name", ["load_schema", "decode_schema", "decode_schema_as"])
def test_names_that_atdata_deprecates_return_the_type(index, name):
    ref = index.publish_schema(Number)
    hint = (Number,) if name == "decode_schema_as" else ()
    assert getattr(index, name)(ref, *hint) is index.get_schema_type(ref)


# -- Versions


def test_first_version_and_the_next(index):
    assert index.publish_schema(made({"a": int})) == REF.format("Item", "1.0.0")
    assert index.publish_schema(made({"a": str})) == REF.format("Item", "1.0.1")
    longer = made({"a": int, "b": int})
    assert index.publish_schema(longer, version="1.9.0") == REF.format("Item", "1.9.0")
    index.publish_schema(made({"c": int}), version="1.10.0")
    assert index.publish_schema(made({"d": int})) == REF.format("Item", "1.10.1")
    assert index.publish_schema(made({"a": int}, "Other")) == REF.format(
        "Other", "1.0.0"
    )


def test_equal_fields_make_no_new_version(index):
    first = index.publish_schema(made({"a": int, "b": str | None}))
    assert index.publish_schema(made({"a": int, "b": str | None})) == first
    assert index.publish_schema(made({"b": str | None, "a": int})) == first
    index.publish_schema(made({"a": str}))
    assert index.publish_schema(made({"a": int, "b": str | None})) == first
    assert len(stored(index)) == 2


def test_a_named_version(index):
    item = made({"a": int})
    assert index.publish_schema(item, version="2.0.0") == REF.format("Item", "2.0.0")
    created = index.get_schema(REF.format("Item", "2.0.0"))["createdAt"]
    assert index.publish_schema(item, version="2.0.0") == REF.format("Item", "2.0.0")
    assert index.get_schema(REF.format("Item", "2.0.0"))["createdAt"] == created
    with pytest.raises(ValueError, match=r"Item@2\.0\.0 exists with other fields"):
        index.publish_schema(made({"a": str}), version="2.0.0")
    assert index.get_schema_type(REF.format("Item", "2.0.0"))(a=1).a == 1


@pytest.mark.parametrize("version", ["", "1", "1.0", "v1.0.0", "latest", "1.0.0 "])
def test_null_versions(index, version):
    with pytest.raises(ValueError, match="not a semantic version"):
        index.publish_schema(made({"a": int}), version=version)
    assert stored(index) == []


def test_description(index):
    told = made({"a": int}, doc="A text.")
    ref = index.publish_schema(told)
    assert index.get_schema(ref)["description"] == "A text."
    assert index.publish_schema(told, description="Another.") == ref
    assert index.get_schema(ref)["description"] == "Another."
    index.publish_schema(told)
    assert index.get_schema(ref)["description"] == "Another."
    assert index.get_schema_type(ref).__doc__ == "Another."


class Inner(typed.PackableSample):
    a: int


@pytest.mark.parametrize(
    ("sample_type", "match"),
    [
        (int, "int does not satisfy the Packable protocol"),
        (5, "sample_type must be a class, got int"),
        (typed.DictSample, "DictSample"),
        (made({"ok": int, "inner": Inner}), r"Item\.inner: Nested dataclass types"),
        (made({"ok": int, "either": int | str}), r"Item\.either: .*union"),
        (made({"ok": int, "word": complex}), r"Item\.word: complex cannot be a field"),
    ],
)
def test_types_without_a_schema_are_named(index, sample_type, match):
    with pytest.raises(TypeError, match=match):
        index.publish_schema(sample_type)
    assert stored(index) == []


def test_bare_arrays_and_dicts(index):
    ref = index.publish_schema(made({"x": NDArray, "m": dict}))
    kinds = [each["fieldType"] for each in index.get_schema(ref)["fields"]]
    assert kinds == [
        {"$type": "local#ndarray", "dtype": None},
        {"$type": "local#object"},
    ]
    again = index.get_schema_type(ref)
    for x in (np.zeros(2, "f8"), np.zeros(2, "u1")):
        sample = again.from_bytes(again(x=x, m={"a": [1]}).packed)
        assert sample.x.dtype == x.dtype
        assert sample.m == {"a": [1]}


def test_a_schema_of_atdata_is_not_published_again(index):
    """Its float32 is what atdata writes for arrays of any dtype."""
    field = {"name": "x", "fieldType": {"$type": "local#ndarray", "dtype": "float32"}}
    text = json.dumps({"name": "Vec", "version": "1.0.0", "fields": [field]})
    index.provider.store_schema("Vec", "1.0.0", text)
    assert index.publish_schema(made({"x": NDArray}, "Vec")) == REF.format(
        "Vec", "1.0.0"
    )
    ref = index.publish_schema(made({"x": NDArray[np.float64]}, "Vec"))
    assert ref == REF.format("Vec", "1.0.1")


# -- Look-up


def test_lists(index):
    refs = [index.publish_schema(made({name: int}, name)) for name in "BAC"]
    assert stored(index) == sorted(refs)
    listed = index.list_schemas()
    expected = {ref: without_none(index.get_schema(ref)) for ref in refs}
    assert {each["$ref"]: each for each in listed} == expected
    records = {each.ref: each for each in index.schemas}
    assert set(records) == set(refs)
    for ref in refs:
        assert index.get_schema_record(ref) == records[ref]
        assert records[ref].created_at.tzinfo is not None
        found = records[ref].to_dict()
        assert found == {
            k: v for k, v in index.get_schema(ref).items() if v is not None
        }


def test_schemas_that_are_not_there(index):
    index.publish_schema(made({"a": int}))
    for ref in (REF.format("Item", "7.0.0"), REF.format("None", "1.0.0")):
        for call in (index.get_schema, index.get_schema_type, index.get_schema_record):
            with pytest.raises(KeyError, match="Schema not found"):
                call(ref)


@pytest.mark.parametrize(
    "ref", ["Item", "invalid://schemas/Item@1.0.0", REF.format("Item", ""), "", 5]
)
def test_references_that_are_none(index, ref):
    with pytest.raises((ValueError, TypeError), match="reference"):
        index.get_schema(ref)


def test_old_schemas_are_found(index):
    field = {
        "name": "a",
        "fieldType": {"$type": "local#primitive", "primitive": "str"},
        "optional": False,
    }
    text = json.dumps({"name": "Old", "version": "0.9.0", "fields": [field]})
    index.provider.store_schema("old_module.Old", "0.9.0", text)
    (listed,) = index.list_schemas()
    for ref in (
        "local://schemas/old_module.Old@0.9.0",
        "local://schemas/Old@0.9.0",
        REF.format("Old", "0.9.0"),
        listed["$ref"],
    ):
        assert index.get_schema(ref)["fields"] == [field]
        assert index.get_schema_type(ref)(a="x").a == "x"
    with pytest.raises(KeyError):
        index.get_schema("local://schemas/old_module.Old@1.0.0")


def test_schemas_of_mounted_repositories(index, tmp_path):
    other = typed.create_repository("sqlite", path=tmp_path / "other.db")
    both = typed.Index(provider=index.provider, repos={"team": other}, atmosphere=None)
    typed.Index(provider=other.provider, atmosphere=None).publish_schema(
        made({"a": int}, "Theirs")
    )
    ref = REF.format("Theirs", "1.0.0")
    assert both.get_schema_type(ref)(a=1).a == 1
    assert both.list_schemas() == []


# -- Types


def test_types_by_name(index):
    assert repr(index.types) == "SchemaNamespace(empty)"
    assert len(index.types) == 0
    with pytest.raises(AttributeError, match=r"'Item' not loaded.*get_schema_type"):
        index.types.Item  # noqa: B018
    ref = index.publish_schema(made({"a": int}))
    quiet = index.get_schema_type(ref, register=False)
    assert "Item" not in index.types
    found = index.get_schema_type(ref)
    assert found is quiet is index.types.Item is index.types.get("Item")
    assert ("Item" in index.types, list(index.types)) == (True, ["Item"])
    assert "Item" in dir(index.types)
    assert repr(index.types) == "SchemaNamespace(Item)"
    assert index.types.get("Other", 5) == 5


def test_types_of_two_indexes_with_one_reference(index, bare_index):
    ref = index.publish_schema(made({"a": int}))
    assert bare_index.publish_schema(made({"a": str})) == ref
    assert index.get_schema_type(ref) is not bare_index.get_schema_type(ref)


def test_a_type_of_an_optional_field_first(index):
    ref = index.publish_schema(made({"note": str | None, "text": str}))
    found = index.get_schema_type(ref)
    assert (found("a").text, found("a").note) == ("a", None)
    assert found("a", note="b").note == "b"


def test_an_index_pickles_with_its_types(index):
    ref = index.publish_schema(made({"a": int}))
    found = index.get_schema_type(ref)
    again = pickle.loads(pickle.dumps(index))
    assert again.types.Item is found
    assert again.get_schema_type(ref) is found


def test_entries_open_with_the_type_of_their_schema(index):
    entry = index.write_samples([Number(value=i) for i in range(5)], name="n")
    ds = index.get_dataset("n").open()
    assert [each.value for each in ds.ordered()] == [*range(5)]
    assert ds.sample_type is index.get_schema_type(entry.schema_ref)
    assert ds.as_type(Number)[2] == Number(value=2)
    again = pickle.loads(pickle.dumps(ds))
    assert again.sample_type is ds.sample_type


# -- Several at once


def test_threads_that_publish_one_schema(index):
    refs, barrier = [], threading.Barrier(8)

    def publish():
        barrier.wait()
        refs.append(index.publish_schema(made({"a": int})))

    threads = [threading.Thread(target=publish) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert refs == [REF.format("Item", "1.0.0")] * 8


# -- Of the network


def test_schemas_of_the_network(fake_pds, index, tmp_path):
    client = typed.Atmosphere.login(
        "alice.test", "password", base_url=fake_pds.url, plc_url=fake_pds.plc.url
    )
    index = typed.Index(
        provider=index.provider, atmosphere=client, stub_dir=tmp_path / "stubs"
    )
    item = made({"note": str | None, "x": NDArray[np.float32], "more": dict})
    uri = str(typed.SchemaPublisher(client).publish(item, version="1.2.0"))
    found = index.get_schema_type(uri)
    assert index.get_schema_type("@alice.test/Item@1.2.0") is found
    assert index.types.Item is found
    assert describe(found).equals(describe(item))
    assert index.get_schema(uri)["schemaType"] == "jsonSchema"
    assert index.get_schema(uri)["$ref"] == uri
    owner = client.did.replace(":", "_")
    assert index.get_import_path(uri) == f"{owner}.Item_1_2_0"
    assert (tmp_path / "stubs" / owner / "Item_1_2_0.pyi").exists()
    assert index.get_schema_record(uri).version == "1.2.0"
    with pytest.raises(KeyError):
        index.get_schema("@alice.test/Item@7.0.0")
    assert index.list_schemas() == []


@pytest.mark.parametrize("ref", ["at://did:plc:a/b/c", "@alice.test/Item@1.0.0"])
def test_an_index_without_a_network(index, ref):
    with pytest.raises(ValueError, match="no client of the network"):
        index.get_schema_type(ref)


# -- Damage


def overwrite(path, text):
    connection = sqlite3.connect(path)
    connection.execute("UPDATE schemas SET schema_json = ?", (text,))
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", "5", '"a"', "[" * 100_000, "NaN", '{"name": 5}'),
        *('{"name": "Item"}', '{"name": "Item", "fields": [{}]}', '{"a": "\\ud800"}'),
        '{"name": "Item", "fields": [{"name": "a", "fieldType": {"$type": "#ref"}}]}',
        '{"name": "class", "fields": [{"name": "a", "fieldType": {"kind": "object"}}]}',
    ],
)
def test_stored_text_that_is_not_a_schema(index, tmp_path, text):
    ref = index.publish_schema(made({"a": int}))
    overwrite(tmp_path / "index.db", text)
    with pytest.raises(DescriptionError, match="Item") as caught:
        index.get_schema_type(ref)
    assert len(str(caught.value)) < 500
    assert index.publish_schema(made({"a": int})) == REF.format("Item", "1.0.1")


def test_damaged_schema_is_named_with_its_store(index, tmp_path):
    ref = index.publish_schema(made({"a": int}))
    overwrite(tmp_path / "index.db", "{")
    for call in (lambda: index.get_schema(ref), index.list_schemas):
        with pytest.raises(DescriptionError, match=r"index\.db") as caught:
            call()
        assert ref in str(caught.value)


# -- Modules for editors


def test_no_modules_unless_they_are_asked_for(index, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    ref = index.publish_schema(made({"a": int}))
    index.get_schema_type(ref)
    assert index.stub_dir is None
    assert index.get_import_path(ref) is None
    assert index.clear_stubs() == 0
    assert not (tmp_path / ".atdata").exists()


def test_modules_in_the_default_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    index = typed.Index(path=tmp_path / "a.db", auto_stubs=True, atmosphere=None)
    assert index.stub_dir == tmp_path / ".atdata" / "stubs"
    index.get_schema(index.publish_schema(made({"a": int})))
    assert (index.stub_dir / "local" / "Item_1_0_0.py").exists()


@pytest.fixture
def stubbed(tmp_path):
    return typed.Index(
        path=tmp_path / "s.db", stub_dir=tmp_path / "stubs", atmosphere=None
    )


def test_modules_are_written_and_cleared(stubbed):
    refs = [
        stubbed.publish_schema(made({"a": int}), version=version)
        for version in ("1.0.0", "2.0.0")
    ]
    assert not stubbed.stub_dir.exists()
    stubbed.get_schema(refs[0])
    stubbed.get_schema_type(refs[1])
    local = stubbed.stub_dir / "local"
    assert {each.name for each in local.iterdir()} == {
        *("__init__.py", "Item_1_0_0.py", "Item_1_0_0.pyi"),
        *("Item_2_0_0.py", "Item_2_0_0.pyi"),
    }
    assert stubbed.clear_stubs() == 2
    assert not local.exists()


def test_module_has_the_type_of_the_index(stubbed, tmp_path):
    ref = stubbed.publish_schema(made({"a": int, "x": NDArray[np.float32]}))
    found = stubbed.get_schema_type(ref)
    path = stubbed.get_import_path(ref)
    assert path == "local.Item_1_0_0"
    code = (
        "import pickle, sys\n"
        f"sys.path.append({str(stubbed.stub_dir)!r})\n"
        f"from {path} import Item\n"
        f"print(pickle.loads(bytes.fromhex({pickle.dumps(found).hex()!r})) is Item)\n"
    )
    assert run_script(tmp_path, code).strip() == "True"
