"""Records that atdata published are read as atdata reads them, from a server.

`expected.json` has atdata's own answers. Where they differ here a test says so.
"""

import dataclasses

import numpy as np
import pytest

from fastshard import typed
from fastshard.typed import atmosphere
from support.servers.atproto.pds import FakePds
from support.servers.atproto.restored import restore
from support.typed import index_types
from support.typed.index_data import HANDLES, plain

BLOB = "com.atproto.sync.getBlob"


@pytest.fixture(scope="module")
def pds(index_data):
    with FakePds() as server:
        for handle in HANDLES:
            restore(server, index_data, handle)
        yield server


@pytest.fixture(scope="module")
def known(index_data):
    return index_data.expected("records")


@pytest.fixture
def client(pds):
    return atmosphere.Atmosphere(pds.url, plc_url=pds.plc.url)


@pytest.fixture
def index(client, tmp_path):
    return typed.Index(path=tmp_path / "index.db", atmosphere=client)


def described(entry, pds, known):
    """Return an entry as ``expected.json`` has it."""
    urls = [url.replace(pds.url, known["pds"]) for url in entry.data_urls]
    return {
        "name": entry.name,
        "schema_ref": entry.schema_ref,
        "data_urls": urls,
        "metadata": plain(entry.metadata),
    }


def test_entries(index, pds, known):
    for uri, wanted in known["entries"].items():
        found = described(index.get_dataset(uri), pds, known)
        assert found == {name: wanted[name] for name in found}


def test_kinds_of_storage(client, known):
    loader = atmosphere.DatasetLoader(client)
    for uri, wanted in known["entries"].items():
        assert loader.get_storage_type(uri) == wanted["storage_type"]


@pytest.mark.parametrize(
    "what",
    [
        "entry, storageExternal",
        "entry, metadata as bytes",  # atdata: Incorrect padding
        "entry, metadata as bytes, a multiple of three",
        "entry, http without checksum",  # atdata's get_typed: a KeyError
        "entry, size",
    ],
)
def test_entries_written_by_hand(index, pds, known, what):
    hand = known["by_hand"][what]
    wanted = dict(hand["read"])
    if "raises" in (wanted["metadata"] or {}):
        wanted["metadata"] = {"split": "test", "rate": 0.25, "raw": {"$bytes": "AP8="}}
    found = described(index.get_dataset(hand["uri"]), pds, known)
    assert found == {name: wanted[name] for name in found}


def test_an_unknown_storage_is_named(client, known):
    hand = known["by_hand"]["entry, unknown storage"]
    loader = atmosphere.DatasetLoader(client)
    assert loader.get(hand["uri"])["name"] == "unknown"
    with pytest.raises(ValueError, match="storageTape"):
        loader.get_storage_type(hand["uri"])


def test_versions_of_schema_records(client, known):
    loader = atmosphere.SchemaLoader(client)
    newer = known["by_hand"]["schema, atdataSchemaVersion 99"]["uri"]
    with pytest.raises(ValueError, match="99"):
        loader.get(newer)
    none = known["by_hand"]["schema, no atdataSchemaVersion"]
    assert sorted(loader.get(none["uri"])) == none["read"]


@pytest.mark.parametrize("i", range(3))
def test_types_of_schemas(index, known, i):
    uri, wanted = list(known["types"].items())[i]
    made = index.get_schema_type(uri)
    declared = [index_types.Vec1, index_types.Vec2, index_types.Doc][i]
    names = {field.name for field in dataclasses.fields(declared)} - {"table"}
    assert {field.name for field in dataclasses.fields(made)} == names
    if "raises" not in wanted:  # atdata: an optional field before one that is not
        assert names == set(wanted)


def test_labels(client, known):
    loader = atmosphere.LabelLoader(client)
    for label in known["resolve"]:
        name, version, wanted = label["name"], label["version"], label["dataset_uri"]
        if isinstance(wanted, dict):
            with pytest.raises(KeyError, match=name):
                loader.resolve("alice.test", name, version)
        elif (name, version) == ("best", None):  # the version decides, not the time
            wanted = known["calls"]["s3"]
            assert str(loader.resolve("alice.test", name)) == wanted
        else:
            assert str(loader.resolve("alice.test", name, version)) == wanted


def test_references(index, known):
    for ref, wanted in known["get_dataset"].items():
        if isinstance(wanted, dict):
            with pytest.raises(KeyError):
                index.get_dataset(ref)
        elif ref != "@alice.test/best":  # see `test_labels`
            assert str(index.get_dataset(ref).uri) == wanted


def test_references_of_schemas(client, known):
    loader = atmosphere.SchemaLoader(client)
    for ref, wanted in known["resolve_schema"].items():
        if isinstance(wanted, str):
            assert loader.get(ref)["version"] == wanted
        else:
            error = {"KeyError": KeyError, "ValueError": ValueError}[wanted["raises"]]
            with pytest.raises(error):
                loader.get(ref)


@pytest.mark.parametrize("sample_type", [None, index_types.Vec1])
def test_samples_of_blobs(index, sample_type, tmp_path):
    entry = index.get_dataset("@alice.test/vec")
    ds = entry.open(sample_type, cache_dir=tmp_path / "cache")
    assert len(ds) == 6
    for i, sample in enumerate(ds.ordered()):
        wanted = index_types.vec(i)
        assert (sample.idx, sample.label) == (wanted.idx, wanted.label)
        assert np.array_equal(sample.x, wanted.x)


def test_a_blob_is_asked_for_once(index, pds, tmp_path):
    before = pds.count(BLOB)
    options = {"split": "train", "cache_dir": tmp_path / "cache"}
    ds = typed.load_dataset("@alice.test/blobs", index=index, **options)
    assert [sample.label for sample in ds.ordered()] == ["eel", "cat"]
    assert [sample.label for sample in ds.shuffled(seed=1)]
    assert pds.count(BLOB) == before + 1
