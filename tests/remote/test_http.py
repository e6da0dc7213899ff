"""Ranges over HTTP: right bytes or a precise error, in bounded time."""

import gc
import os
import pickle
import shutil
import socket
import time

import pytest

from fastshard import RemoteError, RemoteNotFoundError
from fastshard.errors import FastshardError
from fastshard.remote.deadline import Deadline
from fastshard.remote.file import RemoteFile, fetch, open_remote
from fastshard.remote.http.client import HttpClient, client_for
from fastshard.remote.http.fast import FastHttp
from fastshard.remote.options import make_settings
from fastshard.remote.traffic import traffic
from support.inside.remote import (
    fast_path_of,
    forget_tls_contexts,
    idle_connections,
    target_of,
)
from support.marks import forks_beside_threads
from support.servers.http import BEHAVIOURS, BROKEN, HARMLESS, Server, redirect_to
from support.threads import HANG, SOON, in_threads

DATA = bytes(i * 7 % 251 for i in range(50_000))
SECRET = "hf_verysecret"
OTHER_TAGS = {"no_etag", "no_validators", "weak_etag"}  # responses with another tag


@pytest.fixture
def server():
    with Server({"/a.tar": DATA, "/b.tar": DATA[::-1], "/empty.tar": b""}) as server:
        yield server


def open_file(server, path="/a.tar", **options) -> RemoteFile:
    url = server.at(path)
    return open_remote(url, make_settings({"timeout": 0.6, **options}, [url]))


def test_metadata_of_an_object(server):
    file = open_file(server)

    assert file.nbytes == len(DATA)
    assert file.tag.startswith('"')
    assert file.mtime_ns > 0
    assert file.head == DATA[: len(file.head)]


def test_reads_are_ranges(server):
    file = open_file(server)
    server.forget()

    assert file.read(20_000, 1000) == DATA[20_000:21_000]
    assert [request.range for request in server.requests] == [(20_000, 20_999)]
    assert server.requests[0].headers["accept-encoding"] == "identity"
    assert server.requests[0].headers["if-match"] == file.tag


def test_an_empty_object_requests_no_range(server):
    file = open_file(server, "/empty.tar")
    server.forget()

    assert file.nbytes == 0
    assert file.read(0, 0) == b""
    assert not server.requests


def test_connections_are_reused(server):
    file = open_file(server)

    for at in range(17_000, 40_000, 1000):
        assert file.read(at, 500) == DATA[at : at + 500]
    assert server.connections <= 2  # one of urllib3, one of the fast path


def test_many_ranges_are_read_concurrently():
    whole = DATA * 700
    with Server({"/a.tar": whole}, latency=0.05) as server:
        file = open_file(server, timeout=30.0, connections=8)
        extents = [(i * 1_100_000, 100) for i in range(1, 31)]

        found = file.read_many(extents)

        assert found == [whole[a : a + n] for a, n in extents]
        assert 2 <= server.peak <= 8


def test_near_ranges_are_merged(server):
    file = open_file(server)
    server.forget()

    found = file.read_many([(20_000 + 600 * i, 512) for i in range(20)])

    assert found == [DATA[20_000 + 600 * i :][:512] for i in range(20)]
    assert len(server.requests) == 1


def test_a_result_keeps_only_its_own_memory(server):
    file = open_file(server)

    first, second = file.read_many([(20_000, 10), (20_500, 10)])

    assert type(first) is bytes
    assert len(first) == len(second) == 10


def test_extents_in_any_order_and_twice(server):
    file = open_file(server)
    extents = [(30_000, 500), (20_000, 900), (30_000, 500), (20_100, 900), (5, 0)]

    assert file.read_many(extents) == [DATA[a : a + n] for a, n in extents]


def test_reads_go_into_the_callers_memory(server):
    file = open_file(server)
    out = bytearray(1000)

    errors = file.read_into(
        [(file, 20_000, memoryview(out)[:400]), (file, 40_000, memoryview(out)[400:])]
    )

    assert errors == [None, None]
    assert out == DATA[20_000:20_400] + DATA[40_000:40_600]


def test_a_large_read_is_split(server):
    whole = DATA * 500
    server.files["/large.tar"] = whole
    file = open_file(server, "/large.tar", timeout=30.0)
    server.forget()

    assert file.read(1, len(whole) - 1) == whole[1:]
    assert len(server.requests) == 3


@pytest.fixture(params=["fast", "slow"])
def way(request, monkeypatch):
    """Read ranges by the fast path, or by urllib3 alone."""
    if request.param == "slow":
        monkeypatch.setattr(FastHttp, "read", lambda *args: False)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("behaviour", sorted(BEHAVIOURS))
