"""The client on a server in this process: sessions, records, blobs."""

import pickle
import threading
import time

import pytest

from fastshard.errors import (
    BlobNotFoundError,
    RecordNotFoundError,
    SessionError,
    XrpcError,
)
from fastshard.typed import Atmosphere, AtUri
from support.servers.atproto.dag import blob_cid
from support.servers.atproto.pds import FakePds
from support.servers.atproto.plc import FakePlc
from support.servers.atproto.xrpc import Reply

NOTE = "com.example.note"
MISSING_BLOB = blob_cid(b"nothing")


@pytest.fixture
def client(fake_pds):
    return log_in(fake_pds)


def log_in(pds, handle="alice.test", password="password", **options):
    return Atmosphere.login(
        handle, password, base_url=pds.url, plc_url=pds.plc.url, **options
    )


def anonymous(pds, **options):
    return Atmosphere(pds.url, plc_url=pds.plc.url, **options)


def test_a_session_names_its_account(fake_pds, client):
    (account,) = fake_pds.accounts.values()
    assert client.is_authenticated
    assert (client.did, client.handle) == (account.did, "alice.test")
    assert client.base_url == fake_pds.url
    assert fake_pds.counts() == {"com.atproto.server.createSession": 1}


@pytest.mark.parametrize("name", ["did", "handle"])
def test_without_a_session_there_is_no_account(fake_pds, name):
    client = anonymous(fake_pds)
    assert not client.is_authenticated
    with pytest.raises(ValueError, match="Not authenticated"):
        getattr(client, name)
    with pytest.raises(SessionError, match="Not authenticated"):
        client.export_session()
    with pytest.raises(SessionError, match="Not authenticated"):
        client.create_record(NOTE, {})
    with pytest.raises(SessionError, match="Not authenticated"):
        client.list_records(NOTE)
    assert fake_pds.count() == 0


def test_a_wrong_password_is_the_servers_error(fake_pds):
    with pytest.raises(XrpcError, match="Invalid identifier or password") as caught:
        log_in(fake_pds, password="wrong")
    assert caught.value.error == "AuthenticationRequired"
    assert caught.value.status == 401
    assert fake_pds.count() == 1
    assert isinstance(caught.value, OSError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.error) == (str(caught.value), caught.value.error)


@pytest.mark.parametrize(("handle", "password"), [("", "x"), ("a.b", ""), ("a b", "x")])
def test_an_invalid_account_is_not_sent(fake_pds, handle, password):
    with pytest.raises(ValueError, match=r"empty|not a handle"):
        log_in(fake_pds, handle, password)
    assert fake_pds.count() == 0


def test_records_are_created_read_replaced_and_deleted(fake_pds, client):
    uri = client.create_record(NOTE, {"text": "one", "n": [1, None, {"a": True}]})
    assert uri == AtUri(client.did, NOTE, uri.rkey)
    record = client.get_record(str(uri))
    assert record == {"text": "one", "n": [1, None, {"a": True}], "$type": NOTE}
    assert record.uri == uri
    assert record.cid == fake_pds.accounts[client.did].records[NOTE][uri.rkey][0]
    assert client.put_record(NOTE, uri.rkey, {"text": "two"}) == uri
    by_handle = AtUri("alice.test", NOTE, uri.rkey)
    assert anonymous(fake_pds).get_record(by_handle)["text"] == "two"
    client.delete_record(uri)
    with pytest.raises(KeyError) as caught:
        client.get_record(uri)
    assert isinstance(caught.value, RecordNotFoundError)
    assert "Could not locate record" in str(caught.value)


def circle():
    record = {}
    record["inner"] = [record]
    return record


def deep():
    record = inner = {}
    for _ in range(100_000):
        inner["a"] = inner = {}
    return record


@pytest.mark.parametrize(
    "make",
    [
        lambda: {"a": object()},
        lambda: {"a": float("nan")},
        lambda: {"a": b"x"},
        lambda: {"a": "\ud800"},
        circle,
        deep,
    ],
    ids=["object", "NaN", "bytes", "surrogate", "circle", "deep"],
)
def test_values_beyond_json_are_not_sent(fake_pds, client, make):
    record = make()
    fake_pds.forget()
    with pytest.raises((TypeError, ValueError)) as caught:
        client.create_record(NOTE, record)
    assert not isinstance(caught.value, OSError)
    assert fake_pds.count() == 0
    frames, frame = [], caught.value.__traceback__
    while frame is not None:
        frames.append(frame.tb_frame.f_locals)
        frame = frame.tb_next
    found = [f for f in frames[1:] if "headers" in f]
    assert not found  # no frame in which a request was made


def test_a_record_of_another_repository_is_not_deleted(client):
    with pytest.raises(ValueError, match=r"not a record of alice\.test"):
        client.delete_record(f"at://did:plc:other/{NOTE}/k")


def test_a_record_pickles_with_its_address(client):
    record = client.get_record(client.create_record(NOTE, {"text": "one"}))
    again = pickle.loads(pickle.dumps(record))
    assert (again, again.uri, again.cid) == (record, record.uri, record.cid)


