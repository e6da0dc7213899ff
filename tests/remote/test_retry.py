"""Outages of servers: which failures are retried, and for how long."""

import socket
import time

import pytest

import fastshard
from fastshard import RemoteError
from fastshard.errors import RemoteNotFoundError
from fastshard.remote.deadline import Deadline
from fastshard.remote.errors import RetryError
from fastshard.remote.file import open_remote
from fastshard.remote.http.client import client_for
from fastshard.remote.options import make_settings
from support.inside.remote import forget_pools, record_pauses
from support.marks import slow
from support.servers.atproto.xrpc import XrpcServer
from support.servers.http import Server
from support.servers.messages import plain
from support.tars import write_tar
from support.threads import HANG

EACH = 3000  # bytes of a sample
COUNT = 300


def body(i: int) -> bytes:
    return bytes([i % 251 + 1]) * EACH


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    files = {}
    for k in range(3):
        first = k * COUNT // 3
        members = {f"s{first + i:04}.bin": body(first + i) for i in range(COUNT // 3)}
        path = write_tar(folder / f"{k}.tar", members)
        files[f"/{k}.tar"] = path.read_bytes()
    fastshard.build_index(folder)
    for path in folder.glob("*.fsi"):
        files[f"/{path.name}"] = path.read_bytes()
    return files


@pytest.fixture
def server(shards):
    with Server(dict(shards)) as server:
        yield server


def dataset(server, **options):
    return fastshard.open(server.url + "/", max_memory="1MB", **options)


def drain(items) -> tuple[list[str], list[Exception]]:
    """Iterate to the end, past errors; return the keys and the errors."""
    keys, errors = [], []
    while True:
        try:
            sample = next(items)
        except StopIteration:
            return keys, errors
        except RemoteError as error:
            errors.append(error)
            continue
        i = int(sample.key[1:])
        assert sample["bin"] == body(i)
        keys.append(sample.key)


def until_error(items) -> tuple[list[str], RemoteError]:
    """Return the keys before the first error, and the error."""
    keys = []
    while True:
        try:
            keys.append(next(items).key)
        except RemoteError as error:
            return keys, error


ALL = [f"s{i:04}" for i in range(COUNT)]


@pytest.mark.parametrize("order", ["shards", "shuffled"])
def test_a_failed_prefetch_is_retried_at_its_position(server, order):
    ds = dataset(server, timeout=0.8)
    expected = ALL
    if order == "shuffled":
        ds = ds.shuffle(3)
        expected = list(ds.keys())
    items = iter(ds)
    first = [next(items).key for _ in range(20)]
    server.leave()
    time.sleep(1.0)  # all prefetches fail in this time
    more, error = until_error(items)
    first += more
    assert error.transient
    server.come_back()

    keys, errors = drain(items)

    assert not errors
    assert len(first) + 1 + len(keys) == COUNT
    assert first + keys == [key for key in expected if key in {*first, *keys}]


def test_an_outage_skips_only_the_samples_due_during_it(server):
    ds = dataset(server, timeout=0.8)
    items = ds.iter(on_error="skip")
    keys = [next(items).key for _ in range(20)]
    timer = server.leave_for(4.0)
    keys += [sample.key for sample in items]
    timer.join()

    # A failing sample takes at least 0.8 s, so 4 s are at most five samples.
    assert len(keys) + items.skipped == COUNT
    assert items.skipped <= 6


def test_a_short_outage_causes_no_error(server):
    ds = dataset(server)
    items = iter(ds)
    first = [next(items).key for _ in range(20)]
    timer = server.leave_for(1.0)

    keys, errors = drain(items)

    timer.join()
    assert (first + keys, errors) == (ALL, [])


def test_batches_continue_after_an_outage(server):
    batches = dataset(server, timeout=0.8).batches(10)
    got = list(next(batches)["__key__"])
    server.leave()
    time.sleep(0.8)
    errors = 0
    while not errors:
        try:
            got += next(batches)["__key__"]
        except RemoteError:
            errors += 1
    server.come_back()

    for batch in batches:
        got += batch["__key__"]
    assert len(got) == COUNT - errors
    assert len(set(got)) == len(got)


def test_a_failed_prefetch_of_a_shard_is_retried_at_its_position(server):
    server.behave("/1.tar", "status_500")
    server.behave("/1.tar.fsi", "status_500")
    server.behave("/1.fsi", "status_500")
    items = iter(dataset(server, timeout=0.8))
    first, error = until_error(items)
    assert (first, error.status) == (ALL[:100], 500)
    server.behave_well()

    keys, errors = drain(items)

    # Only the sample at which the shard was opened is lost.
    assert (keys, errors) == (ALL[101:], [])


def test_a_missing_shard_is_not_requested_for_each_of_its_samples(server):
    del server.files["/1.tar"]
    items = iter(dataset(server))

    keys, errors = drain(items)

    assert keys == ALL[:100] + ALL[200:]
    assert len(errors) == 100
    assert all(isinstance(error, RemoteNotFoundError) for error in errors)
    requested = [request for request in server.requests if request.path == "/1.tar"]
    assert len(requested) <= 3


def test_columns_and_reads_after_an_outage(server):
    ds = dataset(server, timeout=0.8)
    assert len(ds.get_many([1, 200])) == 2
    server.leave()
    with pytest.raises(RemoteError):
        ds.get_many([5, 6])
    with pytest.raises(RemoteError):
        ds.columns([5, 6], {"bin": "u1"})
    server.come_back()

    assert [s["bin"] for s in ds.get_many([5, 6])] == [body(5), body(6)]
    assert bytes(ds.columns([5, 6], {"bin": "u1"})["bin"][1]) == body(6)
    out = bytearray(2 * EACH)
    ds.read_into([5, 6], out)
    assert out == body(5) + body(6)


@pytest.mark.parametrize("seconds", [1.0, pytest.param(5.0, marks=slow)])
def test_an_outage_shorter_than_the_timeout_is_survived(server, seconds):
    url = server.at("/0.tar")
    file = open_remote(url, make_settings({"timeout": 30.0}, [url]))
    timer = server.leave_for(seconds)

    begun = time.monotonic()
    data = file.read(20_000, 500)
    took = time.monotonic() - begun

    timer.join()
    assert data == server.files["/0.tar"][20_000:20_500]
    assert took >= seconds * 0.9


def test_an_outage_of_20_of_60_seconds_is_survived(monkeypatch):
    """Simulate an outage of 20 s by a clock that only `sleep` advances."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "monotonic_ns", lambda: int(now[0] * 1e9))
    monkeypatch.setattr(time, "sleep", lambda s: now.__setitem__(0, now[0] + s))
    for _ in range(50):
        now[0] = 0.0
        deadline, pauses, attempt = Deadline(60.0), [], 0
        while now[0] < 20.0:  # the server refuses connections
            before = now[0]
            deadline.backoff(RetryError("refused"), attempt, "u")
            pauses.append(now[0] - before)
            attempt += 1
        assert now[0] < 25.1
        assert max(pauses) <= 5.01
        assert 6 < attempt < 60

        for _ in range(200):  # the server never returns
            try:
                deadline.backoff(RetryError("refused"), attempt, "u")
            except RemoteError as error:
                assert error.transient
                break
        assert 59.9 <= now[0] <= 60.0


def test_a_handled_exception_is_not_taken_for_the_cause(server):
    url = server.at("/0.tar")
    file = open_remote(url, make_settings({"timeout": 10.0}, [url]))
    timer = server.leave_for(0.5)
    try:
        raise RemoteError("of something else", "elsewhere")
    except RemoteError:
        assert file.read(20_000, 10) == server.files["/0.tar"][20_000:20_010]
    timer.join()


def test_pauses_are_spread(monkeypatch):
    slept = record_pauses(monkeypatch)
    for _ in range(200):
        Deadline(60.0).backoff(RetryError("refused"), 5, "u")
    longest = 0.1 * 2**5
    assert min(slept) < longest / 4 < longest * 3 / 4 < max(slept) <= longest


def test_retry_after_is_respected(monkeypatch):
    slept = record_pauses(monkeypatch)
    for _ in range(20):
        Deadline(60.0).backoff(RetryError("busy", 503, 7.0), 0, "u")
    assert min(slept) >= 7.0
    with pytest.raises(RemoteError, match="asks to retry after 90 s"):
        Deadline(60.0).backoff(RetryError("busy", 503, 90.0), 0, "u")


def test_limit_is_extended_once_for_attempts():
    deadline = Deadline(1.0, 100_000)
    begun = deadline.at
    for nbytes in (50_000, 300_000, 300_000):
        deadline.extend(nbytes)
    assert (deadline.timeout, deadline.at - begun) == (4.0, 2_000_000_000)


def test_only_the_deadline_bounds_attempts_by_default(server):
    url = server.at("/0.tar")
    file = open_remote(url, make_settings({"timeout": 1.5}, [url]))
    server.behave("/0.tar", lambda exchange: plain(503))
    begun = time.monotonic()
    with pytest.raises(RemoteError, match=r"(status 503|within 1.5 s).*, after"):
        file.read(20_000, 10)
    assert 1.2 < time.monotonic() - begun < HANG
    server.forget()

    file = open_remote(
        server.at("/1.tar"), make_settings({"timeout": 30.0, "attempts": 2}, [url])
    )
    server.behave("/1.tar", lambda exchange: plain(503))
    with pytest.raises(RemoteError, match="after 2 attempts"):
        file.read(20_000, 10)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 501])
def test_refusals_are_not_retried(server, status):
    server.behave("/0.tar", lambda exchange: plain(status))
    url = server.at("/0.tar")
    with pytest.raises(RemoteError) as caught:
        open_remote(url, make_settings({"timeout": 20.0}, [url]))
    assert caught.value.status == status
    assert not caught.value.transient
    assert len(server.requests) == 1


def test_an_unknown_host_is_not_retried(server, monkeypatch):
    requested = []

    def unknown(host, *args, **kwargs):
        requested.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    url = "http://no-such-host.example/a.tar"
    with pytest.raises(RemoteError, match="host does not exist"):
        open_remote(url, make_settings({"timeout": 20.0}, [url]))
    assert len(requested) == 1


@pytest.mark.parametrize("code", [socket.EAI_NONAME, socket.EAI_AGAIN])
def test_a_temporary_dns_failure_is_retried(server, monkeypatch, code):
    url = server.at("/0.tar")
    settings = make_settings({"timeout": 20.0}, [url])
    open_remote(url, settings)
    client = client_for(settings)
    forget_pools(client)
    resolve = socket.getaddrinfo
    failures = [3]

    def lost(*args, **kwargs):
        if failures[0] > 0:
            failures[0] -= 1
            raise socket.gaierror(code, "Name or service not known")
        return resolve(*args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", lost)
    assert open_remote(url, settings).nbytes == len(server.files["/0.tar"])
    assert failures == [0]


def test_attempts_that_break_off_extend_the_time_of_a_download_once(tmp_path):
    def half(call):
        head = b'HTTP/1.1 200 OK\r\nETag: "a"\r\nContent-Length: 50000\r\n\r\n'
        call.handler.connection.sendall(head + bytes(25_000))
        raise ConnectionError

    begun = time.monotonic()
    with XrpcServer() as server:
        server.hook = half
        url = f"{server.url}/x.tar"
        settings = make_settings({"timeout": 0.5, "cache_dir": str(tmp_path)}, [url])
        with pytest.raises(RemoteError, match=r"inside the body|complete response"):
            open_remote(url, settings)

    assert server.count() > 1
    assert time.monotonic() - begun < HANG
