"""Passwords and tokens stand nowhere but in the header of their own host."""

import copy
import json
import logging
import pickle
import traceback

import pytest

from fastshard._util.secret import Secret
from fastshard.errors import FastshardError
from fastshard.typed import Atmosphere
from support.inside.typed import (
    refresh_session,
    session_of,
    set_timeout,
)
from support.servers.atproto.hostile import SLOW, raw, redirect, say
from support.servers.atproto.pds import FakePds
from support.servers.atproto.xrpc import Reply, XrpcServer

NOTE = "com.example.note"
PASSWORD = "correct-horse-battery-staple"


@pytest.fixture
def pds():
    with FakePds() as server:
        server.create_account("alice.test", PASSWORD)
        yield server


@pytest.fixture
def client(pds):
    return log_in(pds)


def log_in(pds, password=PASSWORD, **options):
    options = {"plc_url": pds.plc.url, "timeout": 20, **options}
    return Atmosphere.login("alice.test", password, base_url=pds.url, **options)


def secrets_of(client):
    return [PASSWORD, *client.export_session().split(":::")[2:4]]


def spill(error):
    """Return all texts of an exception, with the locals of frames of the package."""
    texts = [repr(error), str(error), repr(error.args), str(vars(error))]
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        texts += traceback.format_exception(error)
        frame = error.__traceback__
        while frame is not None:
            code = frame.tb_frame.f_code
            if code.co_filename != __file__:
                texts += map(repr, frame.tb_frame.f_locals.values())
            frame = frame.tb_next
        error = error.__context__ or error.__cause__
    return "\n".join(texts)


def echo(call):
    """Repeat all that the request has: in a header, in a body."""
    given = call.headers.get("authorization", "") + json.dumps(
        json.loads(pds_body(call) or b"null")
    )
    body = {"error": f"Bad {given}", "message": f"What is {given}?"}
    return Reply(body, 400, {"x-echo": given.replace("\n", "")})


def pds_body(call):
    return call.handler.rfile.read(call.size) if call.size else b""


def echo_raw(template):
    """Repeat the request in a part of the answer that is not its body."""

    def hook(call):
        given = call.headers.get("authorization", "") + pds_body(call).decode()
        return raw(template.replace(b"%s", given.encode()))(call)

    return hook


