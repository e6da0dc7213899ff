"""DIDs and handles: documents that lie, and servers that they must not name."""

import pytest

from fastshard.atmosphere import identity
from fastshard.errors import (
    FastshardError,
    HandleNotFoundError,
    IdentityError,
    RemoteError,
    XrpcError,
)
from fastshard.remote import addresses
from fastshard.typed import Atmosphere
from support.inside.typed import (
    allows_private_hosts,
    count_kept_identities,
    exchange_settings,
)
from support.servers.atproto.hostile import ANSWERS, SLOW
from support.servers.atproto.pds import FakePds
from support.servers.atproto.plc import FakePlc, make_document
from support.servers.atproto.xrpc import Reply, XrpcServer

NOTE = "com.example.note"
DID = "did:plc:ofakdki7l6loqyhejpnfgouk"


@pytest.fixture
def client(fake_pds):
    return Atmosphere(fake_pds.url, plc_url=fake_pds.plc.url, timeout=20)


def put(pds, endpoint="http://127.0.0.1:9", **changes):
    """Put the document of `DID` into the directory; None takes a field away."""
    document = {**make_document(DID, "mallory.test", endpoint), **changes}
    kept = {name: value for name, value in document.items() if value is not None}
    pds.plc.documents[DID] = kept


def service(**changes):
    given = {"id": "#atproto_pds", "type": "AtprotoPersonalDataServer"}
    given["serviceEndpoint"] = "http://127.0.0.1:9"
    return [{**given, **changes}]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"id": "did:plc:other"}, "another id"),
        ({"id": None}, "another id"),
        ({"id": 7}, "another id"),
        ({"service": None}, "names no server"),
        ({"service": []}, "names no server"),
        ({"service": "x"}, "'service' is not a list"),
        ({"service": {"id": "#atproto_pds"}}, "'service' is not a list"),
        ({"service": [None, 7, "x", [], {}]}, "names no server"),
        ({"service": [{}] * 1001}, "'service' is not a list"),
        ({"service": service(id="#other")}, "names no server"),
        ({"service": service(id="did:plc:other#atproto_pds")}, "names no server"),
        ({"service": service(id=["#atproto_pds"])}, "names no server"),
        ({"service": service(type="Other")}, "names no server"),
        ({"service": service(serviceEndpoint=None)}, "'serviceEndpoint' is not a str"),
        ({"service": service(serviceEndpoint={"a": 1})}, "is not a str"),
        ({"service": service(serviceEndpoint="")}, "expected an http"),
        ({"service": service(serviceEndpoint="x")}, "expected an http"),
        ({"service": service(serviceEndpoint="file:///etc/passwd")}, "http"),
        ({"service": service(serviceEndpoint="ftp://a.b")}, "http"),
        ({"service": service(serviceEndpoint="https://a.b/path")}, "without a path"),
        ({"service": service(serviceEndpoint="https://a.b?x=1")}, "without a path"),
        ({"service": service(serviceEndpoint="https://u:p@a.b")}, "user or password"),
        ({"service": service(serviceEndpoint="https://a.b\r\nX: y")}, "not a URL"),
        ({"service": service(serviceEndpoint="https://[::1")}, "not a URL"),
        ({"service": service(serviceEndpoint="https://a.b:99999")}, "not a URL"),
        ({"alsoKnownAs": "at://mallory.test"}, "'alsoKnownAs' is not a list"),
    ],
)
def test_a_document_without_a_server_is_refused(fake_pds, client, changes, reason):
    put(fake_pds, **changes)
    with pytest.raises(IdentityError, match=reason) as caught:
        client.get_record(f"at://{DID}/{NOTE}/k")
    assert isinstance(caught.value, ValueError)
    assert "u:p" not in str(caught.value)


def test_a_server_may_be_named_by_the_whole_did(fake_pds, client):
    put(fake_pds, service=[{"id": 1}, *service(id=f"{DID}#atproto_pds")])
    assert client.resolve_pds(DID) == "http://127.0.0.1:9"


@pytest.mark.parametrize("name", ANSWERS)
def test_a_non_document_is_an_error(fake_pds, client, name):
    fake_pds.plc.hook = ANSWERS[name]
    with pytest.raises(FastshardError) as caught:
        client.resolve_pds(DID)
    assert isinstance(caught.value, IdentityError | RemoteError)
    assert len(str(caught.value)) < 1500
    fake_pds.plc.hook = None
    put(fake_pds)
    assert client.resolve_pds(DID)  # no error is kept


