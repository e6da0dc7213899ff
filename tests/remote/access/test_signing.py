"""Signed URLs that expire, and the function that returns fresh ones."""

import logging
import pickle
import subprocess
import sys
import threading
import time
from functools import partial

import pytest

import fastshard
from fastshard import FastshardError, RemoteError
from fastshard.errors import RemoteNotFoundError
from fastshard.remote.deadline import Deadline
from fastshard.remote.errors import RetryError
from fastshard.remote.file import open_remote
from fastshard.remote.http.fast import FastHttp
from fastshard.remote.options import make_settings
from support.inside.remote import record_pauses
from support.servers.http import Server
from support.servers.messages import plain
from support.tars import write_tar

COUNT = 40  # samples of a shard
SECRET = "S3CR3T"
S3_EXPIRED = (
    "<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Request has expired"
    "</Message><X-Amz-Expires>60</X-Amz-Expires></Error>"
)
BODIES = {
    "s3": (403, S3_EXPIRED),
    "s3 session": (400, "<Error><Code>ExpiredToken</Code><Message>The provided token"),
    "gcs": (400, "<Error><Code>ExpiredToken</Code><Details>Request signature expired"),
    "azure": (
        403,
        "<Error><Code>AuthenticationFailed</Code><AuthenticationErrorDetail>Signature "
        "not valid in the specified time frame: Expiry [Mon, 01 Jan 2024]",
    ),
}


class SignedServer(Server):
    """Server that takes requests with a signature of its current number only."""

    number = 0
    refused = 0
    status, body = BODIES["s3"]
    chunked = False

    def answer(self, request):
        if request.query == f"sig={SECRET}{self.number}":
            return super().answer(request)
        self.refused += 1
        if not self.chunked:
            return plain(self.status, self.body)
        answer = plain(self.status).drop("Content-Length")
        piece = f"{len(self.body):x}\r\n{self.body}\r\n0\r\n\r\n".encode()
        return type(answer)(self.status, (("Transfer-Encoding", "chunked"),), piece)


def sign(url, server, calls=None):
    """Return the URL with the signature that the server takes now."""
    if calls is not None:
        calls.append(url)
    return f"{url.partition('?')[0]}?sig={SECRET}{server.number}"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for k in range(2):
        members = {f"{k}{i:03}.bin": bytes([i]) * 3000 for i in range(COUNT)}
        write_tar(folder / f"{k}.tar", members)
    fastshard.build_index(folder)
    return {f"/{path.name}": path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def server(files):
    with SignedServer(dict(files)) as server:
        yield server


@pytest.fixture(params=["fast", "slow"])
def way(request, monkeypatch):
    if request.param == "slow":
        monkeypatch.setattr(FastHttp, "read", lambda *args: False)
        monkeypatch.setattr(FastHttp, "begin", lambda *args: args[-1])
        monkeypatch.setattr(FastHttp, "ask", lambda *args: None)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("kind", BODIES)
def test_an_expired_url_is_named_as_such(server, kind, chunked):
    server.status, server.body = BODIES[kind]
    server.chunked = chunked
    url = server.at("/0.tar") + f"?sig={SECRET}9"

    with pytest.raises(RemoteError) as caught:
        open_remote(url, make_settings({}, [url]))

    assert "the URL has expired" in str(caught.value)
    assert "sign=" in str(caught.value)
    assert "token=" not in str(caught.value)
    assert caught.value.status == server.status
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("X-Amz-Date=20240101T000000Z&X-Amz-Expires=60&X-Amz-Signature=a", "expired"),
        ("X-Goog-Date=20240101T000000Z&X-Goog-Expires=60&X-Goog-Signature=", "expired"),
        ("Expires=1704067200&Signature=a&Key-Pair-Id=b", "expired"),
        ("se=2024-01-01T00%3A00%3A00Z&sig=a", "expired"),
        ("Expires=99999999999&Signature=a", "signature was refused"),
        ("se=never&sig=a", "signature was refused"),
        ("version=3", "give token="),
    ],
)
def test_a_refused_url_is_described_by_its_query(server, query, words):
    server.body = "no"
    url = f"{server.at('/0.tar')}?{query}"
    with pytest.raises(RemoteError, match=words) as caught:
        open_remote(url, make_settings({}, [url]))
    assert caught.value.status == 403


def test_an_expired_token_is_not_an_expired_url(server):
    server.status, server.body = 401, '{"error": "token expired"}'
    url = server.at("/0.tar")
    with pytest.raises(RemoteError, match="credentials have expired; give token="):
        open_remote(url, make_settings({"token": SECRET}, [url]))


