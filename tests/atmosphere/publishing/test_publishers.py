"""Publishers: requests, and refusals before any request."""

import json
from datetime import UTC, datetime

import numpy as np
import pytest
from numpy.typing import NDArray

from fastshard import typed
from fastshard.errors import FastshardError, RecordError, SessionError, XrpcError
from fastshard.typed import atmosphere
from support.inside.typed import url_source_of_shards
from support.servers.atproto.dag import blob_cid

SCHEMA = "at://did:plc:abc/science.alt.dataset.schema/3n2uxbnbzzs2e"
ENTRY = "at://did:plc:abc/science.alt.dataset.entry/3n2uxbndfy22e"
LENS = "at://did:plc:abc/science.alt.dataset.lens/3n2uxbohbgs2e"
URLS = ["https://data.example/0.tar", "https://data.example/1.tar"]
SHA = [atmosphere.ShardChecksum("sha256", f"{i:064x}") for i in range(2)]
CODE = {
    "code_repository": "https://git.example/lenses",
    "code_commit": "0" * 40,
    "getter_path": "a:get",
    "putter_path": "a:put",
}


@typed.packable
class Digit:
    label: int


def is_recent(text):
    seconds = (datetime.now(UTC) - datetime.fromisoformat(text)).total_seconds()
    return 0 <= seconds < 60


def test_a_schema_has_the_fields_of_the_type(client, records, digit_type):
    uri = typed.SchemaPublisher(client).publish(
        digit_type, version="1.2.0", description="digits", metadata={"license": "MIT"}
    )

    (schema,) = records("schema")
    assert is_recent(schema.pop("createdAt"))
    assert schema == {
        "$type": "science.alt.dataset.schema",
        "name": "Digit",
        "version": "1.2.0",
        "schemaType": "jsonSchema",
        "schema": {
            "$type": "science.alt.dataset.schema#jsonSchemaFormat",
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {
                "image": {
                    "$ref": "https://alt.science/schemas/atdata-ndarray-bytes/1.0.0"
                    "#/$defs/ndarray",
                    "dtype": "uint8",
                },
                "label": {"type": "integer"},
                "note": {"type": "string"},
            },
            "required": ["image", "label"],
            "arrayFormatVersions": {"ndarrayBytes": "1.0.0"},
        },
        "description": "digits",
        "metadata": {"license": "MIT"},
        "atdataSchemaVersion": 1,
    }
    again = typed.SchemaLoader(client).get_type(uri)
    assert again.__name__ == "Digit"


def test_equal_schemas_are_published_once(client, records, digit_type):
    publisher = typed.SchemaPublisher(client)
    uri = publisher.find_or_publish(digit_type)
    assert publisher.find_or_publish(digit_type) == uri
    assert publisher.find_or_publish(digit_type, version="1.0.0") == uri
    assert typed.SchemaPublisher(client).find_or_publish(digit_type) == uri
    assert [schema["version"] for schema in records("schema")] == ["1.0.0"]


def test_other_fields_are_another_version(client, records):
    def make(**fields):
        cls = type("Thing", (), {"__annotations__": fields, "__module__": __name__})
        return typed.packable(cls)

    publisher = typed.SchemaPublisher(client)
    first = publisher.find_or_publish(make(a=int))
    second = publisher.find_or_publish(make(a=str))
    third = publisher.find_or_publish(make(a=float), version="1.0.0")  # taken
    fourth = publisher.find_or_publish(make(a=bytes), version="3.0.0")
    assert [schema["version"] for schema in records("schema")] == [
        "3.0.0",
        "1.0.2",
        "1.0.1",
        "1.0.0",
    ]
    assert len({first, second, third, fourth}) == 4
    assert publisher.find_or_publish(make(a=int)) == first
    assert publisher.find_or_publish(make(a=str)) == second


def test_schemas_that_are_damaged_or_of_a_later_form_are_passed_over(
    client, digit_type
):
    publisher = typed.SchemaPublisher(client)
    value = {"$type": "science.alt.dataset.schema", "name": "Digit"}
    for more in (
        {},
        {"version": 5},
        {"version": "1.0.0"},
        {"version": "9.0.0", "schemaType": "jsonSchema", "atdataSchemaVersion": 99},
    ):
        client.create_record("science.alt.dataset.schema", value | more)
    uri = publisher.find_or_publish(digit_type)
    assert typed.SchemaLoader(client).get_typed(uri).version == "1.0.0"
    assert publisher.find_or_publish(digit_type) == uri


@pytest.mark.parametrize("version", ["1", "v1.0.0", "", "1.0.0.0"])
def test_versions_of_schemas_are_semantic(client, fake_pds, digit_type, version):
    with pytest.raises(RecordError, match="semantic version"):
        typed.SchemaPublisher(client).publish(digit_type, version=version)
    assert fake_pds.count() == 0


