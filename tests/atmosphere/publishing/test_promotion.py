"""Datasets under a name: shards, schema, entry, label; failures and second calls."""

import hashlib
import json
import pickle

import pytest

from fastshard import typed
from fastshard.atmosphere.promotion import publish_entry
from fastshard.atmosphere.publishing.dataset import EntryFields
from fastshard.errors import (
    FormatError,
    PublishError,
    RecordError,
    RemoteError,
    SessionError,
    XrpcError,
)
from fastshard.typed.descriptions.structure import describe
from support.inside.typed import session_of
from support.servers.atproto.xrpc import Reply
from support.servers.s3 import Bucket, serve_s3

CREATE = "com.atproto.repo.createRecord"
UPLOAD = "com.atproto.repo.uploadBlob"
REFUSED = Reply({"error": "InvalidRequest", "message": "the server refuses"}, 400)


def created(pds):
    """Return the uploads and creations, in order."""
    return [
        call.json["collection"].rpartition(".")[2] if call.nsid == CREATE else "blob"
        for call in pds.calls
        if call.nsid in (CREATE, UPLOAD)
    ]


def refuse(pds, kind, number=0):
    """Refuse the creation of a record of a collection, or the upload of a blob."""
    seen = []

    def hook(call):
        if call.nsid == UPLOAD and kind == "blob":
            seen.append(call)
            return REFUSED if len(seen) > number else None
        if call.nsid == CREATE and kind != "blob":
            call.body = call.handler.rfile.read(call.size)
            if call.json["collection"].endswith("." + kind):
                return REFUSED
            pds.read_body = lambda call, most: (
                call.body or type(pds).read_body(pds, call, most)
            )
        return None

    pds.hook = hook


@pytest.fixture
def local(tmp_path):
    return typed.Index(path=tmp_path / "index.db", atmosphere=None)


def test_samples_are_published_in_order(index, digits, fake_pds, records, tmp_path):
    entry = index.write_samples(
        digits,
        name="digits",
        version="1.0.0",
        description="ten digits",
        tags=["a"],
        license="MIT",
        maxcount=4,
        metadata={"rate": 0.5},
    )

    assert created(fake_pds) == ["blob", "blob", "blob", "schema", "entry", "label"]
    (label,) = records("label")
    (found,) = records("entry")
    assert label["datasetUri"] == entry.uri
    assert (label["version"], label["description"]) == ("1.0.0", "ten digits")
    assert (entry.name, entry.tags, entry.license) == ("digits", ["a"], "MIT")
    assert entry.metadata == {"rate": 0.5}
    nbytes = sum(each["blob"]["size"] for each in found["storage"]["blobs"])
    assert found["size"] == {"samples": 10, "bytes": nbytes, "shards": 3}
    for name in ("@alice.test/digits", "@alice.test/digits@1.0.0", entry.uri):
        assert index.get_dataset(name) == entry
    again = entry.open(cache_dir=tmp_path)
    assert [sample.label for sample in again] == list(range(10))
    assert [s.label for s in entry.open(type(digits[0]), cache_dir=tmp_path)][9] == 9


def test_checksums_of_blobs_are_those_of_the_bytes(index, digits, client):
    entry = index.write_samples(digits, name="digits", maxcount=5)
    assert list(entry.checksums) == entry.data_urls
    for url, digest in entry.checksums.items():
        blob = client.get_blob(client.did, url.rpartition("=")[2])
        assert hashlib.sha256(blob).hexdigest() == digest
    bare = typed.AtmosphereIndexEntry(entry.uri, entry.record)
    assert list(bare.checksums) == bare.data_urls
    assert bare.data_urls[0].startswith(f"at://{client.did}/blob/bafkrei")
    assert set(typed.verify_checksums(entry).values()) == {"skipped"}