@pytest.mark.parametrize("name", ["silence", "a body by drops", "half a body"])
def test_a_directory_that_does_not_answer_is_left(fake_pds, name):
    client = Atmosphere(fake_pds.url, plc_url=fake_pds.plc.url, timeout=0.2)
    fake_pds.plc.hook = SLOW[name]
    with pytest.raises(RemoteError):
        client.resolve_pds(DID)


def test_a_did_that_is_not_registered_has_no_document(client):
    with pytest.raises(IdentityError, match="has no document: DID not registered"):
        client.get_record(f"at://{DID}/{NOTE}/k")


@pytest.mark.parametrize("did", ["did:key:abc", "did:example:abc", "did:web:a:b"])
def test_other_methods_of_dids_are_refused(fake_pds, client, did):
    with pytest.raises(IdentityError, match="did:web"):
        client.get_record(f"at://{did}/{NOTE}/k")
    assert fake_pds.plc.count() == 0


# Private hosts.

PRIVATE = (
    "https://localhost",
    "http://localhost:2583",
    "https://127.0.0.1:9",
    "https://10.0.0.1",
    "https://169.254.169.254",
    "https://[::1]",
    "https://[fe80::1]",
    "https://[::ffff:127.0.0.1]",
    "https://0.0.0.0",
    "https://100.64.0.1",
    "https://2130706433",
)


@pytest.mark.parametrize("endpoint", PRIVATE)
def test_a_document_does_not_lead_into_a_private_network(fake_pds, endpoint):
    client = Atmosphere(
        fake_pds.url, plc_url=fake_pds.plc.url, private_hosts=False, timeout=20
    )
    put(fake_pds, endpoint)
    cid = "bafkreicdff6beodzj23e7triejvyylcfronm2mfwfwthyfw6emy3rnkqva"
    for read in (
        lambda: client.get_record(f"at://{DID}/{NOTE}/k"),
        lambda: client.list_records(NOTE, repo=DID),
        lambda: client.get_blob(DID, cid),
    ):
        with pytest.raises((IdentityError, addresses.RefusedHostError)) as caught:
            read()
        assert "public" in str(caught.value) or "http://" in str(caught.value)


def test_even_the_clients_own_server_is_private_to_documents(fake_pds):
    client = Atmosphere(
        fake_pds.url, plc_url=fake_pds.plc.url, private_hosts=False, timeout=20
    )
    account = fake_pds.find("alice.test")
    fake_pds.forget()
    with pytest.raises(IdentityError, match="http:// is refused"):
        client.get_record(f"at://{account.did}/{NOTE}/k")
    assert fake_pds.count() == 0
    own = Atmosphere.login(
        "alice.test",
        "password",
        base_url=fake_pds.url,
        plc_url=fake_pds.plc.url,
        private_hosts=False,
    )
    uri = own.create_record(NOTE, {})
    assert (
        own.get_record(uri).uri == uri
    )  # of the session's account, without a document


def test_a_client_of_public_servers_refuses_private_ones():
    client = Atmosphere("https://pds.example", plc_url="https://plc.example")
    assert not allows_private_hosts(client)
    assert not exchange_settings(client).private_hosts
    for url in ("http://localhost:2583", "https://10.0.0.1"):
        assert allows_private_hosts(Atmosphere(url))


def test_a_did_web_does_not_lead_into_a_private_network(fake_pds):
    client = Atmosphere(fake_pds.url, plc_url=fake_pds.plc.url, private_hosts=False)
    for host in ("localhost%3A9", "169.254.169.254", "127.0.0.1"):
        with pytest.raises((IdentityError, addresses.RefusedHostError)):
            client.resolve_pds(f"did:web:{host}")


def test_a_redirect_does_not_lead_into_a_private_network(fake_pds):
    with Web() as inside:
        client = Atmosphere(fake_pds.url, plc_url=fake_pds.plc.url, private_hosts=False)
        fake_pds.plc.hook = lambda call: Reply(b"", 302, {"location": inside.url})
        with pytest.raises(addresses.RefusedHostError):
            client.resolve_pds(DID)
        assert inside.count() == 0


class Web(XrpcServer):
    """A host with the document of its ``did:web``."""

    @property
    def did(self):
        return f"did:web:localhost%3A{self.port}"

    def respond(self, call):
        if call.path != "/.well-known/did.json":
            return Reply({"error": "NotFound"}, 404)
        return Reply(make_document(self.did, "web.test", self.endpoint))


def test_a_did_web_has_its_document_at_its_host(fake_pds, client):
    account = fake_pds.find("alice.test")
    with Web() as web:
        web.endpoint = fake_pds.url
        account.did = web.did
        fake_pds.accounts[web.did] = account
        account.records[NOTE] = {"k": ("", {"text": "one"})}
        assert client.get_record(f"at://{web.did}/{NOTE}/k")["text"] == "one"
        assert web.counts() == {"/.well-known/did.json": 1}
    assert fake_pds.plc.count() == 0