def test_a_type_without_a_schema_is_refused(client, fake_pds):
    @typed.packable
    class Bag:
        value: set[int]

    with pytest.raises(TypeError, match="value"):
        typed.SchemaPublisher(client).publish(Bag)
    with pytest.raises(TypeError):
        typed.SchemaPublisher(client).publish(int)
    assert fake_pds.count() == 0


def test_a_name_and_a_key_of_the_callers(client, digit_type):
    publisher = typed.SchemaPublisher(client)
    uri = publisher.publish(digit_type, name="Number", rkey="number")
    assert uri.rkey == "number"
    assert typed.SchemaLoader(client).get("@alice.test/Number@1.0.0").uri == uri


def test_a_dataset_at_urls(client, records):
    uri = typed.DatasetPublisher(client).publish_with_urls(
        URLS,
        SCHEMA,
        name="digits",
        description="ten",
        tags=["a", "b"],
        license="MIT",
        metadata={"rate": 0.5, "raw": b"\x00"},
        metadata_schema_ref=SCHEMA,
        content_metadata={"gain": 3},
        checksums=SHA,
    )

    (entry,) = records("entry")
    assert is_recent(entry.pop("createdAt"))
    assert set(entry.pop("metadata")) == {"$bytes"}
    assert entry == {
        "$type": "science.alt.dataset.entry",
        "name": "digits",
        "schemaRef": SCHEMA,
        "storage": {
            "$type": "science.alt.dataset.storageHttp",
            "shards": [
                {"url": url, "checksum": {"algorithm": "sha256", "digest": sha.digest}}
                for url, sha in zip(URLS, SHA, strict=True)
            ],
        },
        "description": "ten",
        "tags": ["a", "b"],
        "license": "MIT",
        "metadataSchemaRef": SCHEMA,
        "contentMetadata": {"gain": 3},
    }
    loader = typed.DatasetLoader(client)
    assert loader.get_metadata(uri) == {"rate": 0.5, "raw": b"\x00"}
    assert loader.get_urls(uri) == URLS


def test_omitted_options_are_left_out(client, records):
    typed.DatasetPublisher(client).publish_with_urls(URLS[:1], SCHEMA, name="a")
    (entry,) = records("entry")
    none = {"algorithm": "none", "digest": ""}
    assert entry["storage"]["shards"] == [{"url": URLS[0], "checksum": none}]
    assert entry["tags"] == []
    assert set(entry) == {"$type", "name", "schemaRef", "storage", "createdAt", "tags"}


def test_a_dataset_in_a_bucket(client, records):
    typed.DatasetPublisher(client).publish_with_s3(
        "bucket", ["a/0.tar"], SCHEMA, name="s3", region="eu", endpoint="https://s3.a"
    )
    (entry,) = records("entry")
    assert entry["storage"] == {
        "$type": "science.alt.dataset.storageS3",
        "bucket": "bucket",
        "region": "eu",
        "endpoint": "https://s3.a",
        "shards": [{"key": "a/0.tar", "checksum": {"algorithm": "none", "digest": ""}}],
    }


def test_a_dataset_of_blobs(client, records, fake_pds):
    blobs = [b"one" * 100, b"two" * 200]
    uri = typed.DatasetPublisher(client).publish_with_blobs(blobs, SCHEMA, name="b")
    (entry,) = records("entry")
    assert entry["size"] == {"bytes": 900, "shards": 2}
    found = [each["blob"]["ref"]["$link"] for each in entry["storage"]["blobs"]]
    assert found == [blob_cid(blob) for blob in blobs]
    assert [client.get_blob(client.did, cid) for cid in found] == blobs
    assert "none" not in json.dumps(entry)

    again = typed.DatasetPublisher(client).publish_with_blob_refs(
        [each["blob"] for each in entry["storage"]["blobs"]], SCHEMA, name="c"
    )
    loader = typed.DatasetLoader(client)
    assert loader.get_blob_urls(again) == loader.get_blob_urls(uri)
    assert "checksum" not in loader.get_blobs(again)[0]


def test_a_blob_that_is_too_large_is_refused_before_the_first_is_sent(
    client, fake_pds, monkeypatch
):
    from fastshard.atmosphere.publishing import dataset

    monkeypatch.setattr(dataset, "MAX_BLOB", 1000)
    with pytest.raises(ValueError, match="blob 1 has 1,001 bytes"):
        typed.DatasetPublisher(client).publish_with_blobs(
            [b"a", b"b" * 1001], SCHEMA, name="x"
        )
    with pytest.raises(RecordError, match="name"):
        typed.DatasetPublisher(client).publish_with_blobs([b"a"], SCHEMA, name="")
    assert fake_pds.count() == 0


