"""private_hosts=False: no connection is made before its address is checked."""

import socket
import threading

import pytest

import fastshard
from fastshard import RemoteError
from fastshard.remote.addresses import RefusedHostError, is_public
from fastshard.remote.file import open_remote
from fastshard.remote.http import connection
from fastshard.remote.http.client import client_for
from fastshard.remote.options import make_settings
from support.inside.remote import (
    forget_pools,
    forget_tls_contexts,
    idle_connections,
)
from support.marks import needs
from support.servers.http import Server, make_certificate, redirect_to

DATA = bytes(range(256)) * 100
PUBLIC = "93.184.216.34"


class Listener:
    """Socket that counts connections, and may send an answer."""

    def __init__(self, answer=b""):
        self.answer = answer

    def __enter__(self):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.connected = 0
        threading.Thread(target=self.count, daemon=True).start()
        return self

    def count(self):
        while True:
            try:
                sock, _ = self.socket.accept()
            except OSError:
                return
            self.connected += 1
            with sock:
                if self.answer:
                    sock.recv(4096)
                    sock.sendall(self.answer)

    def __exit__(self, *_):
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


class Resolver:
    """Fake DNS: names and their addresses, one list for each query."""

    def __init__(self, monkeypatch, answers):
        self.answers = {name: list(lists) for name, lists in answers.items()}
        self.queries = []
        self.original = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self.resolve)

    def resolve(self, host, port, *args, **kwargs):
        if host not in self.answers:  # an address
            return self.original(host, port, *args, **kwargs)
        self.queries.append(host)
        lists = self.answers[host]
        addresses = lists.pop(0) if len(lists) > 1 else lists[0]
        return [
            found
            for address in addresses
            for found in self.original(address, port, *args, **kwargs)
        ]


@pytest.fixture
def connected(monkeypatch):
    """Record the addresses that sockets connect to."""
    found = []
    connect = socket.socket.connect

    def noted(self, address):
        found.append(address[0])
        if not address[0].startswith(("127.", "::1")):
            raise ConnectionRefusedError("no network in tests")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", noted)
    return found


def strict(url, **options):
    return make_settings({"private_hosts": False, "timeout": 3.0, **options}, [url])


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("::ffff:93.184.216.34", True),
        ("64:ff9b::5db8:d822", True),
        ("127.0.0.1", False),
        ("127.8.8.8", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("100.127.255.254", False),
        ("0.0.0.0", False),
        ("0.1.2.3", False),
        ("192.0.0.8", False),
        ("198.18.0.1", False),
        ("224.0.0.1", False),
        ("239.255.255.250", False),
        ("240.0.0.1", False),
        ("255.255.255.255", False),
        ("::", False),
        ("::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:169.254.169.254", False),
        ("::127.0.0.1", False),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::a9fe:a9fe", False),
        ("64:ff9b:1::1", False),
        ("2002:7f00:1::", False),
        ("fe80::1%eth0", False),
        ("fec0::1", False),
        ("fc00::1", False),
        ("fd00:ec2::254", False),
        ("ff02::1", False),
        ("2001:db8::1", False),
        ("100::1", False),
    ],
)
def test_addresses(address, public):
    assert is_public(address) == public


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1"])
def test_nothing_connects_to_a_private_host(scheme, host):
    with Listener() as listener:
        url = f"{scheme}://{host}:{listener.port}/a.tar?Signature=secret"
        with pytest.raises(RemoteError, match=r"is not a public address") as caught:
            open_remote(url, strict(url))
    assert listener.connected == 0
    assert not caught.value.transient
    assert caught.value.attempts == 1
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "addresses", [[PUBLIC, "127.0.0.1"], ["127.0.0.1", PUBLIC], [PUBLIC, "::1"]]
)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_one_private_address_refuses_a_name(monkeypatch, connected, scheme, addresses):
    resolver = Resolver(monkeypatch, {"mixed.example": [addresses]})
    url = f"{scheme}://mixed.example/a.tar"
    with pytest.raises(RemoteError, match="is not a public address"):
        open_remote(url, strict(url))
    assert connected == []
    assert resolver.queries == ["mixed.example"]


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_checked_address_is_connected_to_if_the_name_changes(
    monkeypatch, connected, scheme
):
    answers = {"rebound.example": [[PUBLIC], ["127.0.0.1"]]}
    resolver = Resolver(monkeypatch, answers)
    url = f"{scheme}://rebound.example/a.tar"

    with pytest.raises(RemoteError, match=r"127\.0\.0\.1 is not a public address"):
        open_remote(url, strict(url))

    # The public address is connected to and fails; the retry checks the new one.
    assert connected == [PUBLIC]
    assert resolver.queries == ["rebound.example"] * 2