def test_checksums_are_compared_with_remote_bytes(
    index, digits, fake_pds, monkeypatch, tmp_path
):
    monkeypatch.setenv("FASTSHARD_CACHE", str(tmp_path))
    entry = index.write_samples(digits, name="digits", maxcount=5)
    found = typed.verify_checksums(entry, remote=True)
    assert found == dict.fromkeys(entry.data_urls, "ok")

    record = entry.record
    record["storage"]["blobs"][1]["checksum"]["digest"] = "00" * 32
    del record["storage"]["blobs"][0]["checksum"]
    wrong = typed.AtmosphereIndexEntry(entry.uri, record, index.client)
    assert list(typed.verify_checksums(wrong, remote=True).values()) == [
        "skipped",
        "mismatch",
    ]


@pytest.mark.parametrize("kind", ["blob", "schema", "entry", "label"])
def test_a_failure_midway_leaves_no_label_and_lists_new_records(
    index, digits, fake_pds, records, kind
):
    refuse(fake_pds, kind, 1)
    error = XrpcError if kind == "blob" else PublishError
    with pytest.raises(error, match="the server refuses") as caught:
        index.write_samples(digits, name="digits", maxcount=5)
    assert records("label") == []
    assert isinstance(caught.value, OSError)
    if kind == "blob":
        return
    made = caught.value.made
    assert [m.split("/")[3].rpartition(".")[2] for m in made] == ["blob", "blob"] + {
        "schema": [],
        "entry": ["schema"],
        "label": ["schema", "entry"],
    }[kind]
    assert isinstance(caught.value.__cause__, XrpcError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.made) == (str(caught.value), made)
    assert all(m in str(caught.value) for m in made)

    fake_pds.hook = None
    entry = index.write_samples(digits, name="digits", maxcount=5)
    assert [len(records(each)) for each in ("schema", "entry", "label")] == [1, 1, 1]
    if kind == "label":
        assert entry.uri == made[-1]
    assert index.get_dataset("@alice.test/digits") == entry


def test_published_schemas_are_not_published_again(index, digits, fake_pds, records):
    given = {"name": "digits", "metadata": {"rate": 0.5, "a": (1,)}, "tags": ["a"]}
    first = index.write_samples(digits, **given)
    fake_pds.forget()
    assert index.write_samples(digits, **given) == first
    assert created(fake_pds) == ["blob"]

    second = index.write_samples(digits, **{**given, "metadata": {"rate": 0.75}})
    assert second.uri != first.uri
    assert len(records("schema")) == 1
    assert index.get_dataset("@alice.test/digits") == second
    third = index.write_samples(digits, **given)  # an older entry, a new label
    assert third == first
    assert index.get_dataset("@alice.test/digits") == first
    assert len(records("label")) == 3


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"name": ""}, "name"),
        ({"name": "x" * 201}, "name"),
        ({"tags": ["x" * 151]}, "tags"),
        ({"license": "x" * 201}, "license"),
        ({"description": "x" * 5001}, "description"),
        ({"version": "1" * 51}, "version"),
        ({"metadata": {"a": object()}}, "metadata"),
        ({"metadata": {"a": "x" * 100_000}}, "metadata"),
        ({"schema_ref": "schema"}, "schemaRef"),
    ],
)
def test_faults_are_found_before_shards_are_uploaded(
    index, digits, fake_pds, given, match
):
    with pytest.raises(RecordError, match=match):
        index.write_samples(digits, **{"name": "a", **given})
    assert fake_pds.count() == 0


def test_samples_that_cannot_be_published(index, fake_pds, digits):
    with pytest.raises(ValueError, match="non-empty"):
        index.write_samples([], name="a")
    with pytest.raises(TypeError):
        index.write_samples([5], name="a")
    with pytest.raises(TypeError, match="DictSample"):
        index.write_samples([typed.DictSample({"a": 1})], name="a")
    with pytest.raises(ValueError, match="local folder"):
        index.write_samples(digits, name="a", data_store=typed.LocalDiskStore())
    assert fake_pds.count() == 0


def test_without_a_session_nothing_is_written(fake_pds, digits):
    client = typed.Atmosphere(fake_pds.url, plc_url=fake_pds.plc.url)
    with pytest.raises(SessionError):
        typed.AtmosphereIndex(client).write_samples(digits, name="a")
    assert fake_pds.count() == 0