# Servers of others.


def test_a_server_that_has_not_the_repository_is_an_error(fake_pds, client):
    with FakePds(fake_pds.plc) as other:
        put(fake_pds, other.url)
        with pytest.raises(XrpcError, match="Upstream service unreachable"):
            client.get_record(f"at://{DID}/{NOTE}/k")
        with pytest.raises(KeyError, match="Could not find repo"):
            client.list_records(NOTE, repo=DID)


def test_a_server_does_not_answer_for_another_account(fake_pds, client):
    account = fake_pds.find("alice.test")
    put(fake_pds, fake_pds.url)
    account.records[NOTE] = {"k": ("", {"text": "of alice"})}

    def swap(call):
        call.params = [(k, v.replace(DID, account.did)) for k, v in call.params]

    fake_pds.hook = swap
    with pytest.raises(XrpcError, match="expected the record"):
        client.get_record(f"at://{DID}/{NOTE}/k")
    with pytest.raises(XrpcError, match="expected the record"):
        client.list_records(NOTE, repo=DID)


# Handles.


def test_a_handle_is_believed_if_its_did_has_it(fake_pds, client):
    put(fake_pds, fake_pds.url)
    assert client.resolve_did("mallory.test") == DID
    assert client.resolve_did("@Mallory.Test") == DID
    assert client.resolve_did(DID) == DID


@pytest.mark.parametrize(
    "known", [[], ["at://alice.test"], ["mallory.test"], [7, None], None]
)
def test_a_handle_that_its_did_does_not_confirm_is_refused(fake_pds, client, known):
    put(fake_pds, fake_pds.url, alsoKnownAs=known)
    fake_pds.hook = lambda call: (
        Reply({"did": DID}) if call.nsid.endswith("resolveHandle") else None
    )
    with pytest.raises(IdentityError, match="does not have it in alsoKnownAs"):
        client.resolve_did("mallory.test")
    with pytest.raises(IdentityError):
        client.list_records(NOTE, repo="mallory.test")
    assert fake_pds.count("com.atproto.repo.listRecords") == 0


def test_a_handle_of_no_account_is_a_key_error(client):
    with pytest.raises(KeyError) as caught:
        client.resolve_did("nobody.test")
    assert isinstance(caught.value, HandleNotFoundError)
    assert str(caught.value).startswith("Unable to resolve handle: nobody.test")


@pytest.mark.parametrize("name", ["", "alice", "a b.test", "alice.test/x", "x" * 300])
def test_a_non_handle_is_not_asked_for(fake_pds, client, name):
    fake_pds.forget()
    with pytest.raises(IdentityError, match="not a handle or a DID"):
        client.resolve_did(name)
    assert fake_pds.count() == 0


def test_answers_are_kept_for_a_while(fake_pds, client, monkeypatch):
    for _ in range(3):
        client.resolve_did("alice.test")
        client.resolve_pds("alice.test")
    assert (fake_pds.count(), fake_pds.plc.count()) == (1, 1)
    monkeypatch.setattr(identity, "LIFETIME", 0.0)
    later = Atmosphere(fake_pds.url, plc_url=fake_pds.plc.url)
    later.resolve_pds("alice.test")
    later.resolve_pds("alice.test")
    assert fake_pds.count() == 3


def test_kept_memory_is_bounded(fake_pds, client, monkeypatch):
    monkeypatch.setattr(identity, "MOST_KEPT", 4)
    for i in range(10):
        did = f"did:plc:{'a' * 23}{chr(97 + i)}"
        fake_pds.plc.documents[did] = make_document(did, "x.test", fake_pds.url)
        client.resolve_pds(did)
    assert count_kept_identities(client) <= 4


def test_addresses_of_servers_are_checked(fake_pds):
    for name in ("base_url", "plc_url", "appview"):
        wrong = "http://.", "http://a..b", "http://u:secret@a.b"
        for url in ("ftp://a.b", "a.b", "http://a.b/path", *wrong):
            with pytest.raises(ValueError, match=name) as caught:
                Atmosphere(**{name: url})
            assert "secret" not in str(caught.value)
        with pytest.raises(TypeError, match=name):
            Atmosphere(**{name: 7})
    with pytest.raises(ValueError, match="timeout"):
        Atmosphere(timeout=0)


def test_a_directory_is_shared_by_servers():
    with FakePlc() as plc, FakePds(plc) as one:
        one.create_account("alice.test")
        client = Atmosphere(one.url, plc_url=plc.url)
        assert client.resolve_pds("alice.test") == one.url
