"""Entries of an index: their CID, equality, text, pickles, and their datasets."""

import copy
import dataclasses
import pickle

import pytest

from fastshard import typed
from fastshard.catalog.entry import DatasetEntry
from support.inside.typed import entry_of, opener_of

REF = "atdata://local/schema/Number@1.0.0"


@typed.packable
class Number:
    value: int


def make(**changes):
    given = {"name": "n", "schema_ref": REF, "data_urls": ["/a.tar", "/b.tar"]}
    return DatasetEntry(**{**given, **changes})


def test_index_entry_is_the_protocol_of_entries():
    entry = typed.DatasetEntry("a", "local://schemas/A@1.0.0", ["a.tar"])
    assert isinstance(entry, typed.IndexEntry)
    assert not isinstance(typed.SearchResult("uri", "a"), typed.IndexEntry)


def test_the_cid_names_the_schema_and_the_urls():
    entry = make()
    assert entry.cid.startswith("bafyrei")
    assert make(name="other", metadata={"a": 1}).cid == entry.cid
    assert make(schema_ref=REF.replace("1.0.0", "1.0.1")).cid != entry.cid
    assert make(data_urls=["/b.tar", "/a.tar"]).cid != entry.cid


def test_a_given_cid_is_kept():
    assert make(cid="bafyother").cid == "bafyother"


def test_urls_are_copied_from_any_iterable():
    urls = ["/a.tar"]
    entry = make(data_urls=urls)
    urls.append("/b.tar")
    assert entry.data_urls == ["/a.tar"]
    assert make(data_urls=iter(urls)).data_urls == urls


def test_urls_must_not_be_one_str():
    with pytest.raises(TypeError, match="data_urls must be a list of str"):
        make(data_urls="/a.tar")


def test_entries_are_equal_by_content():
    assert make() == make()
    assert make(name="other") != make()
    assert make(metadata={"a": 1}) != make()
    assert make(legacy_uuid="u") != make()
    opened = entry_of(make(), object())
    assert opened == make()


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, dataclasses.replace])
def test_copies_are_equal(again):
    entry = make(metadata={"tags": ["a"]}, legacy_uuid="u")
    assert again(entry) == entry


def test_a_pickle_has_the_entry_but_not_its_index():
    class Secret:
        def __reduce__(self):
            raise AssertionError("the index was pickled")

    entry = entry_of(make(metadata={"tags": ["a"]}, legacy_uuid="u"), Secret())
    again = pickle.loads(pickle.dumps(entry))
    assert again == entry
    assert opener_of(again) is None


def test_the_text_of_an_entry_has_no_secret():
    entry = make(data_urls=["https://me:hunter2@host/a.tar?signature=hunter2"])
    assert "host/a.tar" in repr(entry)
    assert "hunter2" not in repr(entry) + str(entry)


def test_checksums_of_other_types_are_none():
    assert make().checksums == {}
    for found in (None, [], "text", {1: "a"}, {"/a.tar": 3}):
        assert make(metadata={"checksums": found}).checksums == {}
    found = {"/a.tar": "00", "/b.tar": None}
    assert make(metadata={"checksums": found}).checksums == {"/a.tar": "00"}


def test_names_of_older_versions():
    entry = make()
    assert (entry.wds_url, entry.sample_kind) == ("/a.tar", REF)
    assert make(data_urls=[]).wds_url == ""


def test_an_entry_of_no_index_opens_with_a_type(tmp_path):
    path = tmp_path / "a-%02d.tar"
    typed.write_samples([Number(value=i) for i in range(5)], path, maxcount=2)
    pattern = str(tmp_path / "a-{00..02}.tar")
    for urls in ([pattern], [str(tmp_path / f"a-{i:02}.tar") for i in range(3)]):
        ds = make(data_urls=urls).open(Number)
        assert [sample.value for sample in ds] == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="give sample_type"):
        make(data_urls=urls).open()
