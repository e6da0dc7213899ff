"""Servers that answer anything: each fault is an error, soon, without a secret."""

import time

import pytest

from fastshard.atmosphere import client as client_module
from fastshard.errors import FastshardError, RemoteError, XrpcError
from fastshard.typed import Atmosphere
from support.inside.typed import refresh_session, set_timeout
from support.marks import slow
from support.servers.atproto.dag import blob_cid
from support.servers.atproto.hostile import ANSWERS, SLOW, say
from support.servers.atproto.pds import FakePds
from support.threads import SOON

NOTE = "com.example.note"
TIMEOUT = 0.1  # seconds
PASSWORD = "correct horse battery staple"


@pytest.fixture(scope="module")
def pds():
    with FakePds() as server:
        server.create_account("alice.test", PASSWORD)
        yield server


@pytest.fixture
def client(pds):
    """Return a client; check that it works afterwards."""
    pds.hook = None
    client = Atmosphere.login(
        "alice.test", PASSWORD, base_url=pds.url, plc_url=pds.plc.url, timeout=20
    )
    yield client
    pds.hook = None
    wait_for(client, 20)
    uri = client.create_record(NOTE, {"text": "after"})
    assert client.get_record(uri)["text"] == "after"


def wait_for(client, seconds):
    """Change how long a client waits; this machine may be busy."""
    set_timeout(client, seconds)


def log_in(client):
    return Atmosphere.login(
        "alice.test", PASSWORD, base_url=client.base_url, timeout=20
    )


def refresh(client):
    refresh_session(client)


CALLS = {
    "login": log_in,
    "refresh": refresh,
    "create": lambda client: client.create_record(NOTE, {"text": "one"}),
    "get": lambda client: client.get_record(f"at://{client.did}/{NOTE}/k"),
    "list": lambda client: client.list_records(NOTE),
    "upload": lambda client: client.upload_blob(b"some bytes"),
    "handle": lambda client: client.resolve_did("alice.test"),
    "delete": lambda client: client.delete_record(f"at://{client.did}/{NOTE}/k"),
}
TOLERANT = {  # a JSON object is all that the answer must be
    "delete": ("an empty object",),
}


def fail(client, call, secrets=()):
    """Return the error of a call, which comes soon and has no secret."""
    begun = time.monotonic()
    with pytest.raises(FastshardError) as caught:
        CALLS[call](client)
    assert time.monotonic() - begun < SOON
    text = f"{caught.value} {caught.value!r}"
    assert len(text) < 2000
    assert text.isprintable()
    for secret in (*secrets, PASSWORD, *client.export_session().split(":::")[2:4]):
        assert secret not in text
    return caught.value


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", ANSWERS)
def test_a_null_answer_is_an_error(pds, client, name, call):
    if name in TOLERANT.get(call, ()):
        return
    pds.forget()
    pds.hook = ANSWERS[name]
    error = fail(client, call)
    assert isinstance(error, OSError) or call == "handle"
    assert pds.count() <= 6  # a redirect is followed five times


@pytest.mark.parametrize("call", ["create", pytest.param("get", marks=slow)])
@pytest.mark.parametrize("name", SLOW)
def test_a_server_that_does_not_answer_is_an_error_in_time(pds, client, name, call):
    pds.hook = SLOW[name]
    wait_for(client, TIMEOUT)
    error = fail(client, call)
    assert isinstance(error, RemoteError)
    assert pds.url in str(error)


def test_a_query_is_repeated_and_a_write_is_not(pds, client):
    met = []

    def fail_once(call):
        met.append(call.nsid)
        if len(met) == 1:
            raise ConnectionError

    pds.hook = fail_once
    assert client.list_records(NOTE)
    assert len(met) == 2
    met.clear()
    with pytest.raises(RemoteError):
        client.create_record(NOTE, {"text": "one"})
    assert len(met) == 1
    met.clear()
    client.upload_blob(b"some bytes")  # the same bytes are the same blob
    assert len(met) == 2


def test_a_write_is_repeated_where_the_server_was_too_busy(pds, client):
    met = []

    def busy_once(call):
        met.append(time.monotonic())
        return say({}, 429, retry_after="0")(call) if len(met) == 1 else None

    pds.hook = busy_once
    client.create_record(NOTE, {"text": "one"})
    assert len(met) == 2


def test_a_pause_that_the_server_asks_for_is_made(pds, client):
    met = []
    patient = Atmosphere(pds.url, plc_url=pds.plc.url, timeout=20)

    def busy_once(call):
        met.append(time.monotonic())
        return say({}, 429, retry_after="1")(call) if len(met) == 1 else None

    pds.hook = busy_once
    patient.list_records(NOTE, repo=client.did)
    assert 1 <= met[1] - met[0] < 5


def test_an_error_that_has_a_name_is_not_repeated(pds, client):
    pds.forget()
    pds.hook = say({"error": "UpstreamFailure", "message": "unreachable"}, 502)
    with pytest.raises(XrpcError, match="unreachable") as caught:
        client.list_records(NOTE)
    assert (caught.value.error, caught.value.status) == ("UpstreamFailure", 502)
    assert pds.count() == 1


