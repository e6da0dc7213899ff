"""Blobs and tokens on their way: broken uploads, wrong bytes, redirects."""

import os
import shutil
import threading
import time
import tracemalloc
from contextlib import contextmanager

import pytest

from fastshard.atmosphere import client as client_module
from fastshard.errors import RemoteError, XrpcError
from fastshard.typed import Atmosphere
from support.inside.remote import forget_tls_contexts
from support.inside.typed import lock_of, refresh_session, set_timeout
from support.servers.atproto.dag import blob_cid
from support.servers.atproto.hostile import (
    break_after,
    endless,
    only,
    raw,
    redirect,
    say,
    silent,
)
from support.servers.atproto.pds import FakePds
from support.servers.atproto.plc import FakePlc
from support.servers.atproto.xrpc import Reply, XrpcServer
from support.servers.http import make_certificate
from support.threads import HANG

NOTE = "com.example.note"
UPLOAD = "com.atproto.repo.uploadBlob"
GET_BLOB = "com.atproto.sync.getBlob"
MEGABYTE = 1 << 20
REFUSAL = (
    b"HTTP/1.1 413 Payload Too Large\r\nContent-Type: application/json\r\n"
    b'Content-Length: 64\r\n\r\n{"error":"PayloadTooLarge","message":"request entity '
    b'too large"}'
)


class Elsewhere(XrpcServer):
    """Another host, which answers all requests."""

    def respond(self, call):
        return Reply({"records": []})


@pytest.fixture
def elsewhere():
    with Elsewhere() as server:
        yield server


@pytest.fixture
def client(fake_pds):
    return Atmosphere.login(
        "alice.test",
        "password",
        base_url=fake_pds.url,
        plc_url=fake_pds.plc.url,
        timeout=20,
    )


def publish(client, data):
    """Upload a blob that a record refers to; return its CID."""
    blob = client.upload_blob(data)
    client.create_record(NOTE, {"blob": blob})
    return blob["ref"]["$link"]


@contextmanager
def traced():
    """Yield a function that returns the bytes allocated at a time, at most."""
    tracemalloc.start()
    try:
        yield lambda: peak
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()


def wait_for(client, seconds):
    set_timeout(client, seconds)


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("kind", ["bytes", "file"])
def test_the_answer_in_the_middle_of_an_upload_is_read(
    fake_pds, client, tmp_path, kind, reset
):
    data = bytes(40 * MEGABYTE)
    (tmp_path / "blob").write_bytes(data)
    fake_pds.hook = only(UPLOAD, break_after(MEGABYTE, REFUSAL, reset=reset))
    with pytest.raises(RemoteError) as caught:
        client.upload_blob(data if kind == "bytes" else tmp_path / "blob")
    if not reset:  # what was sent may be lost with the connection
        assert caught.value.error == "PayloadTooLarge"
        assert caught.value.status == 413
    assert fake_pds.count(UPLOAD) <= 4


def test_a_server_that_stops_reading_and_answers_is_heard(fake_pds, client):
    released = threading.Event()

    def refuse(call):
        call.handler.connection.sendall(REFUSAL)
        released.wait(30)  # with the connection open, and nothing read
        raise ConnectionError

    fake_pds.hook = only(UPLOAD, refuse)
    with pytest.raises(XrpcError, match="too large"):
        client.upload_blob(bytes(40 * MEGABYTE))
    released.set()


def test_the_rest_of_an_upload_is_not_the_next_request(fake_pds, client):
    """The server answers at once, and keeps the connection."""

    def refuse(call):
        call.handler.connection.sendall(REFUSAL)
        left = call.size
        while left > 0 and (piece := call.handler.rfile.read1(min(left, 65536))):
            left -= len(piece)
        raise ConnectionError

    for _ in range(3):
        fake_pds.hook = only(UPLOAD, refuse)
        with pytest.raises(XrpcError, match="too large"):
            client.upload_blob(bytes(40 * MEGABYTE))
        fake_pds.hook = None
        client.create_record(NOTE, {"text": "after"})