def test_pages_are_asked_for_one_after_another(fake_pds, client):
    for i in range(230):
        client.create_record(NOTE, {"i": i})
    fake_pds.forget()
    found = client.iter_records(NOTE)
    assert next(found)["i"] == 229
    assert fake_pds.count() == 1
    assert [record["i"] for record in found] == list(range(228, -1, -1))
    assert fake_pds.counts() == {"com.atproto.repo.listRecords": 4}
    records, cursor = client.list_records(NOTE, limit=2)
    assert [record["i"] for record in records] == [229, 228]
    records, _ = client.list_records(NOTE, limit=1000, cursor=cursor)
    assert len(records) == 100
    assert records[0]["i"] == 227


def test_listings_of_collections_have_all_records_or_some(client):
    for i in range(103):
        client.create_record("science.alt.dataset.label", {"i": i})
    client.create_record("science.alt.dataset.lens", {"i": 0})
    assert len(client.list_labels()) == 103
    assert len(client.list_labels("alice.test", limit=101)) == 101
    assert len(client.list_labels(limit=2)) == 2
    assert len(client.list_lenses()) == 1
    assert client.list_schemas() == client.list_datasets() == []
    with pytest.raises(ValueError, match="limit must be positive"):
        client.list_labels(limit=0)


@pytest.mark.parametrize("limit", [1.5, True, "5", None])
def test_a_limit_is_a_number_of_records(fake_pds, client, limit):
    fake_pds.forget()
    with pytest.raises(TypeError, match="limit must be an int"):
        client.list_records(NOTE, limit=limit)
    assert fake_pds.count() == 0


def test_a_time_limit_of_centuries_is_one(fake_pds):
    client = anonymous(fake_pds, timeout=1e300)
    assert client.resolve_did("alice.test") in fake_pds.accounts


@pytest.mark.parametrize("size", [0, 1, 300_000])
@pytest.mark.parametrize("kind", ["bytes", "bytearray", "view", "file"])
def test_a_blob_is_uploaded_and_downloaded(client, tmp_path, size, kind):
    data = bytes(range(251)) * (size // 251 + 1)
    data = data[:size]
    (tmp_path / "blob").write_bytes(data)
    given = {
        "bytes": data,
        "bytearray": bytearray(data),
        "view": memoryview(data),
        "file": tmp_path / "blob",
    }[kind]
    blob = client.upload_blob(given, "application/x-tar")
    assert blob == {
        "$type": "blob",
        "ref": {"$link": blob_cid(data)},
        "mimeType": "application/x-tar",
        "size": size,
    }
    with pytest.raises(BlobNotFoundError):  # until a record refers to it
        client.get_blob(client.did, blob["ref"]["$link"])
    client.create_record(NOTE, {"blob": blob})
    assert client.get_blob("alice.test", blob["ref"]["$link"]) == data


def test_a_missing_blob_is_a_key_error(client):
    with pytest.raises(KeyError, match="Blob not found"):
        client.get_blob(client.did, MISSING_BLOB)


@pytest.mark.parametrize("cid", ["", "x", MISSING_BLOB[:-1], "bafyrei" + "a" * 52])
def test_a_non_cid_of_a_blob_is_not_asked_for(fake_pds, client, cid):
    fake_pds.forget()
    for call in (client.get_blob, client.get_blob_url):
        with pytest.raises(ValueError, match="CID"):
            call(client.did, cid)
    assert fake_pds.count() == 0


def test_a_blob_that_is_too_large_is_not_sent(fake_pds, client, tmp_path):
    path = tmp_path / "large"
    with open(path, "wb") as file:
        file.truncate(52_428_801)
    fake_pds.forget()
    with pytest.raises(ValueError, match="at most 52,428,800 bytes"):
        client.upload_blob(path)
    assert fake_pds.count() == 0


def test_an_expired_token_is_refreshed_once(fake_pds, client):
    fake_pds.expire()
    client.create_record(NOTE, {})
    client.upload_blob(b"x")
    counts = fake_pds.counts()
    assert counts["com.atproto.server.refreshSession"] == 1
    assert counts["com.atproto.repo.createRecord"] == 2
    assert counts["com.atproto.repo.uploadBlob"] == 1


def test_a_session_that_is_over_is_the_servers_error(fake_pds, client):
    fake_pds.expire()
    fake_pds.tokens.clear()
    with pytest.raises(XrpcError, match="could not be verified"):
        client.create_record(NOTE, {})


def test_tokens_that_always_expire_are_refreshed_once(fake_pds, client):
    fake_pds.access_seconds = -1
    fake_pds.expire()
    fake_pds.forget()
    with pytest.raises(XrpcError, match="Token has expired"):
        client.create_record(NOTE, {})
    counts = fake_pds.counts()
    assert counts["com.atproto.server.refreshSession"] == 1
    assert counts["com.atproto.repo.createRecord"] == 2


def test_threads_refresh_a_session_once(fake_pds, client):
    fake_pds.expire()
    failed = []

    def write(i):
        try:
            client.create_record(NOTE, {"i": i})
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert fake_pds.counts()["com.atproto.server.refreshSession"] == 1
    assert len(list(client.iter_records(NOTE))) == 8


def test_threads_that_wait_for_a_refresh_fail_as_it_does(fake_pds, client):
    fake_pds.expire()
    fake_pds.forget()

    def fail(call):
        if not call.nsid.endswith("refreshSession"):
            return None
        until = time.monotonic() + 10
        while fake_pds.count("com.atproto.repo.createRecord") < 8:
            assert time.monotonic() < until
            time.sleep(0.01)
        time.sleep(0.3)  # in which the threads get their answers
        return Reply({"error": "Broken", "message": "not now"}, 500)

    fake_pds.hook = fail
    failed = []

    def write(i):
        with pytest.raises(XrpcError, match="not now") as caught:
            client.create_record(NOTE, {"i": i})
        failed.append(caught.value)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, failed))) == 8
    assert {error.error for error in failed} == {"Broken"}
    assert fake_pds.count("com.atproto.server.refreshSession") < 5
    fake_pds.hook = None
    client.create_record(NOTE, {"i": 8})


