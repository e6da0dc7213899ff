"""The personal data server of the tests answers as a real one did."""

import hashlib
import http.client
import json
from urllib.parse import urlencode

import pytest

from support.servers.atproto.dag import blob_cid, normalize, record_cid
from support.servers.atproto.pds import FakePds
from support.servers.atproto.plc import FakePlc
from support.servers.atproto.restored import restore
from support.servers.atproto.xrpc import Reply
from support.typed.index_data import COLLECTIONS, HANDLES


@pytest.fixture
def pds(index_data):
    with FakePds() as server:
        for handle in HANDLES:
            restore(server, index_data, handle)
        yield server


def send(server, method, path, body=b"", headers=()):
    """Return status, headers and body, by http.client."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.request(method, path, body or None, dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def post(server, nsid, given, token=None):
    headers = {"Content-Type": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    body = json.dumps(given).encode()
    status, _, body = send(server, "POST", f"/xrpc/{nsid}", body, headers)
    return status, json.loads(body)


def get(server, nsid, **params):
    target = f"/xrpc/{nsid}?{urlencode(params)}"
    status, _, body = send(server, "GET", target)
    return status, json.loads(body)


def log_in(server, handle="alice.test", password="password"):
    given = {"identifier": handle, "password": password}
    status, session = post(server, "com.atproto.server.createSession", given)
    assert status == 200
    return session


def test_queries_are_answered_as_they_were_recorded(pds, index_data):
    exchanges = index_data.exchanges()
    asked = 0
    for exchange in exchanges:
        if exchange["method"] != "GET":
            continue
        target = f"/xrpc/{exchange['nsid']}?{urlencode(exchange['params'])}"
        status, headers, body = send(pds, "GET", target)
        assert status == exchange["status"], exchange["what"]
        for name in exchange["headers"].keys() - {"etag"}:
            assert headers[name] == exchange["headers"][name], exchange["what"]
        if "body" in exchange:
            assert body.decode() == exchange["body"], exchange["what"]
        else:
            assert hashlib.sha256(body).hexdigest() == exchange["body_sha256"]
        asked += 1
    assert asked == pds.count() == 15


def test_refusals_are_those_that_were_recorded(pds, index_data):
    exchanges = index_data.exchanges()
    recorded = {each["what"]: each for each in exchanges if each["method"] == "POST"}
    session = log_in(pds)
    create, repo = "com.atproto.repo.createRecord", session["did"]
    record = {"$type": "science.alt.dataset.entry", "name": "x"}
    given = {"repo": repo, "collection": record["$type"], "record": record}
    token = session["accessJwt"]
    answers = {
        "a bad token": post(pds, create, given, "a.b.c"),
        "a key with @": post(pds, create, {**given, "rkey": "Vec@1.0.0"}, token),
        "a float": post(
            pds, create, {**given, "record": {**record, "rate": 0.5}}, token
        ),
        "a wrong password": post(
            pds,
            "com.atproto.server.createSession",
            {"identifier": "alice.test", "password": "wrong"},
        ),
        "an upload without a token": post(pds, "com.atproto.repo.uploadBlob", {}),
    }
    assert len(recorded) == len(answers) + 2  # uploads that succeed
    for what, (status, answer) in answers.items():
        assert status == recorded[what]["status"], what
        assert answer == json.loads(recorded[what]["body"]), what


def test_identifiers_and_order_are_those_of_a_real_server(index_data):
    for handle in HANDLES:
        for collection in COLLECTIONS:
            for record in index_data.records(handle, collection):
                assert record_cid(record["value"]) == record["cid"]
                text = json.dumps(record["value"])
                shuffled = json.loads(text, object_pairs_hook=lambda p: dict(p[::-1]))
                assert json.dumps(normalize(shuffled)) == text


def test_a_record_is_created_listed_and_deleted(pds):
    session = log_in(pds)
    given = {"repo": session["did"], "collection": "com.example.thing"}
    keys = []
    for i in range(3):
        body = {**given, "record": {"$type": "com.example.thing", "i": i}}
        status, made = post(
            pds, "com.atproto.repo.createRecord", body, session["accessJwt"]
        )
        assert status == 200
        keys.append(made["uri"].rpartition("/")[2])
    assert keys == sorted(keys)
    assert len(keys[0]) == 13
    _, page = get(pds, "com.atproto.repo.listRecords", limit=2, **given)
    assert [each["value"]["i"] for each in page["records"]] == [2, 1]
    body = {**given, "rkey": keys[2]}
    assert (
        post(pds, "com.atproto.repo.deleteRecord", body, session["accessJwt"])[0] == 200
    )
    _, page = get(pds, "com.atproto.repo.listRecords", limit=2, **given)
    assert [each["value"]["i"] for each in page["records"]] == [1, 0]


def test_a_blob_is_served_while_a_record_refers_to_it(pds):
    session = log_in(pds)
    headers = {
        "Authorization": f"Bearer {session['accessJwt']}",
        "Content-Type": "application/x-tar",
    }
    _, _, body = send(
        pds, "POST", "/xrpc/com.atproto.repo.uploadBlob", b"tar" * 9, headers
    )
    blob = json.loads(body)["blob"]
    assert blob["ref"]["$link"] == blob_cid(b"tar" * 9)
    assert (blob["size"], blob["mimeType"]) == (27, "application/x-tar")
    where = {"did": session["did"], "cid": blob["ref"]["$link"]}
    assert get(pds, "com.atproto.sync.getBlob", **where)[0] == 400
    given = {"repo": session["did"], "collection": "com.example.thing", "rkey": "k"}
    record = {"$type": "com.example.thing", "blob": blob}
    post(
        pds,
        "com.atproto.repo.putRecord",
        {**given, "record": record},
        session["accessJwt"],
    )
    status, headers, body = send(
        pds, "GET", f"/xrpc/com.atproto.sync.getBlob?{urlencode(where)}"
    )
    assert (status, body) == (200, b"tar" * 9)
    post(pds, "com.atproto.repo.deleteRecord", given, session["accessJwt"])
    assert get(pds, "com.atproto.sync.getBlob", **where)[0] == 400


def test_an_upload_above_the_limit_is_refused_before_it_is_read(pds):
    token = log_in(pds)["accessJwt"]
    headers = {"Authorization": f"Bearer {token}", "Content-Length": str(61 << 20)}
    status, answer, body = send(
        pds, "POST", "/xrpc/com.atproto.repo.uploadBlob", b"", headers
    )
    assert status == 413
    assert json.loads(body)["error"] == "PayloadTooLarge"
    assert answer["connection"] == "close"


def test_tokens_expire_and_are_refreshed(pds):
    session = log_in(pds)
    given = {"repo": session["did"], "collection": "com.example.thing"}
    given["record"] = {"$type": "com.example.thing"}
    create = "com.atproto.repo.createRecord"
    pds.expire()
    status, answer = post(pds, create, given, session["accessJwt"])
    assert (status, answer["error"]) == (400, "ExpiredToken")
    status, _, body = send(
        pds,
        "POST",
        "/xrpc/com.atproto.server.refreshSession",
        headers={"Authorization": f"Bearer {session['refreshJwt']}"},
    )
    assert status == 200
    assert post(pds, create, given, json.loads(body)["accessJwt"])[0] == 200
    status, answer = post(pds, create, given, session["refreshJwt"])
    assert (status, answer["error"]) == (400, "InvalidToken")


def test_two_servers_have_one_directory():
    with FakePlc() as plc, FakePds(plc) as one, FakePds(plc) as other:
        alice, bob = one.create_account("alice.test"), other.create_account("bob.test")
        assert get(one, "com.atproto.identity.resolveHandle", handle="bob.test")[1] == {
            "did": bob.did
        }
        document = json.loads(send(plc, "GET", f"/{bob.did}")[2])
        assert document["service"][0]["serviceEndpoint"] == other.url
        assert send(plc, "GET", "/did:plc:nobody")[0] == 404
        assert alice.did not in other.accounts
        assert plc.count() == 2


def test_a_hook_answers_first_or_breaks_the_connection(pds):
    pds.hook = lambda call: Reply(b"<html>", 200, {"content-type": "text/html"})
    assert send(pds, "GET", "/xrpc/com.atproto.server.describeServer")[2] == b"<html>"

    def break_it(call):
        raise ConnectionError

    pds.hook = break_it
    with pytest.raises(http.client.RemoteDisconnected):
        send(pds, "GET", "/xrpc/com.atproto.server.describeServer")
    pds.hook = None
    assert pds.counts()["com.atproto.server.describeServer"] == 2
    pds.forget()
    assert pds.count() == 0