def test_a_large_shard_is_refused_before_the_first_upload(
    index, digits, fake_pds, monkeypatch
):
    from fastshard.atmosphere.blobs import store as blob

    monkeypatch.setattr(blob, "MAX_SHARD", 5000)
    with pytest.raises(ValueError, match="a blob has at most"):
        index.write_samples(digits, name="a", maxcount=5, maxsize="1MB")
    assert created(fake_pds) == []
    index.write_samples(digits, name="a", maxcount=5, maxsize="1MB", force=True)
    assert created(fake_pds).count("blob") == 2


def test_shards_in_a_bucket_are_named_as_they_are(index, digits, fake_pds, records):
    with serve_s3() as url:
        bucket = Bucket(url)
        keys = {
            "AWS_ENDPOINT": url,
            "AWS_ACCESS_KEY_ID": bucket.options["access_key"],
            "AWS_SECRET_ACCESS_KEY": bucket.options["secret_key"],
        }
        store = typed.S3DataStore(keys, bucket=bucket.name)
        entry = index.write_samples(digits, name="a", maxcount=5, data_store=store)
        assert created(fake_pds) == ["schema", "entry", "label"]
        (record,) = records("entry")
        assert record["storage"]["bucket"] == bucket.name
        assert record["storage"]["endpoint"] == url
        assert len(entry.checksums) == 2
        text = json.dumps(records("entry"))
        assert bucket.options["secret_key"] not in text
        options = {
            "endpoint": url,
            "access_key_id": bucket.options["access_key"],
            "secret_access_key": bucket.options["secret_key"],
        }
        ds = entry.open(store=options)
        assert [sample.label for sample in ds] == list(range(10))


def test_a_dataset_of_local_files_is_uploaded_as_it_is(
    index, digits, digit_type, tmp_path, client, records
):
    path = str(tmp_path / "digits.tar")
    typed.write_samples(digits, path)
    ds = typed.Dataset[digit_type](path)
    entry = index.insert_dataset(ds, name="digits", tags=["a"])
    (url,) = entry.checksums
    blob = client.get_blob(client.did, url.rpartition("=")[2])
    assert blob == (tmp_path / "digits.tar").read_bytes()
    assert str(tmp_path) not in json.dumps(records("entry"))


def test_a_dataset_at_public_urls_stays_there(index, digit_type, fake_pds):
    ds = typed.Dataset[digit_type]("https://data.example/{0..2}.tar")
    entry = index.insert_dataset(ds, name="a", metadata={"a": 1})
    assert entry.data_urls == [f"https://data.example/{i}.tar" for i in range(3)]
    assert created(fake_pds) == ["schema", "entry", "label"]

    ds = typed.Dataset[digit_type](["s3://bucket/a.tar", "s3://bucket/b.tar"])
    entry = index.insert_dataset(ds, name="b")
    assert entry.data_urls == ["s3://bucket/a.tar", "s3://bucket/b.tar"]
    ds = typed.Dataset[digit_type](["s3://one/a.tar", "s3://two/b.tar"])
    entry = index.insert_dataset(ds, name="c")
    assert entry.data_urls == ["s3://one/a.tar", "s3://two/b.tar"]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https://data.example/{00000..19999}.tar", "a record of .* bytes is more"),
        (f"https://data.example/{'x' * 2000}.tar", "more than the 2,000 allowed"),
    ],
)
def test_no_schema_is_left_of_a_record_that_cannot_be(
    index, digit_type, fake_pds, url, reason
):
    with pytest.raises(RecordError, match=reason):
        index.insert_dataset(typed.Dataset[digit_type](url), name="elsewhere")
    assert created(fake_pds) == []