def test_a_refusal_whose_body_does_not_come_is_an_error_soon(server):
    def head_only(exchange):
        exchange.keep = False
        exchange.send(b"HTTP/1.1 403 No\r\nTransfer-Encoding: chunked\r\n\r\n")
        exchange.hang()

    server.behave("/0.tar", head_only)
    url = server.at("/0.tar") + "?sig=a"
    with pytest.raises(RemoteError, match="signature was refused") as caught:
        open_remote(url, make_settings({}, [url]))
    assert caught.value.status == 403


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("given", ["", f"?sig={SECRET}9"])
def test_reading_continues_under_fresh_urls(server, files, given):
    calls = []
    urls = [server.at(f"/{k}.tar") + given for k in range(2)]
    ds = fastshard.open(urls, sign=partial(sign, server=server, calls=calls))
    found = []
    for i, sample in enumerate(ds.batches(5)):
        if i in (3, 9):
            server.number += 1  # those in use expire
        found += [bytes(data) for data in sample["bin"]]

    assert found == [bytes([i]) * 3000 for i in range(COUNT)] * 2
    assert set(urls) <= set(calls)
    assert len(calls) <= 3 * 8  # of each object once for each number


@pytest.mark.usefixtures("way")
def test_many_threads_ask_once(server, files):
    calls, entered = [], threading.Barrier(8)

    def slow_sign(url):
        calls.append(url)
        time.sleep(0.1)  # other threads are refused meanwhile
        return sign(url, server)

    url = server.at("/0.tar")
    file = open_remote(url, make_settings({"sign": slow_sign}, [url]))
    assert calls == [url]
    server.number += 1
    found = {}

    def read(k):
        entered.wait()
        found[k] = file.read(20_000 + k, 100)

    threads = [threading.Thread(target=read, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    data = files["/0.tar"]
    assert found == {k: data[20_000 + k : 20_100 + k] for k in range(8)}
    assert calls == [url, url]
    server.refused = 0
    file.read(50_000, 100)
    assert server.refused == 0  # the fresh URL is kept


def test_indexes_beside_shards_are_signed(server):
    calls = []
    url = server.at("/0.tar")
    shard = fastshard.open_shard(url, sign=partial(sign, server=server, calls=calls))
    assert shard.index == server.at("/0.fsi")
    assert server.at("/0.fsi") in calls


def test_the_index_of_a_folder_is_signed(server):
    ds = fastshard.open(server.url + "/", sign=partial(sign, server=server))
    assert len(ds) == 2 * COUNT
    assert ds[COUNT + 1]["bin"] == bytes([1]) * 3000


@pytest.mark.parametrize("kind", ["missing", "none"])
def test_an_index_without_a_url_is_scanned(server, kind):
    for name in ("/0.fsi", "/dataset.fsi"):
        del server.files[name]

    def only_shards(url):
        if url.endswith(".tar") or kind == "missing":
            return sign(url, server)
        return None

    ds = fastshard.open(server.at("/0.tar"), sign=only_shards)
    assert len(ds) == COUNT


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda url: url, "URL has expired .*sign= returned no other"),
        (lambda url: None, "URL has expired .*sign= returned no other"),
        (lambda url: url + "x", "URL has expired .*sign= returned it"),
        (lambda url: 7, "sign= must return an http or https URL, got <class 'int'>"),
        (lambda url: f"/etc/{SECRET}", "sign= must return an http or https URL"),
        (lambda url: {}[url], "sign= raised KeyError"),
    ],
)
def test_a_function_without_a_fresh_url_is_an_error(server, function, words):
    calls = []

    def count(url):
        calls.append(url)
        return function(url)

    url = server.at("/0.tar") + f"?sig={SECRET}9"
    with pytest.raises(RemoteError, match=words) as caught:
        open_remote(url, make_settings({"sign": count}, [url]))
    assert len(calls) == 1
    assert caught.value.status == 403
    assert SECRET not in str(caught.value)


def test_a_missing_object_is_not_signed_again(server):
    calls = []
    url = server.at("/9.tar")
    options = {"sign": partial(sign, server=server, calls=calls)}
    with pytest.raises(RemoteNotFoundError):
        open_remote(url, make_settings(options, [url]))
    assert calls == [url]


def test_options_that_are_not_functions_are_refused(server):
    with pytest.raises(TypeError, match="sign must be a callable"):
        fastshard.open(server.at("/0.tar"), sign="https://host/0.tar?sig=1")
    with pytest.raises(FastshardError, match="sign= is for http and https URLs"):
        fastshard.open("s3://bucket/0.tar", sign=str)


def test_a_state_and_the_cache_continue_under_other_signatures(server, tmp_path):
    urls = [server.at(f"/{k}.tar") for k in range(2)]
    ds = fastshard.open(
        urls, cache_dir=tmp_path, sign=partial(sign, server=server)
    ).shuffle(3)
    items = ds.iter()
    before = [next(items).key for _ in range(7)]
    state = items.state_dict()
    keys = list(ds.keys())
    assert before == keys[:7]
    for sample in ds:
        sample["bin"]
    server.number += 1
    server.forget()

    again = fastshard.open(
        [f"{url}?sig={SECRET}1" for url in urls], cache_dir=tmp_path
    ).shuffle(3)
    items = again.iter(state=state)
    assert [sample.key for sample in items] == keys[7:]
    ranges = [request for request in server.requests if request.path.endswith(".tar")]
    assert len(ranges) <= 4  # the opening of a shard, none of its members


