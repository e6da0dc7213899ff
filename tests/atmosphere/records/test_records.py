"""Records to typed objects and back: nothing is lost, and faults name their field."""

import copy
import pickle
from base64 import b64decode, b64encode
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from fastshard import typed
from fastshard.atmosphere.publishing.record import check_record
from fastshard.atmosphere.records.metadata import write_metadata
from fastshard.errors import FormatError, RecordError, SchemaError
from fastshard.typed import atmosphere

ENTRY = "at://did:plc:abc/science.alt.dataset.entry/3n2uxbndfy22e"
SCHEMA = "at://did:plc:abc/science.alt.dataset.schema/3n2uxbnbzzs2e"
LENS = "at://did:plc:abc/science.alt.dataset.lens/3n2uxbohbgs2e"
CID = "bafkreicjqkf2vwa667yjlyqm3cw3asfhegmwwwd5fwy2olqmqbenhhnj4i"
NOW = "2026-11-22T06:08:44.188412+00:00"
NSID = "science.alt.dataset"
SHA = {"algorithm": "sha256", "digest": "ab" * 32}
BLOB = {
    "$type": "blob",
    "ref": {"$link": CID},
    "mimeType": "application/x-tar",
    "size": 10240,
}
CODE = {
    "repository": "https://git.example/lenses",
    "commit": "0" * 40,
    "path": "lenses:get",
    "branch": "main",
    "language": "python",
}
HTTP = {
    "$type": f"{NSID}.storageHttp",
    "shards": [{"url": "https://data.example/a.tar", "checksum": SHA}],
}
S3 = {
    "$type": f"{NSID}.storageS3",
    "bucket": "bucket-name",
    "region": "us-east-1",
    "endpoint": "https://s3.example",
    "shards": [{"key": "d/a.tar", "checksum": SHA}],
}
BLOBS = {
    "$type": f"{NSID}.storageBlobs",
    "blobs": [{"blob": BLOB, "checksum": SHA}, {"blob": BLOB}],
}
EXTERNAL = {
    "$type": f"{NSID}.storageExternal",
    "urls": ["https://data.example/{000000..000009}.tar"],
}


def entry_record(storage):
    return {
        "$type": f"{NSID}.entry",
        "name": "digits",
        "schemaRef": SCHEMA,
        "storage": storage,
        "createdAt": NOW,
        "description": "ten digits",
        "metadata": {
            "sourceUri": "https://data.example/",
            "createdBy": "me",
            "version": "2.0.0",
            "processingSteps": ["a", "b"],
            "split": "train",
            "custom": {"n": 6, "nested": {"list": [1, "x", None, True]}},
        },
        "tags": ["test"],
        "size": {"samples": 6, "bytes": 20480, "shards": 2},
        "license": "MIT",
        "metadataSchemaRef": SCHEMA,
        "contentMetadata": {"gain": 3},
        "manifests": [{"header": BLOB, "samples": BLOB}, {"header": BLOB}],
    }