ECHOES = {
    "body": echo,
    "status line": echo_raw(b"HTTP/1.1 %s\r\n\r\n"),
    "reason": echo_raw(b"HTTP/1.1 400 %s\r\nContent-Length: 0\r\n\r\n"),
    "type": echo_raw(b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\n\r\n{}"),
    "coding": echo_raw(b"HTTP/1.1 200 OK\r\nContent-Encoding: %s\r\n\r\n{}"),
    "length": echo_raw(b"HTTP/1.1 200 OK\r\nContent-Length: %s\r\n\r\n{}"),
    "chunk": echo_raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%s\r\n"),
    "pause": echo_raw(
        b"HTTP/1.1 429 Slow\r\nRetry-After: %s\r\nContent-Length: 0\r\n\r\n"
    ),
    "location": echo_raw(b"HTTP/1.1 302 Found\r\nLocation: %s\r\n\r\n"),
    "silence": SLOW["a closed connection"],
    "HTML": say(b"<html>", content_type="text/html"),
}


@pytest.mark.parametrize("what", ["login", "create", "refresh", "upload"])
@pytest.mark.parametrize("name", ECHOES)
def test_no_error_repeats_a_secret(pds, client, caplog, name, what):
    caplog.set_level(logging.DEBUG)
    set_timeout(client, 0.3)
    pds.hook = ECHOES[name]
    call = {
        "login": lambda: log_in(pds, timeout=0.3),
        "create": lambda: client.create_record(NOTE, {"text": "one"}),
        "refresh": lambda: refresh_session(client),
        "upload": lambda: client.upload_blob(b"{}"),
    }[what]
    with pytest.raises(FastshardError) as caught:
        call()
    logged = "\n".join(
        f"{r.getMessage()} {r.args!r} {r.exc_text}" for r in caplog.records
    )
    found = spill(caught.value) + logged
    again = pickle.dumps(caught.value)
    for secret in secrets_of(client):
        assert secret not in found
        assert secret.encode() not in again
    assert "127.0.0.1" in logged or what != "login"


@pytest.mark.parametrize("header", ["content-type", "content-encoding"])
def test_no_error_repeats_a_part_of_a_secret(pds, client, header):
    token = client.export_session().split(":::")[2]
    for padding in (0, 20, 80, 280):
        headers = {header: "x" * padding + token, "content-length": "2"}
        pds.hook = lambda call, headers=headers: Reply(b"{}", 200, headers)
        with pytest.raises(FastshardError) as caught:
            client.create_record(NOTE, {"text": "one"})
        assert token[:12].lower() not in str(caught.value).lower()


@pytest.mark.parametrize("password", [PASSWORD.encode(), [PASSWORD], {PASSWORD: 1}])
def test_a_password_of_another_type_is_not_shown(pds, password):
    with pytest.raises(TypeError, match="password must be a str") as caught:
        Atmosphere.login("alice.test", password, base_url=pds.url)
    assert PASSWORD not in spill(caught.value)


def test_nothing_that_works_logs_a_secret(pds, caplog, capsys):
    caplog.set_level(logging.DEBUG)
    client = log_in(pds)
    pds.expire()
    before = secrets_of(client)
    blob = client.upload_blob(b"x")
    uri = client.create_record(NOTE, {"blob": blob})
    client.get_blob(client.did, blob["ref"]["$link"])
    client.delete_record(uri)
    logged = "\n".join(f"{r.getMessage()} {vars(r)!r}" for r in caplog.records)
    assert "refreshSession" in logged
    for secret in (*before, *secrets_of(client)):
        assert secret not in logged + "".join(capsys.readouterr())


def test_no_text_and_no_pickle_of_a_client_has_a_secret(client):
    texts = [repr(client), str(client), f"{client:}", repr(vars(client))]
    texts += [repr(each) for each in vars(client).values()]
    session = session_of(client)
    texts += [repr(session), str(session), repr([session.access, session.refresh])]
    for text in texts:
        assert not any(secret in text for secret in secrets_of(client))
    for data in (pickle.dumps(client), pickle.dumps([client], 2)):
        assert not any(secret.encode() in data for secret in secrets_of(client))
    for each in (session, session.access):
        with pytest.raises(TypeError, match="does not pickle"):
            pickle.dumps(each)
        with pytest.raises(TypeError, match="does not pickle"):
            copy.deepcopy(each)


def test_a_client_that_was_pickled_reads_and_has_no_session(pds, client):
    uri = client.create_record(NOTE, {"text": "one"})
    again = pickle.loads(pickle.dumps(client))
    assert not again.is_authenticated
    assert again.get_record(uri)["text"] == "one"
    assert again.base_url == client.base_url
    with pytest.raises(ValueError, match="Not authenticated"):
        again.create_record(NOTE, {})


def test_a_secret_shows_nothing():
    secret = Secret("hidden")
    assert secret.reveal() == "hidden"
    assert "hidden" not in f"{secret} {secret!r} {[secret]} {secret!s:>20}"
    assert secret == Secret("hidden") != Secret("other")
    assert secret != "hidden"
    with pytest.raises(TypeError):
        hash(secret)
    assert not hasattr(secret, "__dict__")


def test_a_wrong_session_is_not_shown(client):
    text = client.export_session().replace("alice.test", "alice")
    with pytest.raises(ValueError, match="no DID and handle") as caught:
        Atmosphere.from_session(text)
    found = spill(caught.value)
    assert not any(secret in found for secret in secrets_of(client))


class Elsewhere(XrpcServer):
    """Another host."""

    def respond(self, call):
        return Reply({"did": "did:plc:abc", "records": []})


def test_another_host_sees_no_secret(pds, client):
    with Elsewhere() as elsewhere:
        pds.hook = redirect(elsewhere.url)
        for call in (
            lambda: client.create_record(NOTE, {}),
            lambda: client.upload_blob(b"x"),
            lambda: client.list_records(NOTE),
            lambda: client.get_record(f"at://{client.did}/{NOTE}/k"),
            lambda: log_in(pds),
        ):
            try:
                call()
            except FastshardError as error:
                assert elsewhere.url not in str(error)
        assert elsewhere.count() == 2  # the queries
        for call in elsewhere.calls:
            seen = str(call.headers) + call.path + str(call.params)
            assert not any(secret in seen for secret in secrets_of(client))


def test_the_test_finds_secrets_in_locals():
    code = "def leak(token):\n    raise ValueError\nleak('abc' + '123')"
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        exec(compile(code, "elsewhere.py", "exec"), {})
    assert "abc123" in spill(caught.value)