class Sign:
    """Function that pickles."""

    def __init__(self, number):
        self.number = number

    def __call__(self, url):
        return f"{url}?sig={SECRET}{self.number}"


def test_a_function_pickles_with_the_dataset(server):
    ds = fastshard.open(server.at("/0.tar"), sign=Sign(0))
    assert ds[0]["bin"] == bytes(3000)
    again = pickle.loads(pickle.dumps(ds))
    assert again[1]["bin"] == bytes([1]) * 3000


@pytest.mark.parametrize("name", ["sign", "token"])
def test_a_function_that_does_not_pickle_is_named(server, name, monkeypatch):
    for module in ("cloudpickle", "ray.cloudpickle", "dill"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    url = server.at("/0.tar") + f"?sig={SECRET}0"
    ds = fastshard.open(url, **{name: lambda *args: None})
    with pytest.raises(FastshardError, match=f"{name}= does not pickle"):
        pickle.dumps(ds)


def test_fresh_urls_are_logged_without_secrets(server, caplog):
    caplog.set_level(logging.DEBUG)
    url = server.at("/0.tar")
    file = open_remote(
        url, make_settings({"sign": partial(sign, server=server)}, [url])
    )
    server.number += 1
    file.read(20_000, 10)
    assert "/0.tar" in caplog.text
    assert SECRET not in caplog.text
    assert SECRET not in repr(file)


def test_a_redirected_url_is_signed(server):
    def redirect(exchange):
        if exchange.request.query != f"sig={SECRET}0":
            return plain(403, S3_EXPIRED)
        return plain(302).add("Location", f"/1.tar?sig={SECRET}0")

    server.behave("/0.tar", redirect)
    url = server.at("/0.tar")
    file = open_remote(
        url, make_settings({"sign": partial(sign, server=server)}, [url])
    )
    assert file.read(20_000, 10) == server.files["/1.tar"][20_000:20_010]
    server.forget()
    file.read(20_000, 10)
    assert [request.path for request in server.requests] == ["/1.tar"]


def test_a_server_that_was_never_reached_is_an_error_soon():
    code = (
        "import fastshard, sys, time\n"
        "begun = time.monotonic()\n"
        "try:\n"
        "    len(fastshard.open('http://127.0.0.1:9/0.tar'))\n"
        "except fastshard.RemoteError as error:\n"
        "    print(time.monotonic() - begun)\n"
        "    print(error, error.transient)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=50
    )
    seconds, text = done.stdout.splitlines()
    assert float(seconds) < 20  # of 60; 2.5 on an idle machine
    assert "Connection refused; it was tried for 2.5 s: timeout= waits longer" in text
    assert text.endswith("True")


def test_a_timeout_waits_for_a_server(server):
    port = server.port
    timer = server.leave_for(0.7)
    url = f"http://127.0.0.1:{port}/0.tar?sig={SECRET}0"
    file = open_remote(url, make_settings({"timeout": 30.0}, [url]))
    timer.join()
    assert file.nbytes == len(server.files["/0.tar"])


@pytest.mark.parametrize("pickled", [False, True])
def test_a_server_that_has_answered_is_waited_for(server, pickled, monkeypatch):
    monkeypatch.setattr("fastshard.remote.options.FIRST_TIMEOUT", 0.1)
    url = server.at("/0.tar") + f"?sig={SECRET}0"
    settings = make_settings({}, [url])
    open_remote(url, settings)
    if pickled:
        settings = pickle.loads(pickle.dumps(settings))
    timer = server.leave_for(1.0)
    assert open_remote(url, settings).nbytes == len(server.files["/0.tar"])
    timer.join()


def test_the_last_status_is_that_of_the_last_answer(monkeypatch):
    record_pauses(monkeypatch)
    deadline = Deadline(60.0)
    deadline.backoff(RetryError("the server failed", 503), 0, "u")
    deadline.backoff(RetryError("the connection ended inside the body"), 1, "u")
    deadline.at = 0
    with pytest.raises(RemoteError) as caught:
        deadline.backoff(RetryError("no complete response within 60 s"), 2, "u")
    assert caught.value.status == 503
    assert str(caught.value) == (
        "no complete response within 60 s; the last answer: the server failed - at u, "
        "status 503, after 3 attempts"
    )


def test_the_last_status_is_named_when_the_time_is_over(server):
    url = server.at("/0.tar") + f"?sig={SECRET}0"
    file = open_remote(url, make_settings({"timeout": 0.4}, [url]))
    server.behave("/0.tar", "status_503")
    for _ in range(5):
        with pytest.raises(RemoteError, match="status 503, after") as caught:
            file.read(20_000, 10)
        assert caught.value.status == 503