def test_a_hostile_server_gives_right_bytes_or_an_error(server, behaviour):
    file = open_file(server, attempts=2)
    server.behave("/a.tar", behaviour)

    begun = time.monotonic()
    try:
        found = file.read(20_000, 4000)
    except RemoteError as error:
        assert behaviour not in HARMLESS - OTHER_TAGS, error
        assert error.url == server.at("/a.tar")
        assert error.attempts >= 1
    else:
        assert behaviour not in BROKEN
        assert found == DATA[20_000:24_000]
    assert time.monotonic() - begun < SOON


@pytest.mark.parametrize("behaviour", sorted(BEHAVIOURS))
def test_a_hostile_server_at_open_gives_right_bytes_or_an_error(server, behaviour):
    server.behave("/a.tar", behaviour)

    begun = time.monotonic()
    try:
        file = open_file(server, attempts=2)
        found = file.read(0, 1000)
    except RemoteError as error:
        assert behaviour not in HARMLESS, error
    else:
        assert behaviour not in BROKEN
        assert file.nbytes == len(DATA) or behaviour == "wrong_content_range_total"
        assert found == DATA[:1000]
    assert time.monotonic() - begun < SOON


@pytest.mark.parametrize(
    "behaviour",
    [
        "short_body",
        "reset_midway",
        "close_at_once",
        "status_500",
        "status_502",
        "status_503_retry_after",
        "status_429",
        "status_429_date",
        "chunked_cut",
        "not_http",
    ],
)
def test_transient_failures_are_retried(server, behaviour):
    file = open_file(server, timeout=8.0)
    server.behave("/a.tar", behaviour, times=2)

    assert file.read(20_000, 4000) == DATA[20_000:24_000]


def test_attempts_are_counted(server):
    file = open_file(server, attempts=3, timeout=20.0)
    server.behave("/a.tar", "status_500")

    with pytest.raises(RemoteError, match="status 500, after 3 attempts") as caught:
        file.read(20_000, 10)
    assert (caught.value.status, caught.value.attempts) == (500, 3)
    assert pickle.loads(pickle.dumps(caught.value)).attempts == 3


def test_a_long_wait_is_refused_at_once(server):
    file = open_file(server, timeout=5.0)
    server.behave("/a.tar", "status_429_long")

    with pytest.raises(RemoteError, match="asks to retry after 86,400 s"):
        file.read(20_000, 10)


def test_a_missing_object(server):
    with pytest.raises(RemoteNotFoundError) as caught:
        open_file(server, "/none.tar")
    assert isinstance(caught.value, FileNotFoundError)
    assert caught.value.status == 404


def test_a_server_without_ranges_is_detected_before_its_body_is_read(server):
    server.files["/large.tar"] = bytes(30_000_000)
    file = open_file(server, "/large.tar")
    server.behave("/large.tar", "ok_for_range")
    server.forget()

    with pytest.raises(RemoteError, match="does not support ranges"):
        file.read(20_000, 10)
    assert len(server.requests) <= 2
    assert server.bytes_sent < 30_000_000


def test_a_changed_object_is_detected(server):
    file = open_file(server)
    server.files["/a.tar"] = DATA[::-1]

    with pytest.raises(RemoteError, match="has changed"):
        file.read(20_000, 10)


def test_a_changed_object_without_tags_is_detected_by_its_size(server):
    server.behave("/a.tar", "no_validators")
    file = open_file(server)
    server.files["/a.tar"] = DATA + b"more"

    with pytest.raises(RemoteError, match="has changed"):
        file.read(20_000, 10)


def test_the_token_goes_to_its_own_origin_only(server):
    with Server({"/b.tar": DATA}) as other:
        server.behave("/a.tar", redirect_to(other.at("/b.tar")))
        file = open_file(server, token=SECRET, headers={"X-Api-Key": SECRET})

        assert file.read(20_000, 10) == DATA[20_000:20_010]
        seen = [request.headers for request in other.requests]
    assert all(
        r.headers["authorization"] == f"Bearer {SECRET}" for r in server.requests
    )
    assert seen
    assert not any(SECRET in str(headers) for headers in seen)


def test_a_redirect_is_cached(server):
    server.behave("/a.tar", redirect_to("/b.tar"))
    file = open_file(server)
    server.forget()

    file.read(20_000, 10)
    file.read(30_000, 10)
    assert [request.path for request in server.requests] == ["/b.tar", "/b.tar"]


def test_an_expired_redirect_is_requested_again(server):
    server.behave("/a.tar", redirect_to("/b.tar?Expires=99999999999"))
    file = open_file(server)
    server.behave("/b.tar", "status_403", times=1)

    assert file.read(20_000, 10) == DATA[::-1][20_000:20_010]