def test_a_session_is_exported_and_used_again(fake_pds, client):
    text = client.export_session()
    fake_pds.forget()
    again = Atmosphere.from_session(text, plc_url=fake_pds.plc.url)
    assert (again.did, again.handle) == (client.did, client.handle)
    assert again.base_url == fake_pds.url
    assert again.export_session() == text
    assert fake_pds.count() == 0
    fake_pds.expire()
    again.create_record(NOTE, {})
    assert again.export_session() != text


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "",
        lambda text: "not-a-valid-session-string-at-all",
        lambda text: text[: len(text) // 8],
        lambda text: text.replace("alice.test", "alice"),
        lambda text: text.replace("did:plc:", "did:"),
        lambda text: text.replace("eyJ", "\n"),
        lambda text: text.replace("eyJ", "\u00e9"),
        lambda text: text.replace("http://", "ftp://"),
        lambda text: text + "/path",
        lambda text: text + ":::more",
    ],
)
def test_a_non_session_is_refused_without_its_text(client, change):
    text = change(client.export_session())
    with pytest.raises(SessionError) as caught:
        Atmosphere.from_session(text)
    for secret in client.export_session().split(":::")[2:4]:
        assert secret[:40] not in str(caught.value)


def test_a_session_is_taken_from_the_environment(fake_pds, monkeypatch):
    for name in ("HANDLE", "PASSWORD", "PDS_URL", "APPVIEW", "PLC_URL"):
        monkeypatch.delenv(f"ATDATA_{name}", raising=False)
    with pytest.raises(OSError, match="ATDATA_HANDLE"):
        Atmosphere.from_env()
    monkeypatch.setenv("ATDATA_HANDLE", "alice.test")
    with pytest.raises(OSError, match="ATDATA_PASSWORD"):
        Atmosphere.from_env()
    monkeypatch.setenv("ATDATA_PASSWORD", "password")
    assert Atmosphere.from_env(base_url=fake_pds.url).handle == "alice.test"
    monkeypatch.setenv("ATDATA_PDS_URL", fake_pds.url)
    monkeypatch.setenv("ATDATA_APPVIEW", "did:web:view.example")
    monkeypatch.setenv("ATDATA_PLC_URL", fake_pds.plc.url)
    client = Atmosphere.from_env(base_url="https://elsewhere.example")
    assert client.base_url == fake_pds.url
    assert client.appview_url == "https://view.example"
    assert Atmosphere.login("alice.test", "password").base_url == fake_pds.url
    assert Atmosphere().resolve_did("alice.test") == client.did


def test_records_of_others_come_from_their_own_server():
    with FakePlc() as plc, FakePds(plc) as one, FakePds(plc) as other:
        one.create_account("alice.test")
        other.create_account("bob.test")
        alice, bob = log_in(one), log_in(other, "bob.test")
        uri = bob.create_record(NOTE, {"text": "of bob"})
        blob = bob.upload_blob(b"blob of bob")
        bob.create_record(NOTE, {"blob": blob})
        one.forget()
        other.forget()
        for client in (alice, anonymous(one)):
            assert client.get_record(uri)["text"] == "of bob"
            assert len(list(client.iter_records(NOTE, repo="bob.test"))) == 2
            assert client.get_blob("bob.test", blob["ref"]["$link"]) == b"blob of bob"
            assert client.resolve_pds("bob.test") == other.url
        assert set(one.counts()) == {"com.atproto.identity.resolveHandle"}
        assert one.count() == 2  # a client each, which remembers
        assert plc.count() == 2
        assert all("authorization" not in call.headers for call in other.calls)


def test_reads_carry_no_token(fake_pds, client):
    uri = client.create_record(NOTE, {})
    fake_pds.forget()
    client.get_record(uri)
    client.list_records(NOTE)
    client.resolve_did("alice.test")
    assert fake_pds.count() == 3
    assert all("authorization" not in call.headers for call in fake_pds.calls)