CID = blob_cid(b"some bytes")
URI = f"at://did:plc:other/{NOTE}/k"
WRONG = {
    "login": [
        {"accessJwt": 7},
        {"accessJwt": ""},
        {"accessJwt": "a\nX-Header: y"},
        {"accessJwt": "a b"},
        {"accessJwt": "\u00e9"},
        {"accessJwt": "a" * 9000},
        {"refreshJwt": None},
        {"refreshJwt": ["a"]},
        {"did": "alice"},
        {"did": "did:plc:a\r\n"},
        {"did": None},
        {"handle": ""},
        {"handle": "../x"},
        {"handle": 7},
    ],
    "refresh": [
        {"did": "did:plc:other"},
        {"accessJwt": None},
        {"accessJwt": "a\r\nb"},
        {"refreshJwt": True},
    ],
    "create": [
        {"uri": None},
        {"uri": 7},
        {"uri": URI},
        {"uri": "https://a.b/c"},
        {"uri": "at://x"},
        {"uri": f"at://did:plc:abc/{NOTE}/" + "k" * 600},
    ],
    "get": [
        {"uri": URI},
        {"uri": None},
        {"value": None},
        {"value": [1]},
        {"value": "x"},
        {"cid": 7},
        {"cid": "b" * 10_000},
    ],
    "list": [
        {"records": None},
        {"records": {}},
        {"records": [None]},
        {"records": [{}]},
        {"records": [{"uri": URI, "cid": CID, "value": {}}]},
        {"records": [{"uri": "at://", "cid": CID, "value": {}}]},
        {"cursor": 7},
        {"cursor": ["x"]},
        {"cursor": "x" * 9000},
    ],
    "upload": [
        {"blob": None},
        {"blob": []},
        {"blob": {}},
        {"blob": {"ref": {"$link": blob_cid(b"other")}, "size": 10, "mimeType": "x"}},
        {"blob": {"ref": {"$link": 7}, "size": 10, "mimeType": "x"}},
        {"blob": {"ref": CID, "size": 10, "mimeType": "x"}},
        {"blob": {"ref": {"$link": CID}, "size": 9, "mimeType": "x"}},
        {"blob": {"ref": {"$link": CID}, "size": True, "mimeType": "x"}},
        {"blob": {"ref": {"$link": CID}, "size": 10, "mimeType": None}},
    ],
    "handle": [{"did": 7}, {"did": None}, {"did": "x" * 20_000}, {"did": "nobody"}],
}


@pytest.mark.parametrize(
    ("call", "change"), [(call, change) for call in WRONG for change in WRONG[call]]
)
def test_a_field_of_a_wrong_type_is_named(pds, client, call, change):
    answers = []

    def spoil(request):
        reply = pds.respond(request)
        answers.append(request.nsid)
        return say({**reply.body, **change})(request)

    if call == "get":
        client.put_record(NOTE, "k", {"text": "one"})
    pds.hook = spoil
    error = fail(client, call)
    assert len(answers) == 1
    told = [*change, "another", "DID", "other bytes", "the record", "'records'"]
    told += ["'uri'", "'ref'", "'size'", "'mimeType'"]
    assert any(word in str(error) for word in told)


def test_a_good_answer_passes_the_same_checks(pds, client):
    client.put_record(NOTE, "k", {"text": "one"})
    pds.hook = lambda call: say(pds.respond(call).body)(call)
    for call in CALLS.values():
        call(client)


def pages(answer):
    """Return a hook that answers the nth page by a function of n and its cursor."""
    count = iter(range(10**9))
    return lambda call: say(answer(next(count), call.get("cursor")))(call)


def record(client, key):
    value = {"$type": NOTE}
    return {"uri": f"at://{client.did}/{NOTE}/{key}", "cid": CID, "value": value}


def test_pages_with_one_cursor_end(pds, client):
    pds.hook = pages(lambda n, _: {"records": [record(client, n)], "cursor": "same"})
    with pytest.raises(XrpcError, match="cursor of this one"):
        list(client.iter_records(NOTE))


def test_pages_that_go_round_end(pds, client):
    pds.hook = pages(
        lambda n, _: {"records": [record(client, n % 3)], "cursor": f"c{n % 3}"}
    )
    with pytest.raises(XrpcError, match="listed twice"):
        list(client.iter_records(NOTE))


def test_pages_without_end_are_left_in_time(pds, client):
    pds.hook = pages(
        lambda n, _: {
            "records": [record(client, f"{n}-{i}") for i in range(100)],
            "cursor": f"c{n}",
        }
    )
    wait_for(client, TIMEOUT)
    begun = time.monotonic()
    with pytest.raises(XrpcError, match="do not end after"):
        list(client.iter_records(NOTE))
    assert time.monotonic() - begun < SOON


def test_pages_of_one_record_do_not_continue_for_ever(pds, client):
    pds.forget()
    pds.hook = pages(lambda n, _: {"records": [record(client, n)], "cursor": f"c{n}"})
    with pytest.raises(XrpcError, match="do not end after"):
        list(client.iter_records(NOTE))
    assert pds.count() < 200


def test_a_listing_has_a_greatest_length(pds, client, monkeypatch):
    monkeypatch.setattr(client_module, "MAX_RECORDS", 300)
    pds.hook = pages(
        lambda n, _: {
            "records": [record(client, f"{n}-{i}") for i in range(100)],
            "cursor": f"c{n}",
        }
    )
    with pytest.raises(XrpcError, match="do not end after 300 records"):
        list(client.iter_records(NOTE))


def test_pages_of_many_bytes_are_left(pds, client, monkeypatch):
    monkeypatch.setattr("fastshard.atmosphere.client.MAX_LISTED", 10_000)
    pds.forget()
    pds.hook = pages(
        lambda n, _: {"records": [record(client, n)], "cursor": f"c{n}", "x": "x" * 999}
    )
    with pytest.raises(XrpcError, match="do not end after"):
        list(client.iter_records(NOTE))
    assert pds.count() < 10


def test_empty_pages_end_a_listing(pds, client):
    pds.forget()
    pds.hook = pages(lambda n, _: {"records": [], "cursor": f"c{n}"})
    assert list(client.iter_records(NOTE)) == []
    assert pds.count() == 1