@pytest.mark.parametrize(
    "location",
    [
        "file:///etc/passwd",
        "ftp://127.0.0.1/a",
        "gopher://127.0.0.1/",
        "//",
        "http://",
        "",
    ],
)
def test_no_redirect_leaves_http(server, location):
    server.behave("/a.tar", redirect_to(location))

    with pytest.raises(RemoteError, match="redirect"):
        open_file(server)


def test_private_hosts_can_be_refused(server):
    with pytest.raises(RemoteError, match=r"127\.0\.0\.1 is not a public address"):
        open_file(server, private_hosts=False)
    assert not server.requests


def test_a_deadline_covers_the_whole_response(server):
    file = open_file(server, timeout=0.5)
    for behaviour in ("trickle", "stall", "slow_headers", "never_answer"):
        server.behave_well()
        server.behave("/a.tar", behaviour)
        begun = time.monotonic()
        with pytest.raises(RemoteError, match=r"within 0\.5"):
            file.read(20_000, 4000)
        assert time.monotonic() - begun < SOON


def test_secrets_appear_in_no_error(server):
    settings = make_settings(
        {"token": SECRET, "headers": {"Cookie": SECRET}}, [server.at("/a.tar")]
    )
    file = open_remote(server.at("/a.tar") + f"?Signature={SECRET}", settings)
    server.behave("/a.tar", "status_403")
    with pytest.raises(RemoteError) as caught:
        file.read(20_000, 10)
    error = caught.value

    shown = [repr(settings), repr(file), file.path, str(error), repr(error)]
    shown += [str(error.args), str(vars(error)), str(pickle.dumps(error))]
    assert SECRET not in "\n".join(shown)


def test_a_literal_token_is_not_pickled(server):
    url = server.at("/a.tar")
    for options in ({"token": SECRET}, {"headers": {"Authorization": SECRET}}):
        with pytest.raises(FastshardError, match="not pickled"):
            pickle.dumps(make_settings(options, [url]))


def token_of_the_process() -> str:
    return f"{SECRET}-{os.getpid()}"


def test_pickled_settings_call_the_token_function(server):
    url = server.at("/a.tar")
    settings = make_settings({"token": token_of_the_process}, [url])

    pickled = pickle.dumps(settings)

    assert SECRET.encode() not in pickled
    open_remote(url, pickle.loads(pickled))
    sent = server.requests[-1].headers["authorization"]
    assert sent == f"Bearer {token_of_the_process()}"


@pytest.mark.parametrize(
    "url", ["http://user:word@127.0.0.1/a.tar", "http:///a.tar", "http://[::1/a.tar"]
)
def test_invalid_urls_are_refused(url):
    with pytest.raises(FastshardError) as caught:
        make_settings({}, [url])
    assert "word" not in str(caught.value).replace("password", "")


def test_a_dropped_read_ends(server):
    file = open_file(server, timeout=2 * HANG)
    server.behave("/a.tar", "never_answer")
    requests = [file.request(20_000, 10)]
    file.start(requests)
    time.sleep(0.1)

    begun = time.monotonic()
    requests[0].drop()
    assert requests[0].wait() is not None
    assert time.monotonic() - begun < HANG


def test_threads_share_an_object(server):
    file = open_file(server, timeout=30.0)
    wrong = []

    def read(seed: int) -> None:
        for i in range(40):
            at = 17_000 + (seed * 977 + i * 313) % 30_000
            if file.read(at, 700) != DATA[at : at + 700]:
                wrong.append(at)

    in_threads(read, 8)
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@forks_beside_threads  # the server's
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_opens_its_own_connections(server):
    file = open_file(server, timeout=30.0)
    file.read_many([(20_000, 10), (40_000, 10)])
    waiting = file.request(30_000, 10)
    file.start([waiting])

    child = os.fork()
    if child == 0:
        right = file.read(25_000, 10) == DATA[25_000:25_010]
        right = right and waiting.result() == DATA[30_000:30_010]
        right = (
            right
            and file.read_many([(20_000, 10), (45_000, 10)])[1] == DATA[45_000:45_010]
        )
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert file.read(25_000, 10) == DATA[25_000:25_010]


def test_no_thread_writes_after_ctrl_c(server, monkeypatch):
    file = open_file(server, timeout=2 * HANG)
    server.behave("/a.tar", "stall")
    out = bytearray(2000)
    waited = []

    def interrupted(request):
        waited.append(request)
        if len(waited) == 1:
            raise KeyboardInterrupt
        return original(request)

    from fastshard.remote.scheduler import Request

    original = Request.wait
    monkeypatch.setattr(Request, "wait", interrupted)
    views = [memoryview(out)[:1000], memoryview(out)[1000:]]
    requests = [
        Request(file, at, 1000, view)
        for at, view in zip((20_000, 40_000), views, strict=True)
    ]

    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        fetch(requests)
    assert time.monotonic() - begun < HANG
    assert all(run.done for request in requests for run in request.reads)


