"""What all stores of an index do alike."""

import pickle

import pytest

from fastshard.catalog.entry import DatasetEntry
from fastshard.errors import ClosedError

REF = "atdata://local/schema/Vec@1.0.0"
NAMES = [
    "plain",
    "with space",
    "*",
    "a*b?c[d-e]",
    "[",
    "\\",
    "it's",
    'a "quoted" name',
    "; DROP TABLE labels; --",
    "%s %(name)s ?1",
    "a@1.0.0",
    "@",
    "a:b",
    "日本",
    "new\nline",
    "x" * 2000,
]


def make_entry(name="plain", url="a.tar", **more):
    return DatasetEntry(name, REF, [url], **more)


def test_an_entry_is_found_by_cid_and_by_name(provider):
    entry = make_entry(metadata={"n": 1}, legacy_uuid="0000-1")
    provider.store_entry(entry)
    assert provider.get_entry_by_cid(entry.cid) == entry
    assert provider.get_entry_by_name("plain") == entry
    assert list(provider.iter_entries()) == [entry]


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        {},
        {
            "none": None,
            "ok": True,
            "n": -(1 << 63),
            "big": (1 << 64) - 1,
            "rate": 0.25,
            "raw": b"\x00\xff",
            "título": "日本\0",
            "nested": {"list": [1, "a", None, [[]]], "map": {"k": 1.5}},
        },
    ],
)
def test_metadata_come_back(provider, metadata):
    entry = make_entry(metadata=metadata)
    provider.store_entry(entry)
    assert provider.get_entry_by_cid(entry.cid).metadata == metadata


def test_an_entry_is_stored_again_with_its_cid(provider):
    first = make_entry(metadata={"n": 1}, legacy_uuid="0000-1")
    again = make_entry("renamed", metadata=None)
    assert first.cid == again.cid
    provider.store_entry(first)
    provider.store_entry(again)
    assert list(provider.iter_entries()) == [again]
    assert provider.get_entry_by_name("renamed") == again
    with pytest.raises(KeyError, match="plain"):
        provider.get_entry_by_name("plain")


def test_of_two_entries_of_a_name_the_last_one_written_is_found(provider):
    first, second = make_entry(url="1.tar"), make_entry(url="2.tar")
    provider.store_entry(first)
    provider.store_entry(second)
    assert provider.get_entry_by_name("plain") == second
    provider.store_entry(first)
    assert provider.get_entry_by_name("plain") == first
    provider.remove_entry(first.cid)
    assert provider.get_entry_by_name("plain") == second


def test_a_missing_name_is_a_key_error(provider):
    with pytest.raises(KeyError, match="none"):
        provider.get_entry_by_cid("none")
    with pytest.raises(KeyError, match="none"):
        provider.get_entry_by_name("none")
    with pytest.raises(KeyError, match="none"):
        provider.get_label("none")
    with pytest.raises(KeyError, match=r"7\.0"):
        provider.get_label("none", "7.0")
    with pytest.raises(KeyError, match="none"):
        provider.remove_entry("none")
    with pytest.raises(KeyError, match="none"):
        provider.remove_label("none")
    assert provider.get_schema_json("none", "1.0.0") is None
    assert provider.get_lens_json("none", "1.0.0") is None
    assert provider.find_latest_version("none") is None
    assert provider.find_latest_lens_version("none") is None
    assert list(provider.iter_entries()) == []
    assert list(provider.iter_labels()) == []
    assert list(provider.iter_schemas()) == []
    assert list(provider.iter_lenses()) == []