GOOD = {
    "http": (atmosphere.EntryRecord, entry_record(HTTP)),
    "s3": (atmosphere.EntryRecord, entry_record(S3)),
    "blobs": (atmosphere.EntryRecord, entry_record(BLOBS)),
    "external": (atmosphere.EntryRecord, entry_record(EXTERNAL)),
    "schema": (
        atmosphere.SchemaRecord,
        {
            "$type": f"{NSID}.schema",
            "name": "Vec",
            "version": "1.0.0",
            "schemaType": "jsonSchema",
            "schema": {
                "$type": f"{NSID}.schema#jsonSchemaFormat",
                "$schema": "http://json-schema.org/draft-07/schema#",
                "type": "object",
                "properties": {"label": {"type": "string"}},
                "required": ["label"],
                "arrayFormatVersions": {"ndarrayBytes": "1.0.0"},
            },
            "createdAt": NOW,
            "description": "a vector",
            "metadata": {"license": "MIT"},
            "atdataSchemaVersion": 1,
        },
    ),
    "label": (
        atmosphere.LabelRecord,
        {
            "$type": f"{NSID}.label",
            "name": "best",
            "datasetUri": ENTRY,
            "version": "1.0.0",
            "description": "the best",
            "createdAt": NOW,
        },
    ),
    "lens": (
        atmosphere.LensRecord,
        {
            "$type": f"{NSID}.lens",
            "name": "to_name",
            "sourceSchema": SCHEMA,
            "targetSchema": SCHEMA,
            "getterCode": CODE,
            "putterCode": {k: CODE[k] for k in ("repository", "commit", "path")},
            "createdAt": NOW,
            "description": "the label",
            "language": "python",
            "metadata": {"author": "me"},
            "sourceSchemaVersion": ">=1.0.0 <2.0.0",
            "targetSchemaVersion": "1.0.0",
        },
    ),
    "lensVerification": (
        atmosphere.LensVerificationRecord,
        {
            "$type": f"{NSID}.lensVerification",
            "lens": LENS,
            "lensCommit": "bafyreig",
            "verificationMethod": "signedHash",
            "createdAt": NOW,
            "codeHash": {"algorithm": "blake3", "digest": "ab"},
            "proofRef": CODE,
            "description": "hashed",
        },
    ),
}
REQUIRED = {
    "http": "name schemaRef storage createdAt storage.$type storage.shards "
    "storage.shards[0].url",
    "s3": "storage.bucket storage.shards storage.shards[0].key "
    "storage.shards[0].checksum.algorithm storage.shards[0].checksum.digest",
    "blobs": "storage.blobs storage.blobs[0].blob storage.blobs[0].blob.ref "
    "storage.blobs[0].blob.ref.$link storage.blobs[0].blob.mimeType "
    "storage.blobs[0].blob.size manifests[0].header",
    "external": "storage.urls",
    "schema": "name version schemaType schema createdAt schema.$type schema.type "
    "schema.properties",
    "label": "name datasetUri createdAt",
    "lens": "name sourceSchema targetSchema getterCode putterCode createdAt "
    "getterCode.repository getterCode.commit getterCode.path",
    "lensVerification": "lens lensCommit verificationMethod createdAt "
    "codeHash.algorithm codeHash.digest",
}
LENGTHS = {
    "http": {
        "name": 200,
        "description": 5000,
        "license": 200,
        "tags[0]": 150,
        "storage.shards[0].url": 2000,
        "storage.shards[0].checksum.algorithm": 20,
    },
    "s3": {"storage.shards[0].key": 1024},
    "lensVerification": {
        "codeHash.digest": 128,
        "codeHash.algorithm": 20,
        "description": 1000,
    },
    "label": {"name": 200, "version": 50, "description": 5000},
    "lens": {"name": 100, "getterCode.commit": 40, "proof": None},
}
KINDS = pytest.mark.parametrize("kind", GOOD)