def test_content_metadata_are_published_with_their_schema(
    index, digit_type, fake_pds, records
):
    @typed.packable
    class Camera:
        gain: int

    ds = typed.Dataset[digit_type]("https://data.example/0.tar")
    ds.content_metadata = Camera(gain=3)
    entry = index.insert_dataset(ds, name="a")
    assert created(fake_pds) == ["schema", "schema", "entry", "label"]
    (record,) = records("entry")
    assert record["contentMetadata"] == {"gain": 3}
    schema = index.get_schema(record["metadataSchemaRef"])
    assert (schema["name"], entry.record["schemaRef"]) != ("Digit", schema.uri)
    ds.content_metadata = Camera(gain=0.5)
    fake_pds.forget()
    with pytest.raises(RecordError, match="gain"):
        index.insert_dataset(ds, name="b")
    assert created(fake_pds) == []
    ds.content_metadata = 5
    with pytest.raises(TypeError, match="a dict or a sample"):
        index.insert_dataset(ds, name="b")


def test_private_urls_are_not_published(index, digit_type, fake_pds, digits, tmp_path):
    source = typed.S3Source(
        "bucket", ["a.tar"], endpoint="http://minio", access_key="a", secret_key="b"
    )
    with pytest.raises(ValueError, match="credentials"):
        index.insert_dataset(typed.Dataset[digit_type](source), name="a")
    ds = typed.Dataset[digit_type]("https://data.example/0.tar?sig=secret")
    with pytest.raises(ValueError, match="signature") as caught:
        index.insert_dataset(ds, name="a")
    assert "secret" not in str(caught.value)
    path = str(tmp_path / "a.tar")
    typed.write_samples(digits, path)
    filtered = typed.Dataset[digit_type](path).filter(lambda sample: sample.label > 4)
    with pytest.raises(ValueError, match="filters"):
        index.insert_dataset(filtered, name="a")
    assert created(fake_pds) == []
    entry = index.insert_dataset(filtered, name="a", copy=True)
    assert [s.label for s in entry.open(cache_dir=tmp_path)] == [5, 6, 7, 8, 9]


def test_an_entry_is_promoted_with_its_schema_and_checksums(
    local, client, index, digit_type, records
):
    urls = ["https://data.example/0.tar", "https://data.example/1.tar"]
    checksums = dict(zip(urls, ("ab" * 32, "cd" * 32), strict=True))
    entry = local.insert_dataset(
        typed.Dataset[digit_type](urls),
        name="digits",
        tags=["a"],
        license="MIT",
        metadata={"rate": 0.5, "checksums": checksums},
    )
    uri = typed.promote_to_atmosphere(entry, local, client, description="ten")

    found = index.get_dataset("@alice.test/digits")
    assert found.uri == uri
    assert found.data_urls == urls
    assert found.checksums == checksums
    assert found.metadata == {"rate": 0.5}
    assert (found.tags, found.license, found.description) == (["a"], "MIT", "ten")
    schema = typed.SchemaLoader(client).get_typed(found.schema_ref)
    assert (schema.name, schema.version) == ("Digit", "1.0.0")
    assert describe(digit_type).equals(
        describe(typed.SchemaLoader(client).get_type(found.schema_ref))
    )

    assert typed.promote_to_atmosphere(entry, local, client, description="ten") == uri
    other = typed.promote_to_atmosphere(entry, local, client, name="other")
    assert other != uri
    assert [len(records(each)) for each in ("schema", "entry", "label")] == [1, 2, 2]


def test_a_local_path_is_promoted_only_through_a_store(
    local, client, index, digits, tmp_path, fake_pds, records
):
    store = typed.LocalDiskStore(tmp_path / "store")
    entry = local.write_samples(digits, name="digits", maxcount=4, data_store=store)
    with pytest.raises(ValueError, match="not a URL that others can read"):
        typed.promote_to_atmosphere(entry, local, client)
    with pytest.raises(ValueError, match="local folder"):
        typed.promote_to_atmosphere(entry, local, client, data_store=store)
    assert fake_pds.count() == 0

    blobs = typed.PDSBlobStore(client)
    uri = typed.promote_to_atmosphere(entry, local, client, data_store=blobs)
    found = index.get_dataset(uri)
    assert sorted(found.checksums.values()) == sorted(entry.checksums.values())
    assert [s.label for s in found.open(cache_dir=tmp_path)] == list(range(10))
    assert str(tmp_path) not in json.dumps(records("entry"))
    assert typed.promote_to_atmosphere(entry, local, client, data_store=blobs) == uri