@pytest.mark.parametrize(
    "url",
    [
        "/data/local.tar",
        "data/local.tar",
        "file:///data/local.tar",
        "pipe:cat x",
        "ftp://data.example/a.tar",
        "https://user:secret@data.example/a.tar",
        "https://data.example/a.tar?X-Amz-Signature=secret",
        "https://data.example/a.tar?sig=secret",
        "C:\\data\\a.tar",
        "",
    ],
)
def test_private_and_secret_urls_are_refused(client, fake_pds, url):
    publisher = typed.DatasetPublisher(client)
    with pytest.raises(ValueError, match="URL") as caught:
        publisher.publish_with_urls([url], SCHEMA, name="a")
    assert "secret" not in str(caught.value)
    if url and not url.startswith("pipe"):
        ds = typed.Dataset(url_source_of_shards([url]), typed.DictSample)
        with pytest.raises((ValueError, FastshardError), match=r"URL|password"):
            publisher.publish(ds, name="a", schema_uri=SCHEMA)
    assert fake_pds.count() == 0


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda p: p.publish_with_urls([], SCHEMA, name="a"), "a shard or more"),
        (
            lambda p: p.publish_with_urls(URLS, SCHEMA, name="a", checksums=SHA[:1]),
            "length",
        ),
        (lambda p: p.publish_with_urls(URLS[0], SCHEMA, name="a"), "must be a list"),
        (lambda p: p.publish_with_urls(URLS, "x", name="a"), "at://"),
        (lambda p: p.publish_with_urls(URLS, SCHEMA, name="a" * 201), "name"),
        (lambda p: p.publish_with_urls(URLS, SCHEMA, name="é" * 101), "202 bytes"),
        (lambda p: p.publish_with_urls(URLS, SCHEMA, name="a", tags=["x"] * 31), "31"),
        (lambda p: p.publish_with_urls(URLS, SCHEMA, name="a", tags=[5]), "tags"),
        (
            lambda p: p.publish_with_urls(
                URLS, SCHEMA, name="a", content_metadata={"a": 0.5}
            ),
            "contentMetadata.a",
        ),
        (
            lambda p: p.publish_with_urls(
                URLS, SCHEMA, name="a", metadata={"a": object()}
            ),
            "metadata.a",
        ),
        (lambda p: p.publish_with_s3("b", ["x" * 1025], SCHEMA, name="a"), "key"),
        (
            lambda p: p.publish_with_s3("b", ["x"], SCHEMA, name="a", endpoint="/x"),
            "URL",
        ),
        (lambda p: p.publish_with_blob_refs([{}], SCHEMA, name="a"), "blob record"),
    ],
)
def test_faults_are_found_before_anything_is_sent(client, fake_pds, call, match):
    with pytest.raises((ValueError, TypeError), match=match):
        call(typed.DatasetPublisher(client))
    assert fake_pds.count() == 0


def test_a_dataset_is_published_with_its_schema(client, records, digit_type):
    ds = typed.Dataset[digit_type]("https://data.example/{0..3}.tar")
    publisher = typed.DatasetPublisher(client)
    uri = publisher.publish(ds, name="a")
    publisher.publish(ds, name="b")
    assert len(records("schema")) == 1
    assert len(typed.DatasetLoader(client).get_urls(uri)) == 4
    with pytest.raises(ValueError, match="schema_uri is required"):
        publisher.publish(ds, name="c", auto_publish_schema=False)


def test_content_metadata_are_published_with_their_schema(client, records, digit_type):
    @typed.packable
    class Camera:
        gain: int

    ds = typed.Dataset[digit_type]("https://data.example/0.tar")
    ds.content_metadata = Camera(gain=3)
    uri = typed.DatasetPublisher(client).publish(ds, name="a")
    loader = typed.DatasetLoader(client)
    assert loader.get_content_metadata(uri) == {"gain": 3}
    schema = loader.get_metadata_schema_ref(uri)
    assert typed.SchemaLoader(client).get_typed(schema).name == "Camera"
    assert len(records("schema")) == 2


def test_labels(client, records):
    publisher = typed.LabelPublisher(client)
    publisher.publish("best", ENTRY, version="1.0.0", description="for 1")
    (label,) = records("label")
    assert is_recent(label.pop("createdAt"))
    assert label == {
        "$type": "science.alt.dataset.label",
        "name": "best",
        "datasetUri": ENTRY,
        "version": "1.0.0",
        "description": "for 1",
    }
    with pytest.raises(RecordError, match="datasetUri"):
        publisher.publish("x", "https://data.example")
    with pytest.raises(RecordError, match="version"):
        publisher.publish("x", ENTRY, version="1" * 51)


def get_label(sample: Digit) -> Digit:
    return sample