def walk(value, path=()):
    """Yield the paths of all values inside."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in items:
        yield (*path, key)
        yield from walk(item, (*path, key))


def path_of(text):
    keys = text.replace("[", ".[").split(".")
    return tuple(int(k[1:-1]) if k.startswith("[") else k for k in keys)


def changed(record, path, value=...):
    """Return a copy with another value at a path, or without it."""
    record = copy.deepcopy(record)
    inner = record
    for key in path[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return record


@KINDS
def test_read_payloads_are_written_again(kind):
    cls, record = GOOD[kind]

    read = cls.from_record(record)

    assert read.to_record() == record
    assert read.extra == {}
    assert cls.from_record(read.to_record()) == read
    assert pickle.loads(pickle.dumps(read)).to_record() == record


@KINDS
def test_fields_are_attributes(kind):
    cls, record = GOOD[kind]
    read = cls.from_record(record)

    for name in record:
        if name not in ("$type", "createdAt", "metadata"):
            snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
            value = getattr(read, snake)
            if isinstance(value, str | int):
                assert value == record[name]
    assert read.created_at == datetime(2026, 11, 22, 6, 8, 44, 188412, tzinfo=UTC)


@KINDS
def test_unknown_fields_are_kept_at_every_depth(kind):
    cls, record = GOOD[kind]
    free = ("metadata", "contentMetadata", "properties", "arrayFormatVersions", "$link")
    for path in [(), *walk(record)]:
        inner = record
        for key in path:
            inner = inner[key]
        if isinstance(inner, dict) and not any(key in free for key in path):
            if path[-1:] == ("ref",):
                continue  # of a blob: its link, and nothing else
            more = changed(record, (*path, "later"), {"x": [1, None]})
            assert cls.from_record(more).to_record() == more


@KINDS
def test_a_missing_field_is_named(kind):
    cls, record = GOOD[kind]
    for text in REQUIRED[kind].split():
        if text == "storage.$type" or text == "schema.$type":
            cut = changed(record, path_of(text))
        else:
            cut = changed(record, path_of(text))
        with pytest.raises(RecordError, match="required field is missing") as caught:
            cls.from_record(cut, uri=ENTRY)
        assert caught.value.field == text
        assert caught.value.path == ENTRY
        assert f"field '{text}' of {ENTRY}" in str(caught.value)


@KINDS
def test_a_value_of_another_type_is_named_or_kept(kind):
    cls, record = GOOD[kind]
    free = ("contentMetadata", "properties", "custom", "later", "metadata", "$schema")
    refused = 0
    for path in walk(record):
        for value in (None, 1.5, True, [], {}, "", "\x00", -1, [[]], {"$type": 5}):
            wrong = changed(record, path, value)
            try:
                read = cls.from_record(wrong, uri=ENTRY)
            except RecordError as error:
                assert error.path == ENTRY
                refused += 1
            else:
                assert read.to_record() == wrong, path
        text = ".".join(map(str, path))
        if not any(name in text for name in free):
            with pytest.raises(RecordError):
                cls.from_record(changed(record, path, 1.5))
    assert refused > 20


@pytest.mark.parametrize("value", [None, [], "x", 5, b""])
@KINDS
def test_a_non_object_is_not_a_record(kind, value):
    with pytest.raises(RecordError, match="expected an object"):
        GOOD[kind][0].from_record(value)


@pytest.mark.parametrize(
    ("kind", "text", "most"),
    [(k, t, n) for k, each in LENGTHS.items() for t, n in each.items() if n],
)
def test_texts_have_a_longest_length(kind, text, most):
    cls, record = GOOD[kind]
    assert cls.from_record(changed(record, path_of(text), "1" * most))

    with pytest.raises(RecordError, match="more than") as caught:
        cls.from_record(changed(record, path_of(text), "1" * (most + 1)))
    assert caught.value.field == text


def test_a_long_value_is_cut_in_the_error():
    wrong = changed(GOOD["label"][1], ("$type",), "x" * 100_000)
    with pytest.raises(RecordError) as caught:
        atmosphere.LabelRecord.from_record(wrong)
    assert len(str(caught.value)) < 500


def test_tags_are_thirty_at_most():
    cls, record = GOOD["http"]
    assert cls.from_record(changed(record, ("tags",), ["x"] * 30))
    with pytest.raises(RecordError, match="31 items"):
        cls.from_record(changed(record, ("tags",), ["x"] * 31))


@pytest.mark.parametrize("name", ["shards", "blobs"])
def test_a_storage_has_a_shard(name):
    kind = "http" if name == "shards" else "blobs"
    cls, record = GOOD[kind]
    with pytest.raises(RecordError, match="an empty list"):
        cls.from_record(changed(record, ("storage", name), []))


@pytest.mark.parametrize(
    ("kind", "field"),
    [("http", "schemaRef"), ("label", "datasetUri"), ("lens", "sourceSchema")],
)
@pytest.mark.parametrize(
    "uri", ["", "https://x", "at://", "at://did:plc:abc", "at://a.b/c/../d", "x" * 501]
)
def test_addresses_are_those_of_records(kind, field, uri):
    cls, record = GOOD[kind]
    with pytest.raises(RecordError) as caught:
        cls.from_record(changed(record, (field,), uri))
    assert caught.value.field == field


@pytest.mark.parametrize(
    "cid", ["", "x", CID[:-1], CID.upper(), "bafyrei" + "a" * 52, "Qm" + "a" * 44]
)
def test_links_are_cids(cid):
    cls, record = GOOD["blobs"]
    path = ("storage", "blobs", 0, "blob", "ref", "$link")
    if cid.startswith("bafyrei"):  # of a value, not of bytes
        with pytest.raises(RecordError, match="of a blob"):
            cls.from_record(changed(record, path, cid))
        return
    with pytest.raises(RecordError, match="CID"):
        cls.from_record(changed(record, path, cid))


@pytest.mark.parametrize("size", [-1, 2**53, 1.0, "5", True])
def test_sizes_are_integers(size):
    cls, record = GOOD["blobs"]
    with pytest.raises(RecordError, match="integer"):
        cls.from_record(changed(record, path_of("storage.blobs[0].blob.size"), size))


def test_a_record_of_another_collection_is_refused():
    with pytest.raises(RecordError, match="not a lens record") as caught:
        atmosphere.LensRecord.from_record(GOOD["label"][1])
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, FormatError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert again.field == "$type"


def test_unknown_members_of_unions_are_kept():
    tape = {"$type": f"{NSID}.storageTape", "reels": 2, "name": "x"}
    entry = entry_record(tape)
    read = atmosphere.EntryRecord.from_record(entry)
    assert read.storage.type == f"{NSID}.storageTape"
    assert read.storage.extra == {"reels": 2, "name": "x"}
    assert read.to_record() == entry

    record = changed(GOOD["schema"][1], ("schema",), {"$type": "a.b.c#proto", "x": 1})
    read = atmosphere.SchemaRecord.from_record(record)
    assert read.schema.type == "a.b.c#proto"
    assert read.to_record() == record


def test_checksums_that_say_none_are_none_and_stay():
    none = {"algorithm": "none", "digest": ""}
    record = changed(entry_record(HTTP), ("storage", "shards", 0, "checksum"), none)
    read = atmosphere.EntryRecord.from_record(record)
    assert read.storage.shards[0].checksum is None
    assert read.to_record() == record

    record = changed(entry_record(BLOBS), ("storage", "blobs", 1, "checksum"), none)
    assert atmosphere.EntryRecord.from_record(record).to_record() == record

    record = changed(entry_record(HTTP), ("storage", "shards", 0, "checksum"))
    read = atmosphere.EntryRecord.from_record(record)
    assert read.storage.shards[0].checksum is None
    assert read.to_record() == record


def test_a_checksum_is_written_only_where_it_is_required():
    url = atmosphere.HttpShardEntry("https://data.example/a.tar")
    key = atmosphere.S3ShardEntry("a.tar")
    blob = atmosphere.BlobEntry(atmosphere.BlobRef(CID, "application/x-tar", 5))
    none = {"algorithm": "none", "digest": ""}

    assert url.to_record()["checksum"] == none
    assert key.to_record()["checksum"] == none
    assert "checksum" not in blob.to_record()


def test_a_new_checksum_takes_the_place_of_the_stored():
    record = changed(entry_record(HTTP), ("storage", "shards", 0, "checksum"))
    read = atmosphere.EntryRecord.from_record(record)
    read.storage.shards[0].checksum = atmosphere.ShardChecksum("sha256", "cd" * 32)
    shard = read.to_record()["storage"]["shards"][0]
    assert shard["checksum"] == {"algorithm": "sha256", "digest": "cd" * 32}


@pytest.mark.parametrize("digest", ["", "ab", "zz" * 32, "ab" * 33])
def test_a_sha256_of_64_digits_is_published_and_others_are_read(digest):
    path = ("storage", "shards", 0, "checksum", "digest")
    record = changed(entry_record(HTTP), path, digest)
    read = atmosphere.EntryRecord.from_record(record)
    assert read.storage.shards[0].checksum.digest == digest
    assert read.to_record() == record
    with pytest.raises(RecordError, match="64 hexadecimal digits"):
        check_record(read)


def test_a_checksum_that_is_not_a_digest_is_a_mismatch(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(bytes(1024))
    checksum = atmosphere.ShardChecksum("sha256", "sha256:no digest")
    storage = atmosphere.StorageHttp([atmosphere.HttpShardEntry(str(path), checksum)])
    record = changed(entry_record(HTTP), ("storage",), storage.to_record())
    entry = typed.AtmosphereIndexEntry("at://did:plc:abc/a.b.entry/x", record)
    assert typed.verify_checksums(entry, source=typed.URLSource(str(path))) == {
        str(path): "mismatch"
    }


def test_blobs_of_older_records_stand_without_an_entry():
    storage = {"$type": f"{NSID}.storageBlobs", "blobs": [BLOB]}
    record = entry_record(storage)
    read = atmosphere.EntryRecord.from_record(record)
    assert read.storage.blobs[0].blob.cid == CID
    assert read.to_record() == record
    read.storage.blobs[0].checksum = atmosphere.ShardChecksum("sha256", "cd" * 32)
    assert read.to_record()["storage"]["blobs"][0]["blob"] == BLOB


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-22T06:08:44Z", datetime(2026, 11, 22, 6, 8, 44, tzinfo=UTC)),
        ("2026-11-22T06:08:44.5z", datetime(2026, 11, 22, 6, 8, 44, 500_000, UTC)),
        (
            "2026-11-22T06:08:44.123456789+01:30",
            datetime(2026, 11, 22, 4, 38, 44, 123456, UTC),
        ),
        ("2026-11-22T06:08:44-23:59", datetime(2026, 11, 23, 6, 7, 44, tzinfo=UTC)),
        ("2026-11-22T06:08:44", datetime(2026, 11, 22, 6, 8, 44, tzinfo=UTC)),
    ],
)
def test_times_keep_their_text(text, moment):
    record = changed(GOOD["label"][1], ("createdAt",), text)
    read = atmosphere.LabelRecord.from_record(record)
    assert read.created_at == moment
    assert read.to_record() == record

    read.created_at += timedelta(seconds=1)
    again = atmosphere.LabelRecord.from_record(read.to_record())
    assert again.created_at == moment + timedelta(seconds=1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2026-11-22",
        "2026-13-22T06:08:44Z",
        "2026-11-22T06:08:44+24:00",
        "2026-11-22T06:08:60Z",
        "٢٠٢٦-11-22T06:08:44Z",
        "2026-11-22T06:08:44Z" + " " * 100,
    ],
)
def test_a_non_time_is_refused(text):
    with pytest.raises(RecordError) as caught:
        atmosphere.LabelRecord.from_record(
            changed(GOOD["label"][1], ("createdAt",), text)
        )
    assert caught.value.field == "createdAt"


def test_a_record_made_now_has_the_time():
    before = datetime.now(UTC)
    label = atmosphere.LabelRecord("x", ENTRY)
    assert before <= label.created_at <= datetime.now(UTC)
    naive = atmosphere.LabelRecord("x", ENTRY, datetime(2026, 1, 2))
    assert naive.to_record()["createdAt"] == "2026-01-02T00:00:00.000000+00:00"


@pytest.mark.parametrize(
    "version",
    ["1", "1.0", "01.0.0", "1.0.0-", "v1.0.0", "1.0.0 ", "1.0.0\n", "9" * 60],
)
def test_versions_of_schemas_are_semantic(version):
    with pytest.raises(RecordError, match="semantic version"):
        atmosphere.SchemaRecord.from_record(
            changed(GOOD["schema"][1], ("version",), version)
        )


@pytest.mark.parametrize("version", ["1.2.3-rc.1+build.5", "0.0.0", "10.20.30"])
def test_semantic_versions_are_read(version):
    record = changed(GOOD["schema"][1], ("version",), version)
    assert atmosphere.SchemaRecord.from_record(record).version == version


def test_a_later_form_of_schemas_is_refused():
    record = changed(GOOD["schema"][1], ("atdataSchemaVersion",), 2)
    with pytest.raises(SchemaError, match="version 2 of a schema") as caught:
        atmosphere.SchemaRecord.from_record(record, uri=SCHEMA)
    assert caught.value.field == "atdataSchemaVersion"
    assert caught.value.path == SCHEMA

    first = changed(GOOD["schema"][1], ("atdataSchemaVersion",))
    assert atmosphere.SchemaRecord.from_record(first).to_record() == first


def test_metadata_are_one_dict_in_either_form():
    read = atmosphere.EntryRecord.from_record(entry_record(HTTP))
    assert read.metadata == {
        "source_uri": "https://data.example/",
        "created_by": "me",
        "version": "2.0.0",
        "processing_steps": ["a", "b"],
        "split": "train",
        "n": 6,
        "nested": {"list": [1, "x", None, True]},
    }
    for text in (
        "g6VzcGxpdKR0ZXN0pHJhdGXLP9AAAAAAAACjcmF3xAIA/w",
        "3gADpXNwbGl0pHRlc3",
    ):
        if text.startswith("3gAD"):
            text = "3gADpXNwbGl0pHRlc3SkcmF0Zcs/0AAAAAAAAKNyYXfEAgD/"
        record = changed(entry_record(HTTP), ("metadata",), {"$bytes": text})
        read = atmosphere.EntryRecord.from_record(record)
        assert read.metadata == {"split": "test", "rate": 0.25, "raw": b"\x00\xff"}
        assert read.to_record() == record


def test_base64_of_metadata_with_long_keys_alone_needs_no_padding():
    msgpack = pytest.importorskip("msgspec.msgpack")
    for extra in range(3):
        metadata = {f"{i:0300}": "v" * (extra if i == 0 else 0) for i in range(16)}
        raw = write_metadata(metadata)["$bytes"]
        assert "=" not in raw
        assert msgpack.decode(b64decode(raw, validate=True)) == metadata


def test_changed_metadata_are_written_as_bytes():
    read = atmosphere.EntryRecord.from_record(entry_record(HTTP))
    read.metadata = {"rate": 0.25}
    raw = read.to_record()["metadata"]
    assert set(raw) == {"$bytes"}
    record = changed(entry_record(HTTP), ("metadata",), raw)
    assert atmosphere.EntryRecord.from_record(record).metadata == {"rate": 0.25}


@pytest.mark.parametrize("count", [0, 1, 2, 15, 16, 17, 200])
@pytest.mark.parametrize("long", [3, 31, 32, 255, 256, 5000])
def test_base64_of_metadata_needs_no_padding(count, long):
    msgpack = pytest.importorskip("msgspec.msgpack")
    for extra in range(3):
        metadata = {f"{i:03}": i for i in range(count)}
        if count:
            metadata = {"k" * long: "v" * extra, **metadata}
            metadata.popitem()
        entry = atmosphere.EntryRecord(
            "x",
            SCHEMA,
            atmosphere.StorageHttp([atmosphere.HttpShardEntry("https://a.example")]),
            metadata=metadata,
        )
        record = entry.to_record()
        text = record["metadata"]["$bytes"]
        assert "=" not in text
        assert msgpack.decode(b64decode(text, validate=True)) == metadata
        assert atmosphere.EntryRecord.from_record(record).metadata == metadata


@pytest.mark.parametrize(
    "value",
    [
        {1: 2},
        {"a": {2: 3}},
        {"a": object()},
        {"a": {1, 2}},
        {"a": 2**64},
        {"a": "x" * 100_001},
        {"a": "\ud800"},
    ],
)
def test_metadata_that_cannot_be_written_are_refused(value):
    pytest.importorskip("msgspec")
    storage = atmosphere.StorageHttp([atmosphere.HttpShardEntry("https://a.example")])
    entry = atmosphere.EntryRecord("x", SCHEMA, storage, metadata=value)
    with pytest.raises(RecordError) as caught:
        entry.to_record()
    assert caught.value.field.startswith("metadata")


def test_metadata_of_numpy_are_numbers_and_texts():
    value = {"a": np.float64(0.5), "b": np.str_("x"), "c": (1, bytearray(b"y"))}
    storage = atmosphere.StorageHttp([atmosphere.HttpShardEntry("https://a.example")])
    entry = atmosphere.EntryRecord("x", SCHEMA, storage, metadata=value)
    read = atmosphere.EntryRecord.from_record(entry.to_record())
    assert read.metadata == {"a": 0.5, "b": "x", "c": [1, b"y"]}


def test_metadata_that_are_nested_deep_are_refused():
    value: dict = {}
    for _ in range(2000):
        value = {"a": value}
    storage = atmosphere.StorageHttp([atmosphere.HttpShardEntry("https://a.example")])
    entry = atmosphere.EntryRecord("x", SCHEMA, storage, metadata=value)
    with pytest.raises(RecordError, match="nested deeper"):
        entry.to_record()
    entry = atmosphere.EntryRecord("x", SCHEMA, storage, content_metadata=value)
    with pytest.raises(RecordError, match="nested deeper"):
        entry.to_record()


@pytest.mark.parametrize(
    "text",
    [
        "!",
        "A",
        "gA===x",
        "wA",  # nil
        "kA",  # a list
        "gQEC",  # a key that is not text
        "gaFh",  # cut
        "gKA",  # more behind it
        "gaFhoYA",  # text that is not UTF-8
        "kZ" * 4000,  # nested deep
        "A" * 200_001,
        5,
        None,
    ],
)
def test_bytes_that_are_not_metadata_are_refused(text):
    pytest.importorskip("msgspec")
    record = changed(entry_record(HTTP), ("metadata",), {"$bytes": text})
    with pytest.raises(RecordError) as caught:
        atmosphere.EntryRecord.from_record(record, uri=ENTRY)
    assert caught.value.field == "metadata.$bytes"


def nested(depth):
    value = 1
    for i in range(depth):
        value = [value] if i % 2 else {"a": value}
    return {"x": value}


@pytest.mark.parametrize("depth", [65, 500, 5000])
@pytest.mark.parametrize("name", ["contentMetadata", "metadata", "size"])
def test_deep_nesting_is_refused(name, depth):
    cls, record = GOOD["http"]
    with pytest.raises(RecordError, match="nested deeper") as caught:
        cls.from_record({**record, name: nested(depth)})
    assert caught.value.field == name
    assert cls.from_record({**record, "contentMetadata": nested(60)})


@pytest.mark.parametrize("depth", [65, 200, 2000])
def test_bytes_of_metadata_that_are_nested_deep_are_refused(depth):
    data = b"\x81\xa1a" * depth + b"\x80"
    text = b64encode(data).decode()
    record = {**GOOD["http"][1], "metadata": {"$bytes": text}}
    with pytest.raises(RecordError, match=r"nested deeper|msgpack"):
        atmosphere.EntryRecord.from_record(record)


@pytest.mark.parametrize("name", ["content_metadata", "metadata"])
def test_a_float_in_an_object_is_refused_before_a_server_does(name):
    body = {"type": "object", "properties": {}}
    schema = atmosphere.JsonSchemaFormat(body)
    storage = atmosphere.StorageHttp([atmosphere.HttpShardEntry("https://a.example")])
    value = {"a": [1, {"b": 0.5}]}
    record = (
        atmosphere.EntryRecord("x", SCHEMA, storage, content_metadata=value)
        if name == "content_metadata"
        else atmosphere.SchemaRecord("X", "1.0.0", "jsonSchema", schema, metadata=value)
    )
    with pytest.raises(RecordError, match="no float") as caught:
        record.to_record()
    assert caught.value.field.endswith("etadata.a[1].b")


@pytest.mark.parametrize("field", ["name", "description", "tags", "content_metadata"])
def test_half_a_surrogate_pair_is_refused_before_it_is_sent(field):
    storage = atmosphere.StorageHttp([atmosphere.HttpShardEntry("https://a.example")])
    entry = atmosphere.EntryRecord("x", SCHEMA, storage)
    values = {"tags": ["\ud800"], "content_metadata": {"\udc00": 1}}
    setattr(entry, field, values.get(field, "a\ud800"))
    with pytest.raises(RecordError, match="surrogate") as caught:
        check_record(entry)
    assert caught.value.field.startswith(field[:7])


def test_bytes_in_an_object_are_written_as_the_protocol_does():
    storage = atmosphere.StorageHttp([atmosphere.HttpShardEntry("https://a.example")])
    value = {"raw": b"\x00\xff"}
    entry = atmosphere.EntryRecord("x", SCHEMA, storage, content_metadata=value)
    assert entry.to_record()["contentMetadata"] == {"raw": {"$bytes": "AP8"}}


def test_names_of_atdata_are_known():
    assert atmosphere.LexDatasetEntry is atmosphere.EntryRecord
    assert atmosphere.LexLensVerification is atmosphere.LensVerificationRecord
    assert "LexCodeHash" in dir(atmosphere)


def test_values_that_were_changed_in_place_are_written():
    read = atmosphere.EntryRecord.from_record(entry_record(HTTP))
    read.metadata["rate"] = 0.25
    read.content_metadata["gain"] = 4

    again = atmosphere.EntryRecord.from_record(read.to_record())
    assert again.metadata["rate"] == 0.25
    assert again.content_metadata == {"gain": 4}