def test_an_upload_that_fails_midway_twice(
    local, client, index, digits, tmp_path, fake_pds, records
):
    store = typed.LocalDiskStore(tmp_path / "store")
    entry = local.write_samples(digits, name="digits", maxcount=4, data_store=store)
    blobs = typed.PDSBlobStore(client)
    for number in (1, 2):
        refuse(fake_pds, "blob", number)
        with pytest.raises(RemoteError, match="the server refuses"):
            typed.promote_to_atmosphere(entry, local, client, data_store=blobs)
        kinds = ("schema", "entry", "label")
        assert [records(each) for each in kinds] == [[], [], []]
    fake_pds.hook = None
    typed.promote_to_atmosphere(entry, local, client, data_store=blobs)
    assert [s.label for s in index.get_dataset("@alice.test/digits").open(
        cache_dir=tmp_path
    )] == list(range(10))  # fmt: skip


def test_entries_that_cannot_be_promoted(local, client, digit_type, fake_pds):
    entry = typed.DatasetEntry("a", "atdata://local/schema/Gone@1.0.0", ["https://a.b"])
    with pytest.raises(KeyError):
        typed.promote_to_atmosphere(entry, local, client)
    empty = typed.DatasetEntry("a", "x", [])
    with pytest.raises(ValueError, match="no data URLs"):
        publish_entry(client, empty, describe(digit_type), EntryFields("a"))
    for url in ("https://u:secret@a.b/c.tar", "https://a.b/c.tar?token=secret"):
        entry = typed.DatasetEntry("a", "x", [url])
        with pytest.raises(ValueError, match=r"password|signature") as caught:
            publish_entry(client, entry, describe(digit_type), EntryFields("a"))
        assert "secret" not in str(caught.value)
    assert fake_pds.count() == 0


def test_blobs_of_another_account_are_not_part_of_a_record(client, fake_pds, digits):
    fake_pds.create_account("bob.test")
    bob = typed.Atmosphere.login(
        "bob.test", "password", base_url=fake_pds.url, plc_url=fake_pds.plc.url
    )
    index = typed.AtmosphereIndex(client)
    with pytest.raises(ValueError, match="cannot be in a record of"):
        index.write_samples(digits, name="a", data_store=typed.PDSBlobStore(bob))
    assert created(fake_pds) == []


def test_records_of_another_account_are_read_from_its_own_server(
    fake_pds, index, digits, tmp_path
):
    from support.servers.atproto.pds import FakePds

    with FakePds(fake_pds.plc) as other:
        other.create_account("carol.test")
        carol = typed.Atmosphere.login(
            "carol.test", "password", base_url=other.url, plc_url=other.plc.url
        )
        typed.AtmosphereIndex(carol).write_samples(digits, name="theirs")
        found = index.get_dataset("@carol.test/theirs")
        assert found.data_urls[0].startswith(other.url)
        assert [s.label for s in found.open(cache_dir=tmp_path)] == list(range(10))
        index.label("mine", found.uri)
        assert index.get_dataset("@alice.test/mine") == found
        assert carol.did in found.uri
        own = [call for call in other.calls if "authorization" in call.headers]
        assert {call.nsid for call in own} <= {UPLOAD, CREATE}