@pytest.mark.parametrize("name", NAMES)
def test_names_are_only_names(provider, name):
    other = make_entry("aXbYc-", "other.tar")
    entry = make_entry(name)
    for each in (other, entry):
        provider.store_entry(each)
        provider.store_label(each.name, each.cid)
        provider.store_label(each.name, each.cid, "1.0.0", "as @ it is")
    provider.store_schema(name.replace(".", ""), "1.0.0", "{}")
    provider.store_lens(name, "1.0.0", "{}")

    assert provider.get_entry_by_name(name) == entry
    assert provider.get_label(name, "") == (entry.cid, None)
    assert provider.get_label(name, "1.0.0") == (entry.cid, "1.0.0")
    rows = list(provider.iter_label_rows(name))
    assert {(row.name, row.cid, row.version) for row in rows} == {
        (name, entry.cid, None),
        (name, entry.cid, "1.0.0"),
    }
    assert provider.find_latest_version(name.replace(".", "")) == "1.0.0"
    assert provider.find_latest_lens_version(name) == "1.0.0"
    provider.remove_label(name)
    provider.remove_label(name, "1.0.0")
    provider.remove_entry(entry.cid)
    with pytest.raises(KeyError):
        provider.get_label(name)
    with pytest.raises(KeyError):
        provider.get_entry_by_name(name)
    assert provider.get_label("aXbYc-") == (other.cid, "1.0.0")
    assert list(provider.iter_entries()) == [other]


@pytest.mark.parametrize("bad", ["a\0b", "lone \ud800"])
def test_text_that_not_every_store_has_is_refused(provider, bad):
    with pytest.raises(ValueError, match="name"):
        provider.store_entry(make_entry(bad))
    for arguments in ((bad, "cid"), ("n", bad), ("n", "cid", bad), ("n", "c", "", bad)):
        with pytest.raises(ValueError, match="has a"):
            provider.store_label(*arguments)
    for arguments in ((bad, "1", "{}"), ("n", bad, "{}"), ("n", "1", bad)):
        with pytest.raises(ValueError, match="has a"):
            provider.store_schema(*arguments)
        with pytest.raises(ValueError, match="has a"):
            provider.store_lens(*arguments)
    assert list(provider.iter_labels()) == []
    for look_up in (provider.get_entry_by_name, provider.get_label):
        with pytest.raises(KeyError):
            look_up(bad)
    assert provider.get_schema_json(bad, "1") is None
    for remove in (provider.remove_entry, provider.remove_label):
        with pytest.raises(KeyError):
            remove(bad)
    with pytest.raises(KeyError):
        provider.remove_label("n", bad)


def test_a_non_text_is_a_type_error(provider):
    for call in (
        provider.get_entry_by_cid,
        provider.get_entry_by_name,
        provider.get_label,
        provider.remove_entry,
        provider.remove_label,
        lambda value: provider.get_label("n", value),
        lambda value: provider.get_schema_json("Name", value),
    ):
        with pytest.raises(TypeError, match="a str, got int"):
            call(7)


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (object(), r"metadata\['bad'\] is of type object"),
        ({1, 2}, r"metadata\['bad'\] is of type set"),
        ({1: 2}, r"keys of metadata\['bad'\] as str, got int"),
        ([[1, object()]], r"metadata\['bad'\]\[0\]\[1\] is of type object"),
    ],
)
def test_metadata_that_msgpack_has_not_are_refused(provider, value, where):
    with pytest.raises(TypeError, match=where):
        provider.store_entry(make_entry(metadata={"good": 1, "bad": value}))
    assert list(provider.iter_entries()) == []


def test_metadata_have_bounds(provider):
    deep = []
    for _ in range(600):
        deep = [deep]
    for value in (1 << 64, -(1 << 63) - 1, deep, "\ud800"):
        with pytest.raises(ValueError, match="metadata"):
            provider.store_entry(make_entry(metadata={"bad": value}))


def test_a_label_has_versions(provider):
    provider.store_label("best", "cid1", "1.9.0", "first")
    provider.store_label("best", "cid2", "1.10.0")
    provider.store_label("best", "cid1", "1.9.0", "again")
    assert provider.get_label("best") == ("cid2", "1.10.0")
    assert provider.get_label("best", "1.9.0") == ("cid1", "1.9.0")
    with pytest.raises(KeyError, match=r"3\.0"):
        provider.get_label("best", "3.0")
    rows = {row.version: row for row in provider.iter_label_rows("best")}
    assert rows["1.9.0"].description == "again"
    assert rows["1.10.0"].description is None
    assert all(row.created_at for row in rows.values())
    provider.store_label("best", "cid3", "1.10.0-rc.1")
    assert provider.get_label("best") == ("cid2", "1.10.0")