def test_a_server_that_stops_reading_is_left(fake_pds, client):
    released = threading.Event()

    def stop(call):
        released.wait(2 * HANG)
        raise ConnectionError

    fake_pds.hook = only(UPLOAD, stop)
    wait_for(client, 0.5)
    begun = time.monotonic()
    with pytest.raises(RemoteError, match="no complete response"):
        client.upload_blob(bytes(40 * MEGABYTE))
    assert time.monotonic() - begun < HANG
    with pytest.raises(RemoteError):  # a limit of the caller's own
        client.upload_blob(bytes(40 * MEGABYTE), timeout=0.1)
    assert time.monotonic() - begun < HANG
    released.set()


def test_an_upload_takes_longer_than_the_timeout_while_it_continues(fake_pds, client):
    def slowly(call):
        left = call.size
        while left:
            time.sleep(0.3 if left > 20 * MEGABYTE else 0)
            left -= len(call.handler.rfile.read(4 * MEGABYTE))
        return say({"blob": {}})(call)

    fake_pds.hook = only(UPLOAD, slowly)
    wait_for(client, 0.9)
    begun = time.monotonic()
    with pytest.raises(XrpcError, match="'ref'"):  # the answer has come
        client.upload_blob(bytes(40 * MEGABYTE))
    assert time.monotonic() - begun > 1.5
    assert fake_pds.count(UPLOAD) == 1


def test_a_server_that_is_silent_after_an_upload_is_left(fake_pds, client):
    fake_pds.hook = only(UPLOAD, silent)
    wait_for(client, 0.3)
    with pytest.raises(RemoteError, match="no complete response"):
        client.upload_blob(bytes(10 * MEGABYTE))


def test_an_upload_is_sent_again_after_the_token_expired(fake_pds, client, tmp_path):
    data = bytes(range(256)) * 4096
    (tmp_path / "blob").write_bytes(data)
    fake_pds.expire()
    assert client.upload_blob(tmp_path / "blob")["ref"]["$link"] == blob_cid(data)
    assert fake_pds.count(UPLOAD) == 2


def test_a_file_that_changes_while_it_is_sent_is_an_error(fake_pds, client, tmp_path):
    path = tmp_path / "blob"
    path.write_bytes(bytes(4 * MEGABYTE))

    def truncate(call):
        with open(path, "r+b") as file:
            file.truncate(MEGABYTE)
        call.handler.rfile.read1(1000)
        time.sleep(0.2)

    fake_pds.hook = only(UPLOAD, truncate)
    wait_for(client, 2)
    with pytest.raises(OSError, match="changed while it was sent"):
        client.upload_blob(path)
    assert not next(iter(fake_pds.accounts.values())).blobs


def test_a_file_that_cannot_be_read_is_its_own_error(fake_pds, client, tmp_path):
    fake_pds.forget()
    with pytest.raises(IsADirectoryError) as caught:
        client.upload_blob(tmp_path)
    assert caught.value.filename == str(tmp_path)
    assert fake_pds.count(UPLOAD) <= 1


