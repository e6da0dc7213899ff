"""Authorization: one way reaches every request of ranges, of the hub, of services."""

import hashlib
import hmac

import pytest

import fastshard
from fastshard._core.io.exchange import CAN_LOOP
from fastshard.remote.exchange.body import JsonBody
from fastshard.remote.exchange.exchange import HttpExchange, ServiceRequest
from fastshard.remote.file import open_remote
from fastshard.remote.http.fast import FastHttp
from fastshard.remote.options import make_settings
from fastshard.remote.requests import authorization
from fastshard.remote.requests.request import Authorization
from support.servers.http import Server, redirect_to
from support.servers.hub import FakeHub
from support.servers.messages import plain
from support.tars import write_tar

KEY = b"a key"
DATA = bytes(range(251)) * 9_000


def mac_of(method, target, ranged):
    text = f"{method} {target} {ranged}".encode()
    return hmac.new(KEY, text, hashlib.sha256).hexdigest()


class Signature(Authorization):
    """HMAC of the method, the target and the range of a request."""

    @classmethod
    def of(cls, options):
        return cls()

    def headers(self, request):
        target = "/" + request.url.split("/", 3)[3]
        ranged = request.headers.get("Range", "")
        return {"X-Signature": mac_of(request.method, target, ranged)}

    def check_pickles(self):
        pass


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    ways = (*authorization.WAYS, Signature)
    monkeypatch.setattr(authorization, "WAYS", ways)


def is_signed(request):
    ranged = request.headers.get("range", "")
    expected = mac_of(request.method, request.target, ranged)
    return request.headers.get("x-signature") == expected


@pytest.fixture
def server():
    with Server({"/a.tar": DATA}) as server:
        yield server


@pytest.mark.parametrize("way", ["loop", "fast", "urllib3"])
def test_ranges_are_authorised(server, monkeypatch, way):
    if way != "loop" or not CAN_LOOP:
        monkeypatch.setattr(FastHttp, "begin", lambda *args: args[-1])
    if way == "urllib3":
        monkeypatch.setattr(FastHttp, "read", lambda *args: False)
        monkeypatch.setattr(FastHttp, "ask", lambda *args: None)
    url = server.at("/a.tar") + "?part=1"
    settings = make_settings({"token": "t", "timeout": 20.0}, [url])
    file = open_remote(url, settings)
    extents = [(20_000, 10), (1_500_000, 10)]
    assert file.read_many(extents) == [DATA[at : at + n] for at, n in extents]
    assert open_remote(url, settings).nbytes == len(DATA)  # a first request again

    assert len(server.requests) >= 4
    assert all(map(is_signed, server.requests))
    tokens = {request.headers["authorization"] for request in server.requests}
    assert tokens == {"Bearer t"}


def test_another_origin_gets_no_signature(server):
    with Server({"/a.tar": DATA}) as first:
        first.behave("/a.tar", redirect_to(server.at("/a.tar")))
        url = first.at("/a.tar")
        file = open_remote(url, make_settings({"timeout": 20.0}, [url]))
        assert file.read(20_000, 10) == DATA[20_000:20_010]
        assert all(map(is_signed, first.requests))
    assert server.requests
    assert not any("x-signature" in request.headers for request in server.requests)


@pytest.mark.usefixtures("loopback")
def test_listings_and_files_of_the_hub_are_authorised(tmp_path):
    data = write_tar(tmp_path / "a.tar", {"0.txt": b"x"}).read_bytes()
    with FakeHub({"o/n": {f"{i}.tar": data for i in range(5)}}) as hub:
        dataset = fastshard.open("hf://datasets/o/n", endpoint=hub.url, timeout=20.0)
        assert len(dataset) == 5
        assert any("cursor=" in request.query for request in hub.requests)
        assert all(map(is_signed, hub.requests))
        assert not any("x-signature" in each.headers for each in hub.cdn.requests)


def test_services_are_authorised(server):
    server.answer = lambda request: plain(200, "{}")
    settings = make_settings({"timeout": 20.0}, [server.at("/")])
    exchange = HttpExchange(settings, settings, by_proxy=False)
    for method, body in (("GET", None), ("POST", JsonBody({"a": 1}))):
        request = ServiceRequest(method, server.at("/xrpc/a.b.c?d=1"), body=body)
        assert exchange.send(request, trusted=True).status == 200
    assert [request.method for request in server.requests] == ["GET", "POST"]
    assert all(map(is_signed, server.requests))