@pytest.mark.parametrize("other", [None, "", "final", "2"])
def test_without_semantic_versions_the_last_label_written_is_the_latest(
    provider, other
):
    provider.store_label("best", "cid1", "1.0.0")
    provider.store_label("best", "cid2", other)
    assert provider.get_label("best") == ("cid2", other or None)
    provider.store_label("best", "cid3", "1.0.0")
    assert provider.get_label("best") == ("cid3", "1.0.0")
    provider.store_label("best", "cid2", other)
    assert provider.get_label("best") == ("cid2", other or None)


def test_a_label_written_again_forgets_its_description(provider):
    provider.store_label("best", "cid1", description="of May")
    provider.store_label("best", "cid1")
    assert [row.description for row in provider.iter_label_rows()] == [None]


def test_schemas_and_lenses_have_versions(provider):
    for store, load, each, latest in (
        (
            provider.store_schema,
            provider.get_schema_json,
            provider.iter_schemas,
            provider.find_latest_version,
        ),
        (
            provider.store_lens,
            provider.get_lens_json,
            provider.iter_lenses,
            provider.find_latest_lens_version,
        ),
    ):
        for version in ("1.9.0", "1.10.0", "draft"):
            store("Vec", version, f'"{version}"')
        store("Vec", "1.9.0", '"again"')
        store("Vector", "7.0.0", "{}")
        assert load("Vec", "1.9.0") == '"again"'
        assert load("Vec", "1.10.0") == '"1.10.0"'
        assert sorted(each()) == [
            ("Vec", "1.10.0", '"1.10.0"'),
            ("Vec", "1.9.0", '"again"'),
            ("Vec", "draft", '"draft"'),
            ("Vector", "7.0.0", "{}"),
        ]
        assert latest("Vec") == "1.10.0"


def test_a_version_is_chosen_by_those_that_there_are(provider):
    seen = []

    def choose(known):
        seen.append(dict(known))
        return f"1.0.{len(known)}", f'"{len(known)}"'

    for store in (provider.store_schema_version, provider.store_lens_version):
        seen.clear()
        assert store("Vec", choose) == "1.0.0"
        assert store("Vec", choose) == "1.0.1"
        assert store("Vec", lambda known: (max(known), None)) == "1.0.1"
        assert seen == [{}, {"1.0.0": '"0"'}]
    assert len(list(provider.iter_schemas())) == len(list(provider.iter_lenses())) == 2


def test_a_choice_that_fails_stores_nothing(provider):
    def choose(known):
        raise LookupError("no choice")

    with pytest.raises(LookupError, match="no choice"):
        provider.store_schema_version("Vec", choose)
    assert provider.find_latest_version("Vec") is None
    provider.store_schema("Vec", "1.0.0", "{}")  # no transaction is left
    assert provider.find_latest_version("Vec") == "1.0.0"


def test_lenses_are_found_by_their_schemas(provider):
    provider.store_lens("ab", "1.0.0", '{"source_schema": "A", "view_schema": "B"}')
    provider.store_lens("ac", "1.0.0", '{"source_schema": "A", "view_schema": "C"}')
    provider.store_lens("bc", "1.0.0", '{"source_schema": "B", "view_schema": "C"}')
    provider.store_lens("broken", "1.0.0", "{")
    provider.store_lens("list", "1.0.0", "[]")
    found = provider.find_lenses_by_schemas
    assert {lens[0] for lens in found("A")} == {"ab", "ac"}
    assert {lens[0] for lens in found("A", "C")} == {"ac"}
    assert found("C") == []


def test_another_connection_sees_writes(provider, connect):
    entry = make_entry()
    provider.store_entry(entry)
    assert connect().get_entry_by_name("plain") == entry


def test_a_provider_pickles(provider):
    entry = make_entry()
    provider.store_entry(entry)
    with pickle.loads(pickle.dumps(provider)) as again:
        assert again.get_entry_by_name("plain") == entry
        assert again.location == provider.location


def test_a_closed_provider_says_so(provider):
    provider.store_entry(make_entry())
    provider.close()
    provider.close()
    with pytest.raises(ClosedError):
        provider.get_entry_by_name("plain")
    with pytest.raises(ClosedError):
        provider.store_entry(make_entry())