def test_a_pipe_is_refused_and_not_waited_for(fake_pds, client, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    fake_pds.forget()
    with pytest.raises(OSError, match="not a regular file"):
        client.upload_blob(tmp_path / "pipe")
    assert fake_pds.count() == 0


@pytest.mark.parametrize("kind", [5, None, b"text/plain"])
def test_a_type_of_content_is_text(client, kind):
    with pytest.raises(TypeError, match="mime_type must be a str"):
        client.upload_blob(b"x", kind)


def test_a_file_that_is_gone_when_it_is_sent_again(fake_pds, client, tmp_path):
    path = tmp_path / "blob"
    path.write_bytes(b"some bytes")
    fake_pds.expire()
    fake_pds.hook = only(UPLOAD, lambda call: path.unlink(missing_ok=True))
    with pytest.raises(FileNotFoundError):
        client.upload_blob(path)
    assert fake_pds.count(UPLOAD) <= 2  # the second one's headers may arrive


def test_a_missing_file_is_not_sent(fake_pds, client, tmp_path):
    fake_pds.forget()
    with pytest.raises(FileNotFoundError):
        client.upload_blob(tmp_path / "nothing")
    assert fake_pds.count() == 0


@pytest.mark.parametrize("data", ["text", 7, None, [b"x"]])
def test_only_bytes_and_paths_are_uploaded(client, data):
    with pytest.raises(TypeError, match="bytes or a path-like"):
        client.upload_blob(data)


@pytest.mark.parametrize("kind", ["", " ", "a\r\nX: y", "\u00e9"])
def test_a_type_of_content_is_one_line(client, kind):
    with pytest.raises(ValueError, match="type of content"):
        client.upload_blob(b"x", kind)


def test_a_large_file_is_not_read_into_memory(fake_pds, client, tmp_path):
    path = tmp_path / "blob"
    with open(path, "wb") as file:
        file.truncate(24 * MEGABYTE)

    def count(call):
        left = call.size
        while left:
            left -= len(call.handler.rfile.read1(65536))
        return say({"blob": {}})(call)

    fake_pds.hook = only(UPLOAD, count)
    with traced() as peak, pytest.raises(XrpcError, match="'ref'"):
        client.upload_blob(path)
    assert peak() < 8 * MEGABYTE


DATA = b"the bytes of a blob " * 1000
BLOB_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-tar\r\n"
LENGTH = b"Content-Length: %d\r\n\r\n"


@pytest.mark.parametrize(
    ("hook", "reason"),
    [
        (say(DATA[:-1]), "not those of the CID"),
        (say(DATA + b"x"), "not those of the CID"),
        (say(DATA.replace(b"blob", b"Blob", 1)), "not those of the CID"),
        (say(b""), "not those of the CID"),
        (say(b"<html>", content_type="text/html"), "not those of the CID"),
        (raw(BLOB_HEAD + LENGTH % len(DATA) + DATA[:5000]), "Incomplete|ended|broken"),
        (raw(BLOB_HEAD + LENGTH % (1 << 40) + DATA), "larger than 52,428,800"),
        (endless(BLOB_HEAD + b"\r\n", bytes(MEGABYTE), 0), "larger than 52,428,800"),
        (endless(BLOB_HEAD + b"\r\n", b"x"), "no complete response|time"),
        (say(DATA, 206), "refused"),
        (say(DATA, content_encoding="gzip"), "Content-Encoding"),
    ],
    ids=range(11),
)
def test_bytes_that_are_not_the_blobs_are_an_error(fake_pds, client, hook, reason):
    cid = publish(client, DATA)
    assert client.get_blob(client.did, cid) == DATA
    fake_pds.hook = only(GET_BLOB, hook)
    wait_for(client, 0.5)
    with pytest.raises(RemoteError, match=reason):
        client.get_blob(client.did, cid)


def test_a_download_continues_after_a_connection_is_broken(fake_pds, client):
    cid = publish(client, DATA)
    met = []

    def break_once(call):
        met.append(call)
        if len(met) == 1:
            raw(BLOB_HEAD + LENGTH % len(DATA) + DATA[:5000])(call)

    fake_pds.hook = only(GET_BLOB, break_once)
    assert client.get_blob(client.did, cid) == DATA
    assert len(met) == 2


def test_a_download_takes_longer_than_the_timeout_while_bytes_come(fake_pds, client):
    data = bytes(MEGABYTE) * 3
    cid = publish(client, data)

    def slowly(call):
        sock = call.handler.connection
        sock.sendall(BLOB_HEAD + LENGTH % len(data))
        for _ in range(3):
            time.sleep(0.3)
            sock.sendall(bytes(MEGABYTE))
        raise ConnectionError

    fake_pds.hook = only(GET_BLOB, slowly)
    wait_for(client, 0.5)
    assert client.get_blob(client.did, cid) == data


# Redirects, and the token.


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_write_is_not_redirected(fake_pds, client, elsewhere, status):
    fake_pds.hook = redirect(f"{elsewhere.url}/xrpc/{UPLOAD}", status)
    for write in (
        lambda: client.create_record(NOTE, {"text": "one"}),
        lambda: client.upload_blob(b"some bytes"),
        lambda: refresh_session(client),
        lambda: Atmosphere.login("alice.test", "password", base_url=fake_pds.url),
    ):
        with pytest.raises(RemoteError, match="redirects a request that writes"):
            write()
    assert elsewhere.count() == 0


def test_a_query_is_redirected_without_a_token(fake_pds, client, elsewhere):
    fake_pds.hook = redirect(f"{elsewhere.url}/xrpc/com.atproto.repo.listRecords")
    assert client.list_records(NOTE) == ([], None)
    (call,) = elsewhere.calls
    assert "authorization" not in call.headers
    token = client.export_session().split(":::")[2]
    assert token not in str(call.headers)


def test_tokens_go_to_the_sessions_server_alone(client, fake_pds, elsewhere):
    elsewhere.calls.clear()
    text = client.export_session()
    again = Atmosphere.from_session(
        text, base_url=elsewhere.url, appview=elsewhere.url, plc_url=elsewhere.url
    )
    again.create_record(NOTE, {})
    again.xrpc_query("science.alt.dataset.listEntries")
    assert [call.nsid for call in elsewhere.calls] == [
        "science.alt.dataset.listEntries"
    ]
    assert "authorization" not in elsewhere.calls[0].headers
    assert fake_pds.calls[-1].headers["authorization"].startswith("Bearer ey")


def test_servers_are_reached_by_tls(tmp_path, monkeypatch):
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    pem, context = make_certificate()
    (tmp_path / "trusted.pem").write_text(pem)
    with FakePlc() as plc:
        pds = FakePds(plc)
        pds.context = context
        with pds:
            pds.create_account("alice.test")
            given = {"base_url": pds.url, "plc_url": plc.url, "timeout": 20}
            with pytest.raises(RemoteError, match="certificate is not trusted"):
                Atmosphere.login("alice.test", "password", **given)
            assert pds.count() == 0
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "trusted.pem"))
            forget_tls_contexts()
            try:
                client = Atmosphere.login("alice.test", "password", **given)
                data = bytes(range(256)) * 40_000
                cid = publish(client, data)
                assert client.get_blob("alice.test", cid) == data
                pds.hook = only(UPLOAD, break_after(MEGABYTE, REFUSAL, reset=False))
                with pytest.raises(RemoteError):
                    client.upload_blob(bytes(40 * MEGABYTE))
                pds.hook = None
                assert len(client.list_records(NOTE)[0]) == 1
            finally:
                forget_tls_contexts()


