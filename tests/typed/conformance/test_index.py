"""Indexes written by atdata, in each of its stores, give atdata's answers.

`expected.json` has atdata's own answers. Where they differ here a test says so.
"""

import dataclasses
import json
import sys
import types

import numpy as np
import pytest

from fastshard import typed
from support.typed import index_types
from support.typed.index_data import plain

WRONG = "atdata://local/lens/vec_upper@1.0.0"


def described(entry):
    """Return an entry as ``expected.json`` has it."""
    fields = ("name", "schema_ref", "data_urls", "metadata", "cid", "legacy_uuid")
    return {name: plain(getattr(entry, name)) for name in fields}


def by_cid(entries):
    return sorted(entries, key=lambda entry: entry["cid"])


def by_name(records):
    return sorted(records, key=lambda record: (record["name"], record["version"]))


def test_entries(old_index):
    index, known = old_index
    wanted = by_cid(known["list_datasets"])
    assert by_cid(map(described, index.list_datasets())) == wanted
    assert by_cid(map(described, index.entries)) == wanted
    assert by_cid(map(described, index.datasets)) == wanted
    for cid, name in known["get_entry"].items():
        assert index.get_entry(cid).name == name


# Names with several labels. Versions decide; where not all are versions, the label that
# was written last. atdata's SQLite has for "again" its 1.0.0, which was written again,
# and its Redis any one of them.
LATEST = {"best": "stored", "again": "stored", "remote": "plain"}


def latest_of(known):
    """Return the entries of the latest labels: atdata's Redis has no times of them."""
    is_timed = "arbitrary" not in known
    return {name: LATEST[name] for name in LATEST if is_timed or name != "remote"}


@pytest.mark.parametrize("call", ["get_dataset", "get_entry_by_name"])
def test_an_entry_by_name(old_index, call):
    index, known = old_index
    for name, wanted in known[call].items():
        if "raises" in wanted:
            with pytest.raises(KeyError, match=name):
                getattr(index, call)(name)
        elif call == "get_entry_by_name" or name not in LATEST:
            assert described(getattr(index, call)(name)) == wanted


def test_a_label_comes_before_an_entry_of_its_name(old_index):
    index, known = old_index
    for name, wanted in latest_of(known).items():
        assert index.get_dataset(name).name == wanted


def test_labels(old_index):
    index, known = old_index
    found = [[name, cid, version or None] for name, cid, version in index.list_labels()]
    key = json.dumps
    assert sorted(found, key=key) == sorted(known["list_labels"], key=key)
    for label in known["get_label"]:
        name, version = label["name"], label["version"]
        if "error" in label:
            with pytest.raises(KeyError, match=name):
                index.get_label(name, version)
        elif version is not None:
            assert index.get_label(name, version).name == label["entry"]


def test_the_latest_label(old_index):
    index, known = old_index
    latest = latest_of(known) | {"plain": "plain", "meta": "meta"}
    assert {name: index.get_label(name).name for name in latest} == latest


def test_schemas(old_index):
    index, known = old_index
    assert by_name(index.list_schemas()) == by_name(known["list_schemas"])
    for ref, wanted in known["get_schema"].items():
        if ref.startswith("local://"):  # atdata lists it and cannot get it
            assert index.get_schema(ref)["name"] == "Old"
        elif "raises" in wanted:
            with pytest.raises(KeyError, match=r"Vec@7\.0\.0"):
                index.get_schema(ref)
        else:
            assert index.get_schema(ref) == wanted


@pytest.mark.parametrize(
    ("name", "sample_type"),
    [
        ("Vec1", index_types.Vec1),
        ("Vec2", index_types.Vec2),
        ("Doc", index_types.Doc),  # atdata: TypeError, an optional field before others
    ],
)
def test_types_of_schemas(old_index, name, sample_type):
    index, known = old_index
    made = index.get_schema_type(known["refs"][name], register=False)
    assert made.__name__ == sample_type.__name__
    fields = dataclasses.fields(made)
    wanted = dataclasses.fields(sample_type)
    assert [field.name for field in fields] == [field.name for field in wanted]
    optional = {f.name for f in wanted if "None" in str(f.type)}
    assert {f.name for f in fields if f.default is None} == optional


def test_the_type_of_an_older_schema(old_index):
    index, _ = old_index
    made = index.get_schema_type("local://schemas/fixture_old.Old@0.9.0")
    assert made("text").a == "text"


def test_lenses(old_index):
    index, known = old_index
    assert by_name(index.list_lenses()) == by_name(known["list_lenses"])
    for asked, refs in known["find_lenses"].items():
        source, _, view = asked.partition(" to ")
        found = index.find_lenses(source, view or None)
        assert sorted(lens["$ref"] for lens in found) == refs


def test_a_lens_of_mappings(old_index):
    index, known = old_index
    sample = index_types.vec(0)
    types_ = {"source_type": index_types.Vec1, "view_type": index_types.Name}
    for name in ("mapping", "mapping_2", "wrong"):
        lens = index.load_lens(known["lens_refs"][name], **types_)
        assert dataclasses.asdict(lens.get(sample)) == known["load_lens"][name]


def test_a_lens_of_code_is_imported_when_allowed(old_index, monkeypatch):
    index, known = old_index
    ref = known["lens_refs"]["code"]
    types_ = {"source_type": index_types.Vec1, "view_type": index_types.Length}
    code = types.ModuleType("fixture_types")
    code.vec_length = index_types.vec_length
    monkeypatch.setitem(sys.modules, "fixture_types", code)
    with pytest.raises(ValueError, match="allow_code"):
        index.load_lens(ref, **types_)
    lens = index.load_lens(ref, allow_code=True, **types_)
    sample = index_types.vec(0)
    sample.x = np.zeros(3, "f4")
    assert dataclasses.asdict(lens.get(sample)) == known["load_lens"]["code"]
    with pytest.raises(ValueError, match="opaque"):
        index.load_lens(known["lens_refs"]["opaque"], allow_code=True, **types_)


def moved(entry, index_data, store):
    """Return an entry whose shards are in the unpacked folder."""
    known = index_data.expected(store)
    root = f"{known['root']}/"
    here = f"{index_data.root / store}/"
    metadata = json.loads(json.dumps(plain(entry.metadata)).replace(root, here))
    urls = [url.replace(root, here) for url in entry.data_urls]
    return dataclasses.replace(entry, data_urls=urls, metadata=metadata)


def test_checksums(old_index, index_data, store):
    index, known = old_index
    for name, wanted in known["verify_checksums"].items():
        entry = moved(index.get_entry_by_name(name), index_data, store)
        assert list(typed.verify_checksums(entry).values()) == list(wanted.values())


def test_search(old_index):
    index, known = old_index
    found = index.search(text="st", include_atmosphere=False)
    assert [item.name for item in found.items] == known["search"]["st"]
    ref = known["refs"]["Vec2"]
    found = index.search(schema_ref=ref, include_atmosphere=False)
    assert [item.name for item in found.items] == known["search"]["schema_ref"]


@pytest.mark.parametrize("sample_type", [None, index_types.Vec1])
def test_samples_of_an_entry(old_index, index_data, store, monkeypatch, sample_type):
    index, _ = old_index
    monkeypatch.chdir(index_data.root / store)  # the pattern is a relative one
    ds = index.get_dataset("plain").open(sample_type)
    assert len(ds) == 6
    for i, sample in enumerate(ds.ordered()):
        wanted = index_types.vec(i)
        assert (sample.idx, sample.label) == (wanted.idx, wanted.label)
        assert np.array_equal(sample.x, wanted.x)
