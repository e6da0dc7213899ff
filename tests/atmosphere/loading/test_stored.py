"""Loaders on records published by atdata: answers of its own loaders."""

from urllib.parse import parse_qs, urlsplit

import pytest

from fastshard import typed
from fastshard.atmosphere.loading.shards import blob_endpoint_url
from fastshard.errors import RecordError, RecordNotFoundError, SchemaError
from support.servers.atproto.pds import FakePds
from support.servers.atproto.restored import restore
from support.typed.index_data import HANDLES

NSID = "science.alt.dataset"


@pytest.fixture
def pds(index_data):
    with FakePds() as pds:
        for handle in HANDLES:
            restore(pds, index_data, handle)
        yield pds


@pytest.fixture
def client(pds):
    return typed.Atmosphere(pds.url, plc_url=pds.plc.url)


@pytest.fixture
def expected(index_data):
    return index_data.expected("records")


def test_labels_resolve(client, expected):
    labels = typed.LabelLoader(client)
    latest = 0
    for each in expected["resolve"]:
        name, version, uri = each["name"], each["version"], each["dataset_uri"]
        if isinstance(uri, dict):
            with pytest.raises(KeyError) as caught:
                labels.resolve("alice.test", name, version)
            assert caught.value.args[0] in uri["text"]
            continue
        if (name, version) == ("best", None):  # by version; atdata: by time
            uri = expected["calls"]["s3"]
            latest += 1
        assert labels.resolve("alice.test", name, version) == uri
    assert latest == 1


def test_a_label_names_the_dataset_of_another_account(client, expected):
    alice = expected["accounts"]["alice.test"]
    uri = typed.LabelLoader(client).resolve("bob.test", "theirs")
    assert uri == expected["calls"]["write_samples"]
    assert typed.AtmosphereIndex(client).get_dataset("@bob.test/theirs").uri == uri
    assert uri.startswith(f"at://{alice}/")


def test_schemas_resolve(client, expected):
    schemas = typed.SchemaLoader(client)
    for ref, version in expected["resolve_schema"].items():
        if isinstance(version, str):
            assert schemas.get(ref)["version"] == version
        else:
            error = {"KeyError": KeyError, "ValueError": ValueError}[version["raises"]]
            with pytest.raises(error) as caught:
                schemas.get(ref)
            assert caught.value.args[0] in version["text"]
    assert schemas.resolve("alice.test", "Vec")["version"] == "1.1.0"


def test_entries_are_read_as_atdata_reads_them(client, pds, expected):
    index = typed.AtmosphereIndex(client)
    loader = typed.DatasetLoader(client)
    kinds = {"storageHttp": "http"}
    for uri, entry in expected["entries"].items():
        found = index.get_dataset(uri)
        assert found.name == entry["name"]
        assert found.schema_ref == entry["schema_ref"]
        assert found.metadata == loader.get_metadata(uri) == entry["metadata"]
        urls = [url.replace(expected["pds"], pds.url) for url in entry["data_urls"]]
        assert found.data_urls == urls
        kind = loader.get_storage_type(uri)
        assert kinds.get(kind, kind) == entry["storage_type"]
        record = type(loader.get_typed(uri).storage).__name__
        assert record == entry["typed"]
        if kind == "blobs":
            assert loader.get_blob_urls(uri) == urls
            with pytest.raises(ValueError, match="blob storage"):
                loader.get_urls(uri)
        else:
            assert len(loader.get_urls(uri)) == len(urls)
            with pytest.raises(ValueError, match="does not use blob storage"):
                loader.get_blob_urls(uri)


def test_the_url_of_a_blob_has_the_whole_did():
    did = "did:web:localhost%3A8000"
    url = blob_endpoint_url("https://pds.example", did, "bafkreia")
    assert parse_qs(urlsplit(url).query) == {"did": [did], "cid": ["bafkreia"]}


def test_where_shards_in_a_bucket_are(client, expected):
    loader = typed.DatasetLoader(client)
    uri = expected["calls"]["s3"]
    assert loader.get_s3_info(uri) == {
        "bucket": "bucket-name",
        "keys": ["d/vec-000000.tar", "d/vec-000001.tar"],
        "region": "us-east-1",
        "endpoint": "https://s3.example",
    }
    assert loader.get_urls(uri)[1] == "https://s3.example/bucket-name/d/vec-000001.tar"
    bare = expected["calls"]["s3, bare"]
    assert loader.get_urls(bare) == ["s3://bucket-name/d/vec-000000.tar"]
    with pytest.raises(ValueError, match="does not use S3"):
        loader.get_s3_info(expected["calls"]["http, checksums"])


def test_checksums_are_by_url(client, expected):
    index = typed.AtmosphereIndex(client)
    found = index.get_dataset(expected["calls"]["http, checksums"]).checksums
    assert found["https://data.example/vec-000001.tar"].startswith("4bf5122f")
    assert index.get_dataset(expected["calls"]["http, no checksums"]).checksums == {}
    blobs = index.get_dataset(expected["calls"]["blobs, content metadata"])
    (url,) = blobs.checksums
    assert "did:plc:ofakdki7l6loqyhejpnfgouk&cid=bafkrei" in url
    assert blobs.checksums[url].startswith("43297c12")