def test_entries_are_values(index, digits):
    entry = index.write_samples(digits, name="a")
    assert entry == index.get_dataset(entry.uri)
    assert hash(entry) == hash(index.get_dataset(entry.uri))
    assert entry != 5
    again = pickle.loads(pickle.dumps(entry))
    assert (again, again.uri) == (entry, entry.uri)
    assert repr(entry) == f"<AtmosphereIndexEntry 'a' at {entry.uri}>"
    assert [found.uri for found in index.list_datasets()] == [entry.uri]
    assert [found.uri for found in index.datasets] == [entry.uri]


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"name": 5, "schemaRef": 5, "storage": 5, "metadata": 5},
        {"name": None, "schemaRef": "x", "storage": {}, "metadata": {"$bytes": "!"}},
    ],
)
def test_entries_of_damaged_records_name_the_field(record):
    entry = typed.AtmosphereIndexEntry("at://did:plc:abc/a.b.c/d", record)
    assert repr(entry)
    for name in ("name", "schema_ref", "data_urls", "checksums"):
        with pytest.raises(FormatError, match=r"at://did:plc:abc/a\.b\.c/d"):
            getattr(entry, name)
    with pytest.raises(ValueError, match="no client"):
        entry.open()


@pytest.mark.parametrize(
    "shards",
    [
        ["/etc/passwd"],
        ["file:///etc/passwd"],
        ["pipe:touch stolen"],
        ["../x.tar"],
        ["https://user:secret@data.example/x.tar"],
        ["http://"],
        ["https://a b/x.tar"],
        ["https://data.example/{0..99999999}.tar"],
        ["https://data.example/" + "{a,b}" * 40],
        ["at://did:plc:abc/blob/x"],
        ["data:,x"],
    ],
)
def test_places_of_shards_are_urls_of_servers(client, index, shards, tmp_path):
    record = {
        "$type": "science.alt.dataset.entry",
        "name": "a",
        "schemaRef": "at://did:plc:abc/science.alt.dataset.schema/x",
        "createdAt": "2026-11-22T06:08:44Z",
        "storage": {
            "$type": "science.alt.dataset.storageHttp",
            "shards": [{"url": shard} for shard in shards],
        },
    }
    uri = client.create_record("science.alt.dataset.entry", record)
    with pytest.raises(RecordError, match="shard 0") as caught:
        index.get_dataset(uri).open(typed.DictSample)
    assert "secret" not in str(caught.value)
    external = {
        "$type": "science.alt.dataset.storageExternal",
        "urls": [*shards],
    }
    uri = client.create_record(
        "science.alt.dataset.entry", {**record, "storage": external}
    )
    with pytest.raises(RecordError, match="shard 0"):
        typed.DatasetLoader(client).to_dataset(uri, typed.DictSample)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("region", "evil.example/#"),
        ("region", "us-east-1.evil"),
        ("bucket", "evil.example/x"),
        ("bucket", "a@b"),
        ("bucket", "A"),
    ],
)
def test_buckets_and_regions_of_records_are_not_parts_of_hosts(
    client, index, field, value
):
    storage = {
        "$type": "science.alt.dataset.storageS3",
        "bucket": "bucket",
        "shards": [{"key": "a.tar"}],
        field: value,
    }
    record = {
        "$type": "science.alt.dataset.entry",
        "name": "a",
        "schemaRef": "at://did:plc:abc/science.alt.dataset.schema/x",
        "createdAt": "2026-11-22T06:08:44Z",
        "storage": storage,
    }
    uri = client.create_record("science.alt.dataset.entry", record)
    with pytest.raises(RecordError, match=field):
        index.get_dataset(uri).open(typed.DictSample)


def test_secrets_stand_nowhere(client, index, digits, caplog, tmp_path, fake_pds):
    caplog.set_level("DEBUG")
    session = session_of(client)
    secrets = [session.access.reveal(), session.refresh.reveal()]
    entry = index.write_samples(digits, name="a")
    refuse(fake_pds, "entry")
    with pytest.raises(PublishError) as caught:
        index.write_samples(digits[:5], name="b")
    shown = [
        repr(index),
        repr(entry),
        repr(vars(entry)),
        str(caught.value),
        repr(caught.value.__cause__),
        caplog.text,
        pickle.dumps(entry).decode("latin-1"),
        pickle.dumps(caught.value).decode("latin-1"),
    ]
    for secret in secrets:
        assert not [text for text in shown if secret in text]