def put_label(view: Digit, sample: Digit) -> Digit:
    return view


def test_lenses(client, records):
    publisher = typed.LensPublisher(client)
    publisher.publish(
        name="a",
        source_schema_uri=SCHEMA,
        target_schema_uri=SCHEMA,
        language="python",
        metadata={"author": "me"},
        source_schema_version=">=1.0.0",
        **CODE,
    )
    (lens,) = records("lens")
    assert is_recent(lens.pop("createdAt"))
    code = {"repository": CODE["code_repository"], "commit": "0" * 40}
    assert lens == {
        "$type": "science.alt.dataset.lens",
        "name": "a",
        "sourceSchema": SCHEMA,
        "targetSchema": SCHEMA,
        "getterCode": {**code, "path": "a:get", "language": "python"},
        "putterCode": {**code, "path": "a:put", "language": "python"},
        "language": "python",
        "metadata": {"author": "me"},
        "sourceSchemaVersion": ">=1.0.0",
    }


def test_a_lens_says_where_its_functions_are(client):
    publisher = typed.LensPublisher(client)
    given = {
        "name": "a",
        "source_schema_uri": SCHEMA,
        "target_schema_uri": SCHEMA,
        "code_repository": "https://git.example/lenses",
        "code_commit": "0" * 40,
    }
    uri = publisher.publish_from_lens(typed.Lens(get_label, put=put_label), **given)
    lens = typed.LensLoader(client).get_typed(uri)
    assert lens.getter_code.path == f"{__name__}:get_label"
    assert lens.putter_code.path == f"{__name__}:put_label"
    with pytest.raises(ValueError, match="putter"):
        publisher.publish_from_lens(typed.Lens(get_label), **given)
    lens = typed.Lens(get_label, put=lambda view, sample: view)
    with pytest.raises(ValueError, match="names"):
        publisher.publish_from_lens(lens, **given)


def test_verifications(client, records):
    publisher = typed.VerificationPublisher(client)
    given = {"lens_uri": LENS, "lens_commit": "bafyreig"}
    publisher.publish(
        **given,
        verification_method="signedHash",
        code_hash=atmosphere.CodeHash("sha256", "ab" * 32),
        description="hashed",
    )
    (found,) = records("lensVerification")
    assert is_recent(found.pop("createdAt"))
    assert found == {
        "$type": "science.alt.dataset.lensVerification",
        "lens": LENS,
        "lensCommit": "bafyreig",
        "verificationMethod": "signedHash",
        "codeHash": {"algorithm": "sha256", "digest": "ab" * 32},
        "description": "hashed",
    }
    with pytest.raises(ValueError, match="requires code_hash"):
        publisher.publish(**given, verification_method="signedHash")
    with pytest.raises(ValueError, match="must be one of"):
        publisher.publish(**given, verification_method="guess")


@pytest.mark.parametrize("kind", ["schema", "dataset", "label", "lens", "verification"])
def test_without_a_session_nothing_is_published(fake_pds, digit_type, kind):
    client = typed.Atmosphere(fake_pds.url, plc_url=fake_pds.plc.url)
    calls = {
        "schema": lambda: typed.SchemaPublisher(client).publish(digit_type),
        "dataset": lambda: typed.DatasetPublisher(client).publish_with_blobs(
            [b"x"], SCHEMA, name="a"
        ),
        "label": lambda: typed.LabelPublisher(client).publish("a", ENTRY),
        "lens": lambda: typed.LensPublisher(client).publish(
            name="a", source_schema_uri=SCHEMA, target_schema_uri=SCHEMA, **CODE
        ),
        "verification": lambda: typed.VerificationPublisher(client).publish(
            lens_uri=LENS, lens_commit="x", verification_method="codeReview"
        ),
    }
    with pytest.raises(SessionError, match="authenticated"):
        calls[kind]()
    assert fake_pds.count() == 0


def test_a_server_that_refuses_is_named(client, fake_pds):
    from support.servers.atproto.xrpc import Reply

    refused = Reply({"error": "InvalidRequest", "message": "no"}, 400)
    fake_pds.hook = lambda call: refused
    with pytest.raises(XrpcError, match="no") as caught:
        typed.LabelPublisher(client).publish("a", ENTRY)
    assert caught.value.error == "InvalidRequest"


def test_arrays_without_a_dtype_are_another_schema(client, records, digit_type):
    @typed.packable
    class Any:
        image: NDArray
        label: int
        note: str | None = None

    Any.__name__ = digit_type.__name__
    publisher = typed.SchemaPublisher(client)
    publisher.find_or_publish(digit_type)
    publisher.find_or_publish(Any)
    assert [schema["version"] for schema in records("schema")] == ["1.0.1", "1.0.0"]
    assert np.dtype("u1") == "uint8"