def test_content_metadata_and_their_schema(client, expected):
    loader = typed.DatasetLoader(client)
    uri = expected["calls"]["blobs, content metadata"]
    assert loader.get_content_metadata(uri) == {"gain": 3}
    schema = expected["calls"]["schema Name 1.0.0 (no arrays)"]
    assert loader.get_metadata_schema_ref(uri) == schema
    assert typed.SchemaLoader(client).get_typed(schema).name == "Name"


def test_records_that_others_put_there_by_hand(client, expected):
    loader = typed.DatasetLoader(client)
    index = typed.AtmosphereIndex(client)
    for what, each in expected["by_hand"].items():
        read, uri = each["read"], each["uri"]
        if what == "schema, atdataSchemaVersion 99":
            with pytest.raises(SchemaError, match="version 99"):
                typed.SchemaLoader(client).get(uri)
        elif what == "schema, no atdataSchemaVersion":
            assert sorted(typed.SchemaLoader(client).get(uri)) == read
        elif what == "entry, unknown storage":
            assert index.get_dataset(uri).data_urls == []
            for call in (loader.get_storage_type, loader.get_urls, loader.to_dataset):
                with pytest.raises(ValueError, match=r"storageTape|schema"):
                    call(uri)
        elif what.startswith("entry"):
            entry = index.get_dataset(uri)
            assert entry.name == read["name"]
            assert entry.data_urls == loader.get_urls(uri) == read["data_urls"]
            assert loader.get_storage_type(uri) == read["storage_type"]
            if "bytes" in what:
                told = {"split": "test", "rate": 0.25, "raw": b"\x00\xff"}
                assert entry.metadata == told


def test_lenses_and_verifications(client, expected):
    alice = expected["accounts"]["alice.test"]
    lenses = typed.LensLoader(client)
    lens = expected["calls"]["lens"]
    source = lenses.get_typed(lens).source_schema
    assert [str(r.uri) for r in lenses.find_by_schemas(source, repo=alice)] == [lens]
    assert lenses.find_by_schemas(source, source, repo=alice) == []
    verifications = typed.VerificationLoader(client)
    found = verifications.list_for_lens(lens, repo="alice.test")
    methods = {record["verificationMethod"] for record in found}
    assert methods == {"signedHash", "automatedTest"}
    assert len(verifications.list_for_lens(lens, "alice.test", limit=1)) == 1
    (one,) = verifications.find_by_method("signedHash", repo="alice.test")
    assert verifications.get_typed(one.uri).code_hash.algorithm == "sha256"


def test_types_are_made_of_schemas(client, expected):
    schemas = typed.SchemaLoader(client)
    for uri in expected["types"]:
        kind = schemas.get_type(uri)
        assert kind is schemas.get_type(uri)
    assert kind.__name__ == "Doc"


def test_a_dataset_of_blobs_has_the_samples(client, expected, tmp_path):
    uri = expected["calls"]["write_samples"]
    ds = typed.DatasetLoader(client).to_dataset(uri, cache_dir=tmp_path)
    blobs = [expected["blobs"][cid] for cid in sorted(expected["blobs"])]
    told = [sample for blob in blobs[1:] for sample in blob["samples"]]
    assert [[s.idx, s.label, s.x.tolist()] for s in ds] == told
    entry = typed.AtmosphereIndex(client).get_dataset("@alice.test/vec")
    assert entry.open(cache_dir=tmp_path)[5].label == "eel"


@pytest.mark.parametrize(
    ("loader", "kind"),
    [
        (typed.LabelLoader, "label"),
        (typed.LensLoader, "lens"),
        (typed.SchemaLoader, "schema"),
        (typed.VerificationLoader, "lensVerification"),
    ],
)
def test_records_of_other_collections_are_refused(client, expected, loader, kind):
    with pytest.raises(RecordError, match=f"not an? {kind} record") as caught:
        loader(client).get(expected["calls"]["s3"])
    assert caught.value.path == expected["calls"]["s3"]


def test_a_missing_record(client, expected):
    did = expected["accounts"]["alice.test"]
    with pytest.raises(RecordNotFoundError):
        typed.DatasetLoader(client).get(f"at://{did}/{NSID}.entry/nothing")
    with pytest.raises(KeyError):
        typed.AtmosphereIndex(client).get_dataset("@alice.test/best@9")
    with pytest.raises(ValueError, match="expected @handle/name"):
        typed.AtmosphereIndex(client).get_dataset("@alice.test")


def test_a_local_path_of_a_record_is_not_opened(client, expected):
    uri = expected["calls"]["promote of a local path"]
    with pytest.raises(RecordError, match="expected the URL of a shard"):
        typed.DatasetLoader(client).to_dataset(uri)