def test_redirects_are_checked(monkeypatch, connected):
    """The first host is patched to be public; the target of its redirect is private."""
    with Server({"/a.tar": DATA}) as server, Listener() as listener:
        original = connection.public_addresses

        def lenient(host, port):
            return ["127.0.0.1"] if host == "first.example" else original(host, port)

        monkeypatch.setattr(connection, "public_addresses", lenient)
        location = f"http://127.0.0.1:{listener.port}/b.tar"
        server.behave("/a.tar", redirect_to(location))
        url = f"http://first.example:{server.port}/a.tar"
        with pytest.raises(RefusedHostError) as caught:
            open_remote(url, strict(url))
        assert len(server.requests) == 1
    assert listener.connected == 0
    assert caught.value.url == url


def test_the_fast_path_checks_addresses(monkeypatch):
    with Server({"/a.tar": DATA}) as server:
        answers = [["127.0.0.1"]]

        def lenient(host, port):
            if not answers:
                raise RefusedHostError("10.0.0.1 is not a public address", host)
            return answers[0]

        monkeypatch.setattr(connection, "public_addresses", lenient)
        url = f"http://first.example:{server.port}/a.tar"
        file = open_remote(url, strict(url))
        assert file.read(17_000, 10) == DATA[17_000:17_010]
        client = client_for(file.settings)
        while idle := idle_connections(client):
            idle.pop().close()
        forget_pools(client)
        answers.clear()
        server.forget()
        with pytest.raises(RemoteError, match=r"10\.0\.0\.1 is not a public"):
            file.read(18_000, 10)
        assert server.connections == 0


def test_tls_verifies_the_name(monkeypatch, tmp_path):
    """SNI and the certificate check use the name, the connection the address."""
    needs("openssl")
    names = []
    pem, context = make_certificate()
    context.sni_callback = lambda sock, name, ctx: names.append(name)
    path = tmp_path / "trusted.pem"
    path.write_text(pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    monkeypatch.setattr(connection, "public_addresses", lambda *a: ["127.0.0.1"])
    forget_tls_contexts()
    try:
        with Server({"/a.tar": DATA}, tls=True) as server:
            file = open_remote(server.at("/a.tar"), strict(server.url, timeout=10.0))
            assert file.read(17_000, 100) == DATA[17_000:17_100]
            assert set(names) == {"localhost"}
            url = f"https://other.example:{server.port}/a.tar"
            with pytest.raises(RemoteError, match="certificate is not trusted"):
                open_remote(url, strict(url, timeout=10.0))
    finally:
        context.sni_callback = None
        forget_tls_contexts()


def test_an_untrusted_certificate_is_not_retried(monkeypatch):
    needs("openssl")
    with Server({"/a.tar": DATA}, tls=True) as server:
        with pytest.raises(RemoteError, match="certificate is not trusted") as caught:
            open_remote(server.at("/a.tar"), make_settings({}, [server.url]))
        assert server.connections == 1
    assert caught.value.attempts == 1
    assert not caught.value.transient


def test_tls_to_a_plain_server_is_not_retried():
    with Listener(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n") as plain:
        url = f"https://127.0.0.1:{plain.port}/a.tar"
        with pytest.raises(RemoteError, match="does not support TLS"):
            open_remote(url, make_settings({"timeout": 20.0}, [url]))
    assert plain.connected == 1


def test_a_proxy_is_refused_for_it_resolves_names_itself(monkeypatch):
    with Listener() as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("no_proxy", "")
        url = f"http://{PUBLIC}/a.tar"
        with pytest.raises(RemoteError, match="NO_PROXY"):
            open_remote(url, strict(url))
    assert proxy.connected == 0


def test_the_hub_is_checked_before_it_lists(loopback):
    from support.servers.hub import FakeHub

    with FakeHub({"o/n": {"a.tar": DATA}}) as hub:
        options = {"private_hosts": False, "endpoint": hub.url, "timeout": 5.0}
        with pytest.raises(RemoteError, match=r"127\.0\.0\.1 is not a public address"):
            fastshard.open("hf://datasets/o/n", **options)
        assert hub.connections == 0


def test_stores_are_checked_by_their_endpoints(monkeypatch):
    pytest.importorskip("obstore")
    with Listener() as listener:
        endpoint = f"http://127.0.0.1:{listener.port}"
        url = "s3://bucket/a.tar"
        with pytest.raises(RemoteError, match="is not a public address"):
            open_remote(url, strict(url, store={"endpoint": endpoint}))
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        with pytest.raises(RemoteError, match="is not a public address"):
            open_remote(url, strict(url, store={"skip_signature": True}))
    assert listener.connected == 0
