"""Records on a real server: its results and refusals."""

import json

import pytest

from fastshard import typed
from fastshard.atmosphere.cid import cid_of_blob, encode, generate_cid_from_bytes
from fastshard.errors import (
    BlobNotFoundError,
    FormatError,
    HandleNotFoundError,
    RecordError,
    RecordNotFoundError,
    SchemaError,
    SessionError,
    XrpcError,
)
from fastshard.typed import atmosphere
from support.inside.typed import refresh_session, session_of
from support.typed.index_data import COLLECTIONS

NSID = "science.alt.dataset"
NOTE = "com.example.note"
CLASSES = {
    cls.TYPE: cls
    for cls in (
        atmosphere.EntryRecord,
        atmosphere.LabelRecord,
        atmosphere.LensRecord,
        atmosphere.LensVerificationRecord,
        atmosphere.SchemaRecord,
    )
}


def test_records_of_atdata_have_their_cids_here_too(fresh, index_data):
    uploaded = set()
    compared = 0
    for handle in ("alice.test", "bob.test"):
        for name in COLLECTIONS:
            for record in index_data.records(handle, name):
                value = record["value"]
                for blob in value.get("storage", {}).get("blobs", []):
                    cid = blob["blob"]["ref"]["$link"]
                    if cid not in uploaded:
                        found = fresh.upload_blob(
                            index_data.blob(cid), "application/x-tar"
                        )
                        assert found == blob["blob"]
                        uploaded.add(cid)
                try:
                    read = CLASSES[value["$type"]].from_record(value)
                except SchemaError:  # of a later form
                    continue
                uri = fresh.create_record(f"{NSID}.{name}", read.to_record())
                stored = fresh.get_record(uri)
                assert stored.cid == record["cid"]
                text = json.dumps(stored, ensure_ascii=False)
                assert text == json.dumps(value, ensure_ascii=False)
                compared += 1
    assert compared == 28
    assert len(uploaded) == 3


def test_records_that_are_written_here_come_back(fresh, digits):
    index = typed.AtmosphereIndex(fresh)
    metadata = {f"key {i}": [i, i / 2, bytes([i]), None, True] for i in range(20)}
    for count in (0, 1, 2, 3, 20):
        given = dict(list(metadata.items())[:count])
        entry = index.write_samples(digits, name=f"n {count}", metadata=given)
        assert entry.metadata == given
        stored = fresh.get_record(entry.uri)
        data = encode(dict(stored), record=True)
        assert generate_cid_from_bytes(data) == stored.cid
        assert len(stored["metadata"]["$bytes"]) % 4 == 0  # without padding


def test_requests_that_the_server_refuses(fresh):
    for record, reason in (
        ({"rate": 0.25}, "float|0.25|value type"),
        ({"$type": "com.example.other"}, "type"),
    ):
        with pytest.raises(XrpcError, match=reason) as caught:
            fresh.create_record(NOTE, record)
        assert (caught.value.status, caught.value.error) == (400, "InvalidRequest")
    assert fresh.list_records(NOTE) == ([], None)


def test_a_float_is_refused_before_it_is_sent(fresh):
    with pytest.raises(RecordError, match="no float"):
        typed.DatasetPublisher(fresh).publish_with_urls(
            ["https://data.example/0.tar"],
            f"at://{fresh.did}/{NSID}.schema/x",
            name="a",
            content_metadata={"rate": 0.25},
        )


def test_missing_names(accounts, alice):
    with pytest.raises(RecordNotFoundError):
        alice.get_record(f"at://{alice.did}/{NSID}.entry/nothing")
    with pytest.raises(KeyError):
        typed.AtmosphereIndex(alice).get_dataset("@alice.test/nothing")
    with pytest.raises(BlobNotFoundError):
        alice.get_blob(alice.did, cid_of_blob(bytes(32)))
    with pytest.raises(HandleNotFoundError):
        alice.resolve_did("nobody.test")
    assert alice.list_records(f"{NSID}.nothing") == ([], None)
    with pytest.raises((KeyError, FormatError, ValueError)):
        alice.get_record(f"at://did:plc:{'a' * 24}/{NSID}.entry/x")


def test_keys_with_an_at_sign_are_refused(fresh):
    with pytest.raises(ValueError, match="Vec@1"):
        fresh.create_record(f"{NSID}.schema", {"name": "Vec"}, rkey="Vec@1.0.0")


def test_sessions(accounts, alice):
    with pytest.raises(XrpcError, match="Invalid identifier or password"):
        typed.Atmosphere.login(
            "alice.test", "wrong", base_url=accounts.urls[0], plc_url=accounts.plc
        )
    with pytest.raises(SessionError):
        accounts.anonymous().create_record(NOTE, {"a": 1})
    client = accounts.login("alice.test")
    again = typed.Atmosphere.from_session(client.export_session(), plc_url=accounts.plc)
    assert again.did == alice.did == accounts.dids["alice.test"]
    before = session_of(again)
    refresh_session(again)
    assert session_of(again) is not before
    uri = again.create_record(NOTE, {"text": "after a refresh"})
    assert alice.get_record(uri)["text"] == "after a refresh"
    again.delete_record(uri)
    with pytest.raises(RecordNotFoundError):
        alice.get_record(uri)


def test_a_blob_is_there_while_a_record_refers_to_it(fresh):
    data = b"shard" * 1000
    blob = fresh.upload_blob(data, "application/x-tar")
    cid = blob["ref"]["$link"]
    with pytest.raises(BlobNotFoundError):
        fresh.get_blob(fresh.did, cid)
    uri = fresh.create_record(NOTE, {"blob": blob})
    assert fresh.get_blob(fresh.did, cid) == data
    fresh.delete_record(uri)
    with pytest.raises(BlobNotFoundError):
        fresh.get_blob(fresh.did, cid)


def test_a_blob_that_is_too_large(fresh, tmp_path):
    data = bytes(61_000_000)
    with pytest.raises((ValueError, XrpcError), match=r"52,428,800|413|large"):
        fresh.upload_blob(data)
    uri = fresh.create_record(NOTE, {"text": "the client goes on"})
    assert fresh.get_record(uri)["text"] == "the client goes on"


def test_all_pages_are_listed(fresh):
    for i in range(205):
        fresh.create_record(NOTE, {"i": i})
    found = [record["i"] for record in fresh.iter_records(NOTE)]
    assert found == list(range(204, -1, -1))
    page, cursor = fresh.list_records(NOTE, limit=3)
    assert [record["i"] for record in page] == [204, 203, 202]
    page, _ = fresh.list_records(NOTE, limit=3, cursor=cursor)
    assert [record["i"] for record in page] == [201, 200, 199]