def test_a_small_object_is_read_whole_from_a_server_without_ranges(server):
    url = server.at("/a.tar")
    server.behave("/a.tar", "ok_for_range")

    facts, data = HttpClient(make_settings({}, [url])).whole(url)

    assert data == DATA
    assert facts.nbytes == len(DATA)


def fast_read(server, path="/a.tar", **options) -> bool:
    """Return whether the fast path read a range."""
    file = open_file(server, path, timeout=5.0, **options)
    client = client_for(file.settings)
    room = bytearray(10)
    parts = [(20_000, memoryview(room))]
    done = fast_path_of(client).read(
        target_of(client, file.url), 20_000, 20_010, parts, file.info, Deadline(5.0)
    )
    assert not done or room == DATA[20_000:20_010]
    return done


def test_the_fast_path_reads_ranges(server):
    server.files["/with blank.tar"] = DATA
    assert fast_read(server)
    assert fast_read(server, "/with blank.tar")
    assert fast_read(server, token=SECRET, headers={"X-Some": "thing"})
    assert server.requests[-1].headers["authorization"] == f"Bearer {SECRET}"
    assert server.requests[-1].headers["x-some"] == "thing"


@pytest.mark.parametrize("behaviour", sorted(BEHAVIOURS))
def test_unexpected_responses_are_left_to_urllib3(server, behaviour):
    file = open_file(server)
    client = client_for(file.settings)
    server.behave("/a.tar", behaviour)
    room = bytearray(4000)
    parts = [(20_000, memoryview(room))]

    begun = time.monotonic()
    done = fast_path_of(client).read(
        file.url, 20_000, 24_000, parts, file.info, Deadline(0.5)
    )

    assert time.monotonic() - begun < SOON
    if done:
        assert room == DATA[20_000:24_000]
        assert behaviour not in BROKEN


def test_the_fast_path_pauses_after_three_failures(server):
    file = open_file(server, attempts=1)
    server.behave("/a.tar", "status_500")
    for _ in range(3):
        with pytest.raises(RemoteError, match="status 500"):
            file.read(20_000, 10)
    server.behave_well()
    server.forget()

    assert file.read(20_000, 10) == DATA[20_000:20_010]
    assert [r.headers["user-agent"][:14] for r in server.requests] == ["python-urllib3"]


def test_a_closed_idle_connection_is_replaced(server):
    file = open_file(server)
    client = client_for(file.settings)
    file.read(20_000, 10)
    (idle,) = idle_connections(client)
    idle.shutdown(socket.SHUT_RDWR)

    assert file.read(20_000, 10) == DATA[20_000:20_010]


def test_a_header_with_line_ends_is_not_sent(server):
    with pytest.raises((FastshardError, ValueError)):
        open_file(server, headers={"X-Some": "thing\r\nHost: other"})
    assert not server.requests


def test_connections_are_closed_with_their_settings(server):
    file = open_file(server)
    file.read(20_000, 10)
    assert server.open_connections > 0

    del file
    gc.collect()
    deadline = time.monotonic() + 5
    while server.open_connections and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.open_connections == 0


def test_tls_is_checked(tmp_path, monkeypatch):
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    with Server({"/a.tar": DATA}, tls=True) as server:
        with pytest.raises(RemoteError, match="certificate is not trusted"):
            open_file(server)
        path = tmp_path / "trusted.pem"
        path.write_text(server.certificate)
        monkeypatch.setenv("SSL_CERT_FILE", str(path))
        forget_tls_contexts()
        try:
            file = open_file(server, timeout=10.0)
            assert file.read(20_000, 10_000) == DATA[20_000:30_000]
            assert (
                file.read_many([(17_000, 100), (49_000, 100)])[1] == DATA[49_000:49_100]
            )
        finally:
            forget_tls_contexts()


def test_requests_retries_and_cache_hits_are_counted(server, tmp_path):
    file = open_file(server, cache_dir=tmp_path, timeout=30.0)
    before = traffic.counts()
    server.forget()

    file.read(20_000, 1000)
    assert traffic.counts() == (before[0] + 1, before[1], before[2])

    file.read(20_000, 1000)  # from the cache
    file.read_many([(20_100, 100), (20_300, 100)])
    assert len(server.requests) == 1
    assert traffic.counts() == (before[0] + 1, before[1], before[2] + 3)

    server.behave("/a.tar", "status_503", times=2)
    file.read(40_000, 1000)
    requests, retries, _ = traffic.counts()
    assert requests - before[0] == len(server.requests) == 4
    assert retries - before[1] == 2