@pytest.mark.parametrize(
    "url",
    [
        "http://pds.example",
        "http://10.0.0.1:2583",
        "http://[2001:db8::1]",
        "http://127.example",
        "http://127.0.0.1.example",
    ],
)
def test_a_password_is_not_sent_in_the_clear(client, url):
    with pytest.raises(ValueError, match="over https:// only"):
        Atmosphere.login("alice.test", "password", base_url=url)
    text = client.export_session().rpartition(":::")[0] + f":::{url}"
    with pytest.raises(ValueError, match="over https:// only"):
        Atmosphere.from_session(text)
    Atmosphere(url)  # reads need no secret


def test_a_child_process_writes_with_its_parents_session(fake_pds, client):
    import os

    client.create_record(NOTE, {"from": "parent"})  # connections are open
    with lock_of(client):  # as if a thread was refreshing the session
        pid = os.fork()
        if pid == 0:
            try:
                fake_pds_url = client.base_url
                client.create_record(NOTE, {"from": "child"})
                refresh_session(client)
                os._exit(0 if fake_pds_url else 1)
            except BaseException:
                os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert [each["from"] for each in client.iter_records(NOTE)] == ["child", "parent"]


def test_the_limit_of_a_blob_is_that_of_the_protocol():
    assert client_module.MAX_BLOB == 52_428_800
